/* SPDX-License-Identifier: Apache-2.0 */
/* test_late_down.c - the stream that brings things down falls behind the device: nothing that it has yet to copy is
 * written again.
 *
 * zfi_timeline_signal is wrapped (-Wl,--wrap): after one word of that stream it stands still until the host has
 * submitted many steps more and the device had time for them, or does not come on because the engine makes it wait.
 * Both are given half a second; what is compared with a run that is not held does not depend on it. Each step's
 * gradients have memory of their own, so that nothing else makes the device wait. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "local_ranks.h"
#include "rig.h"
#include "suite.h"

enum { N_STEPS = 16, N_SHAPES = 2, LOUD_STEP = 4, MOST_ELEMS = 12 * 20, PATIENCE_MS = 600, DEVICE_MS = 250 };

static const zt_shape_t shapes[N_SHAPES] = {{.rows = 12, .cols = 20}, {.rows = 20}};
static _Atomic uint64_t n_submitted, hold_after; /* word of "down"; 0: none */
static _Atomic int holds_control;                /* the control thread ends no step meanwhile */

void __real_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value);
void __wrap_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value);

void __wrap_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value) {
    uint64_t expected = value;
    while (strcmp(timeline->name, "control") == 0 && atomic_load(&holds_control))
        usleep(1000);
    __real_zfi_timeline_signal(timeline, value);
    if (strcmp(timeline->name, "down") == 0 && atomic_compare_exchange_strong(&hold_after, &expected, 0))
        for (int i = 0, late = 0; i < PATIENCE_MS && late < DEVICE_MS; i++, usleep(1000))
            late += atomic_load(&n_submitted) >= value + 6;
}

/* How a run goes, and what it comes to. */
typedef struct course {
    const char *config;
    uint32_t step_flags;
    uint64_t held_step;    /* the stream stands still after its word about this one */
    int overwrites_behind; /* the host writes gradients again once their step is reported */
    unsigned char visible[N_SHAPES][4 * MOST_ELEMS];
    float weights[N_SHAPES][MOST_ELEMS];
} course_t;

/* Where a fence is asked for, the report of a step waits for no copy of its gradients. */
static void deliver(zt_rig_t *rig, uint32_t i, unsigned char *memory, int has_fence) {
    zf_fence_t read = {.struct_size = sizeof read};
    zt_param_t *param = &rig->params[i];
    zt_rig_fill_grad(rig, i, rig->step + 1);
    for (size_t k = 0; k < param->n_elems && rig->step + 1 == LOUD_STEP;
         k++) /* five channels, which the next choice takes */
        ((float *)(void *)param->grad)[k] *= k % 4 == 1 ? 1000 : 1;
    memcpy(memory, param->grad, param->n_elems * param->elem_nbytes);
    param->grad_tensor.dl.data = memory;
    ZT_OK(rig, zt_rig_deliver(rig, i, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ, has_fence ? &read : NULL));
}

static zf_status_t export_param(zt_rig_t *rig, uint32_t i, float *out) {
    zf_export_item_t item = {.struct_size = sizeof item, .id = rig->params[i].id, .dst = out};
    item.dst_nbytes = rig->params[i].n_elems * sizeof(float);
    return rig->zf->export_params(rig->inst, &item, 1, sizeof item, &rig->err);
}

static void train(course_t *course, int is_held) {
    static unsigned char memory[N_STEPS][N_SHAPES][4 * MOST_ELEMS];
    static zt_rig_t rig;
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, course->config, ZF_CREATE_CAP_FETCH);
    atomic_store(&n_submitted, 0);
    atomic_store(&hold_after, is_held ? course->held_step : 0);
    for (uint64_t t = 1; t <= N_STEPS; t++) {
        for (uint32_t i = N_SHAPES; i-- > 0;)
            deliver(&rig, i, memory[t - 1][i], !course->overwrites_behind);
        ZT_OK(&rig, zt_rig_submit(&rig, course->step_flags, NULL));
        if (course->overwrites_behind)
            memset(memory[t - 1], 0x3F, sizeof memory[t - 1]);
        atomic_store(&n_submitted, t);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN)); /* in open windows selected channels show by themselves */
    ck_assert_uint_eq(atomic_load(&hold_after), 0);
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        ZT_OK(&rig, export_param(&rig, i, course->weights[i]));
        memcpy(course->visible[i], rig.params[i].visible, rig.params[i].n_elems * rig.params[i].elem_nbytes);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
    zt_rig_end(&rig);
}

static void same_whether_held_or_not(const course_t *course) {
    static course_t free_run, held;
    free_run = held = *course;
    train(&free_run, 0);
    train(&held, 1);
    ck_assert_int_eq(memcmp(free_run.visible, held.visible, sizeof held.visible), 0);
    ck_assert_int_eq(memcmp(free_run.weights, held.weights, sizeof held.weights), 0);
}

/* Sums of channels, of which the device has two: those of a step are copied behind the word about it. The next choice
 * counts them. */
