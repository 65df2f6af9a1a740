/* SPDX-License-Identifier: Apache-2.0 */
/* test_trainer.c - bindings/c/zf_trainer.[ch]: what it refuses and how it says so, that the first error stays, what it
 * warns of, plain AdamW's bits with and without overlap, layer by layer, by several threads, groups, states. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"
#include "zf_trainer.h"

enum { ROWS = 6, COLUMNS = 5, N = ROWS * COLUMNS, CLIPPED_FROM = 3 /* this step on, where a test clips */ };

static const int64_t shape[3] = {ROWS, COLUMNS, 0};
static float w[2][N], g[2][N];
static double max_norm; /* of both arrays; 0: no step is clipped */

static void contains(const char *text, const char *part) {
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in \"%s\"", part, text);
}

/* The trainer's call was to return this, with this word, and ends it. */
static void fails(zf_trainer_t *t, zf_status_t status, zf_status_t want, const char *word) {
    ck_assert_int_eq(status, want);
    contains(zf_trainer_error(t), word);
    zf_trainer_free(t);
}

static void fill(void) {
    for (int i = 0; i < N; ++i)
        w[0][i] = w[1][i] = (float)(i % 7 - 3) / 8.0f;
}

static void set_gradients(int step) {
    for (int i = 0; i < N; ++i)
        g[0][i] = g[1][i] = (float)((i * 5 + step * 3) % 11 - 5) / 16.0f;
}

/* Windows of 4 with nothing selected at all: after flush() the bits are AdamW's all the same. */
static zf_trainer_t *start(unsigned flags) {
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, flags);
    fill();
    zf_trainer_set(t, "zenflow.mode=windows");
    zf_trainer_set(t, "zenflow.full_warm_up_rounds=1");
    ck_assert_int_eq(zf_trainer_add(t, "a", w[0], g[0], 2, shape, 0), 0);
    zf_trainer_adamw(t, 0.9, 0.999, 1e-8, 0.1);
    ck_assert_int_eq(zf_trainer_add(t, "b", w[1], g[1], 2, shape, 0), 1);
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    return t;
}

static void train(zf_trainer_t *t, int from, int to) {
    for (int step = from; step < to; ++step) {
        ck_assert_int_ge(zf_trainer_wait(t), 0);
        set_gradients(step);
        if (step % 3) /* it may be wrong, and need not come */
            ck_assert_int_ge(zf_trainer_announce(t, step % 3 == 1 ? 0.01 : 0.5), 0);
        if (step % 2)
            ck_assert_int_ge(zf_trainer_ready(t, 1), 0);
        ck_assert_msg(zf_trainer_step(t, 0.01) == ZF_SUBMITTED, "%s", zf_trainer_error(t));
    }
}

static double norm(void) { /* of both gradients, which are alike */
    double squares = 0;
    for (int i = 0; i < N; ++i)
        squares += 2.0 * (double)g[0][i] * (double)g[0][i];
    return sqrt(squares);
}

static float clip_factor(void) { return max_norm > 0 ? (float)fmin(1.0, max_norm / norm()) : 1.0f; }

static void expect(int n_steps, double decay, float *out) {
    float m[N] = {0}, v[N] = {0};
    fill();
    memcpy(out, w[0], sizeof w[0]);
    for (int step = 0; step < n_steps; ++step) {
        float c1 = (float)(1.0 - 0.9), c2 = (float)(1.0 - 0.999), beta1 = (float)0.9, beta2 = (float)0.999;
        double p1 = pow(0.9, step + 1), p2 = pow(0.999, step + 1);
        set_gradients(step);
        float factor = step < CLIPPED_FROM ? 1.0f : clip_factor();
        for (int i = 0; i < N; ++i) {
            float gradient = factor * g[0][i];
            m[i] = beta1 * m[i] + c1 * gradient;
            v[i] = beta2 * v[i] + c2 * gradient * gradient;
            out[i] = (float)((double)out[i] * (1 - 0.01 * decay) -
                             0.01 / (1 - p1) * (double)m[i] / (sqrt((double)v[i] / (1 - p2)) + 1e-8));
        }
    }
}

