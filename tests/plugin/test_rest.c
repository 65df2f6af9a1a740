/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_rest.c - how an instance comes to rest and ends: quiesce within a deadline of the host's, what
 * destroy says of updates that it loses, and which errors say that the same call can succeed later. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state_rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 30, .cols = 20}, {.rows = 9, .cols = 7, .home = ZF_HOME_HOST}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 8\npredict = off\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";

static zt_rig_t rig;

/* ---- quiesce within a deadline ----------------------------------------------------------------------------------- */

static zf_status_t quiesce_within(int32_t mode, uint32_t ms) {
    zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = mode, .deadline_ms = ms};
    rig.err.message[0] = '\0';
    return rig.zf->quiesce(rig.inst, &args, &rig.err);
}

/* Past the deadline nothing has happened: no window is closed, visible values are what they were, and training goes on
 * to AdamW's bits. The same call succeeds later. */
static void gives_up(int32_t mode) {
    zt_rig_block(&rig);
    for (uint32_t p = 0; p < N_SHAPES; p++)
        zt_rig_fill_grad(&rig, p, rig.step + 1);
    uint64_t closes = zt_rig_counter(&rig, "window_closes");
    zt_refused(&rig.err, quiesce_within(mode, 60), ZF_ERR_TIMEOUT, "within deadline_ms = 60");
    ck_assert_int_eq(rig.err.scope, ZF_SCOPE_CALL);
    ck_assert_int_eq(rig.err.retryable, 1);
    ck_assert_uint_eq(zt_rig_counter(&rig, "window_closes"), closes);
    zt_gate_open();
    zt_rig_steps(&rig, 1);
    ZT_OK(&rig, quiesce_within(mode, 60000));
    zt_rig_steps(&rig, 2);
}

ZT_TEST(a_deadline_of_the_hosts_own) {
    zt_rig_make(&rig, shapes, N_SHAPES, config, ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 5);
    gives_up(ZF_QUIESCE_DRAIN);
    gives_up(ZF_QUIESCE_FLUSH);
    zt_rig_end_flushed(&rig);
}

/* ---- what destroy loses ------------------------------------------------------------------------------------------ */

static zt_log_t said;

/* Elements of rig whose visible value is not that of its twin, which was flushed; parameters that have one. */
static uint64_t count_lost(const zt_rig_t *twin, uint64_t *out_params) {
    uint64_t n = 0;
    *out_params = 0;
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        uint64_t before = n;
        for (size_t i = 0; i < 4 * rig.params[p].n_elems; i += 4)
            n += memcmp(rig.params[p].visible + i, twin->params[p].visible + i, 4) != 0;
        *out_params += n != before;
    }
    return n;
}

static void train(zt_rig_t *r, int n, uint32_t flags, int lag) {
    char text[400];
    snprintf(text, sizeof text, "[zenflow]\npublish_lag = %d\n%s", lag, config + strlen("[zenflow]\n"));
    zt_rig_start(r, shapes, N_SHAPES);
    zt_rig_listen(r, &said, "without their newest updates");
    zt_rig_open(r, text, flags);
    zt_rig_steps(r, n);
}

/* n steps, then destroy: the warning has the number of elements that really lack an update, and comes once. */
static uint64_t ends_after(int n, uint32_t create_flags, int lag) {
    zt_rig_t twin;
    unsigned long long said_elems = 0, said_params = 0;
    uint64_t lost, params;
    train(&twin, n, create_flags, lag);
    ZT_OK(&twin, zt_quiesce(&twin, ZF_QUIESCE_FLUSH));
    train(&rig, n, create_flags, lag);
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    ck_assert_int_eq(sscanf(said.text, "%llu elements of %llu parameters", &said_elems, &said_params), said.n ? 2 : -1);
    lost = count_lost(&twin, &params);
    ck_assert_msg(
        said_elems == lost && said_params == params && said.n == (lost > 0),
        "lag %d, flags %u: after %d steps %llu elements of %llu parameters are said %d times, %llu of %llu are lost",
        lag, create_flags, n, said_elems, said_params, said.n, (unsigned long long)lost, (unsigned long long)params);
    zt_rig_end(&rig);
    zt_rig_end(&twin);
    return lost;
}

ZT_TEST(destroy_says_how_many_updates_are_lost) {
    setenv("ZF_TEST_BLOCK_ELEMS", "300", 1); /* several blocks of a parameter */
    for (int n = 0; n<13; n += ZT_EVERY> 1 ? 3 : 1) {
        ck_assert_int_eq(ends_after(n, 0, 0) > 0, n > 2);
        ck_assert_int_eq(ends_after(n, ZF_CREATE_CAP_FETCH, 0) > 0, n > 2); /* closes wait for a fetch, too */
        ck_assert_int_eq(ends_after(n, 0, 1) > 0, n > 2);                   /* ... or for the next step */
    }
}

/* ---- destroy at every point -------------------------------------------------------------------------------------- */

