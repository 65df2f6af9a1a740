/* abi_table.h - the public headers as data: one entry per struct, member, slot and constant of abi_signatures.def. */
#ifndef ZFC_ABI_TABLE_H
#define ZFC_ABI_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { ABI_CONST, ABI_STRING, ABI_STRUCT, ABI_MEMBER, ABI_SLOT, ABI_END } abi_entry_kind_t;

typedef struct abi_entry {
    abi_entry_kind_t kind;
    const char *owner;  /* struct, or "" */
    const char *name;   /* member, slot or constant; the kind of a struct */
    const char *type;   /* of a member; return type of a slot */
    const char *params; /* parameter types of a slot, with parentheses */
    const char *roles;
    size_t offset, size; /* END: size is the struct's */
    int64_t number;      /* of a constant */
    const char *text;    /* of a string constant */
} abi_entry_t;

/* All entries, in the order of the headers. */
const abi_entry_t *abi_table(size_t *out_n);

/* sizeof a struct by its name; 0 = there is none. */
size_t abi_struct_size(const char *name);

/* A slot by table type and name, or NULL. */
const abi_entry_t *abi_slot_entry(const char *owner, const char *name);

#endif
