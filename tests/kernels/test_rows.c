/* SPDX-License-Identifier: Apache-2.0 */
/* test_rows.c - element-wise passes: conversions exhaustively and against independent definitions, mean and
 * accumulation against ref. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "suite.h"

static uint32_t bits_of(float x) {
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Widening is exact, so narrowing gives every pattern back (a signalling NaN becomes quiet). */
START_TEST(bf16_all_patterns) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);
    static uint16_t patterns[65536], back[65536];
    static float wide[65536];

    for (uint32_t i = 0; i < 65536; i++)
        patterns[i] = (uint16_t)i;
    for (int t = -1; t < n_tables; t++) {
        const zfi_kernels_t *table = t < 0 ? zfi_kernels_ref() : tables[t];

        table->widen(wide, patterns, ZFI_BF16, 65536);
        table->narrow(back, ZFI_BF16, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            const uint32_t is_nan = (i & 0x7fff) > 0x7f80;

            ck_assert_uint_eq(bits_of(wide[i]), i << 16);
            ck_assert_uint_eq(back[i], i | (is_nan ? 0x40u : 0u));
        }
    }
}
END_TEST

/* Nearest of the two neighbours in double, even on a tie; 2^128 stands for Inf. */
static uint16_t nearest_bf16(float x) {
    const uint32_t sign = bits_of(x) >> 16 & 0x8000u;
    const uint32_t below = bits_of(x) >> 16 & 0x7fffu;
    const double low = (double)zfi_bf16_to_f32((uint16_t)below);
    const double high = below == 0x7f7f ? 0x1p128 : (double)zfi_bf16_to_f32((uint16_t)(below + 1));
    const double to_low = fabs((double)x) - low, to_high = high - fabs((double)x);

    if (isinf(x) || to_low < to_high || (to_low == to_high && below % 2 == 0))
        return (uint16_t)(sign | below);
    return (uint16_t)(sign | (below + 1));
}

START_TEST(bf16_random_is_nearest_even) {
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)random_bits();
        float x;

        if (i % 4 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u; /* a tie */
        memcpy(&x, &bits, sizeof x);
        if (!isnan(x))
            ck_assert_uint_eq(zfi_f32_to_bf16(x), nearest_bf16(x));
    }
}
END_TEST

/* The value of the bits, from IEEE 754's definition. */
static float value_of_half(uint32_t bits) {
    const int exponent = (int)(bits >> 10 & 31u);
    const float fraction = (float)(bits & 0x3ffu);
    float magnitude;

    if (exponent == 31)
        magnitude = fraction > 0 ? NAN : INFINITY;
    else
        magnitude = exponent == 0 ? ldexpf(fraction, -24) : ldexpf(fraction + 1024.0f, exponent - 25);
    return copysignf(magnitude, bits & 0x8000u ? -1.0f : 1.0f);
}

/* Narrowing gives every pattern back; a NaN keeps its bits and becomes quiet, on the way up already. */
START_TEST(f16_all_patterns) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);
    static uint16_t patterns[65536], back[65536];
    static float wide[65536];

    for (uint32_t i = 0; i < 65536; i++)
        patterns[i] = (uint16_t)i;
    for (int t = -1; t < n_tables; t++) {
        const zfi_kernels_t *table = t < 0 ? zfi_kernels_ref() : tables[t];

        table->widen(wide, patterns, ZFI_F16, 65536);
        table->narrow(back, ZFI_F16, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            const uint32_t quiet = (i & 0x7fff) > 0x7c00 ? 0x200u : 0u;

            if (quiet)
                ck_assert_uint_eq(bits_of(wide[i]), (i & 0x8000u) << 16 | 0x7f800000u | ((i | quiet) & 0x3ffu) << 13);
            else
                ck_assert_uint_eq(bits_of(wide[i]), bits_of(value_of_half(i)));
            ck_assert_uint_eq(back[i], i | quiet);
        }
    }
}
END_TEST

