/* SPDX-License-Identifier: Apache-2.0 */
/* abi_call.h - calling any slot of any table through libffi, from the one table of signatures. */
#pragma once

#include "abi_table.h"

enum { ABI_MAX_ARGS = 8 };

typedef union abi_value {
    void *p;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
} abi_value_t;

typedef struct abi_role {
    char name[16];
    char type[32]; /* after the colon: struct */
    char null_is;  /* '!' refused, '?' legal, '~' either */
    char is_pointer;
    char nbytes; /* 4 or 8 */
} abi_role_t;

typedef struct abi_slot {
    const abi_entry_t *entry;
    int n_args;
    abi_role_t args[ABI_MAX_ARGS];
    char ret; /* 's' status, 'u' uint32_t, 'p' pointer, 'v' void */
} abi_slot_t;

/* Reads the roles of an entry; aborts the program on a table that contradicts itself. */
void abi_slot_parse(const abi_entry_t *entry, abi_slot_t *out);

/* The function in the table, or NULL when the slot lies outside the table's struct_size or is empty. */
void *abi_slot_function(const void *table, const abi_slot_t *slot);

/* Calls it. The status, the number or 0 for void; a returned pointer goes to *out_pointer (may be NULL). */
int32_t abi_slot_call(const void *table, const abi_slot_t *slot, abi_value_t *args, void **out_pointer);