static void is_near(const float *a, const float *b) {
    for (int i = 0; i < N; ++i)
        ck_assert_msg(fabsf(a[i] - b[i]) < 1e-4f, "element %d: %g, not %g", i, (double)a[i], (double)b[i]);
}

/* Seven steps, which end in the middle of windows, beside AdamW without and with decay. */
static void trains(unsigned flags) {
    float want[2][N];
    expect(7, 0.0, want[0]);
    expect(7, 0.1, want[1]);
    zf_trainer_t *t = start(flags);
    train(t, 0, CLIPPED_FROM);
    ck_assert_int_eq(zf_trainer_clip(t, max_norm), ZF_OK);
    train(t, CLIPPED_FROM, 7);
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    is_near(w[0], want[0]);
    is_near(w[1], want[1]);
    ck_assert_uint_eq(zf_trainer_report(t)->submitted_step, 7);
    ck_assert_uint_eq(zf_trainer_bind_report(t)->n_elems, 2 * N);
    ck_assert_str_eq(zf_trainer_error(t), "");
    zf_trainer_free(t);
}

ZT_TEST(test_trains) {
    trains(0);
    trains(ZF_TRAINER_OVERLAP);
}

ZT_TEST(test_clips) {
    max_norm = 0.125;
    trains(0);
}

/* Each row of b is a vector of its own, handed over from the last to the first. */
ZT_TEST(test_ranges) {
    float want[N];
    expect(5, 0.0, want);
    fill();
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, ZF_TRAINER_OVERLAP);
    ck_assert_int_eq(zf_trainer_add(t, "b", w[1], g[1], 2, shape, 1), 0);
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    for (int step = 0; step < 5; ++step) {
        ck_assert_int_ge(zf_trainer_wait(t), 0);
        set_gradients(step);
        for (int row = ROWS - 1; row >= 0; --row)
            ck_assert_int_ge(zf_trainer_ready_range(t, 0, row, 1), 0);
        ck_assert_msg(zf_trainer_step(t, 0.01) == ZF_SUBMITTED, "%s", zf_trainer_error(t));
    }
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    is_near(w[1], want);
    ck_assert_int_ge(zf_trainer_ready_range(t, 0, 2, 2), 0);
    fails(t, zf_trainer_step(t, 0.01), ZF_ERR_STATE, "matrices 2..3 of 6");
    t = start(0);
    fails(t, zf_trainer_ready_range(t, 0, 0, 0), ZF_ERR_ARGUMENT, "\"a\"");
}

static int n_synced;

int fsync(int fd) { /* of a save, in place of the C library's */
    (void)fd;
    n_synced++;
    return 0;
}

static int count_syncs(unsigned flags) {
    zf_trainer_t *t = start(flags);
    train(t, 0, 2);
    n_synced = 0;
    ck_assert_msg(zf_trainer_save(t, zt_path("synced"), NULL) == ZF_OK, "%s", zf_trainer_error(t));
    zf_trainer_free(t);
    return n_synced;
}

ZT_TEST(test_save_without_sync) {
    ck_assert_int_gt(count_syncs(0), 0);
    ck_assert_int_eq(count_syncs(ZF_TRAINER_NO_SYNC), 0);
    ck_assert_int_eq(count_syncs(ZF_TRAINER_NO_SYNC | ZF_TRAINER_OVERLAP), 0);
}

ZT_TEST(test_state) {
    const char *path = zt_path("state");
    float kept[2][N];
    zf_trainer_t *t = start(0);
    train(t, 0, 5);
    ck_assert_uint_eq(zf_trainer_steps(t), 5);
    ck_assert_msg(zf_trainer_save(t, path, "epoch 3, line 17") == ZF_OK, "%s", zf_trainer_error(t));
    train(t, 5, 9);
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    memcpy(kept, w, sizeof w);
    zf_trainer_free(t);
    t = start(0);
    ck_assert_str_eq(zf_trainer_note(t), "");
    ck_assert_msg(zf_trainer_load(t, path) == ZF_OK, "%s", zf_trainer_error(t));
    ck_assert_uint_eq(zf_trainer_steps(t), 5);
    ck_assert_str_eq(zf_trainer_note(t), "epoch 3, line 17");
    train(t, (int)zf_trainer_steps(t), 9);
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    ck_assert_int_eq(memcmp(kept, w, sizeof w), 0);
    zf_trainer_free(t);
}

