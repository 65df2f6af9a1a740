/* SPDX-License-Identifier: Apache-2.0 */
/* test_replay.c - the replay kernel: every table gives the same bits, whatever the values, lengths and alignments. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "suite.h"

enum { MAX_SLOTS = 64 };

static zfi_scalars_t scalars_of_step(double lr, double wd, double s, unsigned n) {
    const double b1 = 0.9, b2 = 0.999;
    return (zfi_scalars_t){.s = (float)s,
                           .b1 = (float)b1,
                           .one_minus_b1 = (float)(1 - b1),
                           .b2 = (float)b2,
                           .one_minus_b2 = (float)(1 - b2),
                           .inv_sqrt_bc2 = (float)(1 / sqrt(1 - pow(b2, n))),
                           .eps = 1e-8f,
                           .neg_step = (float)(-lr / (1 - pow(b1, n))),
                           .decay = (float)(1 - lr * wd),
                           .l2 = (float)wd};
}

/* What a job is, but for its arrays. */
typedef struct variant {
    zfi_rule_t rule;
    uint32_t n_slots;
    zfi_dtype_t grad_dtype;
    int visible; /* -1: none, else a zfi_dtype_t */
    zfi_moments_t moments;
    int has_predict;
    contents_t contents;
} variant_t;

typedef struct state {
    array_t w, m, v, visible;
    const void *grad_at[MAX_SLOTS];
    zfi_scalars_t scalars[MAX_SLOTS];
    zfi_replay_t job;
} state_t;

static void point_job(state_t *state) {
    state->job.w = state->w.at;
    state->job.m = state->m.at;
    if (state->job.v)
        state->job.v = state->v.at;
    if (state->job.visible)
        state->job.visible = state->visible.at;
}

/* A moment of any size; zeros among them, in every fourth run many. */
static float moment_of_run(uint64_t run) {
    const float x = random_unit() * (random_below(9) ? 1e-3f : float_of((uint32_t)random_below(0x7f800000)));
    return random_below(run % 4 ? 300 : 3) ? x : 0.0f;
}

/* n moments as they are kept: of runs, ones that a run can hold. */
static array_t moments_new(zfi_moment_t which, uint64_t n, const variant_t *a) {
    const contents_t contents = which == ZFI_V && a->contents != SPECIAL ? POSITIVE : a->contents;
    array_t array;
    float values[ZFI_RUN];
    if (!zfi_is_in_runs(a->moments, which))
        return array_new(a->moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16, n, contents);
    array = array_new(ZFI_F32, zfi_moment_nbytes(a->moments, which, n) / sizeof(float), ORDINARY);
    for (uint64_t r = 0; r < n / ZFI_RUN; r++) {
        for (uint32_t i = 0; i < ZFI_RUN; i++)
            values[i] = which == ZFI_V ? fabsf(moment_of_run(r)) : moment_of_run(r);
        zfi_run8_put((zfi_run8_t *)array.at + r, which, values, NULL);
    }
    return array;
}

static void state_new(state_t *state, uint64_t n, const variant_t *a) {
    state->w = array_new(ZFI_F32, n, a->contents);
    state->m = moments_new(ZFI_M, n, a);
    state->v = moments_new(ZFI_V, n, a);
    state->visible = array_new(a->visible < 0 ? ZFI_F32 : (zfi_dtype_t)a->visible, n, ORDINARY);
    for (uint32_t k = 0; k < a->n_slots; k++)
        state->grad_at[k] = array_new(a->grad_dtype, n, a->contents).at;
    for (uint32_t k = 0; k < a->n_slots; k++)
        state->scalars[k] = scalars_of_step(1e-3, 0.01, 1.0 / (double)(1 + random_below(70000)), k + 1);
    state->job = (zfi_replay_t){.v = zfi_rule_has_v(a->rule) ? state->v.at : NULL,
                                .grads = state->grad_at,
                                .scalars = state->scalars,
                                .n_slots = a->n_slots,
                                .grad_dtype = a->grad_dtype,
                                .visible = a->visible < 0 ? NULL : state->visible.at,
                                .visible_dtype = state->visible.dtype,
                                .n_elems = n,
                                .moments = a->moments,
                                .key = random_bits(),
                                .first_index = random_below(4) ? random_bits() : UINT32_MAX - random_below(n + 1),
                                .has_predict = a->has_predict,
                                .predict = random_unit()};
    point_job(state);
}

/* A state of its own, but for the gradients. */
static state_t state_copy(const state_t *from) {
    state_t copy = *from;
    copy.w = array_copy(&from->w);
    copy.m = array_copy(&from->m);
    copy.v = array_copy(&from->v);
    copy.visible = array_copy(&from->visible);
    point_job(&copy);
    return copy;
}

/* Codes are compared as bytes: none of them is a NaN. */
static void check_moments(zfi_moments_t moments, zfi_moment_t which, const array_t *want, const array_t *got,
                          const char *table, const char *what) {
    if (!zfi_is_in_runs(moments, which))
        check_arrays(want, got, table, what, want->n_elems);
    else
        ck_assert_msg(memcmp(want->at, got->at, want->n_elems * sizeof(float)) == 0, "%s: %s: runs of %s", table, what,
                      which == ZFI_M ? "m" : "v");
}

