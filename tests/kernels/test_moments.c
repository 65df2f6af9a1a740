/* SPDX-License-Identifier: Apache-2.0 */
/* test_moments.c - moments in bf16 and in 8 bits: stochastic rounding, that of compact copies, runs, and second moments
 * over many steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "cpu/grids.h"
#include "suite.h"

enum { N_DRAWS = 1 << 20 };

/* Rounds x stochastically, as m and as v of N_DRAWS neighbours. */
static void round_alike(const zfi_kernels_t *table, float x, float *m, float *v) {
    const zfi_round_moments_t job = {.m = m,
                                     .v = v,
                                     .sub = {.n_rows = 1, .n_cols = N_DRAWS},
                                     .cols = N_DRAWS,
                                     .state_base = 0xfff80000u,
                                     .moments = ZFI_MOMENTS_BF16_STOCHASTIC,
                                     .key = 0x5eed};
    for (int i = 0; i < N_DRAWS; i++)
        m[i] = v[i] = x;
    table->round_moments(&job);
}

/* As many go away from zero as there are discarded units of 65,536, within five standard deviations; what m and v draw
 * is not correlated. */
static void check_shares(uint32_t bits) {
    static float m[N_DRAWS], v[N_DRAWS];
    const float towards = float_of(bits & 0xffff0000u), away = float_of((bits & 0xffff0000u) + 0x10000u);
    const double p = (bits & 0xffffu) / 65536.0, sd = sqrt(p * (1 - p) / N_DRAWS);
    double n_m = 0, n_v = 0, n_both = 0;
    round_alike(GENERIC, float_of(bits), m, v);
    for (int i = 0; i < N_DRAWS; i++) {
        ck_assert((m[i] == towards || m[i] == away) && (v[i] == towards || v[i] == away));
        n_m += m[i] != towards;
        n_v += v[i] != towards;
        n_both += m[i] != towards && v[i] != towards;
    }
    ck_assert(fabs(n_m / N_DRAWS - p) <= 5 * sd && fabs(n_v / N_DRAWS - p) <= 5 * sd);
    ck_assert(fabs(n_both / N_DRAWS - p * p) <= 10 * sd);
}

ZT_TEST(stochastic_is_unbiased) {
    check_shares(0x00008000);
    check_shares(0x807f4000);
    check_shares(0x3f80ffff);
    check_shares(0xbf800000);
    check_shares(0x7f7e0100);
}

ZT_TEST(stochastic_keeps_the_kind) {
    static const uint32_t kinds[][2] = {{0x7f7fffff, 0x7f7f0000}, {0xff7f0001, 0xff7f0000}, {0x7f800000, 0x7f800000},
                                        {0xff800000, 0xff800000}, {0x7f800001, 0x7fc00000}, {0xffffffff, 0xffff0000},
                                        {0x80000000, 0x80000000}, {0x3f810000, 0x3f810000}};
    static float m[N_DRAWS], v[N_DRAWS];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        round_alike(GENERIC, float_of(kinds[k][0]), m, v);
        for (int i = 0; i < N_DRAWS; i++)
            if (bits_of(m[i]) != kinds[k][1] || bits_of(v[i]) != kinds[k][1])
                ck_abort_msg("%08x became %08x and %08x", kinds[k][0], bits_of(m[i]), bits_of(v[i]));
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
    GENERIC->round_moments(&job);
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
                         (zfi_moments_t)(repeat % ZFI_MOMENTS_INT8), repeat % 5 != 0, repeat % 4 ? SPECIAL : ANY_BITS);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void put_get(zfi_moment_t which, const float *values, const uint32_t *random, float *out) {
    zfi_run8_t run;
    zfi_run8_put(&run, which, values, random);
    zfi_run8_get(&run, which, out);
}

static void fill_randoms(uint32_t *out) {
    for (uint32_t i = 0; i < ZFI_RUN; i++)
        out[i] = (uint32_t)random_bits();
}

/* Values of `octaves` octaves below 2^top, one in eight zero. */
static void fill_values(zfi_moment_t which, int top, int octaves, float *out) {
    for (uint32_t i = 0; i < ZFI_RUN; i++) {
        const float x = ldexpf(1.0f + fabsf(random_unit()), top - 1 - (int)random_below((uint64_t)octaves));
        out[i] = random_below(8) == 0 ? 0.0f : which == ZFI_M && random_below(2) ? -x : x;
    }
}