/* A checkpoint that cannot be read leaves step count and note, and the run goes on. */
ZT_TEST(test_state_that_is_not_there) {
    zf_trainer_t *t = start(0);
    train(t, 0, 3);
    ck_assert_int_lt(zf_trainer_load(t, zt_path("nothing")), 0);
    ck_assert_uint_eq(zf_trainer_steps(t), 3);
    ck_assert_str_eq(zf_trainer_note(t), "");
    ck_assert_int_lt(zf_trainer_save(t, zt_path("unsaid"), "\xff"), 0);
    contains(zf_trainer_error(t), "UTF-8");
    train(t, 3, 5);
    zf_trainer_free(t);
}

/* ---- types, rates, scales ---------------------------------------------------------------------------------------- */

static uint16_t rounded(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* An array of bfloat16 beside one of float32, with the same values: it shows the other's, rounded. */
ZT_TEST(test_sixteen_bits) {
    static uint16_t narrow_w[N], narrow_g[N];
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, 0);
    fill();
    ck_assert_int_eq(zf_trainer_add(t, "a", w[0], g[0], 2, shape, 0), 0);
    ck_assert_int_eq(zf_trainer_dtypes(t, zf_dtype_bfloat16(), zf_dtype_float32()), ZF_OK);
    ck_assert_int_eq(zf_trainer_add(t, "b", narrow_w, g[1], 2, shape, 0), 1);
    for (int i = 0; i < N; ++i)
        narrow_w[i] = rounded(w[0][i]);
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    train(t, 0, 4);
    for (int i = 0; i < N; ++i)
        ck_assert_uint_eq(narrow_w[i], rounded(w[0][i]));
    zf_trainer_free(t);
    t = zf_trainer_new(NULL, NULL, 0);
    ck_assert_int_eq(zf_trainer_dtypes(t, zf_dtype_bfloat16(), zf_dtype_bfloat16()), ZF_OK);
    ck_assert_int_eq(zf_trainer_add(t, "b", narrow_w, narrow_g, 2, shape, 0), 0);
    for (int i = 0; i < N; ++i)
        narrow_w[i] = rounded((float)(i % 7 - 3) / 8.0f);
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    for (int step = 0; step < 4; ++step) {
        set_gradients(step);
        for (int i = 0; i < N; ++i)
            narrow_g[i] = rounded(g[0][i]);
        ck_assert_int_eq(zf_trainer_step(t, 0.01), ZF_SUBMITTED);
    }
    for (int i = 0; i < N; ++i)
        ck_assert_uint_eq(narrow_w[i], rounded(w[0][i]));
    zf_trainer_free(t);
}

/* Three groups: one that follows step(), and two whose rates are their own, one of them with other constants. */
ZT_TEST(test_rates) {
    static float many[3][N], twins[3][N];
    float want[N];
    for (int own = 0; own < 2; ++own) {
        zf_trainer_t *t = zf_trainer_new(NULL, NULL, 0);
        fill();
        for (int i = 0; i < 3; ++i) {
            memcpy(many[i], w[0], sizeof w[0]);
            if (own && i)
                ck_assert_int_eq(zf_trainer_group(t), i);
            if (i == 2)
                ck_assert_int_eq(zf_trainer_adamw(t, 0.9, 0.999, 1e-8, 0.1), ZF_OK);
            ck_assert_int_eq(zf_trainer_add(t, (const char *[]){"a", "b", "c"}[i], many[i], g[0], 2, shape, 0), i);
        }
        ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
        for (int step = 0; step < 5; ++step) {
            double rate = step < 2 ? 0.02 : 0.03;
            set_gradients(step);
            for (int group = 1; group < 3 && own; ++group)
                ck_assert_int_eq(zf_trainer_rate(t, group, rate), ZF_OK);
            ck_assert_msg(zf_trainer_step(t, own ? 0.01 : rate) == ZF_SUBMITTED, "%s", zf_trainer_error(t));
        }
        ck_assert_int_eq(zf_trainer_rate(t, 3, 0.01), ZF_ERR_ARGUMENT);
        contains(zf_trainer_error(t), "group 3");
        zf_trainer_free(t);
        if (!own)
            memcpy(twins, many, sizeof twins);
    }
    expect(5, 0.0, want);
    is_near(many[0], want);
    ck_assert_int_eq(memcmp(many[1], twins[1], sizeof twins[1]), 0);
    ck_assert_int_eq(memcmp(many[2], twins[2], sizeof twins[2]), 0);
}

