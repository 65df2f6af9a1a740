/* SPDX-License-Identifier: Apache-2.0 */
/* abi_table.h - the public headers as data: what abi_signatures.def lists, which the build makes from the golden layout
 * (abi_signatures.cmake). */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct abi_entry {    /* a slot */
    const char *owner, *name; /* struct, member */
    const char *type;         /* that it returns */
    const char *params;       /* types, with parentheses */
    const char *roles;
    size_t offset, size;
} abi_entry_t;

/* All slots, in the order of the headers. */
const abi_entry_t *abi_table(size_t *out_n);

/* sizeof a struct by its name; 0 = there is none. */
size_t abi_struct_size(const char *name);

/* A slot by table type and name, or NULL. */
const abi_entry_t *abi_slot_entry(const char *owner, const char *name);

/* The layout as text, one fact per line; that of LP64 machines is golden (abi/layout/):
 *
 *     struct zf_fence_t output 32          then its members in order, indented:
 *       0 4 uint32_t struct_size           offset, size, type, name
 *     const ZF_OK 0                        string ZF_EXT_CPU zf.cpu/1
 *     typedef zf_status_t int32_t 4        the scalar behind the name, and its size
 *     opaque zf_instance_t                 function zf_plugin_negotiate_fn int32_t (zf_bootstrap_t *)
 *     macro ZF_ABI_MAJOR(abi) ((uint32_t)(abi) >> 16)
 *     header zf/plugin.h                   every public header
 */
void abi_table_print(FILE *out);
