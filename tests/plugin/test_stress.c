/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_stress.c - hosts that press: many delivering threads, queues with random naps, many workers, tiny
 * pools, thousands of tensors. However the threads meet, the end is AdamW's, bit for bit (replay mode: law 6 of the
 * design). */
#define _GNU_SOURCE
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rig.h"
#include "suite.h"

enum { N_DELIVERERS = 6, MAX_STEPS = 64 };

static zt_rig_t rig;

/* ---- naps on the host's queue ------------------------------------------------------------------------------------ */

static _Atomic uint64_t nap_seed;

static void nap(void *most_us) {
    uint64_t most = (uint64_t)(uintptr_t)most_us, n = zt_hash(atomic_fetch_add(&nap_seed, 1));
    if (n % 4 == 0)
        usleep((useconds_t)((n >> 8) % most));
}

static void maybe_nap(uint64_t most_us) {
    if (rig.queue)
        ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, nap, (void *)(uintptr_t)most_us, &rig.err));
}

/* ---- a step by many threads -------------------------------------------------------------------------------------- */

static pthread_mutex_t hook_lock = PTHREAD_MUTEX_INITIALIZER; /* the host's duty: one hook at a time */
static _Atomic uint32_t next_param;
static zf_fence_t *fences;

/* A hole, decided by parameter and step alone. */
static int is_hole(uint32_t p, uint64_t step) { return zt_hash(p * 1000003u + step) % 11 == 0; }

static void *deliver_some(void *raw) {
    uint64_t step = *(uint64_t *)raw;
    for (;;) {
        uint32_t p = atomic_fetch_add(&next_param, 1);
        zf_status_t st;
        if (p >= rig.n_params)
            return NULL;
        if (is_hole(p, step))
            continue;
        if (rig.queue && fences[p].counter)
            rig.cpu->fence_wait(&fences[p], 60000000000u, NULL);
        zt_rig_fill_grad(&rig, p, step); /* outside the lock, as a backward pass would */
        pthread_mutex_lock(&hook_lock);
        st = zt_rig_deliver(&rig, p, 0, rig.queue ? &fences[p] : NULL);
        pthread_mutex_unlock(&hook_lock);
        if (st < 0)
            return raw;
    }
}

static void step_by_many(int n_threads) {
    pthread_t threads[N_DELIVERERS];
    uint64_t step = rig.step + 1;
    void *failed;
    atomic_store(&next_param, 0);
    for (int i = 0; i < n_threads; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, deliver_some, &step), 0);
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], &failed);
        ck_assert_msg(failed == NULL, "%s: %s", rig.err.origin, rig.err.message);
    }
    for (uint32_t i = 0; i < ZT_MAX_GROUPS; i++)
        rig.groups[i].lr = 1e-3 * (double)(1 + step % 5) / (1 + i);
    rig.unscale = 1.0 / (double)(1u << step % 3);
    maybe_nap(800);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    maybe_nap(2000);
    for (uint32_t p = 0; p < rig.n_params; p++)
        if (!is_hole(p, step))
            zt_serial_update(&rig.params[p].serial, &rig.groups[rig.params[p].shape.group], rig.params[p].grad_values,
                             (float)rig.unscale);
}