/* AdamW does not tell one scale from another, but for the norm of the report. */
ZT_TEST(test_unscales) {
    zf_trainer_t *t = start(0);
    ck_assert_int_eq(zf_trainer_unscale(t, 0.125), ZF_OK);
    for (int step = 0; step < 5; ++step) {
        const zf_step_report_t *report = zf_trainer_report(t);
        if (report->has_report) {
            set_gradients((int)report->step - 1);
            ck_assert_msg(fabs(report->grad_norm - norm()) < 1e-6, "step %d: %g", step, report->grad_norm);
        }
        set_gradients(step);
        for (int i = 0; i < N; ++i)
            g[0][i] = g[1][i] *= 8.0f;
        ck_assert_msg(zf_trainer_step(t, 0.01) == ZF_SUBMITTED, "%s", zf_trainer_error(t));
    }
    ck_assert_int_eq(zf_trainer_report(t)->has_report, 1);
    ck_assert_int_eq(zf_trainer_unscale(t, -1.0), ZF_OK);
    fails(t, zf_trainer_step(t, 0.01), ZF_ERR_ARGUMENT, "unscale");
}

/* What was announced before a load or a discard is gone, and is announced again. */
ZT_TEST(test_announced_and_dropped) {
    const char *path = zt_path("dropped");
    for (unsigned flags = 0; flags <= ZF_TRAINER_OVERLAP; flags += ZF_TRAINER_OVERLAP) {
        float want[N];
        expect(7, 0.0, want);
        zf_trainer_t *t = start(flags);
        train(t, 0, 5);
        ck_assert_int_ge(zf_trainer_save(t, path, NULL), 0);
        for (int is_load = 0; is_load < 2; ++is_load) {
            memset(g, 0x3f, sizeof g);
            ck_assert_int_ge(zf_trainer_ready(t, 0), 0);
            ck_assert_int_ge(zf_trainer_ready_range(t, 1, 0, 1), 0);
            ck_assert_msg((is_load ? zf_trainer_load(t, path) : zf_trainer_discard(t)) >= 0, "%s", zf_trainer_error(t));
        }
        train(t, 5, 7);
        ck_assert_uint_eq(zf_trainer_report(t)->n_missing, 0);
        ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
        is_near(w[0], want);
        zf_trainer_free(t);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The trainer has this error, every call says so, and bind does nothing. */
static void has_failed(zf_trainer_t *t, zf_status_t status, const char *word) {
    ck_assert_int_eq(zf_trainer_bind(t), status);
    contains(zf_trainer_error(t), word);
    char first[512];
    snprintf(first, sizeof first, "%s", zf_trainer_error(t));
    ck_assert_int_eq(zf_trainer_add(t, "more", w[0], g[0], 2, shape, 0), status);
    ck_assert_int_eq(zf_trainer_step(t, 0.1), status);
    ck_assert_int_eq(zf_trainer_flush(t), status);
    ck_assert_str_eq(zf_trainer_error(t), first);
    zf_trainer_free(t);
}

ZT_TEST(test_refuses_before_bind) {
    zf_trainer_t *t = zf_trainer_new("/no/such/plugin.so", NULL, 0);
    has_failed(t, ZF_LOADER_ERR_FILE, "/no/such/plugin.so");
    t = zf_trainer_new(NULL, "/no/such.ini", 0);
    zf_trainer_add(t, "a", w[0], g[0], 2, shape, 0);
    has_failed(t, ZF_ERR_CONFIG, "/no/such.ini");
    has_failed(zf_trainer_new(NULL, NULL, 4), ZF_ERR_ARGUMENT, "flags are 0x4; known: ZF_TRAINER_OVERLAP (1)");
    has_failed(zf_trainer_new(NULL, NULL, 0), ZF_ERR_ARGUMENT, "zf_trainer_add");
    t = zf_trainer_new(NULL, NULL, 0);
    zf_trainer_set(t, "zenflow.topk_ration=1");
    zf_trainer_add(t, "a", w[0], g[0], 2, shape, 0);
    has_failed(t, ZF_ERR_CONFIG, "topk_ration");
    t = zf_trainer_new(NULL, NULL, 0);
    ck_assert_int_eq(zf_trainer_step(t, 0.1), ZF_ERR_STATE);
    has_failed(t, ZF_ERR_STATE, "zf_trainer_step() must come after zf_trainer_bind()");
}

static void refuses_array(const char *name, float *its_g, int ndim, zf_status_t status, const char *word) {
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, 0);
    ck_assert_int_lt(zf_trainer_add(t, name, w[0], its_g, ndim, shape, 0), 0);
    has_failed(t, status, word);
}

ZT_TEST(test_refuses_arrays) {
    refuses_array(NULL, g[0], 2, ZF_ERR_ARGUMENT, "array 0 has no name");
    refuses_array("fc", NULL, 2, ZF_ERR_ARGUMENT, "g of \"fc\" is NULL");
    refuses_array("fc", g[0], 9, ZF_ERR_SHAPE, "\"fc\" has 9 axes");
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, 0);
    zf_trainer_add(t, "fc", w[0], g[0], 2, shape, 0);
    zf_trainer_add(t, "fc", w[1], g[1], 2, shape, 0);
    has_failed(t, ZF_ERR_PARAM, "fc");
}

