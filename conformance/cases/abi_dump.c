/* SPDX-License-Identifier: Apache-2.0 */
/* abi_dump.c - the layout of the headers as text, one fact per line:
 *
 *     struct zf_fence_t output 32          then its members in order, indented:
 *       0 4 uint32_t struct_size           offset, size, type, name
 *     const ZF_OK 0                        string ZF_EXT_CPU zf.cpu/1
 *     typedef zf_status_t int32_t 4        the scalar behind the name, and its size
 *     opaque zf_instance_t                 function zf_plugin_negotiate_fn int32_t (zf_bootstrap_t *)
 *     macro ZF_ABI_MAJOR(abi) ((uint32_t)(abi) >> 16)
 *     header zf/plugin.h                   every public header
 */
#include "abi_layout.h"
#include "abi_table.h"
#include "zf/types.h"

void abi_layout_dump(FILE *out) {
    size_t n;
    const abi_entry_t *entries = abi_table(&n);
    fprintf(out, "# Layout of ABI %u.%u on LP64 machines. Written by `zf-conform abi --print-layout`.\n",
            ZF_ABI_MAJOR(ZF_ABI_0_5), ZF_ABI_MINOR(ZF_ABI_0_5));
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
