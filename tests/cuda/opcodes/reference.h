/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/reference.h - expected results: of single instructions, and of threads together. Values are 64-bit
 * words that hold the bits of a type. */
#pragma once

#include <stdint.h>

enum { RF_N_WORDS = 4 /* of a thread */, RF_BLOCK = 256 };

typedef enum rf_kind { RF_INT, RF_F32, RF_F64 } rf_kind_t;

typedef struct rf_row {
    const char *name;
    uint64_t (*expected)(const uint64_t in[RF_N_WORDS]);
    rf_kind_t result, operands[3];
} rf_row_t;

extern const rf_row_t rf_rows[];
extern const uint32_t rf_n_rows;

/* A kernel of one block: the result of thread t of RF_BLOCK, in[4 t ..] being the words of thread t. */
typedef struct rf_together {
    const char *name;
    uint64_t (*expected)(const uint64_t *in, uint32_t t);
} rf_together_t;

extern const rf_together_t rf_together[];
extern const uint32_t rf_n_together;
