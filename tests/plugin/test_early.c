/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_early.c - early replays (replay/early.h, ranks/landing.h): of use where a step is as expected, on
 * each of several ranks too, and in nobody's way. That they are without effect where it is not, whatever happens
 * between the deliveries and the step, is zf-conform exact's and shard's. */
#include "replay/early.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "instance/instance.h"
#include "local_ranks.h"
#include "suite.h"

/* Chunks of different sizes, so that a spare which has held a small one is no room for a large one. */
static const zt_shape_t shapes[] = {
    {.rows = 200, .cols = 330, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_HOST},
    {.rows = 40, .cols = 30, .group = 1, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_HOST},
    {.rows = 100, .cols = 300, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_HOST},
    {.rows = 17, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_HOST},
    {.rows = 260, .cols = 100, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_HOST}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_STEPS = ZT_EVERY > 1 ? 5 : 12, ASK_AGAIN_US = 200 };

static zt_rig_t rig;
static zfi_run_t *run;
static uint64_t early_taken, early_lost; /* up to the newest count() */

#define HOST "[host]\nthreads = 2\ndeadline_ms = 60000\n"
#define EXACT "[zenflow]\nfull_warm_up_rounds = 1\n" HOST
#define ASKED "[zenflow]\nfull_warm_up_rounds = 1\non_overwrite = ask\n" HOST
#define WINDOWS "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\npredict = off\n" HOST

/* With a fence, so that they are on their way. */
static zf_fence_t deliver_all(zt_rig_t *to) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(to, zt_rig_deliver_all(to, &fence));
    return fence;
}

/* All gradients, and as many early replays as there is room for. */
static void deliver(zt_rig_t *to) {
    deliver_all(to);
    while (zfi_early_has_work(to->inst->run->early))
        usleep(ASK_AGAIN_US);
}

static void update(zt_rig_t *to) {
    ZT_OK(to, zt_rig_submit(to, 0, NULL));
    for (uint32_t i = 0; i < to->n_params; i++)
        zt_serial_update(&to->params[i].serial, &to->groups[shapes[i].group], to->params[i].grad_values,
                         (float)to->unscale);
}

static void submit(zt_rig_t *to) {
    update(to);
    zt_rig_check_export(to);
}

static void start(void) {
    zt_rig_make(&rig, shapes, N_SHAPES, EXACT, 0);
    early_taken = early_lost = 0;
}

static void end(void) { zt_rig_end_flushed(&rig); }

/* What early replays were of use and not, since the last time. */
static void count(uint64_t *out_taken, uint64_t *out_lost) {
    uint64_t taken = atomic_load(&rig.inst->engine.count.early_taken);
    uint64_t lost = atomic_load(&rig.inst->engine.count.early_lost);
    *out_taken = taken - early_taken;
    *out_lost = lost - early_lost;
    early_taken = taken;
    early_lost = lost;
}

/* Of a step: some were of use and none was lost, or the other way round. */
static void expect(int of_use) {
    uint64_t taken, lost;
    count(&taken, &lost);
    ck_assert_msg((taken > 0) == of_use && (lost > 0) == !of_use, "step %d: %d taken, %d lost", (int)rig.step,
                  (int)taken, (int)lost);
}

ZT_TEST(announced) { /* from the first step on, whatever the rates are */
    start();
    for (int i = 0; i < N_STEPS; i++) {
        rig.groups[i % 3].lr *= 0.9;
        rig.unscale *= 0.5;
        ZT_OK(&rig, zt_rig_announce(&rig));
        deliver(&rig);
        submit(&rig);
        expect(1);
    }
    end();
}

/* ---- a replay that does not end ---------------------------------------------------------------------------------- */

static _Atomic uint32_t n_begun; /* chunks */
static _Atomic int may_end = 1;

static int32_t slow_adamw(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    atomic_fetch_add(&n_begun, 1);
    while (!atomic_load(&may_end))
        usleep(ASK_AGAIN_US);
    zt_adamw_rule(u);
    return 0;
}

/* The next step, submitted while an earlier one is replayed. */
static void step_beside(zf_fence_t *fence) {
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, fence));
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    zt_serial_update(&rig.params[0].serial, &rig.groups[0], rig.params[0].grad_values, (float)rig.unscale);
    usleep(60000);
}