/* Nearest of the two neighbours in double, even on a tie; 2^16 stands for Inf. */
static uint16_t nearest_half(float x) {
    const uint32_t sign = bits_of(x) >> 16 & 0x8000u;
    const double magnitude = fabs((double)x);
    uint32_t low = 0, high = 0x7c00; /* bisection: value(low) <= |x| < value(high) */

    if (magnitude >= 0x1p16)
        return (uint16_t)(sign | 0x7c00u);
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;

        if ((double)value_of_half(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    {
        const double to_low = magnitude - (double)value_of_half(low);
        const double to_high = (high == 0x7c00 ? 0x1p16 : (double)value_of_half(high)) - magnitude;

        return (uint16_t)(sign | (to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high));
    }
}

START_TEST(f16_random_is_nearest_even) {
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)random_bits();
        float x;

        if (i % 2 == 0)
            bits = (bits & 0x80ffffffu) | (uint32_t)(0x33 + random_below(21)) << 24; /* in and near the range */
        if (i % 4 == 0)
            bits = (bits & 0xffffe000u) | 0x1000u; /* a tie of normal numbers */
        memcpy(&x, &bits, sizeof x);
        if (!isnan(x))
            ck_assert_uint_eq(zfi_f32_to_f16(x), nearest_half(x));
    }
}
END_TEST

/* Not only equal as numbers: widen and narrow keep the bits of NaNs. */
static void compare_conversions(const zfi_kernels_t *table, uint64_t n) {
    array_t wide = array_new(ZFI_F32, n, n % 2 ? ANY_BITS : SPECIAL);

    for (int dtype = 0; dtype < ZFI_N_DTYPES; dtype++) {
        const size_t nbytes = n * zfi_dtype_nbytes((zfi_dtype_t)dtype);
        array_t source = array_new((zfi_dtype_t)dtype, n, ANY_BITS);
        array_t want = array_copy(&source), got = array_copy(&source);
        array_t want_wide = array_copy(&wide), got_wide = array_copy(&wide);

        zfi_kernels_ref()->narrow(want.at, (zfi_dtype_t)dtype, wide.at, n);
        table->narrow(got.at, (zfi_dtype_t)dtype, wide.at, n);
        ck_assert_int_eq(memcmp(want.at, got.at, nbytes), 0);
        zfi_kernels_ref()->widen(want_wide.at, source.at, (zfi_dtype_t)dtype, n);
        table->widen(got_wide.at, source.at, (zfi_dtype_t)dtype, n);
        ck_assert_int_eq(memcmp(want_wide.at, got_wide.at, n * sizeof(float)), 0);
        array_free(&source);
        array_free(&want);
        array_free(&got);
        array_free(&want_wide);
        array_free(&got_wide);
    }
    array_free(&wide);
}

START_TEST(conversions) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);

    for (int t = 0; t < n_tables; t++)
        for (uint64_t n = 0; n <= 200; n++)
            compare_conversions(tables[t], n);
}
END_TEST

static void compare_accumulate(const zfi_kernels_t *table, zfi_dtype_t dtype, uint64_t n, int is_first,
                               contents_t contents) {
    array_t grad = array_new(dtype, n, contents), want = array_new(ZFI_F32, n, contents), got = array_copy(&want);

    zfi_kernels_ref()->accumulate(want.at, grad.at, dtype, n, is_first);
    table->accumulate(got.at, grad.at, dtype, n, is_first);
    check_arrays(&want, &got, table->name, "accumulate", n);
    array_free(&grad);
    array_free(&want);
    array_free(&got);
}

START_TEST(accumulation) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);

    for (int t = 0; t < n_tables; t++)
        for (uint64_t n = 0; n <= 67; n++)
            for (int c = 0; c < 4 * ZFI_N_DTYPES; c++)
                compare_accumulate(tables[t], (zfi_dtype_t)(c / 4), n, c & 1, c & 2 ? SPECIAL : ORDINARY);
}
END_TEST

enum { MAX_SLOTS = 20 };

