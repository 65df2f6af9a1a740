/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.h - arrays for the kernel tests: random contents with special values, unaligned starts, exact ends.
 *
 * An array starts an odd number of elements into its allocation and ends with it, so vector loads are unaligned and an
 * access past the end is one past the allocation, which the address sanitizer reports. Equality is by bits, except that
 * a NaN equals a NaN (design: Arithmetic). */
#ifndef ZF_TEST_ARRAYS_H
#define ZF_TEST_ARRAYS_H

#include <kernels.h>

/* Every table of this build and CPU, ref excluded; returns how many. */
int available_tables(const zfi_kernels_t *out_tables[ZFI_N_ISAS]);

/* A small generator (splitmix64); the tests are deterministic. */
uint64_t random_bits(void);
uint64_t random_below(uint64_t n); /* 0 where n is 0 */
float random_unit(void);           /* [-1, 1) */

typedef enum contents {
    ORDINARY, /* normal numbers around 1e-3 */
    SPECIAL,  /* one in eight is Inf, NaN, denormal, +-0, huge or tiny */
    POSITIVE, /* ordinary magnitudes and denormals: second moments */
    EDGE,     /* runs of zeros, of numbers whose squares are about 2^-108 or 2^127, and of ordinary ones */
    ANY_BITS
} contents_t;

typedef struct array {
    void *at;
    void *allocation;
    zfi_dtype_t dtype;
    uint64_t n_elems;
} array_t;

array_t array_new(zfi_dtype_t dtype, uint64_t n_elems, contents_t contents);
array_t array_copy(const array_t *from);
void array_free(array_t *array);

/* The index of the first difference, or n_elems where a equals b. */
uint64_t array_difference(const array_t *a, const array_t *b);

/* Fails the running Check test, naming what and where, unless got equals want. */
void check_arrays(const array_t *want, const array_t *got, const char *table, const char *what, uint64_t n_elems);

/* 0 where both are the same bits or both NaN. */
int doubles_differ(double a, double b);

#endif