/* "Not yet" can fail only if the engine does not wait. */
ZT_TEST(a_step_waits_for_what_has_begun) {
    static const zf_rule_callback_t rule = {
        .struct_size = sizeof rule, .n_moments = 2, .name = "slow", .update = slow_adamw};
    static const zt_shape_t one = {.rows = 50, .cols = 40, .home = ZF_HOME_HOST};
    zf_fence_t fence = {.struct_size = sizeof fence};
    uint64_t taken, lost;
    zt_rig_start(&rig, &one, 1);
    zt_rig_use_queue(&rig);
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &rule);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\n[host]\nthreads = 8\n",
                ZF_CREATE_CAP_FETCH);
    run = rig.inst->run;
    zt_rig_step(&rig);
    zt_rig_step(&rig);
    ZT_OK(&rig, zt_fetch(&rig, 0, &fence)); /* so that there is a place for the next values */
    zt_rig_sync(&rig);
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    atomic_store(&may_end, 0);
    atomic_store(&n_begun, 0);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, &fence));
    while (atomic_load(&n_begun) < run->plan.n_chunks)
        usleep(ASK_AGAIN_US);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    zt_serial_update(&rig.params[0].serial, &rig.groups[0], rig.params[0].grad_values, (float)rig.unscale);
    usleep(60000);
    ck_assert_uint_lt(zfi_timeline_now(&rig.inst->engine.lines.jobs), run->clock.next_job);
    step_beside(&fence); /* its replays wait for these, by workers of their own */
    early_taken = atomic_load(&rig.inst->engine.count.early_taken);
    early_lost = atomic_load(&rig.inst->engine.count.early_lost);
    atomic_store(&may_end, 1);
    zt_rig_check_flushed(&rig); /* does not give up what was submitted */
    count(&taken, &lost);
    ck_assert_uint_eq(taken, run->plan.n_chunks);
    ck_assert_uint_eq(lost, 0);
    zt_rig_end(&rig);
}

ZT_TEST(pauses_where_nothing_is_of_use) {
    uint64_t n_tried = 0, taken, lost;
    start();
    for (int i = 0; i < 2; i++) { /* after which hyper-parameters are expected */
        deliver(&rig);
        submit(&rig);
    }
    expect(1);
    for (int i = 0; i < 2 * N_STEPS; i++) {
        rig.groups[0].lr *= 0.99;
        deliver(&rig);
        rig.groups[0].lr *= 0.99;
        submit(&rig);
        count(&taken, &lost);
        ck_assert_uint_eq(taken, 0);
        n_tried += lost > 0;
    }
    ck_assert_uint_gt(n_tried, 0);
    ck_assert_uint_lt(n_tried, N_STEPS);
    end();
}

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

typedef struct job {
    ZT_JOB;
    uint64_t taken, lost;
} job_t;

enum { MOST = 4, STEPS = ZT_EVERY > 1 ? 3 : 6 };
static zt_ranks_t ranks;
static job_t jobs[MOST];
static pthread_barrier_t all;

/* Of a step whose early replays are all over before it comes. */
static void step_late(job_t *job) {
    deliver(&job->rig);
    submit(&job->rig);
}

static void run_jobs(void *(*script)(void *), const char *common, uint32_t n, uint32_t stage, int uses_queue) {
    char config[256];
    snprintf(config, sizeof config, "%s[shard]\nbucket_bytes = 1000\nstage = %u\n", common, stage);
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, &(job_t){.config = config, .uses_queue = uses_queue});
    pthread_barrier_init(&all, NULL, n);
    for (uint32_t r = 0; r < n; r++)
        ranks.ranks[r].flags = stage == 3 ? ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS : 0;
    zt_jobs_run(&ranks, script, 0);
    pthread_barrier_destroy(&all);
}

static void *run_of_use(void *raw) {
    job_t *job = raw;
    ck_assert(zt_job_open(job, shapes, N_SHAPES));
    for (int i = 0; i < STEPS; i++)
        step_late(job);
    job->taken = zt_rig_counter(&job->rig, "early_taken");
    ck_assert_uint_eq(zt_rig_counter(&job->rig, "early_lost"), 0);
    job->rig.groups[0].lr *= 0.5; /* not announced */
    step_late(job);
    job->lost = zt_rig_counter(&job->rig, "early_lost");
    return NULL;
}

ZT_TEST(of_use_on_every_rank) {
    for (uint32_t stage = 0; stage <= 3; stage += ZT_EVERY > 1 ? 3 : 1) {
        uint32_t n = stage % 2 ? 4 : 2;
        run_jobs(run_of_use, EXACT, n, stage, 0);
        for (uint32_t r = 0; r < n; r++) {
            ck_assert_msg(jobs[r].taken > STEPS - 2, "stage %u, rank %u: %d taken", stage, r, (int)jobs[r].taken);
            ck_assert_msg(jobs[r].lost > 0, "stage %u, rank %u: none is lost", stage, r);
        }
        zt_jobs_end(&ranks);
    }
}

/* A rank's own, by which its step's scalars come down late. */
static __thread struct late {
    zfi_engine_t *engine;
    const zfi_device_ops_t *ops;
    zfi_timeline_t may_come;
    uint64_t step;
} late;

static zf_status_t enqueue_late(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    zfi_op_t wait = zfi_op_wait(&late.may_come, late.step, NULL);
    uint32_t at = 0;
    while (at < n && !(ops[at].kind == ZFI_OP_SIGNAL && ops[at].timeline == &late.engine->lines.down))
        at++;
    if (at == n)
        return late.ops->enqueue(device, stream, ops, n);
    /* the scalars' copy is right before the signal */
    ck_assert_int_eq(late.ops->enqueue(device, stream, ops, at - 1), ZF_OK);
    ck_assert_int_eq(late.ops->enqueue(device, stream, &wait, 1), ZF_OK);
    return late.ops->enqueue(device, stream, ops + at - 1, n - at + 1);
}