static void compare_tables(uint64_t n, const variant_t *a) {
    state_t start, want;
    char what[128];
    snprintf(what, sizeof what, "rule %d, %u slots, grads %d, visible %d, moments %d, predict %d", a->rule, a->n_slots,
             a->grad_dtype, a->visible, a->moments, a->has_predict);
    state_new(&start, n, a);
    want = state_copy(&start);
    uint64_t want_bad = GENERIC->replay[a->rule](&want.job);
    for (EACH_TABLE(table)) {
        state_t got = state_copy(&start);
        ck_assert_msg(table->replay[a->rule](&got.job) == want_bad, "%s: %s: first non-finite", table->name, what);
        check_arrays(&want.w, &got.w, table->name, what, n);
        check_moments(a->moments, ZFI_M, &want.m, &got.m, table->name, what);
        check_moments(a->moments, ZFI_V, &want.v, &got.v, table->name, what);
        check_arrays(&want.visible, &got.visible, table->name, what, n);
    }
    arrays_free();
}

/* Every rule with every gradient type, moments, prediction and every length up to 67; the rest at random. */
ZT_TEST(all_variants) {
    enum { N = 24 * ZFI_N_RULES * ZFI_N_DTYPES * ZFI_N_MOMENTS * 2 };
    for (int c = 0; c < N; c++) {
        static const contents_t contents[] = {ORDINARY, ORDINARY, SPECIAL, ANY_BITS};
        variant_t a = {.rule = (zfi_rule_t)(c % ZFI_N_RULES),
                       .n_slots = (uint32_t)random_below(random_below(4) ? 9 : MAX_SLOTS),
                       .grad_dtype = (zfi_dtype_t)(c / ZFI_N_RULES % ZFI_N_DTYPES),
                       .moments = (zfi_moments_t)(c / ZFI_N_RULES / ZFI_N_DTYPES % ZFI_N_MOMENTS),
                       .has_predict = c / ZFI_N_RULES / ZFI_N_DTYPES / ZFI_N_MOMENTS % 2,
                       .visible = (int)random_below(ZFI_N_DTYPES + 1) - 1,
                       .contents = contents[random_below(4)]};
        if (a.contents == ANY_BITS) /* of a NaN that is narrowed, another bit may stay */
            a.visible = ZFI_F32;
        if (zfi_has_runs(a.moments)) { /* no NaN, whose bits may be any, comes into a run */
            a.contents = ORDINARY;
            compare_tables(random_below(12) * ZFI_RUN, &a);
            continue;
        }
        compare_tables(random_below(4) ? (uint64_t)c * 68 / N : random_below(300), &a);
    }
}

/* A job that reads state elsewhere leaves all of it, also where no slot counts. */
ZT_TEST(runs_from_elsewhere) {
    for (int c = 0; c < 200; c++) {
        const variant_t a = {.rule = (zfi_rule_t)(c % ZFI_N_RULES),
                             .n_slots = (uint32_t)random_below(3),
                             .visible = ZFI_BF16,
                             .moments = c % 2 ? ZFI_MOMENTS_INT8 : ZFI_MOMENTS_INT8_BF16};
        const uint64_t n = (1 + random_below(20)) * ZFI_RUN;
        for (EACH_TABLE(table)) {
            state_t start, want, got;
            state_new(&start, n, &a);
            want = state_copy(&start);
            got = state_copy(&start);
            const zfi_replay_from_t from = {start.w.at, start.m.at, start.v.at};
            memset(got.w.at, 0xff, n * sizeof(float));
            memset(got.m.at, 0xff, zfi_moment_nbytes(a.moments, ZFI_M, n));
            if (got.job.v)
                memset(got.v.at, 0xff, zfi_moment_nbytes(a.moments, ZFI_V, n));
            got.job.from = &from;
            (void)table->replay[a.rule](&want.job);
            (void)table->replay[a.rule](&got.job);
            check_arrays(&want.w, &got.w, table->name, "w", n);
            check_moments(a.moments, ZFI_M, &want.m, &got.m, table->name, "from");
            check_moments(a.moments, ZFI_V, &want.v, &got.v, table->name, "from");
            arrays_free();
        }
    }
}

ZT_TEST(no_slot_writes_only_visible) {
    const variant_t a = {.grad_dtype = ZFI_BF16, .visible = ZFI_F32, .has_predict = 1};
    for (EACH_TABLE(table)) {
        state_t start, got;
        state_new(&start, 100, &a);
        got = state_copy(&start);
        ck_assert_uint_eq(table->replay[ZFI_RULE_ADAMW](&got.job), UINT64_MAX);
        check_arrays(&start.w, &got.w, table->name, "w", 100);
        check_arrays(&start.m, &got.m, table->name, "m", 100);
        check_arrays(&start.v, &got.v, table->name, "v", 100);
        check_arrays(&start.w, &got.visible, table->name, "visible", 100);
        arrays_free();
    }
}

ZT_TEST(first_nonfinite_is_named) {
    const variant_t a = {.n_slots = 1, .visible = -1};
    for (EACH_TABLE(table))
        for (uint64_t bad = 0; bad < 131; bad++) {
            state_t state;
            state_new(&state, 131, &a);
            state.job.w[bad] = bad % 2 ? INFINITY : NAN;
            state.job.w[130] = -INFINITY;
            ck_assert_uint_eq(table->replay[ZFI_RULE_ADAMW](&state.job), bad);
            arrays_free();
        }
}

ZT_SUITE("replay")
