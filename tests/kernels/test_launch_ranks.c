/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch_ranks.c - kernels of several ranks (kernels/launch.h) against naive loops, in every instruction set. */
#include <launch.h>

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"

enum { MOST_RANKS = 5, MOST_ELEMS = 5000, GUARD = 0xA5 };

typedef void (*trial_fn)(const zfi_kernels_t *table, zfi_dtype_t dtype, uint32_t n_ranks, uint32_t n);

static void try_all(trial_fn trial) {
    static const zfi_dtype_t dtypes[] = {ZFI_F32, ZFI_BF16, ZFI_F16};
    static const uint32_t lengths[] = {0, 1, 7, 64, 2048, 2049, MOST_ELEMS};
    for (int isa = 0; isa < ZFI_N_ISAS; isa++)
        for (size_t d = 0; d < 3 && zfi_kernels_of((zfi_isa_t)isa); d++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (uint32_t n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++)
                    trial(zfi_kernels_of((zfi_isa_t)isa), dtypes[d], n_ranks, lengths[i]);
}

static uint32_t draw(void) {
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static float draw_value(void) { return (float)((double)draw() / 0x1p31 - 0.5) * (draw() % 4 ? 1.0f : 1e-3f); }

static float widen_one(const void *array, zfi_dtype_t dtype, uint64_t i) {
    if (dtype == ZFI_F32)
        return ((const float *)array)[i];
    return dtype == ZFI_BF16 ? zfi_bf16_to_f32(((const uint16_t *)array)[i])
                             : zfi_f16_to_f32(((const uint16_t *)array)[i]);
}

static void narrow_one(void *array, zfi_dtype_t dtype, uint64_t i, float x) {
    if (dtype == ZFI_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = dtype == ZFI_BF16 ? zfi_f32_to_bf16(x) : zfi_f32_to_f16(x);
}

/* n elements and one more of guard bytes. */
static void *array_of(zfi_dtype_t dtype, uint64_t n, int is_drawn) {
    unsigned char *array = malloc((n + 1) * zfi_dtype_nbytes(dtype));
    ck_assert_ptr_nonnull(array);
    memset(array, GUARD, (n + 1) * zfi_dtype_nbytes(dtype));
    for (uint64_t i = 0; i < n && is_drawn; i++)
        narrow_one(array, dtype, i, draw_value());
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

static void try_sum(const zfi_kernels_t *table, zfi_dtype_t dtype, uint32_t n_ranks, uint32_t n) {
    void *own = array_of(dtype, n, 1), *arrived = array_of(dtype, (uint64_t)n_ranks * n, 1);
    void *want = array_of(dtype, n, 0);
    zfi_sum_parts_args_t args = {.own = own,
                                 .arrived = arrived,
                                 .out = own, /* in place, as the engine has it */
                                 .n_elems = n,
                                 .dtype = dtype,
                                 .rank = draw() % n_ranks,
                                 .n_ranks = n_ranks,
                                 .divisor = draw() % 2 * (n_ranks + draw() % 3)};
    sum_naively(&args, want);
    zfi_launch_cpu[ZFI_KERNEL_SUM_PARTS](table, &args);
    ck_assert_msg(memcmp(own, want, (n + 1ull) * zfi_dtype_nbytes(dtype)) == 0, "%s: %u elements of %u ranks",
                  table->name, n, n_ranks);
    free(own);
    free(arrived);
    free(want);
}

START_TEST(sum_parts) { try_all(try_sum); }
END_TEST

/* n_ranks stretches, turned round. */
static void try_move(const zfi_kernels_t *table, zfi_dtype_t dtype, uint32_t n_ranks, uint32_t n) {
    size_t elem = zfi_dtype_nbytes(dtype);
    uint64_t all = (uint64_t)n_ranks * n;
    unsigned char *from = array_of(dtype, all, 1), *to = array_of(dtype, all, 0);
    unsigned char *back = array_of(dtype, all, 0);
    zfi_move_t moves[MOST_RANKS];
    zfi_move_args_t args = {.moves = moves, .n = n_ranks, .dtype = dtype, .from = from, .to = to};
    for (uint32_t r = 0; r < n_ranks; r++)
        moves[r] = (zfi_move_t){r * n, (n_ranks - 1 - r) * n, n};
    zfi_launch_cpu[ZFI_KERNEL_MOVE](table, &args);
    for (uint32_t r = 0; r < n_ranks; r++)
        ck_assert_int_eq(memcmp(from + r * n * elem, to + (n_ranks - 1 - r) * n * elem, n * elem), 0);
    ck_assert_int_eq(to[all * elem], GUARD);
    args.from = back; /* and turned again: what it was */
    args.goes_back = 1;
    zfi_launch_cpu[ZFI_KERNEL_MOVE](table, &args);
    ck_assert_int_eq(memcmp(from, back, all * elem), 0);
    ck_assert_int_eq(back[all * elem], GUARD);
    free(from);
    free(to);
    free(back);
}

START_TEST(move) { try_all(try_move); }
END_TEST

ZT_MAIN("launch_ranks", sum_parts, move)