ZT_TEST(test_refuses_in_training) {
    zf_trainer_t *t = start(0);
    fails(t, zf_trainer_ready(t, 2), ZF_ERR_PARAM, "array 2, there are 0..1");
    t = start(0);
    ck_assert_int_eq(zf_trainer_ready(t, 1), ZF_OK);
    fails(t, zf_trainer_ready(t, 1), ZF_ERR_STATE, "\"b\" was announced twice");
    t = start(0);
    ck_assert_int_lt(zf_trainer_step(t, (double)NAN), 0);
    contains(zf_trainer_error(t), "lr");
    zf_trainer_free(t);
    t = start(0);
    fails(t, zf_trainer_add(t, "late", w[0], g[0], 2, shape, 0), ZF_ERR_STATE, "before zf_trainer_bind()");
    ck_assert_int_eq(zf_trainer_bind(NULL), ZF_ERR_MEMORY);
    contains(zf_trainer_error(NULL), "no memory");
    ck_assert_uint_eq(zf_trainer_report(NULL)->step, 0);
    zf_trainer_free(NULL);
}

/* Weights that the trainer wrote: refused until it says so, then trained. */
ZT_TEST(test_written_weights) {
    zf_trainer_t *t = start(0);
    train(t, 0, 3);
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    w[0][1] += 1.0f;
    set_gradients(3);
    ck_assert_int_eq(zf_trainer_step(t, 0.01), ZF_ERR_OVERWRITTEN);
    contains(zf_trainer_error(t), "params_changed");
    w[0][2] = NAN;
    ck_assert_int_eq(zf_trainer_params_changed(t), ZF_ERR_NONFINITE);
    contains(zf_trainer_error(t), "\"a\"");
    w[0][2] = 0.5f;
    ck_assert_msg(zf_trainer_params_changed(t) == ZF_OK, "%s", zf_trainer_error(t));
    ck_assert_msg(zf_trainer_step(t, 0.01) == ZF_SUBMITTED, "%s", zf_trainer_error(t));
    train(t, 4, 6);
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    zf_trainer_free(t);
}