START_TEST(records) {
    same_whether_held_or_not(&(course_t){
        .config = "[zenflow]\ntopk_ratio = 0.25\nupdate_interval = 4\nselect_interval = 12\npublish_lag = 1\n"
                  "full_warm_up_rounds = 1\n[host]\nthreads = 1\n",
        .held_step = LOUD_STEP});
}
END_TEST

/* Gradients that the host lent until their step is reported. */
START_TEST(gradients_until_the_report) {
    same_whether_held_or_not(&(course_t){.config =
                                             "[zenflow]\ntopk_ratio = 0.25\nupdate_interval = 4\npublish_lag = 1\n"
                                             "full_warm_up_rounds = 1\n[host]\nthreads = 1\n",
                                         .step_flags = ZF_STEP_WAIT,
                                         .held_step = 6,
                                         .overwrites_behind = 1});
}
END_TEST

/* ---- the control thread ------------------------------------------------------------------------------------------ */

/* It reads what a step is in a ring of rows. Nothing is selected, so no record keeps the others near. */
START_TEST(no_further_than_the_control_thread) {
    enum { AHEAD = 6 };
    static unsigned char memory[AHEAD][N_SHAPES][4 * MOST_ELEMS];
    static zt_rig_t rig;
    zfi_timeline_t *down;
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 4\npublish_lag = 1\nfull_warm_up_rounds = 1\n",
                ZF_CREATE_CAP_FETCH);
    down = &rig.inst->engine.lines.down;
    atomic_store(&holds_control, 1);
    for (int t = 0; t < AHEAD; t++) {
        for (uint32_t i = N_SHAPES; i-- > 0;)
            deliver(&rig, i, memory[t][i], 1);
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    }
    for (int i = 0; i < 10000 && zfi_timeline_now(down) < ZFI_RECORD_DEPTH; i++)
        usleep(1000);
    usleep(1000 * DEVICE_MS);
    ck_assert_uint_eq(zfi_timeline_now(down), ZFI_RECORD_DEPTH);
    atomic_store(&holds_control, 0);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    ck_assert_uint_eq(zfi_timeline_now(down), AHEAD);
    zt_rig_end(&rig);
}
END_TEST

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

enum { N_RANKS = 2, HELD_STEP = 5 };
typedef struct job {
    zt_rig_t rig;
    zt_rank_t *rank;
    zf_status_t st;
    float weights[N_SHAPES][MOST_ELEMS];
} job_t;

/* Nothing is delivered in the step after the held one: the memory that gradients go to the other ranks from is filled
 * with zeros, once what it holds has been copied down. */
static void *run_rank(void *raw) {
    static const zt_shape_t averaged[N_SHAPES] = {{.rows = 12, .cols = 20, .flags = ZF_PARAM_AVERAGE},
                                                  {.rows = 20, .flags = ZF_PARAM_AVERAGE}};
    job_t *job = raw;
    zt_rig_start(&job->rig, averaged, N_SHAPES);
    job->st = zt_ranks_try_open(job->rank, &job->rig,
                                "[zenflow]\ntopk_ratio = 0\nupdate_interval = 4\npublish_lag = 1\n"
                                "full_warm_up_rounds = 1\npredict = off\n[host]\nthreads = 1\n[log]\nlevel = error\n",
                                0);
    for (uint64_t t = 1; t <= N_STEPS && job->st >= 0; t++) {
        for (uint32_t i = N_SHAPES; i-- > 0 && t != HELD_STEP + 1 && job->st >= 0;) {
            zt_rig_fill_grad(&job->rig, i, t);
            job->st = zt_rig_deliver(&job->rig, i, 0, NULL);
        }
        if (job->st >= 0)
            job->st = zt_rig_submit(&job->rig, 0, NULL);
        atomic_store(&n_submitted, t);
    }
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    for (uint32_t i = 0; i < N_SHAPES && job->st >= 0; i++)
        job->st = export_param(&job->rig, i, job->weights[i]);
    return NULL;
}

static void run_ranks(job_t *jobs, int is_held) {
    static zt_ranks_t ranks;
    zt_ranks_init(&ranks, N_RANKS);
    atomic_store(&n_submitted, 0);
    atomic_store(&hold_after, is_held ? HELD_STEP - 1 : 0);
    for (uint32_t r = 0; r < N_RANKS; r++)
        jobs[r].rank = &ranks.ranks[r];
    zt_ranks_run(N_RANKS, run_rank, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", r, jobs[r].rig.err.message);
        zt_rig_end(&jobs[r].rig);
    }
    zt_ranks_free(&ranks);
}

START_TEST(gradients_of_ranks) {
    static job_t free_run[N_RANKS], held[N_RANKS];
    run_ranks(free_run, 0);
    run_ranks(held, 1);
    ck_assert_uint_eq(atomic_load(&hold_after), 0);
    for (uint32_t r = 0; r < N_RANKS; r++)
        ck_assert_int_eq(memcmp(free_run[r].weights, held[r].weights, sizeof held[r].weights), 0);
}
END_TEST

ZT_MAIN("late_down", records, gradients_until_the_report, no_further_than_the_control_thread, gradients_of_ranks)
