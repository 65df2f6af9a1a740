/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_early.c - early replays on several ranks (ranks/landing.h): of use on each, and in nobody's way. That they
 * are without effect where a step is not as expected is zf-conform shard's. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "local_ranks.h"
#include "replay/early.h"
#include "rig.h"
#include "suite.h"

/* Every rank has the same gradients, whose average is exact. */
static const zt_shape_t shapes[] = {{.rows = 200, .cols = 330, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 17, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 100, .cols = 300, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST = 4, STEPS = 6 };

typedef struct job {
    zt_rig_t rig;
    zt_rank_t *rank;
    const char *config;
    uint64_t taken, lost;
    zf_status_t st;
} job_t;

static zt_ranks_t ranks;
static job_t jobs[MOST];
static pthread_barrier_t all;

static void open_job(job_t *job) {
    zt_rig_start(&job->rig, shapes, N_SHAPES);
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    ck_assert_msg(job->st >= 0, "%s", job->rig.err.message);
    ck_assert_ptr_nonnull(job->rig.inst->run->early);
}

static void deliver(job_t *job) {
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        zt_rig_fill_grad(&job->rig, i, job->rig.step + 1);
        ZT_OK(&job->rig, zt_rig_deliver(&job->rig, i, 0, NULL));
    }
}

static void submit(job_t *job) {
    ZT_OK(&job->rig, zt_rig_submit(&job->rig, ZF_STEP_WAIT, NULL));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_serial_update(&job->rig.params[i].serial, &job->rig.groups[0], job->rig.params[i].grad_values,
                         (float)job->rig.unscale);
    zt_rig_check_export(&job->rig);
}

/* Of a step whose early replays are all over before it comes. */
static void step_late(job_t *job) {
    deliver(job);
    while (zfi_early_has_work(job->rig.inst->run->early))
        sched_yield();
    submit(job);
}

static void *run_of_use(void *raw) {
    job_t *job = raw;
    open_job(job);
    for (int i = 0; i < STEPS; i++)
        step_late(job);
    job->taken = zt_rig_counter(&job->rig, "early_taken");
    ck_assert_uint_eq(zt_rig_counter(&job->rig, "early_lost"), 0);
    job->rig.groups[0].lr *= 0.5; /* not announced */
    step_late(job);
    job->lost = zt_rig_counter(&job->rig, "early_lost");
    return NULL;
}

static void run_jobs(void *(*run)(void *), uint32_t n, const char *config, uint32_t flags) {
    memset(jobs, 0, sizeof jobs);
    zt_ranks_init(&ranks, n);
    pthread_barrier_init(&all, NULL, n);
    for (uint32_t r = 0; r < n; r++) {
        jobs[r].rank = &ranks.ranks[r];
        jobs[r].config = config;
        ranks.ranks[r].flags = flags;
    }
    zt_ranks_run(n, run, jobs, sizeof *jobs);
}

static void end_jobs(uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        zt_rig_end(&jobs[r].rig);
    pthread_barrier_destroy(&all);
    zt_ranks_free(&ranks);
}

#define EXACT "[zenflow]\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\ndeadline_ms = 60000\naffinity = none\n"

START_TEST(of_use) {
    for (uint32_t stage = 0; stage <= 3; stage++) {
        uint32_t n = stage % 2 ? 4 : 2, flags = stage == 3 ? ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS : 0;
        char config[256];
        snprintf(config, sizeof config, EXACT "[shard]\nbucket_bytes = 1000\nstage = %u\n", stage);
        run_jobs(run_of_use, n, config, flags);
        for (uint32_t r = 0; r < n; r++) {
            ck_assert_msg(jobs[r].taken > STEPS - 2, "stage %u, rank %u: %d taken", stage, r, (int)jobs[r].taken);
            ck_assert_msg(jobs[r].lost > 0, "stage %u, rank %u: none is lost", stage, r);
        }
        end_jobs(n);
    }
}
END_TEST

/* The last rank has delivered nothing when the others wait for its gradients, and FLUSH needs all of their workers. */
static void *run_flushing(void *raw) {
    job_t *job = raw;
    int is_last = job->rank->rank + 1 == ranks.size;
    open_job(job);
    step_late(job);
    step_late(job);
    if (!is_last)
        deliver(job);
    usleep(100000);
    pthread_barrier_wait(&all);
    ZT_OK(&job->rig, zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH));
    if (is_last)
        deliver(job);
    submit(job);
    step_late(job);
    return NULL;
}

START_TEST(flush_while_a_step_is_filled) {
    run_jobs(run_flushing, 2, EXACT "[shard]\nbucket_bytes = 1000\nstage = 1\n", 0);
    end_jobs(2);
}
END_TEST

ZT_MAIN("ranks_early", of_use, flush_while_a_step_is_filled)
