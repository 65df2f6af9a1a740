/* SPDX-License-Identifier: Apache-2.0 */
/* test_rows.c - element-wise passes: conversions exhaustively and against independent definitions, mean and
 * accumulation in every table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "suite.h"

/* The value of the bits, from IEEE 754's definition; beyond the largest, what Inf stands for in roundings. */
static double value_of(zfi_dtype_t dtype, uint32_t bits) {
    const int n_fraction = dtype == ZFI_BF16 ? 7 : 10, bias = dtype == ZFI_BF16 ? 127 : 15;
    const int exponent = (int)(bits & 0x7fffu) >> n_fraction;
    const double fraction = (double)(bits & ((1u << n_fraction) - 1));
    return exponent == 0 ? ldexp(fraction, 1 - bias - n_fraction)
                         : ldexp(fraction + ldexp(1.0, n_fraction), exponent - bias - n_fraction);
}

/* Widening is exact, so narrowing gives every pattern back. A NaN keeps its bits and becomes quiet: a half on the way
 * up already. */
static void check_patterns(const zfi_kernels_t *table, zfi_dtype_t dtype) {
    static uint16_t patterns[65536], back[65536];
    static float wide[65536];
    const uint32_t inf = dtype == ZFI_BF16 ? 0x7f80u : 0x7c00u, quiet = dtype == ZFI_BF16 ? 0x40u : 0x200u;
    for (uint32_t i = 0; i < 65536; i++)
        patterns[i] = (uint16_t)i;
    table->widen(wide, patterns, dtype, 65536);
    table->narrow(back, dtype, wide, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        const uint32_t magnitude = i & 0x7fffu, kept = magnitude > inf ? i | quiet : i;
        const float value = magnitude == inf ? INFINITY : (float)value_of(dtype, i);
        ck_assert_uint_eq(back[i], kept);
        if (dtype == ZFI_BF16)
            ck_assert_uint_eq(bits_of(wide[i]), i << 16);
        else if (magnitude > inf)
            ck_assert_uint_eq(bits_of(wide[i]), (i & 0x8000u) << 16 | 0x7f800000u | (kept & 0x3ffu) << 13);
        else
            ck_assert_uint_eq(bits_of(wide[i]), bits_of(copysignf(value, i & 0x8000u ? -1.0f : 1.0f)));
    }
}

ZT_TEST(all_patterns_of_16_bits) {
    for (EACH_TABLE(table)) {
        check_patterns(table, ZFI_BF16);
        check_patterns(table, ZFI_F16);
    }
}

/* Nearest of the two neighbours in double, even on a tie. */
static uint32_t nearest(zfi_dtype_t dtype, float x) {
    const uint32_t inf = dtype == ZFI_BF16 ? 0x7f80u : 0x7c00u, sign = bits_of(x) >> 16 & 0x8000u;
    const double magnitude = fabs((double)x);
    uint32_t low = 0, high = inf; /* bisection: value(low) <= |x| < value(high) */
    if (magnitude >= value_of(dtype, inf))
        return sign | inf;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        *(value_of(dtype, middle) <= magnitude ? &low : &high) = middle;
    }
    {
        const double to_low = magnitude - value_of(dtype, low), to_high = value_of(dtype, high) - magnitude;

        return sign | (to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high);
    }
}

ZT_TEST(random_numbers_are_rounded_to_nearest_even) {
    for (int i = 0; i < 200000; i++) {
        const uint32_t bits = (uint32_t)random_bits(), tie = i % 4 == 0;
        const uint32_t near = (bits & 0x80ffffffu) | (uint32_t)(0x33 + random_below(21)) << 24; /* a half's range */
        const float wide = float_of(tie ? (bits & 0xffff0000u) | 0x8000u : bits);
        const float half = float_of(tie ? (near & 0xffffe000u) | 0x1000u : i % 2 ? bits : near);
        if (!isnan(wide))
            ck_assert_uint_eq(zfi_f32_to_bf16(wide), nearest(ZFI_BF16, wide));
        if (!isnan(half))
            ck_assert_uint_eq(zfi_f32_to_f16(half), nearest(ZFI_F16, half));
    }
}

/* Not only equal as numbers: widen and narrow keep the bits of NaNs. */
static void compare_conversions(const zfi_kernels_t *table, uint64_t n) {
    array_t wide = array_new(ZFI_F32, n, n % 2 ? ANY_BITS : SPECIAL);
    for (int dtype = 0; dtype < ZFI_N_DTYPES; dtype++) {
        const size_t nbytes = n * zfi_dtype_nbytes((zfi_dtype_t)dtype);
        array_t source = array_new((zfi_dtype_t)dtype, n, ANY_BITS);
        array_t want = array_copy(&source), got = array_copy(&source);
        array_t want_wide = array_copy(&wide), got_wide = array_copy(&wide);
        GENERIC->narrow(want.at, (zfi_dtype_t)dtype, wide.at, n);
        table->narrow(got.at, (zfi_dtype_t)dtype, wide.at, n);
        ck_assert_int_eq(memcmp(want.at, got.at, nbytes), 0);
        GENERIC->widen(want_wide.at, source.at, (zfi_dtype_t)dtype, n);
        table->widen(got_wide.at, source.at, (zfi_dtype_t)dtype, n);
        ck_assert_int_eq(memcmp(want_wide.at, got_wide.at, n * sizeof(float)), 0);
    }
    arrays_free();
}

ZT_TEST(conversions) {
    for (EACH_TABLE(table))
        for (uint64_t n = 0; n <= 200; n++)
            compare_conversions(table, n);
}

static void compare_accumulate(const zfi_kernels_t *table, zfi_dtype_t dtype, uint64_t n, int is_first,
                               contents_t contents) {
    array_t grad = array_new(dtype, n, contents), want = array_new(ZFI_F32, n, contents), got = array_copy(&want);
    GENERIC->accumulate(want.at, grad.at, dtype, n, is_first);
    table->accumulate(got.at, grad.at, dtype, n, is_first);
    check_arrays(&want, &got, table->name, "accumulate", n);
    arrays_free();
}

ZT_TEST(accumulation) {
    for (EACH_TABLE(table))
        for (uint64_t n = 0; n <= 67; n++)
            for (int c = 0; c < 4 * ZFI_N_DTYPES; c++)
                compare_accumulate(table, (zfi_dtype_t)(c / 4), n, c & 1, c & 2 ? SPECIAL : ORDINARY);
}

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
    GENERIC->mean_grad(want.at, at, dtype, s, n_slots, n);
    table->mean_grad(got.at, at, dtype, s, n_slots, n);
    check_arrays(&want, &got, table->name, "mean_grad", n);
    arrays_free();
}

ZT_TEST(means) {
    for (EACH_TABLE(table))
        for (uint64_t n = 0; n <= 67; n++)
            for (int c = 0; c < 2 * ZFI_N_DTYPES; c++)
                compare_mean(table, (zfi_dtype_t)(c / 2), n, 1 + (uint32_t)random_below(MAX_SLOTS),
                             c & 1 ? SPECIAL : ORDINARY);
}

ZT_SUITE("rows")
