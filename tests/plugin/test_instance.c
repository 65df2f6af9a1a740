/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_instance.c - the life of an instance through the public table: destruction at every point, what the
 * environment forces. States, bad calls, several instances and what is left behind are zf-conform abi's. */
#define _GNU_SOURCE
#include <check.h>
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "instance/run.h"
#include "rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40},
    {.rows = 17},
    {.rows = 32, .cols = 48, .is_bf16 = 1, .group = 1},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2},
    {.rows = 0, .cols = 5},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";

static zt_rig_t rig;

static void open_rig(const char *text, uint32_t flags) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, text, flags);
}

/* ---- negotiation and create -------------------------------------------------------------------------------------- */

START_TEST(forced_blocks) {
    static const zt_shape_t above[] = {{.rows = 257, .cols = 256}, {.rows = 5}}; /* two blocks as users get them */
    static const char *const bad[] = {"0", "65537", "70000", "-1", "12x", "1e3", " 7", "x", "99999999999999999999"};
    uint32_t n_matrices;
    zt_rig_start(&rig, above, 2);
    zt_rig_open(&rig, config, 0);
    n_matrices = (uint32_t)zt_rig_parts(&rig)->n_matrices;
    ck_assert_uint_eq(n_matrices, 3);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig.zf->destroy(rig.inst, NULL);
        setenv("ZF_TEST_BLOCK_ELEMS", bad[i], 1);
        zt_rig_open(&rig, config, 0);
        ck_assert_msg(zt_rig_parts(&rig)->n_matrices == n_matrices, "\"%s\" is not ignored", bad[i]);
    }
    rig.zf->destroy(rig.inst, NULL);
    setenv("ZF_TEST_BLOCK_ELEMS", "256", 1);
    zt_rig_open(&rig, config, 0);
    unsetenv("ZF_TEST_BLOCK_ELEMS");
    ck_assert_uint_eq(zt_rig_parts(&rig)->n_matrices, 258);
    zt_rig_steps(&rig, 12);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(forced_instruction_set) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    setenv("ZF_FORCE_ISA", "mmx", 1);
    zt_refused(&rig.err, zt_rig_try_create(&rig, config, 0), ZF_ERR_CONFIG, "mmx");
    setenv("ZF_FORCE_ISA", "generic", 1);
    zt_rig_open(&rig, config, 0);
    unsetenv("ZF_FORCE_ISA");
    zt_rig_steps(&rig, 12);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* Choices are due at the same steps whether they keep a set or not. Gradients of one step again and again keep it. */
START_TEST(a_kept_set_counts_as_a_choice) {
    static const char *const strategies[] = {"step", "auto"};
    uint64_t n[2];
    for (int s = 0; s < 2; s++) {
        char text[300];
        snprintf(text, sizeof text, "%s[zenflow]\nselect_strategy = %s\n", config, strategies[s]);
        open_rig(text, 0);
        for (int step = 0; step < 30; step++) {
            for (uint32_t i = 0; i < N_SHAPES; i++) {
                zt_rig_fill_grad(&rig, i, 1);
                ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, NULL));
            }
            ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL));
        }
        n[s] = zt_rig_counter(&rig, "reselects");
        zt_rig_end(&rig);
    }
    ck_assert_uint_gt(n[0], 20);
    ck_assert_uint_eq(n[1], n[0]);
}
END_TEST

/* ---- destroy at every point -------------------------------------------------------------------------------------- */

START_TEST(destroy_after_any_number_of_steps) { /* warm-up, mid-window, publishes due, channels about to enter */
    for (int n = 0; n < 16; n++)
        for (int lag = 0; lag < 2; lag++)
            for (int is_queue = 0; is_queue < 2; is_queue++) {
                char text[256];
                snprintf(text, sizeof text, "%spublish_lag = %d\n",
                         "[host]\nthreads = 2\n[zenflow]\nupdate_interval = 3\n"
                         "full_warm_up_rounds = 2\nselect_interval = 2\n",
                         lag);
                zt_rig_start(&rig, shapes, N_SHAPES);
                if (is_queue)
                    zt_rig_use_queue(&rig);
                zt_rig_open(&rig, text, ZF_CREATE_CAP_FETCH);
                zt_rig_steps(&rig, n);
                zt_rig_end(&rig);
            }
}
END_TEST

START_TEST(destroy_with_gradients_not_stepped) {
    static const uint32_t how[] = {ZF_GRAD_TOTAL | ZF_GRAD_LAST, ZF_GRAD_PART | ZF_GRAD_MORE,
                                   ZF_GRAD_TOTAL | ZF_GRAD_UNKNOWN};
    for (int n = 0; n < 8; n++)
        for (size_t k = 0; k < 6; k++) {
            zt_rig_start(&rig, shapes, N_SHAPES);
            if (k >= 3)
                zt_rig_use_queue(&rig);
            zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
            zt_rig_steps(&rig, n);
            for (uint32_t i = 0; i < 3; i++) {
                zt_rig_fill_grad(&rig, i, rig.step + 1);
                ZT_OK(&rig, zt_rig_deliver(&rig, i, how[k % 3], NULL));
            }
            zt_rig_end(&rig);
        }
}
END_TEST

/* A command of another queue that waits for the instance's stream must not outlive the instance. */
static void *open_gate_later(void *unused) {
    (void)unused;
    usleep(50000);
    zt_gate_open();
    return NULL;
}

START_TEST(destroy_waits_for_every_stream_it_was_given) {
    zf_cpu_queue_t *other;
    zf_stream_t stream = {.struct_size = sizeof stream};
    zf_fence_t fence = {.struct_size = sizeof fence};
    pthread_t opener;
    open_rig(config, ZF_CREATE_CAP_FETCH);
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
END_TEST

/* ---- several instances, nothing left behind -----------------------------------------------------------------------
 */

#if defined(__SANITIZE_ADDRESS__)
/* Freed memory that AddressSanitizer holds back would look like mappings left behind. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=1"; }
#endif

ZT_MAIN("instance", forced_blocks, forced_instruction_set, a_kept_set_counts_as_a_choice,
        destroy_after_any_number_of_steps, destroy_with_gradients_not_stepped,
        destroy_waits_for_every_stream_it_was_given)
