/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch_ranks.c - kernels of several ranks (kernels/launch.h) against naive loops, in every instruction set. */
#include <launch.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "suite.h"

enum { MOST_RANKS = 5, MOST_ELEMS = 5000, GUARD = 0xA5 };

typedef void (*trial_fn)(const zfi_kernels_t *table, zfi_dtype_t dtype, uint32_t n_ranks, uint32_t n);

static void try_all(trial_fn trial) {
    static const zfi_dtype_t dtypes[] = {ZFI_F32, ZFI_BF16, ZFI_F16};
    static const uint32_t lengths[] = {0, 1, 7, 64, 2048, 2049, MOST_ELEMS};
    for (EACH_TABLE(table))
        for (size_t d = 0; d < 3; d++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (uint32_t n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++)
                    trial(table, dtypes[d], n_ranks, lengths[i]);
}

static float widen_one(const void *array, zfi_dtype_t dtype, uint64_t i) {
    float x;
    GENERIC->widen(&x, (const char *)array + i * zfi_dtype_nbytes(dtype), dtype, 1);
    return x;
}

static void narrow_one(void *array, zfi_dtype_t dtype, uint64_t i, float x) {
    GENERIC->narrow((char *)array + i * zfi_dtype_nbytes(dtype), dtype, &x, 1);
}

/* n elements and one more of guard bytes. */
static void *array_of(zfi_dtype_t dtype, uint64_t n, int is_drawn) {
    unsigned char *array = malloc((n + 1) * zfi_dtype_nbytes(dtype));
    ck_assert_ptr_nonnull(array);
    memset(array, GUARD, (n + 1) * zfi_dtype_nbytes(dtype));
    for (uint64_t i = 0; i < n && is_drawn; i++)
        narrow_one(array, dtype, i, random_unit() * (random_below(4) ? 1.0f : 1e-3f));
    return array;
}

static void sum_naively(const zfi_sum_parts_args_t *args, void *out) {
    for (uint64_t i = 0; i < args->n_elems; i++) {
        float sum = 0.0f;
        for (uint32_t r = 0; r < args->n_ranks; r++) {
            float x = r == args->rank ? widen_one(args->own, args->dtype, i)
                                      : widen_one(args->arrived, args->dtype, r * args->n_elems + i);
            sum = r ? sum + x : x;
        }
        narrow_one(out, args->dtype, i, args->divisor ? sum / (float)args->divisor : sum);
    }
}

/* One element of one rank is not finite, in every second case; behind what is looked at it does not count. */
static void spoil(const zfi_sum_parts_args_t *args, void *own, void *arrived, uint64_t *out_found) {
    uint32_t rank = (uint32_t)random_below(args->n_ranks);
    uint64_t i = random_below(args->n_elems);
    *out_found = 0;
    if (!args->n_elems || random_below(2))
        return;
    narrow_one(rank == args->rank ? own : arrived, args->dtype, rank == args->rank ? i : rank * args->n_elems + i,
               random_below(2) ? NAN : -INFINITY);
    *out_found = i < args->n_looked ? args->found_as | rank : 0;
}

static void try_sum(const zfi_kernels_t *table, zfi_dtype_t dtype, uint32_t n_ranks, uint32_t n) {
    void *own = array_of(dtype, n, 1), *arrived = array_of(dtype, (uint64_t)n_ranks * n, 1);
    void *want = array_of(dtype, n, 0);
    uint64_t found = 0, want_found;
    zfi_sum_parts_args_t args = {.own = own,
                                 .arrived = arrived,
                                 .out = own, /* in place, as the engine has it */
                                 .n_elems = n,
                                 .dtype = dtype,
                                 .rank = (uint32_t)random_below(n_ranks),
                                 .n_ranks = n_ranks,
                                 .divisor = (uint32_t)(random_below(2) * (n_ranks + random_below(3))),
                                 .found = &found,
                                 .found_as = 7ull << 32,
                                 .n_looked = random_below(n + 1)};
    spoil(&args, own, arrived, &want_found);
    sum_naively(&args, want);
    zfi_launch_cpu[ZFI_KERNEL_SUM_PARTS](table, &args);
    ck_assert_msg(memcmp(own, want, (n + 1ull) * zfi_dtype_nbytes(dtype)) == 0, "%s: %u elements of %u ranks",
                  table->name, n, n_ranks);
    ck_assert_uint_eq(found, want_found);
    free(own);
    free(arrived);
    free(want);
}

ZT_TEST(sum_parts) { try_all(try_sum); }

ZT_SUITE("launch_ranks")