/* Runs n steps; FLUSH, DRAIN and export now and then. */
static void train(const zt_shape_t *shapes, uint32_t n_shapes, const char *config, int is_queue, int n_threads,
                  int n_steps) {
    zt_rig_start(&rig, shapes, n_shapes);
    fences = calloc(n_shapes, sizeof *fences);
    ck_assert(fences != NULL);
    if (is_queue)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
    for (int i = 1; i <= n_steps; i++) {
        step_by_many(n_threads);
        if (i % 13 == 0)
            ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
        if (i % 7 == 0)
            ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        if (i % 17 == 0)
            zt_rig_check_export(&rig);
    }
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
    free(fences);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static const zt_shape_t mixed[] = {
    {.rows = 64, .cols = 96},
    {.rows = 100, .cols = 30, .is_bf16 = 1},
    {.rows = 77},
    {.rows = 40, .cols = 64, .channels = ZF_CHANNELS_ROWS, .group = 1},
    {.rows = 1, .cols = 200, .home = ZF_HOME_HOST},
    {.rows = 30, .cols = 3, .home = ZF_HOME_RESIDENT, .group = 2},
    {.rows = 1},
    {.rows = 50, .cols = 128, .is_bf16 = 1, .group = 1},
};
enum { N_MIXED = sizeof mixed / sizeof *mixed };

typedef struct pressure {
    int interval, lag, n_workers, is_queue, n_threads, n_steps;
} pressure_t;

static void press(const zt_shape_t *shapes, uint32_t n_shapes, const pressure_t *by) {
    char text[256];
    snprintf(text, sizeof text,
             "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = %d\npublish_lag = %d\n"
             "select_interval = 3\nfull_warm_up_rounds = 3\n[host]\nthreads = %d\n",
             by->interval, by->lag, by->n_workers);
    train(shapes, n_shapes, text, by->is_queue, by->n_threads, by->n_steps);
}

START_TEST(many_workers) { /* more than cores, more than chunks */
    press(mixed, N_MIXED, &(pressure_t){4, 1, 24, 1, N_DELIVERERS, 40});
    press(mixed, N_MIXED, &(pressure_t){8, 0, 16, 1, 2, 40});
}
END_TEST

START_TEST(windows_of_any_length) {
    static const pressure_t all[] = {{1, 1, 4, 1, N_DELIVERERS, 48}, {1, 1, 4, 0, N_DELIVERERS, 48},
                                     {1, 0, 4, 1, N_DELIVERERS, 48}, {3, 0, 3, 0, N_DELIVERERS, 50},
                                     {3, 1, 3, 0, N_DELIVERERS, 50}, {16, 1, 3, 1, N_DELIVERERS, 60}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        press(mixed, N_MIXED, &all[i]);
}
END_TEST

START_TEST(one_tiny_tensor) { /* a pool of one chunk per slot, cohorts without a matrix */
    static const zt_shape_t tiny = {.rows = 1, .cols = 3};
    for (int interval = 1; interval <= 8; interval++)
        press(&tiny, 1, &(pressure_t){interval, interval & 1, 8, interval & 1, 2, 60});
}
END_TEST

START_TEST(thousands_of_tensors) {
    enum { N = 2500 };
    zt_shape_t *shapes = calloc(N, sizeof *shapes);
    ck_assert(shapes != NULL);
    for (uint32_t i = 0; i < N; i++)
        shapes[i] = (zt_shape_t){.rows = 1 + i % 5, .cols = i % 7, .is_bf16 = i % 3 == 0, .group = i % 3};
    press(shapes, N, &(pressure_t){4, 1, 3, 1, N_DELIVERERS, 14});
    free(shapes);
}
END_TEST

START_TEST(many_chunks) { /* rings of published chunks and of entering blocks go round many times */
    static const zt_shape_t large[] = {{.rows = 200, .cols = 400},
                                       {.rows = 300, .cols = 130, .is_bf16 = 1},
                                       {.rows = 128, .cols = 128, .channels = ZF_CHANNELS_ROWS}};
    press(large, 3, &(pressure_t){2, 1, 3, 1, 3, 24});
    press(large, 3, &(pressure_t){4, 1, 2, 1, 3, 24});
}
END_TEST

/* ---- another thread reads counters meanwhile ----------------------------------------------------------------------
 */

static _Atomic int is_over;

static void *read_counters(void *unused) {
    uint64_t last = 0;
    (void)unused;
    while (!atomic_load(&is_over)) {
        uint64_t steps = zt_rig_counter(&rig, "steps");
        if (steps < last)
            return &is_over;
        last = steps;
    }
    return NULL;
}

START_TEST(counters_from_another_thread) {
    pthread_t reader;
    void *failed;
    zt_rig_start(&rig, mixed, N_MIXED);
    zt_rig_use_queue(&rig);
    zt_rig_open(&rig, "[zenflow]\nfull_warm_up_rounds = 2\n[host]\nthreads = 2\n", ZF_CREATE_CAP_FETCH);
    pthread_create(&reader, NULL, read_counters, NULL);
    zt_rig_steps(&rig, 40);
    atomic_store(&is_over, 1);
    pthread_join(reader, &failed);
    ck_assert_ptr_null(failed);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* ---- one host thread after the other, one queue after the other -------------------------------------------------- */

START_TEST(changing_streams) {
    zf_cpu_queue_t *queues[3];
    zf_stream_t streams[4];
    zt_rig_start(&rig, mixed, N_MIXED);
    streams[3] = rig.stream;
    for (int i = 0; i < 3; i++) {
        streams[i] = (zf_stream_t){.struct_size = sizeof streams[i]};
        ZT_OK(&rig, rig.cpu->queue_create(&queues[i], &streams[i], &rig.err));
    }
    zt_rig_open(&rig,
                "[zenflow]\nupdate_interval = 3\nfull_warm_up_rounds = 2\nselect_interval = 2\n[host]\nthreads = 3\n",
                ZF_CREATE_CAP_FETCH);
    for (uint64_t step = 1; step <= 40; step++) {
        zf_fence_t fence = {.struct_size = sizeof fence};
        for (uint32_t p = 0; p < N_MIXED; p++) {
            uint64_t at = zt_hash(step * 64 + p) % 4;
            rig.stream = streams[at];
            zt_rig_fill_grad(&rig, p, step);
            ZT_OK(&rig, zt_rig_deliver(&rig, p, 0, &fence));
            if (at < 3)
                ZT_OK(&rig, rig.cpu->queue_launch(queues[at], nap, (void *)300, &rig.err));
            zt_serial_update(&rig.params[p].serial, &rig.groups[rig.params[p].shape.group], rig.params[p].grad_values,
                             (float)rig.unscale);
        }
        rig.stream = streams[zt_hash(step) % 4];
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        rig.stream = streams[zt_hash(step + 7) % 4];
        ZT_OK(&rig, rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &fence, &rig.err));
        zt_rig_wait(&rig, &(zf_fence_t){.struct_size = sizeof fence, .kind = ZF_FENCE_NONE});
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN)); /* gradients are filled again */
    }
    zt_rig_check_flushed(&rig);
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    for (int i = 0; i < 3; i++)
        rig.cpu->queue_destroy(queues[i]);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("stress", many_workers, windows_of_any_length, one_tiny_tensor, thousands_of_tensors, many_chunks,
        counters_from_another_thread, changing_streams)