/* ---- layer by layer, by several threads -------------------------------------------------------------------------- */

/* Nothing runs ahead and every window closes at its step, so that what a fetch brings is all that there is. */
static zf_trainer_t *start_late(int32_t n_batch_axes) {
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, ZF_TRAINER_OVERLAP);
    fill();
    zf_trainer_set(t, "zenflow.full_warm_up_rounds=1");
    zf_trainer_set(t, "zenflow.topk_ratio=0");
    zf_trainer_set(t, "zenflow.update_interval=1");
    zf_trainer_set(t, "zenflow.predict=off");
    zf_trainer_set(t, "zenflow.publish_lag=0");
    for (int i = 0; i < 2; ++i)
        ck_assert_int_eq(zf_trainer_add(t, i ? "b" : "a", w[i], g[i], n_batch_axes ? 3 : 2,
                                        (int64_t[]){n_batch_axes ? 3 : ROWS, n_batch_axes ? 2 : COLUMNS, COLUMNS},
                                        n_batch_axes),
                         i);
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    return t;
}

/* A layer shows AdamW's values when it was waited for, and until then what it showed before the step. */
ZT_TEST(test_waits_for_a_layer) {
    enum { LAYER = N / 3 };
    float want[2][N];
    expect(5, 0.0, want[0]);
    expect(6, 0.0, want[1]);
    zf_trainer_t *t = start_late(1);
    train(t, 0, 6);
    for (int layer = 0; layer < 3; ++layer) {
        ck_assert_msg(zf_trainer_wait_for(t, 0, layer, 1) >= 0, "%s", zf_trainer_error(t));
        for (int i = 0; i < N; ++i)
            ck_assert_msg(fabsf(w[0][i] - want[i / LAYER <= layer][i]) < 1e-4f, "layer %d, element %d", layer, i);
    }
    fails(t, zf_trainer_wait_for(t, 0, 1, -1), ZF_ERR_ARGUMENT, "\"a\"");
}

enum { THREADS = 4, PER_THREAD = 4, THREADED_STEPS = 60 };

typedef struct helper {
    zf_trainer_t *t;
    int first;
    pthread_barrier_t *gate;
    zf_status_t st;
} helper_t;

/* Waits for its own arrays, then hands them over, both while others do so. */
static void *help(void *raw) {
    helper_t *h = raw;
    for (int step = 0; step < THREADED_STEPS; ++step) {
        pthread_barrier_wait(h->gate);
        for (int i = 0; i < 20 * PER_THREAD && h->st >= 0; ++i)
            h->st = zf_trainer_wait_for(h->t, h->first + i % PER_THREAD, 0, 0);
        for (int i = 0; i < PER_THREAD && h->st >= 0; ++i)
            h->st = i % 2 ? zf_trainer_ready(h->t, h->first + i) : zf_trainer_ready_range(h->t, h->first + i, 0, ROWS);
        pthread_barrier_wait(h->gate);
    }
    return NULL;
}

ZT_TEST(test_several_threads) {
    static float many[THREADS * PER_THREAD][N];
    float want[N];
    pthread_t threads[THREADS];
    helper_t helpers[THREADS];
    pthread_barrier_t gate;
    expect(THREADED_STEPS, 0.0, want);
    fill();
    pthread_barrier_init(&gate, NULL, THREADS + 1);
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, ZF_TRAINER_OVERLAP);
    for (int i = 0; i < THREADS * PER_THREAD; ++i) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        memcpy(many[i], w[0], sizeof w[0]);
        ck_assert_int_eq(zf_trainer_add(t, name, many[i], g[0], 2, shape, 1), i);
    }
    ck_assert_msg(zf_trainer_bind(t) == ZF_OK, "%s", zf_trainer_error(t));
    for (int i = 0; i < THREADS; ++i) {
        helpers[i] = (helper_t){t, i * PER_THREAD, &gate, ZF_OK};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, help, &helpers[i]), 0);
    }
    for (int step = 0; step < THREADED_STEPS; ++step) {
        set_gradients(step);
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        ck_assert_msg(zf_trainer_step(t, 0.01) >= 0, "%s", zf_trainer_error(t));
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        ck_assert_msg(helpers[i].st >= 0, "thread %d: %d, %s", i, helpers[i].st, zf_trainer_error(t));
    }
    ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    for (int i = 0; i < THREADS * PER_THREAD; ++i)
        is_near(many[i], want);
    zf_trainer_free(t);
    pthread_barrier_destroy(&gate);
}

