/* SPDX-License-Identifier: Apache-2.0 */
/* abi_layout.c - proof 1 (abi_layout.h). The layout is of LP64 machines; the golden file is compared there only. As
 * text it has one fact per line:
 *
 *     struct zf_fence_t output 32          then its members in order, indented:
 *       0 4 uint32_t struct_size           offset, size, type, name
 *     const ZF_OK 0                        string ZF_EXT_CPU zf.cpu/1
 *     typedef zf_status_t int32_t 4        the scalar behind the name, and its size
 *     opaque zf_instance_t                 function zf_plugin_negotiate_fn int32_t (zf_bootstrap_t *)
 *     macro ZF_ABI_MAJOR(abi) ((uint32_t)(abi) >> 16)
 *     header zf/plugin.h                   every public header
 */
#define _GNU_SOURCE /* open_memstream */
#include "abi_layout.h"

#include <stdlib.h>
#include <string.h>

#include "abi_table.h"
#include "zf/types.h"

/* ---- files of abi/ inside the program ------------------------------------------------------------------------------
 */

#ifndef ZFC_ABI_DIR
#error "compile with -DZFC_ABI_DIR=\"...\": the folder abi/ of the source tree"
#endif

#define EMBED(symbol, file)                                                                                            \
    __asm__(".section .rodata\n" #symbol ":\n.incbin \"" file "\"\n.byte 0\n.previous\n");                             \
    extern const char symbol[] __attribute__((visibility("hidden")));

EMBED(zfc_embedded_layout, ZFC_ABI_DIR "/layout/v0.6.txt")
EMBED(zfc_embedded_exports, ZFC_ABI_DIR "/exports.txt")

const char *abi_golden_exports(void) { return zfc_embedded_exports; }

/* ---- the layout as text -------------------------------------------------------------------------------------------
 */

void abi_layout_dump(FILE *out) {
    size_t n;
    const abi_entry_t *entries = abi_table(&n);
    fprintf(out, "# Layout of ABI %u.%u on LP64 machines. Written by `zf-conform abi --print-layout`.\n",
            ZF_ABI_MAJOR(ZF_ABI_0_6), ZF_ABI_MINOR(ZF_ABI_0_6));
    fprintf(out, "symbol %s int32_t (zf_bootstrap_t *)\n", ZF_PLUGIN_NEGOTIATE_SYMBOL);
    for (size_t i = 0; i < n; i++) {
        const abi_entry_t *e = &entries[i];
        switch (e->kind) {
        case ABI_HEADER:
            fprintf(out, "header %s\n", e->name);
            break;
        case ABI_CONST:
            fprintf(out, "const %s %lld\n", e->name, (long long)e->number);
            break;
        case ABI_STRING:
            fprintf(out, "string %s %s\n", e->name, e->text);
            break;
        case ABI_MACRO:
            fprintf(out, "macro %s%s %s\n", e->name, e->params, e->text);
            break;
        case ABI_TYPEDEF:
            fprintf(out, "typedef %s %s %zu\n", e->name, e->type, e->size);
            break;
        case ABI_OPAQUE:
            fprintf(out, "opaque %s\n", e->name);
            break;
        case ABI_FUNCTION:
            fprintf(out, "function %s %s %s\n", e->name, e->type, e->params);
            break;
        case ABI_STRUCT:
            fprintf(out, "struct %s %s %zu\n", e->owner, e->name, e->size);
            break;
        case ABI_MEMBER:
            fprintf(out, "  %zu %zu %s %s\n", e->offset, e->size, e->type, e->name);
            break;
        case ABI_SLOT:
            fprintf(out, "  %zu %zu %s (*%s)%s\n", e->offset, e->size, e->type, e->name, e->params);
            break;
        case ABI_END:
            break;
        }
    }
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static void fail(abi_report_t *report, const char *format, const char *a, const char *b) {
    char detail[ABI_DETAIL_NBYTES];
    snprintf(detail, sizeof detail, format, a, b);
    abi_report_add(report, ABI_RULE_LAYOUT, ABI_FAIL, detail);
}

/* Copies the next line that says something; 0 at the end. */
static int next_line(const char **text, char *out, size_t nbytes) {
    while (**text) {
        size_t n = strcspn(*text, "\n");
        snprintf(out, nbytes, "%.*s", (int)n, *text);
        *text += n + ((*text)[n] == '\n');
        if (n && *out != '#')
            return 1;
    }
    return 0;
}

/* Line by line; the first difference is a FAIL. */
static void compare(abi_report_t *report, const char *golden, const char *now) {
    char want[256], have[256];
    for (;;) {
        int is_want = next_line(&golden, want, sizeof want), is_have = next_line(&now, have, sizeof have);
        if (!is_want && !is_have)
            break;
        if (!is_want || !is_have || strcmp(want, have) != 0) {
            fail(report, "golden \"%s\", headers \"%s\"", is_want ? want : "(end)", is_have ? have : "(end)");
            return;
        }
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
    }
}

/* ---- rules of every version -------------------------------------------------------------------------------------- */

static int is_allowed_type(const char *type, size_t size) {
    static const char *const allowed[] = {"uint8_t",  "uint16_t", "int32_t",     "uint32_t",   "int64_t",
                                          "uint64_t", "double",   "zf_status_t", "zf_dtype_t", "zf_dl_tensor_t"};
    if (strchr(type, '*'))
        return size == sizeof(void *);
    if (strncmp(type, "char[", 5) == 0)
        return 1;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(type, allowed[i]) == 0)
            return 1;
    return 0;
}

/* No gap between members, none at the end, struct_size first, sizes of 8 bytes. */
static void check_struct(abi_report_t *report, const abi_entry_t *e) {
    const abi_entry_t *first = e + 1;
    int is_value = strcmp(e->name, "value") == 0;
    size_t end = 0;
    if (!is_value && (strcmp(first->name, "struct_size") != 0 || first->offset != 0))
        fail(report, "%s does not begin with struct_size%s", e->owner, "");
    if (e->size % (is_value ? 4 : 8))
        fail(report, "%s: its size is no multiple of 8%s", e->owner, "");
    for (e++; e->kind != ABI_END; e++) {
        if (e->offset != end)
            fail(report, "%s.%s: a gap before it, or a member that the table lacks", e->owner, e->name);
        if (e->kind == ABI_MEMBER && !is_allowed_type(e->type, e->size))
            fail(report, "%s: type %s is not allowed", e->owner, e->type);
        end = e->offset + e->size;
    }
    if (end != e->size)
        fail(report, "%s: a gap at its end, or a member that the table lacks%s", e->owner, "");
    else
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
}

void abi_layout_check(abi_report_t *report) {
    char *now = NULL;
    size_t nbytes = 0, n;
    const abi_entry_t *entries = abi_table(&n);
    FILE *f = open_memstream(&now, &nbytes);
    if (!f) {
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_FAIL, "no memory");
        return;
    }
    abi_layout_dump(f);
    fclose(f);
    for (size_t i = 0; i < n; i++)
        if (entries[i].kind == ABI_STRUCT)
            check_struct(report, &entries[i]);
    if (sizeof(void *) == 8)
        compare(report, zfc_embedded_layout, now);
    else
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_SKIP, "the golden layout is of 64-bit machines");
    free(now);
}
