/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_faults.c - what goes wrong on a host's side, and what the engine then says and does: never a hang,
 * never silently wrong weights. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "instance/instance.h"
#include "rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40},
    {.rows = 17},
    {.rows = 30, .cols = 20},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 100\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";
static const char impatient[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\n[host]\nthreads = 2\n"
                                "deadline_ms = 200\n";

static zt_rig_t rig;

/* ---- poison ------------------------------------------------------------------------------------------------------ */

enum { N_HOOKS = 9 };

static zf_status_t call_hook(int hook) {
    static float out[24 * 40];
    memset(rig.err.message, 0, sizeof rig.err.message);
    switch (hook) {
    case 0:
        return rig.zf->poll(rig.inst, NULL, &rig.err);
    case 8: {
        const zf_fence_t fence = {.struct_size = sizeof fence,
                                  .kind = ZF_FENCE_HOST_COUNTER,
                                  .counter = (const uint64_t *)&rig.inst->engine.lines.batches.value};
        return rig.zf->fence_wait(rig.inst, &fence, 60000000000u, &rig.err);
    }
    case 1:
        return zt_rig_deliver(&rig, 0, 0, NULL);
    case 2:
        return zt_rig_submit(&rig, 0, NULL);
    case 3:
        return rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, NULL, &rig.err);
    case 4:
        return zt_quiesce(&rig, ZF_QUIESCE_DRAIN);
    case 5:
        return zt_quiesce(&rig, ZF_QUIESCE_FLUSH);
    case 6:
        return zt_try_export(&rig, 0, out);
    default:
        return rig.zf->params_changed(rig.inst, NULL, 0, 0, 0, &rig.err);
    }
}

/* Every hook now returns this error, with a message that has the part in it; destroy ends. */
static void expect_poisoned(zf_status_t want, const char *part) {
    for (int hook = 0; hook < N_HOOKS; hook++) {
        zf_status_t st = call_hook(hook);
        ck_assert_msg(st == want, "hook %d returns %d, need %d", hook, st, want);
        ck_assert_int_eq(rig.err.scope, ZF_SCOPE_INSTANCE);
        ck_assert_int_eq(rig.err.status, want);
        zt_contains(rig.err.message, part);
    }
}

/* Steps until an error comes back; the fence of the last delivery that was taken. */
static zf_status_t step_until_error(zf_fence_t *fence) {
    zf_status_t st = ZF_OK;
    for (int i = 0; i < 40 && st >= 0; i++) {
        st = zt_rig_deliver_all(&rig, fence);
        if (st >= 0)
            st = zt_rig_submit(&rig, ZF_STEP_WAIT, NULL);
    }
    return st;
}

ZT_TEST(a_weight_overflows) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zt_rig_start(&rig, shapes, N_SHAPES);
    for (uint32_t i = 0; i < N_SHAPES; i++)
        rig.decls[i].group = i == 2;
    zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
    zt_rig_steps(&rig, 4);
    rig.groups[1].lr = 1e30; /* of layer.2.weight alone */
    rig.groups[1].weight_decay = 1.0;
    ck_assert_int_eq(step_until_error(&fence), ZF_ERR_NONFINITE);
    expect_poisoned(ZF_ERR_NONFINITE, "\"layer.2.weight\"");
    zt_contains(rig.err.message, "step ");
    ck_assert_uint_eq(__atomic_load_n(fence.counter, __ATOMIC_ACQUIRE), UINT64_MAX);
    fence.value = UINT64_MAX - 1; /* whatever a host waits for, it is over */
    ck_assert_int_eq(rig.zf->fence_wait(rig.inst, &fence, 60000000000u, &rig.err), ZF_ERR_NONFINITE);
    zt_rig_end(&rig);
}

static void end_instance(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                         const char *msg, uint64_t len) {
    const zf_error_t error = {.struct_size = sizeof error, .status = ZF_ERR_DEVICE, .message = "meanwhile"};
    (void)ctx, (void)level, (void)component, (void)file, (void)line, (void)msg, (void)len;
    zfi_poison(&rig.inst->engine, &error);
}

/* The instance ends while a hook runs that waits for nothing: here in what it logs of a step without gradients. */
ZT_TEST(a_hook_tells_what_ended_the_instance_meanwhile) {
    zt_rig_make(&rig, shapes, N_SHAPES, "", ZF_CREATE_CAP_FETCH);
    rig.inst->engine.host_copy.log = end_instance;
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_DEVICE);
    zt_contains(rig.err.message, "meanwhile");
    zt_rig_end(&rig);
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

ZT_TEST(a_blocked_queue_is_a_timeout) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zt_rig_make(&rig, shapes, N_SHAPES, impatient, ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 3);
    zt_rig_block(&rig);
    ck_assert_int_eq(step_until_error(&fence), ZF_ERR_TIMEOUT);
    expect_poisoned(ZF_ERR_TIMEOUT, "deadline_ms");
    zt_contains(rig.err.message, "shipped=");
    zt_contains(rig.err.message, "stepped="); /* the dump has all timelines, first to last */
    ck_assert_uint_eq(__atomic_load_n(fence.counter, __ATOMIC_ACQUIRE), UINT64_MAX);
    zt_gate_open();
    zt_rig_end(&rig);
}

