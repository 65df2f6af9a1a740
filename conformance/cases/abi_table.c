/* SPDX-License-Identifier: Apache-2.0 */
/* abi_table.c - the public headers as data (abi_table.h). What the golden layout lists (abi_signatures.cmake) is read
 * three times: every line is checked by the compiler against the headers (a type or signature that differs does not
 * compile), slots and structs become the table, and all of it becomes text. What the compiler cannot see, a member that
 * is in a header and not in the golden layout, leaves a gap that tests/abi/declarations.py finds. */
#include "abi_table.h"

#include <string.h>

#include "zf/bootstrap.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/collectives.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/matrix.h"
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
#define ZF_OPAQUE(T) _Static_assert(sizeof(T *) == sizeof(void *), #T);
#define ZF_FUNCTION(T, ret, params)                                                                                    \
    _Static_assert(_Generic((T)0, ret(*) params : 1, default : 0), #T " has another type");
#define ZF_MEMBER(S, type, m) IS_TYPE(S, m, type *)
#define ZF_ARRAY(S, type, n, m) IS_TYPE(S, m, type(*)[n])
#define ZF_SLOT(S, ret, m, params, roles) IS_TYPE(S, m, ret(**) params)
#include "abi_signatures.def"

/* ---- second reading: data ---------------------------------------------------------------------------------------- */

#define SIZE(S, m) offsetof(S, m), sizeof(((S *)0)->m)

#define ZF_SLOT(S, ret, m, params, roles) {#S, #m, #ret, #params, roles, SIZE(S, m)},
static const abi_entry_t slots[] = {
#include "abi_signatures.def"
};

static const struct {
    const char *name;
    size_t size;
} structs[] = {
#define ZF_STRUCT(S, kind) {#S, sizeof(S)},
#include "abi_signatures.def"
};

const abi_entry_t *abi_table(size_t *out_n) {
    *out_n = sizeof slots / sizeof slots[0];
    return slots;
}

size_t abi_struct_size(const char *name) {
    for (size_t i = 0; i < sizeof structs / sizeof structs[0]; i++)
        if (strcmp(structs[i].name, name) == 0)
            return structs[i].size;
    return 0;
}

const abi_entry_t *abi_slot_entry(const char *owner, const char *name) {
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++)
        if (strcmp(slots[i].owner, owner) == 0 && strcmp(slots[i].name, name) == 0)
            return &slots[i];
    return NULL;
}

/* ---- third reading: text ----------------------------------------------------------------------------------------- */

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

void abi_table_print(FILE *out) {
    fprintf(out, "# Layout of ABI %u.%u on LP64 machines. Written by `zf-conform abi --print-layout`.\n",
            ZF_ABI_MAJOR(ZF_ABI_0_16), ZF_ABI_MINOR(ZF_ABI_0_16));
    fprintf(out, "symbol %s int32_t (zf_bootstrap_t *)\n", ZF_PLUGIN_NEGOTIATE_SYMBOL);
#define ZF_HEADER(file) fprintf(out, "header %s\n", #file);
#define ZF_CONST(name) fprintf(out, "const %s %lld\n", #name, (long long)(name));
#define ZF_STRING(name) fprintf(out, "string %s %s\n", #name, name);
#define ZF_MACRO(name, params) fprintf(out, "macro %s%s %s\n", #name, #params, EXPANSION(name params));
#define ZF_TYPEDEF(T) fprintf(out, "typedef %s %s %zu\n", #T, SCALAR(T), sizeof(T));
#define ZF_OPAQUE(T) fprintf(out, "opaque %s\n", #T);
#define ZF_FUNCTION(T, ret, params) fprintf(out, "function %s %s %s\n", #T, #ret, #params);
#define ZF_STRUCT(S, kind) fprintf(out, "struct %s %s %zu\n", #S, #kind, sizeof(S));
#define ZF_MEMBER(S, type, m) fprintf(out, "  %zu %zu %s %s\n", SIZE(S, m), #type, #m);
#define ZF_ARRAY(S, type, n, m) fprintf(out, "  %zu %zu %s[%s] %s\n", SIZE(S, m), #type, #n, #m);
#define ZF_SLOT(S, ret, m, params, roles) fprintf(out, "  %zu %zu %s (*%s)%s\n", SIZE(S, m), #ret, #m, #params);
#include "abi_signatures.def"
}