/* ---- what is warned of ------------------------------------------------------------------------------------------- */

static int own_stderr;

static void listen(void) {
    fflush(stderr);
    own_stderr = dup(STDERR_FILENO);
    int file = open(zt_path("said"), O_CREAT | O_TRUNC | O_RDWR, 0600);
    ck_assert_int_eq(dup2(file, STDERR_FILENO), STDERR_FILENO);
    close(file);
}

/* What was written to stderr since listen(): how often the part stands there. */
static int heard(const char *part) {
    static char text[16384];
    int n = 0;
    fflush(stderr);
    dup2(own_stderr, STDERR_FILENO);
    close(own_stderr);
    FILE *file = fopen(zt_path("said"), "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (const char *at = text; (at = strstr(at, part)) != NULL; ++at)
        n++;
    return n;
}

static int lost(int is_flushed, int n_steps) {
    listen();
    zf_trainer_t *t = start(0);
    train(t, 0, n_steps);
    if (is_flushed)
        ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
    zf_trainer_free(t);
    return heard("parameters end without their newest updates");
}

ZT_TEST(test_freed_without_flush) {
    ck_assert_int_eq(lost(0, 3), 1);
    ck_assert_int_eq(lost(1, 3), 0);
    ck_assert_int_eq(lost(0, 1), 0); /* warm-up: every update is there */
}

static int unwaited(unsigned flags, int how) { /* for nothing, for one array, for all */
    listen();
    zf_trainer_t *t = start(flags);
    for (int step = 0; step < 6; ++step) {
        if (how)
            ck_assert_int_ge(how == 1 ? zf_trainer_wait_for(t, 1, 0, 0) : zf_trainer_wait(t), 0);
        set_gradients(step);
        ck_assert_int_ge(zf_trainer_step(t, 0.01), 0);
    }
    ck_assert_int_ge(zf_trainer_flush(t), 0);
    zf_trainer_free(t);
    return heard("ZF_TRAINER_OVERLAP was asked for, but neither");
}

ZT_TEST(test_overlap_without_a_wait) {
    for (int how = 0; how < 3; ++how)
        ck_assert_int_eq(unwaited(ZF_TRAINER_OVERLAP, how), how == 0);
    ck_assert_int_eq(unwaited(0, 0), 0);
}

/* Of 31 skipped steps the 1st, 2nd, 4th, 8th and 16th are said, with the array, as far as their reports have come one
 * by one: with OVERLAP a later one, of up to eight steps ahead, may speak for two. Weights stay. */
ZT_TEST(test_all_steps_skipped) {
    for (unsigned flags = 0; flags <= ZF_TRAINER_OVERLAP; flags += ZF_TRAINER_OVERLAP) {
        float before[2][N];
        fill();
        memcpy(before, w, sizeof w);
        listen();
        zf_trainer_t *t = start(flags);
        for (int step = 0; step < 31; ++step) {
            ck_assert_int_ge(zf_trainer_wait(t), 0);
            set_gradients(step);
            g[1][7] = NAN;
            ck_assert_int_ge(zf_trainer_step(t, 0.01), 0);
        }
        ck_assert_int_eq(zf_trainer_flush(t), ZF_OK);
        zf_trainer_free(t);
        int n_heard = heard("was skipped: the gradient of \"b\" is not finite");
        ck_assert_int_le(n_heard, 5);
        ck_assert_int_ge(n_heard, flags ? 3 : 5);
        ck_assert_int_eq(memcmp(before, w, sizeof w), 0);
    }
}

ZT_SUITE("trainer")
