/* SPDX-License-Identifier: Apache-2.0 */
/* test_moments.c - moments in bf16: the hash, stochastic rounding by exhaustion, rounding of compact copies. */
#include <math.h>
#include <stdlib.h>

#include "arrays.h"
#include "suite.h"

/* Over 2^20 neighbouring indices both halves average 32767.5 within 5 standard deviations, and so does their product:
 * what m and v take is not correlated. */
ZT_TEST(hash_is_even) {
    const double n = 0x1p20, sd = 18918.0 / sqrt(n);
    double low = 0.0, high = 0.0, both = 0.0;
    for (uint64_t i = 0; i < (uint64_t)n; i++) {
        const uint32_t r = zfi_random32(0x5eed, 0xfff80000u + i);
        const double a = (double)(r & 0xffffu) - 32767.5, b = (double)(r >> 16) - 32767.5;
        low += a;
        high += b;
        both += a * b;
    }
    ck_assert(fabs(low / n) < 5 * sd && fabs(high / n) < 5 * sd);
    ck_assert(fabs(both / n) < 5 * 18918.0 * sd);
}

/* Of the 65536 random numbers exactly as many carry as there are discarded units: unbiased. */
static void check_all_randoms(uint32_t bits) {
    const uint16_t towards = (uint16_t)(bits >> 16), away = (uint16_t)(towards + 1);
    uint32_t n_towards = 0, n_away = 0;
    for (uint32_t r = 0; r < 65536; r++) {
        const uint16_t got = zfi_f32_to_bf16_stochastic(float_of(bits), r | 0xabc00000u);
        n_towards += got == towards;
        n_away += got == away;
    }
    ck_assert_uint_eq(n_away, bits & 0xffffu);
    ck_assert_uint_eq(n_towards, 0x10000u - n_away);
}

ZT_TEST(stochastic_is_unbiased) {
    check_all_randoms(0x00000001);
    check_all_randoms(0x807fffff);
    check_all_randoms(0x3f80ffff);
    check_all_randoms(0xbf800000);
    check_all_randoms(0x7f7effff);
    for (int i = 0; i < 30; i++)
        check_all_randoms((uint32_t)random_bits() & 0xbfffffffu);
}

ZT_TEST(stochastic_keeps_the_kind) {
    for (uint32_t r = 0; r < 65536; r += 13) {
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(float_of(0x7f7fffff), r), 0x7f7f); /* finite stays finite */
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(float_of(0xff7f0001), r), 0xff7f);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(INFINITY, r), 0x7f80);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(-INFINITY, r), 0xff80);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(float_of(0x7f800001), r), 0x7fc0);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(float_of(0xffffffff), r), 0xffff);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(-0.0f, r), 0x8000);
        ck_assert_uint_eq(zfi_f32_to_bf16_stochastic(float_of(0x3f810000), r), 0x3f81); /* bf16 already */
    }
}

enum { MAX_ROWS = 9, MAX_COLS = 1200 };

static void compare_rounding(uint64_t rows, uint64_t cols, zfi_moments_t moments, int has_v, contents_t contents) {
    static uint32_t row_index[MAX_ROWS], col_index[MAX_COLS];
    zfi_round_moments_t job = {.sub = {.n_rows = rows, .n_cols = cols},
                               .cols = cols,
                               .state_base =
                                   random_below(3) ? random_bits() >> 16 : UINT32_MAX - random_below(cols + 1),
                               .moments = moments,
                               .key = random_bits()};
    if (random_below(2)) {
        job.sub.row_index = row_index;
        job.sub.n_rows = random_subset(rows, row_index);
    }
    if (random_below(2)) {
        job.sub.col_index = col_index;
        job.sub.n_cols = random_subset(cols, col_index);
    }
    uint64_t n = job.sub.n_rows * job.sub.n_cols;
    array_t m = array_new(ZFI_F32, n, contents);
    array_t v = array_new(ZFI_F32, n, contents);
    array_t want_m = array_copy(&m);
    array_t want_v = array_copy(&v);
    job.m = want_m.at;
    job.v = has_v ? want_v.at : NULL;
    zfi_kernels_ref()->round_moments(&job);
    for (EACH_TABLE(table)) {
        array_t got_m = array_copy(&m), got_v = array_copy(&v);
        job.m = got_m.at;
        job.v = has_v ? got_v.at : NULL;
        table->round_moments(&job);
        check_arrays(&want_m, &got_m, table->name, "round_moments: m", n);
        check_arrays(&want_v, &got_v, table->name, "round_moments: v", n);
    }
    arrays_free();
}

ZT_TEST(rounding_of_tables) {
    for (int repeat = 0; repeat < 600; repeat++)
        compare_rounding(random_below(MAX_ROWS + 1), random_below(repeat % 10 ? 70 : MAX_COLS + 1),
                         (zfi_moments_t)(repeat % ZFI_N_MOMENTS), repeat % 5 != 0, repeat % 4 ? SPECIAL : ANY_BITS);
}

ZT_SUITE("moments")
