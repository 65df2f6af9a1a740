/* SPDX-License-Identifier: Apache-2.0 */
/* abi_call.c - slots through libffi (abi_call.h). */
#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include "abi_call.h"

#include <ffi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void broken(const abi_entry_t *entry, const char *why) {
    fprintf(stderr, "zf-conform: table of signatures: %s.%s: %s\n", entry->owner, entry->name, why);
    exit(2);
}

static void parse_role(const abi_entry_t *entry, const char *word, abi_role_t *out) {
    static const struct {
        const char *names;
        char nbytes;
    } kinds[] = {{" instance queue in out handle array ids outids err str text buf strs ptr fn tensors ", 0},
                 {" n elem flags what index id nstrs ", 4},
                 {" u64 nbytes ", 8}};
    size_t n = strcspn(word, ":?~");
    const char *type = strchr(word, ':');
    char name[sizeof out->name + 2];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.*s", (int)n, word);
    snprintf(out->type, sizeof out->type, "%s", type ? type + 1 : "");
    snprintf(name, sizeof name, " %s ", out->name);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strstr(kinds[i].names, name)) {
            out->is_pointer = kinds[i].nbytes == 0;
            out->nbytes = out->is_pointer ? (char)sizeof(void *) : kinds[i].nbytes;
        }
    if (!out->nbytes)
        broken(entry, "unknown role");
    if (*out->type && !abi_struct_size(out->type))
        broken(entry, "unknown struct in a role");
    out->null_is = word[n] == '?' || word[n] == '~' ? word[n] : strcmp(out->name, "err") == 0 ? '?' : '!';
}

void abi_slot_parse(const abi_entry_t *entry, abi_slot_t *out) {
    char roles[128], *save = NULL;
    int n_commas = 0, depth = 0;
    memset(out, 0, sizeof *out);
    out->entry = entry;
    out->ret = strcmp(entry->type, "zf_status_t") == 0 ? 's'
               : strcmp(entry->type, "void") == 0      ? 'v'
               : strchr(entry->type, '*')              ? 'p'
                                                       : 'u';
    snprintf(roles, sizeof roles, "%s", entry->roles);
    for (char *word = strtok_r(roles, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        if (out->n_args == ABI_MAX_ARGS)
            broken(entry, "too many roles");
        parse_role(entry, word, &out->args[out->n_args++]);
    }
    for (const char *s = entry->params; *s; s++)
        depth += (*s == '(') - (*s == ')'), n_commas += *s == ',' && depth == 1;
    if (out->n_args != (strcmp(entry->params, "(void)") == 0 ? 0 : n_commas + 1))
        broken(entry, "one role per parameter");
}

void *abi_slot_function(const void *table, const abi_slot_t *slot) {
    uint32_t struct_size;
    void *function;
    if (!table)
        return NULL;
    memcpy(&struct_size, table, sizeof struct_size);
    if (slot->entry->offset + slot->entry->size > struct_size)
        return NULL;
    memcpy(&function, (const char *)table + slot->entry->offset, sizeof function);
    return function;
}

int32_t abi_slot_call(const void *table, const abi_slot_t *slot, abi_value_t *args, void **out_pointer) {
    ffi_type *types[ABI_MAX_ARGS], *ret = slot->ret == 's'   ? &ffi_type_sint32
                                          : slot->ret == 'u' ? &ffi_type_uint32
                                          : slot->ret == 'p' ? &ffi_type_pointer
                                                             : &ffi_type_void;
    void *values[ABI_MAX_ARGS], *function = abi_slot_function(table, slot);
    union {
        ffi_arg word;
        ffi_sarg signed_word;
        void *pointer;
    } result = {0};
    void (*code)(void);
    ffi_cif cif;
    for (int i = 0; i < slot->n_args; i++) {
        const abi_role_t *role = &slot->args[i];
        types[i] = role->is_pointer ? &ffi_type_pointer : role->nbytes == 8 ? &ffi_type_uint64 : &ffi_type_uint32;
        values[i] = &args[i];
    }
    if (ffi_prep_cif(&cif, FFI_DEFAULT_ABI, (unsigned)slot->n_args, ret, types) != FFI_OK)
        broken(slot->entry, "libffi refuses it");
    memcpy(&code, &function, sizeof code);
    ffi_call(&cif, code, &result, values);
    if (out_pointer)
        *out_pointer = result.pointer;
    return slot->ret == 's' ? (int32_t)result.signed_word : slot->ret == 'u' ? (int32_t)result.word : 0;
}