/* Scalars of a step come to the host late, and gradients of the next one do not: their exchange is another way. Where
 * no close in between holds it back, what is of use in the next step is queued until they have come. */
static void *run_behind(void *raw) {
    job_t *job = raw;
    zt_rig_t *to = &job->rig;
    zfi_device_ops_t ops;
    uint64_t taken = 0;
    int n_seen = 0, was_queued = 1, was_open = 0;
    ck_assert(zt_job_open(job, shapes, 1));
    late.engine = &to->inst->engine;
    late.ops = late.engine->ops;
    zfi_timeline_init(&late.may_come, "late");
    ops = *late.ops;
    ops.enqueue = enqueue_late;
    late.engine->to_down.table = &ops;
    zf_fence_t fence = deliver_all(to);
    for (uint64_t i = 1; i <= 4 * STEPS; i++) {
        zfi_engine_t *engine = late.engine;
        const zfi_clock_t *clock = &to->inst->run->clock;
        uint64_t before = taken;
        zt_rig_wait(to, &fence);
        late.step = i;
        update(to);
        fence = deliver_all(to);
        pthread_barrier_wait(&all);
        usleep(20000);
        int is_queued = zfi_early_has_work(to->inst->run->early);
        int is_open = zfi_timeline_now(&engine->lines.jobs) == clock->next_job;
        zfi_timeline_signal(&late.may_come, i);
        ck_assert_int_eq(zfi_wait(engine, &engine->lines.jobs, clock->next_job, NULL), ZF_OK);
        while (zfi_early_has_work(to->inst->run->early))
            usleep(ASK_AGAIN_US);
        taken = zt_rig_counter(to, "early_taken");
        ck_assert_msg(was_queued || !was_open || taken == before, "step %d did not wait for the one before", (int)i);
        n_seen += was_open && taken > before;
        was_queued = is_queued;
        was_open = is_open;
    }
    late.engine->to_down.table = late.ops;
    update(to);
    zt_rig_check_flushed(to);
    zfi_timeline_free(&late.may_come);
    ck_assert_int_gt(n_seen, 0);
    return NULL;
}

ZT_TEST(waits_for_the_windows_earlier_steps) {
    for (uint32_t stage = 0; stage <= 1; stage++) {
        run_jobs(run_behind, WINDOWS, 2, stage, 1);
        zt_jobs_end(&ranks);
    }
}

/* The last rank has delivered nothing when the others wait for its gradients, and FLUSH needs all of their workers. */
static void *run_flushing(void *raw) {
    job_t *job = raw;
    int is_last = job->rank->rank + 1 == ranks.size;
    ck_assert(zt_job_open(job, shapes, N_SHAPES));
    step_late(job);
    step_late(job);
    if (!is_last)
        deliver_all(&job->rig);
    usleep(100000);
    pthread_barrier_wait(&all);
    ZT_OK(&job->rig, zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH));
    if (is_last)
        deliver_all(&job->rig);
    submit(&job->rig);
    step_late(job);
    return NULL;
}

ZT_TEST(flush_while_a_step_is_filled) {
    run_jobs(run_flushing, EXACT, 2, 1, 0);
    zt_jobs_end(&ranks);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Matrices that have more values than places for them on their way up, and one place for each gradient; of the groups
 * of `shapes`. is_shown: workers write values where the model reads them, and nothing goes up. */
static void run_in_few_places(const char *config, int is_shown) {
    static const zt_shape_t large[] = {{.rows = 1300, .cols = 1000, .home = ZF_HOME_HOST},
                                       {.rows = 1000, .cols = 700, .group = 1, .is_bf16 = 1, .home = ZF_HOME_HOST},
                                       {.rows = 130, .home = ZF_HOME_HOST}};
    zt_rig_make(&rig, large, 3, config, 0);
    ck_assert_uint_lt(rig.inst->run->plan.n_value_places, rig.inst->run->plan.max_close_chunks);
    for (uint32_t l = 0; l < rig.inst->run->plan.n_layers; l++)
        ck_assert_uint_eq(rig.inst->run->plan.layers[l].n_pieces, 1);
    for (int i = 0; i < 4; i++) {
        ZT_OK(&rig, zt_rig_announce(&rig));
        deliver(&rig);
        update(&rig);
        zt_rig_finish_step(&rig);
        zt_rig_check_visible(&rig);
        zt_rig_check_export(&rig);
    }
    ck_assert_int_eq(zt_rig_counter(&rig, "up_publish_nbytes") == 0, is_shown);
    zt_rig_end_flushed(&rig);
}

ZT_TEST(few_places) {
    run_in_few_places(EXACT, 0);
    run_in_few_places(EXACT "early_mib = 1\n", 0);
    run_in_few_places(EXACT "early_mib = 0\n", 0);
    run_in_few_places(ASKED, 1);
    run_in_few_places(ASKED "early_mib = 0\n", 1);
}

ZT_SUITE("early")