/* Rounding a run to nearest keeps the values that a run holds: checkpoints rely on it. */
ZT_TEST(runs_keep_what_they_hold) {
    float values[ZFI_RUN], held[ZFI_RUN], again[ZFI_RUN];
    uint32_t random[ZFI_RUN];
    for (int c = 0; c < 20000; c++) {
        const zfi_moment_t which = (zfi_moment_t)(c % 2);
        fill_values(which, (int)random_below(270) - 140, 1 + (int)random_below(random_below(3) ? 20 : 60), values);
        fill_randoms(random);
        put_get(which, values, random, held);
        put_get(which, held, NULL, again);
        ck_assert_mem_eq(held, again, sizeof held);
        for (uint32_t i = 0; i < ZFI_RUN; i++)
            ck_assert(values[i] != 0.0f || bits_of(held[i]) == 0);
    }
}

/* Each value's mean over random numbers is the value, within six standard deviations of what rounding to the ends of
 * its cell has at most. */
ZT_TEST(runs_are_unbiased) {
    enum { N = 4096 };
    static const uint32_t zeros[ZFI_RUN];
    float values[ZFI_RUN], held[ZFI_RUN], low[ZFI_RUN], high[ZFI_RUN];
    uint32_t random[ZFI_RUN], ones[ZFI_RUN];
    memset(ones, 0xff, sizeof ones);
    for (int c = 0; c < 24; c++) {
        const zfi_moment_t which = (zfi_moment_t)(c % 2);
        double sum[ZFI_RUN] = {0.0};
        fill_values(which, -20, which == ZFI_V ? 1 + c : 15, values);
        put_get(which, values, zeros, low);
        put_get(which, values, ones, high);
        for (int k = 0; k < N; k++) {
            fill_randoms(random);
            put_get(which, values, random, held);
            for (uint32_t i = 0; i < ZFI_RUN; i++)
                sum[i] += (double)held[i] / N;
        }
        for (uint32_t i = 0; i < ZFI_RUN; i++)
            ck_assert_msg(fabs(sum[i] - (double)values[i]) <= 3 * fabs((double)high[i] - (double)low[i]) / sqrt(N),
                          "%g on average, not %g", sum[i], (double)values[i]);
    }
}

static void check_run(zfi_moment_t which, const float *values, const float *want) {
    float held[ZFI_RUN];
    uint32_t random[ZFI_RUN];
    for (int c = 0; c < 200; c++) {
        fill_randoms(random);
        put_get(which, values, c ? random : NULL, held);
        for (uint32_t i = 0; i < ZFI_RUN; i++)
            ck_assert_msg(bits_of(held[i]) == bits_of(want[i]), "%c of %g is %g, not %g", which == ZFI_M ? 'm' : 'v',
                          (double)values[i], (double)held[i], (double)want[i]);
    }
}

/* Zeros, numbers that are alike, the smallest and largest numbers, Inf. */
ZT_TEST(runs_of_extremes) {
    static const uint32_t alike[] = {0x00000000, 0x3f800000, 0x00000100, 0x7f7fff00, 0x7f800000};
    float values[ZFI_RUN], want[ZFI_RUN];
    for (size_t a = 0; a < sizeof alike / sizeof *alike; a++) {
        for (uint32_t i = 0; i < ZFI_RUN; i++)
            values[i] = float_of(alike[a]);
        check_run(ZFI_V, values, values);
    }
    for (uint32_t i = 0; i < ZFI_RUN; i++)
        values[i] = want[i] = i % 3 ? 0.0f : INFINITY; /* an Inf holds its weight still */
    check_run(ZFI_V, values, want);
    for (uint32_t i = 0; i < ZFI_RUN; i++) { /* finite stays finite */
        values[i] = i ? 0x1p120f : float_of(0x7f7fffff);
        want[i] = i ? 0x1p120f : float_of(0x7f700000);
    }
    check_run(ZFI_M, values, (want[1] = 0x1p120f, want[0] = float_of(0x7f700000), want));
    for (uint32_t i = 0; i < ZFI_RUN; i++) { /* no v but 0 is below 2^-31.75 of the largest */
        values[i] = i ? 0x1p-100f : 1.0f;
        want[i] = i ? float_of(0x3f800000 - (254u << 20)) : 1.0f;
    }
    check_run(ZFI_V, values, want);
    for (uint32_t i = 0; i < ZFI_RUN; i++) /* the sign of a zero is lost */
        values[i] = -0.0f, want[i] = 0.0f;
    check_run(ZFI_M, values, want);
}