static void compare_mean(const zfi_kernels_t *table, zfi_dtype_t dtype, uint64_t n, uint32_t n_slots,
                         contents_t contents) {
    array_t grads[MAX_SLOTS], want = array_new(ZFI_F32, n, ORDINARY), got = array_copy(&want);
    const void *at[MAX_SLOTS];
    float s[MAX_SLOTS];

    for (uint32_t k = 0; k < n_slots; k++) {
        grads[k] = array_new(dtype, n, contents);
        at[k] = grads[k].at;
        s[k] = random_unit();
    }
    zfi_kernels_ref()->mean_grad(want.at, at, dtype, s, n_slots, n);
    table->mean_grad(got.at, at, dtype, s, n_slots, n);
    check_arrays(&want, &got, table->name, "mean_grad", n);
    for (uint32_t k = 0; k < n_slots; k++)
        array_free(&grads[k]);
    array_free(&want);
    array_free(&got);
}

START_TEST(means) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);

    for (int t = 0; t < n_tables; t++)
        for (uint64_t n = 0; n <= 67; n++)
            for (int c = 0; c < 2 * ZFI_N_DTYPES; c++)
                compare_mean(tables[t], (zfi_dtype_t)(c / 2), n, 1 + (uint32_t)random_below(MAX_SLOTS),
                             c & 1 ? SPECIAL : ORDINARY);
}
END_TEST

/* The order of the sum is each table's own. */
static void compare_lateness(const zfi_kernels_t *table, zfi_dtype_t grad_dtype, zfi_dtype_t visible_dtype, uint64_t n,
                             int has_weight) {
    array_t w = array_new(ZFI_F32, n, ORDINARY), visible = array_new(ZFI_F32, n, ORDINARY);
    array_t weight = array_new(ZFI_F32, n, ORDINARY), grad = array_new(grad_dtype, n, ORDINARY);
    const zfi_lateness_t job = {.w = w.at,
                                .visible = visible.at,
                                .weight = has_weight ? weight.at : NULL,
                                .grad = grad.at,
                                .grad_dtype = grad_dtype,
                                .visible_dtype = visible_dtype,
                                .n_elems = n};
    const double want = zfi_kernels_ref()->lateness(&job), got = table->lateness(&job);

    ck_assert_msg(fabs(got - want) <= 1e-6 * 1e-3 * 1e-3 * (double)n, "%s: lateness of %d elements: %g, want %g",
                  table->name, (int)n, got, want);
    ck_assert(table->lateness(&job) == got);
    array_free(&w);
    array_free(&visible);
    array_free(&weight);
    array_free(&grad);
}

START_TEST(lateness) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    const int n_tables = available_tables(tables);

    for (int t = 0; t < n_tables; t++)
        for (uint64_t n = 0; n <= 67; n++)
            for (int c = 0; c < 2 * ZFI_N_DTYPES * ZFI_N_DTYPES; c++)
                compare_lateness(tables[t], (zfi_dtype_t)(c / 2 % ZFI_N_DTYPES), (zfi_dtype_t)(c / 2 / ZFI_N_DTYPES), n,
                                 c & 1);
}
END_TEST

/* 0.5 * (2 * (1.5 - 1)) + 2 * (3 * (0 - 1)); 1.003 is 1 in bfloat16. */
START_TEST(lateness_by_hand) {
    const float w[] = {1.0f, 1.003f}, visible[] = {1.5f, 0.0f}, weight[] = {0.5f, 2.0f}, grad[] = {2.0f, 3.0f};
    zfi_lateness_t job = {.w = w,
                          .visible = visible,
                          .weight = weight,
                          .grad = grad,
                          .grad_dtype = ZFI_F32,
                          .visible_dtype = ZFI_BF16,
                          .n_elems = 2};

    ck_assert(zfi_kernels_ref()->lateness(&job) == -5.5);
    job.weight = NULL;
    ck_assert(zfi_kernels_ref()->lateness(&job) == -2.0);
}
END_TEST

ZT_MAIN("rows", bf16_all_patterns, bf16_random_is_nearest_even, f16_all_patterns, f16_random_is_nearest_even,
        conversions, accumulation, means, lateness, lateness_by_hand)