static void work_a_while(void *raw) { usleep(*(useconds_t *)raw); }

/* The host's own work before a step, and eight steps of a little of it in flight: no deadline counts that. What the
 * engine does itself has a second, which a busy machine grants it. */
ZT_TEST(the_hosts_own_work_is_no_timeout) {
    static const char config_of_a_second[] =
        "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\ndeadline_ms = 1000\n";
    static useconds_t long_work = 1500000, short_work = 180000;
    zt_rig_make(&rig, shapes, N_SHAPES, config_of_a_second, ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 2);
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, work_a_while, &long_work, &rig.err));
    zt_rig_steps(&rig, 1);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    for (int i = 0; i < 8; i++) {
        ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, work_a_while, &short_work, &rig.err));
        zt_rig_steps(&rig, 1);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    zt_rig_end_flushed(&rig);
}

ZT_TEST(destroy_with_a_blocked_queue) { /* longer than the deadline: its commands run after destroy has given up */
    zt_rig_make(&rig, shapes, N_SHAPES, impatient, ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 3);
    zt_rig_block(&rig);
    if (zt_rig_deliver_all(&rig, NULL) >= 0)
        zt_rig_submit(&rig, 0, NULL);
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    zt_gate_open();
    zt_rig_sync(&rig);
    zt_rig_end(&rig);
}

ZT_TEST(a_full_queue_is_a_timeout) { /* more commands than it holds: pushing must not wait for ever */
    zf_status_t st = ZF_OK;
    zt_rig_make(&rig, shapes, N_SHAPES,
                "[zenflow]\nupdate_interval = 64\nfull_warm_up_rounds = 1000\n[host]\nthreads = 1\n"
                "deadline_ms = 200\n",
                ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE);
    zt_rig_steps(&rig, 1);
    zt_rig_block(&rig);
    for (int i = 0; i < 700 && st >= 0; i++) /* the host's own work */
        st = rig.cpu->queue_launch(rig.queue, zt_gate_pass, NULL, &rig.err);
    for (int i = 0; i < ZFI_MAX_STEPS_AHEAD && st >= 0; i++) {
        st = zt_rig_deliver(&rig, 1, 0, NULL);
        for (int k = 0; k < 2000 && st >= 0; k++)
            st = zt_rig_deliver(&rig, 0, ZF_GRAD_TOTAL, NULL);
        if (st >= 0)
            st = zt_rig_submit(&rig, 0, NULL);
    }
    ck_assert_int_eq(st, ZF_ERR_TIMEOUT);
    expect_poisoned(ZF_ERR_TIMEOUT, "deadline_ms");
    zt_gate_open();
    zt_rig_end(&rig);
}

/* A host may pause between steps for as long as it likes (evaluation, a save): that is no deadline of the engine's. */
static void pause_between_steps(const char *text, int is_queue) {
    static const zt_shape_t large[] = {{.rows = 256, .cols = 256}, {.rows = 300}, {.rows = 128, .cols = 128}};
    zt_rig_make(&rig, large, 3, text, ZF_CREATE_CAP_FETCH | (is_queue ? ZT_ON_QUEUE : 0));
    for (int i = 0; i < 9; i++) {
        zt_rig_step(&rig);
        if (i == 3 || i == 6)
            usleep(1200000); /* longer than the deadline */
        if (i == 6)
            ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    }
    zt_rig_end_flushed(&rig);
}

ZT_TEST(a_pause_is_no_timeout) { /* due publishes of more chunks than the ring holds; entering state of many blocks */
    static const char text[] = "[zenflow]\nupdate_interval = 1\nselect_interval = 2\nfull_warm_up_rounds = 1\n"
                               "topk_ratio = 0.5\n[host]\nthreads = 1\ndeadline_ms = 1000\n";
    pause_between_steps(text, 0);
    pause_between_steps(text, 1);
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* 0, or which of the hooks does not say that it is a child. */
static int child_of_fork(void) {
    zf_counter_t counter = {.struct_size = sizeof counter};
    zf_step_record_t record = {.struct_size = sizeof record};
    for (int hook = 0; hook < N_HOOKS; hook++)
        if (call_hook(hook) != ZF_ERR_FORKED || !strstr(rig.err.message, "fork()"))
            return 1 + hook;
    if (rig.stats->counter(rig.inst, 0, &counter, &rig.err) != ZF_OK)
        return 1 + N_HOOKS;
    if (rig.stats->step_record(rig.inst, 1, &record, &rig.err) != ZF_ERR_FORKED ||
        rig.stats->step_counter(rig.inst, 1, 0, &counter, &rig.err) != ZF_ERR_FORKED) /* their lock may be held */
        return 2 + N_HOOKS;
    rig.zf->destroy(rig.inst, NULL);
    rig.zf->destroy(rig.inst, NULL);
    return 0;
}

ZT_TEST(fork_in_mid_window) {
    int status = -1;
    zt_rig_make(&rig, shapes, N_SHAPES, config, ZF_CREATE_CAP_FETCH);
    zt_rig_steps(&rig, 7);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(child_of_fork());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", (unsigned)status);
    zt_rig_steps(&rig, 8);
    zt_rig_end_flushed(&rig);
}

ZT_SUITE("faults")
