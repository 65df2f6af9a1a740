/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.h - arrays for the kernel tests: random contents with special values, unaligned starts, exact ends.
 *
 * An array starts an odd number of elements into its allocation and ends with it, so vector loads are unaligned and an
 * access past the end is one past the allocation, which the address sanitizer reports. Equality is by bits, except that
 * a NaN equals a NaN (design: Arithmetic). */
#pragma once

#include <kernels.h>

/* The table that others are compared with: zf-conform exact compares it, and them, with the oracle. */
#define GENERIC zfi_kernels_of(ZFI_ISA_GENERIC)

/* Every table of this build and CPU, one after the other: for (EACH_TABLE(table)) ... */
const zfi_kernels_t *next_table(const zfi_kernels_t *table);
#define EACH_TABLE(table)                                                                                              \
    const zfi_kernels_t *table = GENERIC;                                                                              \
    table;                                                                                                             \
    table = next_table(table)

float float_of(uint32_t bits);
uint32_t bits_of(float x);

/* A small generator (splitmix64); the tests are deterministic. */
uint64_t random_bits(void);
uint64_t random_below(uint64_t n); /* 0 where n is 0 */
float random_unit(void);           /* [-1, 1) */
/* Rising, of 0 .. n-1; returns its size. */
uint64_t random_subset(uint64_t n, uint32_t *out_index);

typedef enum contents {
    ORDINARY, /* normal numbers around 1e-3 */
    SPECIAL,  /* one in eight is Inf, NaN, denormal, +-0, huge or tiny */
    POSITIVE, /* ordinary magnitudes and denormals: second moments */
    EDGE,     /* runs of zeros, of numbers whose squares are about 2^-108 or 2^127, and of ordinary ones */
    ANY_BITS
} contents_t;

typedef struct array {
    void *at;
    zfi_dtype_t dtype;
    uint64_t n_elems;
} array_t;

array_t array_new(zfi_dtype_t dtype, uint64_t n_elems, contents_t contents);
array_t array_copy(const array_t *from);
/* All there are. */
void arrays_free(void);

/* Fails the running Check test, naming what and where, unless got equals want. */
void check_arrays(const array_t *want, const array_t *got, const char *table, const char *what, uint64_t n_elems);

/* 0 where both are the same bits or both NaN. */
int doubles_differ(double a, double b);
