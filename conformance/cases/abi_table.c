/* SPDX-License-Identifier: Apache-2.0 */
/* abi_table.c - the public headers as data (abi_table.h). What the golden layout lists (abi_signatures.cmake) is read
 * twice: first every line is checked by the compiler against the headers (a type or signature that differs does not
 * compile), then it becomes the table. What the compiler cannot see, a member that is in a header and not in the golden
 * layout, leaves a gap that the layout proof finds. */
#include "abi_table.h"

#include <string.h>

#include "zf/bootstrap.h"
#include "zf/ext/collectives.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/nodes.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/draft/shards.h"
#include "zf/ext/residency.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"
#include "zf/host.h"
#include "zf/plugin.h"
#include "zf/types.h"

/* ---- first reading: checks --------------------------------------------------------------------------------------- */

#define IS_TYPE(S, m, pointer)                                                                                         \
    _Static_assert(_Generic(&((S *)0)->m, pointer : 1, default : 0), #S "." #m " has another type");
#define ZF_HEADER(file)
#define ZF_CONST(name)
#define ZF_STRING(name)
#define ZF_MACRO(name, params)
#define ZF_TYPEDEF(T)
#define ZF_OPAQUE(T) _Static_assert(sizeof(T *) == sizeof(void *), #T);
#define ZF_FUNCTION(T, ret, params)                                                                                    \
    _Static_assert(_Generic((T)0, ret(*) params : 1, default : 0), #T " has another type");
#define ZF_STRUCT(S, kind)
#define ZF_MEMBER(S, type, m) IS_TYPE(S, m, type *)
#define ZF_ARRAY(S, type, n, m) IS_TYPE(S, m, type(*)[n])
#define ZF_SLOT(S, ret, m, params, roles) IS_TYPE(S, m, ret(**) params)
#define ZF_END(S)
#include "abi_signatures.def"
#undef ZF_HEADER
#undef ZF_CONST
#undef ZF_STRING
#undef ZF_MACRO
#undef ZF_TYPEDEF
#undef ZF_OPAQUE
#undef ZF_FUNCTION
#undef ZF_STRUCT
#undef ZF_MEMBER
#undef ZF_ARRAY
#undef ZF_SLOT
#undef ZF_END

/* ---- second reading: data ---------------------------------------------------------------------------------------- */

#define STRING(...) #__VA_ARGS__
#define EXPANSION(...) STRING(__VA_ARGS__)
/* The scalar behind a typedef. An enum passes for its integer here; tests/abi/declarations.py reads the text. */
#define SCALAR(T)                                                                                                      \
    _Generic((T *)0, int8_t *                                                                                          \
             : "int8_t", uint8_t *                                                                                     \
             : "uint8_t", int16_t *                                                                                    \
             : "int16_t", uint16_t *                                                                                   \
             : "uint16_t", int32_t *                                                                                   \
             : "int32_t", uint32_t *                                                                                   \
             : "uint32_t", int64_t *                                                                                   \
             : "int64_t", uint64_t *                                                                                   \
             : "uint64_t", float *                                                                                     \
             : "float", double *                                                                                       \
             : "double", default                                                                                       \
             : "no-scalar")
#define SIZE(S, m) offsetof(S, m), sizeof(((S *)0)->m)
#define ZF_HEADER(file) {ABI_HEADER, "", #file, "", "", "", 0, 0, 0, ""},
#define ZF_CONST(name) {ABI_CONST, "", #name, "", "", "", 0, 0, (int64_t)(name), ""},
#define ZF_STRING(name) {ABI_STRING, "", #name, "", "", "", 0, 0, 0, name},
#define ZF_MACRO(name, params) {ABI_MACRO, "", #name, "", #params, "", 0, 0, 0, EXPANSION(name params)},
#define ZF_TYPEDEF(T) {ABI_TYPEDEF, "", #T, SCALAR(T), "", "", 0, sizeof(T), 0, ""},
#define ZF_OPAQUE(T) {ABI_OPAQUE, "", #T, "", "", "", 0, 0, 0, ""},
#define ZF_FUNCTION(T, ret, params) {ABI_FUNCTION, "", #T, #ret, #params, "", 0, 0, 0, ""},
#define ZF_STRUCT(S, kind) {ABI_STRUCT, #S, #kind, "", "", "", 0, sizeof(S), 0, ""},
#define ZF_MEMBER(S, type, m) {ABI_MEMBER, #S, #m, #type, "", "", SIZE(S, m), 0, ""},
#define ZF_ARRAY(S, type, n, m) {ABI_MEMBER, #S, #m, #type "[" #n "]", "", "", SIZE(S, m), 0, ""},
#define ZF_SLOT(S, ret, m, params, roles) {ABI_SLOT, #S, #m, #ret, #params, roles, SIZE(S, m), 0, ""},
#define ZF_END(S) {ABI_END, #S, "", "", "", "", 0, sizeof(S), 0, ""},
static const abi_entry_t entries[] = {
#include "abi_signatures.def"
};

const abi_entry_t *abi_table(size_t *out_n) {
    *out_n = sizeof entries / sizeof entries[0];
    return entries;
}

size_t abi_struct_size(const char *name) {
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (entries[i].kind == ABI_END && strcmp(entries[i].owner, name) == 0)
            return entries[i].size;
    return 0;
}

const abi_entry_t *abi_slot_entry(const char *owner, const char *name) {
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (entries[i].kind == ABI_SLOT && strcmp(entries[i].owner, owner) == 0 && strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}
