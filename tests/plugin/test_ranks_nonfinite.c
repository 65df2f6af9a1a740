/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_nonfinite.c - a gradient that is not finite on one rank: the report of every rank says whose it was. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local_ranks.h"
#include "suite.h"

enum { N_SHAPES = 4, STEPS = 40, NORM = 1 };
static const zt_shape_t shapes[N_SHAPES] = {
    {.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 30, .cols = 20, .is_bf16 = 1}, {.rows = 5, .cols = 7}};

typedef struct job {
    ZT_JOB;
    zf_step_report_t reports[STEPS + 1];
    uint32_t param;
    float bad;    /* its last element, of the first one all, in every second step, on one rank after the other; on each
                     where it is finite */
    int discards; /* before each step one that the first rank has spoilt */
    uint32_t step_flags;
} job_t;

static zt_ranks_t ranks;
static job_t jobs[ZT_MAX_RANKS];

static int is_bad_step(uint64_t t) { return t % 2 == 0; }
static uint32_t bad_rank(uint64_t t) { return (uint32_t)(t / 2 % ranks.size); }

static void deliver(job_t *job, uint32_t t, int is_spoilt) {
    zt_rig_t *rig = &job->rig;
    for (uint32_t i = N_SHAPES; i-- > 0;) {
        const zt_param_t *param = &rig->params[i];
        zt_rig_fill_grad(rig, i, t);
        for (size_t e = i ? param->n_elems - 1 : 0; is_spoilt && i == job->param && e < param->n_elems; e++)
            zo_narrow(param->grad, zt_dtype(param), e, job->bad);
        ZT_OK(rig, zt_rig_deliver(rig, i, 0, NULL));
    }
}

static void *run_job(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    zt_rig_start(rig, shapes, N_SHAPES);
    rig->norm_group = ranks.is_spread ? NORM : 0;
    job->st = zt_ranks_try_open(job->rank, rig, job->config, job->uses_queue);
    for (uint32_t t = 1; t <= STEPS && job->st >= 0; t++) {
        if (job->discards) {
            deliver(job, t, job->rank->rank == 0);
            ZT_OK(rig, zt_rig_submit(rig, ZF_STEP_DISCARD, NULL));
        }
        deliver(job, t, is_bad_step(t) && (isfinite(job->bad) || job->rank->rank == bad_rank(t)));
        job->reports[t].struct_size = sizeof job->reports[t];
        ZT_OK(rig, zt_rig_submit(rig, job->step_flags, &job->reports[t]));
    }
    return NULL;
}

static void run(uint32_t n, const job_t *as) {
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, as);
    for (uint32_t r = 0; r < n; r++)
        ranks.ranks[r].flags = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS;
}

/* The reports of every second step name its rank, and no other report names any. */
static void check_named(const char *what, const job_t *as) {
    for (uint32_t r = 0; r < ranks.size; r++) {
        uint32_t n_found = 0;
        for (uint32_t t = 1; t <= STEPS; t++) {
            const zf_step_report_t *report = &jobs[r].reports[t];
            int is_bad = report->has_report && is_bad_step(report->step), is_named = is_bad && !isfinite(as->bad);
            n_found += (uint32_t)is_bad;
            ck_assert_msg(report->has_nonfinite_rank == is_named, "%s: rank %u, step %u: has_nonfinite_rank is %d",
                          what, r, (uint32_t)report->step, report->has_nonfinite_rank);
            ck_assert_msg(!is_bad || (!report->applied && (report->nonfinite_param == as->param || ranks.is_spread)),
                          "%s: rank %u, step %u names parameter %u", what, r, (uint32_t)report->step,
                          report->nonfinite_param);
            ck_assert_msg(!is_named || report->nonfinite_rank == bad_rank(report->step),
                          "%s: rank %u, step %u names rank %u, need %u", what, r, (uint32_t)report->step,
                          report->nonfinite_rank, bad_rank(report->step));
        }
        ck_assert_msg(as->step_flags ? n_found == STEPS / 2 : n_found > 0, "%s: rank %u saw %u reports", what, r,
                      n_found);
    }
}

