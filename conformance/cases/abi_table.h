/* SPDX-License-Identifier: Apache-2.0 */
/* abi_table.h - the public headers as data: one entry per header, type, struct, member, slot, constant and macro
 * of abi_signatures.def, which the build makes from the golden layout (abi_signatures.cmake). */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum {
    ABI_HEADER,
    ABI_CONST,
    ABI_STRING,
    ABI_MACRO,
    ABI_TYPEDEF,
    ABI_OPAQUE,
    ABI_FUNCTION,
    ABI_STRUCT,
    ABI_MEMBER,
    ABI_SLOT,
    ABI_END
} abi_entry_kind_t;

typedef struct abi_entry {
    abi_entry_kind_t kind;
    const char *owner;  /* struct, or "" */
    const char *name;   /* header, member, slot, constant, macro or type; the kind of a struct */
    const char *type;   /* of a member; the scalar behind a typedef; return type of a slot or function */
    const char *params; /* of a slot, function (types) or macro (names), with parentheses */
    const char *roles;
    size_t offset, size; /* END: size is the struct's; TYPEDEF: its own */
    int64_t number;      /* of a constant */
    const char *text;    /* of a string constant; what a macro expands to */
} abi_entry_t;

/* All entries, in the order of the headers. */
const abi_entry_t *abi_table(size_t *out_n);

/* sizeof a struct by its name; 0 = there is none. */
size_t abi_struct_size(const char *name);

/* A slot by table type and name, or NULL. */
const abi_entry_t *abi_slot_entry(const char *owner, const char *name);