/* In warm-up, in mid-window, publishes due, channels about to enter; with gradients that no step has taken, or none. */
ZT_TEST(destroy_after_any_number_of_steps) {
    static const uint32_t how[] = {0, ZF_GRAD_TOTAL | ZF_GRAD_LAST, ZF_GRAD_PART | ZF_GRAD_MORE,
                                   ZF_GRAD_TOTAL | ZF_GRAD_UNKNOWN};
    static const char *const texts[] = {"publish_lag = 0\n", "publish_lag = 1\n"};
    for (int c = 0; c < 16 * 16; c += ZT_EVERY) {
        int n = c / 16, k = c % 16;
        char text[256];
        snprintf(
            text, sizeof text,
            "[host]\nthreads = 2\n[zenflow]\nupdate_interval = 3\nfull_warm_up_rounds = 2\nselect_interval = 2\n%s",
            texts[k / 8]);
        zt_rig_make(&rig, shapes, N_SHAPES, text, ZF_CREATE_CAP_FETCH | (k / 4 % 2 ? ZT_ON_QUEUE : 0));
        zt_rig_steps(&rig, n);
        for (uint32_t i = 0; i < 3 && how[k % 4]; i++) {
            zt_rig_fill_grad(&rig, i, rig.step + 1);
            ZT_OK(&rig, zt_rig_deliver(&rig, i, how[k % 4], NULL));
        }
        zt_rig_end(&rig);
    }
}

/* A command of another queue that waits for the instance's stream must not outlive the instance. */
static void *open_gate_later(void *unused) {
    (void)unused;
    usleep(50000);
    zt_gate_open();
    return NULL;
}

ZT_TEST(destroy_waits_for_every_stream_it_was_given) {
    zf_cpu_queue_t *other;
    zf_stream_t stream = {.struct_size = sizeof stream};
    zf_fence_t fence = {.struct_size = sizeof fence};
    pthread_t opener;
    zt_rig_make(&rig, shapes, N_SHAPES, config, ZF_CREATE_CAP_FETCH);
    ZT_OK(&rig, rig.cpu->queue_create(&other, &stream, &rig.err));
    zt_rig_steps(&rig, 5);
    zt_gate_close();
    ZT_OK(&rig, rig.cpu->queue_launch(other, zt_gate_pass, NULL, &rig.err));
    ZT_OK(&rig, rig.zf->param_fetch(rig.inst, NULL, 0, 0, &stream, &fence, &rig.err)); /* behind the gate on `other` */
    ck_assert_int_eq(pthread_create(&opener, NULL, open_gate_later, NULL), 0);
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    pthread_join(opener, NULL);
    ZT_OK(&rig, rig.cpu->queue_sync(other, 60000000000u, &rig.err));
    rig.cpu->queue_destroy(other);
    zt_rig_end(&rig);
}

/* ---- retryable --------------------------------------------------------------------------------------------------- */

/* The same call again, once what the message says is done. */
ZT_TEST(an_edit_is_retryable) {
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    zt_rig_steps(&rig, 3);
    rig.params[2].visible[1] ^= 1;
    ck_assert_int_eq(zt_rig_try_step(&rig), ZF_ERR_OVERWRITTEN);
    ck_assert_int_eq(rig.err.retryable, 1);
    ck_assert_uint_eq(rig.err.param, rig.params[2].id);
    ZT_OK(&rig, zt_changed(&rig, rig.params[2].id, 0));
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    zt_rig_end(&rig);
}

ZT_TEST(a_folder_that_is_missing_is_retryable) {
    char path[600];
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    zt_rig_steps(&rig, 3);
    snprintf(path, sizeof path, "%s/state", zt_path("missing"));
    ck_assert_int_eq(zt_save(&rig, NULL, path, 0, NULL), ZF_ERR_STORAGE);
    ck_assert_int_eq(rig.err.retryable, 1);
    *strrchr(path, '/') = '\0';
    ck_assert_int_eq(mkdir(path, 0700), 0);
    strcat(path, "/state");
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    zt_rig_end(&rig);
}

static zf_error_t of_log = {.struct_size = sizeof of_log};

static void log_calls_a_hook(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                             const char *msg, uint64_t len) {
    zt_rig_t *of = ctx;
    const zf_quiesce_args_t drain = {.struct_size = sizeof drain, .mode = ZF_QUIESCE_DRAIN};
    (void)level, (void)component, (void)file, (void)line, (void)msg, (void)len;
    of->zf->quiesce(of->inst, &drain, &of_log);
}

ZT_TEST(another_hook_is_retryable) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.host.ctx = &rig;
    rig.host.log = log_calls_a_hook;
    zt_rig_open(&rig, config, 0);
    ck_assert_int_eq(of_log.status, ZF_ERR_BUSY);
    ck_assert_int_eq(of_log.retryable, 1);
    rig.host.log = NULL;
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    zt_rig_end(&rig);
}

ZT_TEST(the_engines_deadline_is_not_retryable) {
    zt_rig_make(&rig, shapes, N_SHAPES, "[zenflow]\nfull_warm_up_rounds = 1\n[host]\ndeadline_ms = 200\n",
                ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 3);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    zt_rig_block(&rig);
    ck_assert_int_eq(zt_quiesce(&rig, ZF_QUIESCE_DRAIN), ZF_ERR_TIMEOUT);
    ck_assert_int_eq(rig.err.scope, ZF_SCOPE_INSTANCE);
    ck_assert_int_eq(rig.err.retryable, 0);
    zt_gate_open();
    zt_rig_end(&rig);
}

ZT_SUITE("rest")