static void expect(const char *config, uint32_t n, const job_t *as) {
    job_t job = *as;
    job.config = config;
    run(n, &job);
    zt_jobs_run(&ranks, run_job, 0);
    check_named(config, as);
    zt_jobs_end(&ranks);
}

#define CONFIG(mode, more)                                                                                             \
    "[zenflow]\nmode = " mode "\n[host]\nthreads = 1\ndeadline_ms = 60000\n[shard]\n"                                  \
    "bucket_bytes = 1000\n" more "\n"
#define WINDOWS "windows\nupdate_interval = 2\nfull_warm_up_rounds = 1"
static const char *const configs[] = {CONFIG("exact", "stage = 0"),
                                      CONFIG("exact", "stage = 1"),
                                      CONFIG("exact", "stage = 3"),
                                      CONFIG(WINDOWS, "stage = 0"),
                                      CONFIG(WINDOWS "\nselect_interval = 2", "stage = 1"),
                                      CONFIG(WINDOWS "\npublish_lag = 1", "stage = 1"),
                                      CONFIG("mean\nupdate_interval = 2", "stage = 1"),
                                      CONFIG("exact", "stage = 1\n[device]\nstate_mib = all")};
enum { N_CONFIGS = sizeof configs / sizeof *configs };

ZT_TEST(every_rank_says_whose_it_was) {
    for (uint32_t i = 0; i < N_CONFIGS; i++)
        expect(configs[i], 3,
               &(job_t){.param = i % N_SHAPES, .bad = i % 2 ? NAN : -INFINITY, .step_flags = ZF_STEP_WAIT});
}

ZT_TEST(what_was_discarded_is_forgotten) {
    for (uint32_t i = 0; i < N_CONFIGS; i++)
        expect(configs[i], 3, &(job_t){.param = 0, .bad = NAN, .discards = 1, .step_flags = ZF_STEP_WAIT});
}

/* A later call brings the report. */
ZT_TEST(without_waiting_too) {
    for (uint32_t i = 0; i < N_CONFIGS; i++)
        expect(configs[i], 2, &(job_t){.param = 3, .bad = NAN});
}

/* Finite ones whose sum is not: nobody's was to blame. */
ZT_TEST(finite_parts_blame_nobody) {
    for (uint32_t i = 0; i < N_CONFIGS; i++)
        expect(configs[i], 2, &(job_t){.param = 1, .bad = FLT_MAX, .step_flags = ZF_STEP_WAIT});
}

/* Of four ranks, arranged by the test. */
static void expect_of_four(const char *what, const job_t *as, uint32_t node_ranks, int is_dealt, int is_spread) {
    run(4, as);
    ranks.node_ranks = node_ranks;
    ranks.is_dealt = is_dealt;
    ranks.is_spread = is_spread;
    zt_jobs_run(&ranks, run_job, 0);
    check_named(what, as);
    zt_jobs_end(&ranks);
}

/* What is added up between machines does not show whose it was; what is added up inside of them does. */
ZT_TEST(two_levels) {
    static const char *const both[] = {CONFIG("exact", "stage = 0\ntransport = host_two_level"),
                                       CONFIG("exact", "stage = 1\ntransport = host_two_level")};
    for (int i = 0; i < 4; i++)
        expect_of_four("two levels",
                       &(job_t){.config = both[i % 2], .param = 1, .bad = NAN, .step_flags = ZF_STEP_WAIT}, 2, i / 2,
                       0);
}

/* Models side by side, each on one rank or on two: the number is that in the norm group. */
ZT_TEST(process_groups) {
    for (int i = 0; i < 4; i++)
        expect_of_four("process groups",
                       &(job_t){.config = configs[i / 2 ? 3 : 1], .param = 2, .bad = NAN, .step_flags = ZF_STEP_WAIT},
                       0, 0, 1 + i % 2);
}

static void shard_small_ones(void) { ck_assert_int_eq(setenv("ZF_TEST_WHOLE_BYTES", "100", 1), 0); }

ZT_SUITE_WITH("ranks_nonfinite", shard_small_ones, NULL)