/* Products of what two elements of a run, or its m and v, draw are even over keys: within five standard deviations. */
ZT_TEST(draws_of_a_run_are_independent) {
    enum { N = 1 << 18 };
    static const uint32_t pairs[][2] = {{0, 1}, {1, 2}, {0, 64}, {5, 77}, {63, 127}, {0, 127}};
    const double sd = 0x1p64 / 12 / sqrt(N);
    double across = 0.0, within[6] = {0.0};
    for (uint64_t k = 0; k < N; k++) {
        const zfi_run_random_t m = zfi_run_random(k << 7, 3u << 7, ZFI_M), v = zfi_run_random(k << 7, 3u << 7, ZFI_V);
        for (int p = 0; p < 6; p++)
            within[p] += ((double)(m.first + pairs[p][0] * m.step) - 0x1p31) *
                         ((double)(m.first + pairs[p][1] * m.step) - 0x1p31) / N;
        across += ((double)(m.first + 7 * m.step) - 0x1p31) * ((double)(v.first + 7 * v.step) - 0x1p31) / N;
    }
    for (int p = 0; p < 6; p++)
        ck_assert_msg(fabs(within[p]) < 5 * sd, "elements %u and %u: %g", pairs[p][0], pairs[p][1], within[p]);
    ck_assert(fabs(across) < 5 * sd);
}

enum { TRAINED = 4 * ZFI_RUN };

/* v of AdamW after n_steps of these gradients, and as many with every other a tenth. */
static void train_v(zfi_moments_t moments, const float *grads, uint32_t n_steps, uint32_t n_fallen, float *before,
                    float *after) {
    const zfi_hyper_t hyper = {1e-3, 0.9, 0.999, 1e-8, 0.0};
    static float w[TRAINED], m[TRAINED], v[TRAINED], now[TRAINED];
    const zfi_kernels_t *kernels = zfi_kernels_of(zfi_isa_best());
    const void *grad = now;
    zfi_scalars_t scalars;
    zfi_replay_t job = {w, m, v, NULL, &grad, &scalars, .n_slots = 1, .n_elems = TRAINED, .moments = moments};
    memset(m, 0, sizeof m), memset(v, 0, sizeof v);
    for (uint32_t t = 1; t <= n_steps + n_fallen; t++) {
        for (uint32_t i = 0; t == 1 || t == n_steps + 1 ? i < TRAINED : 0; i++)
            now[i] = t > 1 && i % 2 ? 0.1f * grads[i] : grads[i];
        scalars = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 1.0f, t);
        job.key = t * UINT64_C(0x9e3779b97f4a7c15);
        kernels->replay[ZFI_RULE_ADAMW](&job);
        for (uint32_t i = 0; t == n_steps || t == n_steps + n_fallen ? i < TRAINED : 0; i++) {
            float *out = t == n_steps ? before : after;
            if (moments == ZFI_MOMENTS_INT8 && i % ZFI_RUN == 0)
                zfi_run8_get((const zfi_run8_t *)v + i / ZFI_RUN, ZFI_V, out + i);
            else if (moments != ZFI_MOMENTS_INT8)
                out[i] = moments == ZFI_MOMENTS_F32 ? v[i] : zfi_bf16_to_f32(((uint16_t *)v)[i]);
        }
    }
}

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* After 100,000 steps of one small gradient v is that of fp32 on average; gradients that fall tenfold it follows. */
ZT_TEST(small_second_moments_stay_right) {
    float grads[TRAINED], want[2][TRAINED], got[2][TRAINED], ratio[TRAINED / 2];
    for (int i = 0; i < TRAINED; i++)
        grads[i] = expf(1.5f * random_unit()) * 1e-6f;
    train_v(ZFI_MOMENTS_F32, grads, 100000, 4000, want[0], want[1]);
    for (int moments = ZFI_MOMENTS_BF16_STOCHASTIC; moments < ZFI_N_MOMENTS; moments++) {
        double mean = 0.0;
        train_v((zfi_moments_t)moments, grads, 100000, 4000, got[0], got[1]);
        for (int i = 0; i < TRAINED; i++) {
            mean += (double)(got[0][i] / want[0][i]) / TRAINED;
            ratio[i / 2] = i % 2 ? sqrtf(got[1][i] / want[1][i]) : 0.0f;
        }
        qsort(ratio, TRAINED / 2, sizeof *ratio, compare_floats);
        ck_assert_msg(fabs(mean - 1.0) < 0.02, "moments %d: %g on average", moments, mean);
        ck_assert_msg(ratio[TRAINED / 4] > 0.9f && ratio[TRAINED / 4] < 1.1f, "moments %d: a median of %g", moments,
                      (double)ratio[TRAINED / 4]);
    }
}

ZT_SUITE("moments")
