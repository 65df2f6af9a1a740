/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_lateness.c - the meter of lateness where each rank keeps a part of the state: every rank reads what one
 * rank alone would, and all the same bits. Every rank has the same gradients, whose average is exact. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "instance/meter.h"
#include "local_ranks.h"
#include "rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 64, .cols = 33, .is_bf16 = 1, .group = 1, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 3, .cols = 5, .group = 1, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST = 4, STEPS = 24, KNOWN = 20, AFTER = 3, GROUPS = 2 };

typedef struct job {
    zt_rig_t rig;
    zt_rank_t *rank; /* NULL: alone */
    const char *config;
    double loss[KNOWN + 1][GROUPS], sum;
    zf_status_t st;
} job_t;

static zt_ranks_t ranks;

static void train(job_t *job, int n) {
    for (int t = 0; t < n && job->st >= 0; t++)
        job->st = zt_rig_try_step(&job->rig);
}

static void drain(job_t *job) {
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_DRAIN);
}

/* What is complete by step STEPS, and told since. */
static void read_all(job_t *job) {
    for (uint64_t t = 1; t <= KNOWN; t++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            zf_lateness_t got = {.struct_size = sizeof got};
            ck_assert_int_eq(job->rig.stats->lateness(job->rig.inst, t, g, &got, &job->rig.err), ZF_OK);
            job->loss[t][g] = got.loss;
            job->sum += got.loss;
        }
}

static void *run(void *raw) {
    job_t *job = raw;
    zt_rig_start(&job->rig, shapes, N_SHAPES);
    job->st = ZF_OK;
    if (job->rank)
        job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    else
        zt_rig_open(&job->rig, job->config, 0);
    train(job, STEPS);
    drain(job);
    train(job, AFTER);
    drain(job);
    return NULL;
}

static void run_ranks(job_t *jobs, uint32_t n, const char *config) {
    zt_ranks_init(&ranks, n);
    for (uint32_t r = 0; r < n; r++) {
        jobs[r].rank = &ranks.ranks[r];
        jobs[r].config = config;
    }
    zt_ranks_run(n, run, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < n; r++)
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", r, jobs[r].rig.err.message);
}

static void end_ranks(job_t *jobs, uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        zt_rig_end(&jobs[r].rig);
    zt_ranks_free(&ranks);
}

#define WINDOWS "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\npublish_lag = "
#define REST "\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\nlevel = error\nlateness = 1\n[shard]\nstage = "

/* The same training on n ranks and on one. */
static void compare(uint32_t n, const char *config) {
    static job_t jobs[MOST], alone;
    memset(jobs, 0, sizeof jobs);
    memset(&alone, 0, sizeof alone);
    run_ranks(jobs, n, config);
    alone.config = config;
    (void)run(&alone);
    read_all(&alone);
    ck_assert(alone.sum != 0);
    for (uint32_t r = 0; r < n; r++) {
        read_all(&jobs[r]);
        ck_assert_mem_eq(jobs[r].loss, jobs[0].loss, sizeof jobs[0].loss);
        for (int t = 1; t <= KNOWN; t++)
            for (int g = 0; g < GROUPS; g++)
                ck_assert_msg(fabs(jobs[r].loss[t][g] - alone.loss[t][g]) <= 1e-6 * (1 + fabs(alone.loss[t][g])),
                              "rank %u, step %d, group %d: %.9g, alone %.9g", r, t, g, jobs[r].loss[t][g],
                              alone.loss[t][g]);
    }
    zt_rig_end(&alone.rig);
    end_ranks(jobs, n);
}

START_TEST(every_rank_reads_what_one_would) {
    compare(2, WINDOWS "0" REST "1\nbucket_bytes = 1000\n");
    compare(4, WINDOWS "1" REST "1\nbucket_bytes = 1000\n");
    compare(3, WINDOWS "0" REST "2\n"); /* in one bucket: parts begin and end within rows */
    compare(2, WINDOWS "0" REST "0\n");
}
END_TEST

/* A part of the state is not measured by some alone. */
START_TEST(all_measure_or_none) {
    static job_t jobs[2];
    memset(jobs, 0, sizeof jobs);
    zt_ranks_init(&ranks, 2);
    jobs[0].config = WINDOWS "0" REST "1\nbucket_bytes = 1000\n";
    jobs[1].config =
        WINDOWS "0\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\nlevel = error\nlateness = 0\n[shard]\n"
                "stage = 1\nbucket_bytes = 1000\n";
    for (uint32_t r = 0; r < 2; r++)
        jobs[r].rank = &ranks.ranks[r];
    zt_ranks_run(2, run, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_lt(jobs[r].st, 0);
        zt_contains(jobs[r].rig.err.message, "[log] lateness = 1");
    }
    end_ranks(jobs, 2);
}
END_TEST

/* ---- the meter alone --------------------------------------------------------------------------------------------- */

enum { METERS = 3, BURST = 3 * ZFI_METER_SHARED };
static zfi_meter_t meters[METERS];

/* As the ranks do with every step. */
static void join_all(void) {
    union {
        zfi_meter_share_t share;
        unsigned char room[sizeof(zfi_meter_share_t) + 8 * ZFI_METER_SHARED * GROUPS];
    } told[METERS];
    for (int r = 0; r < METERS; r++)
        zfi_meter_share(&meters[r], &told[r].share);
    for (int r = 0; r < METERS; r++)
        for (uint32_t from = 0; from < METERS; from++)
            zfi_meter_join(&meters[r], from, &told[from].share);
}

static uint64_t newest_of(int r) {
    zfi_meter_reading_t got;
    (void)zfi_meter_read(&meters[r], 0, UINT32_MAX, &got);
    return got.step;
}

/* Ranks are ahead of each other, one has nothing, and more steps become complete at once than a share holds. */
START_TEST(a_step_counts_once_all_have_told) {
    zfi_meter_reading_t got;
    ck_assert_uint_eq(zfi_meter_share_nbytes(GROUPS), sizeof(zfi_meter_share_t) + 8 * ZFI_METER_SHARED * GROUPS);
    for (int r = 0; r < METERS; r++) {
        const zfi_meter_size_t size = {GROUPS, 1, METERS};
        zfi_meter_init(&meters[r]);
        ck_assert_int_ne(zfi_meter_reserve(&meters[r], size), 0);
        zfi_meter_start(&meters[r], 1, size, 0);
    }
    zfi_meter_close(&meters[2], 0, UINT64_MAX);
    for (uint64_t t = 1; t <= BURST; t++)
        for (int r = 0; r < 2; r++)
            zfi_meter_add(&meters[r], t, r == 1, (double)t * (r + 1));
    zfi_meter_close(&meters[0], 0, BURST);
    zfi_meter_close(&meters[1], 0, 2);
    join_all();
    for (int r = 0; r < METERS; r++)
        ck_assert_uint_eq(newest_of(r), 2);
    zfi_meter_close(&meters[1], 0, BURST);
    for (uint64_t i = 1; i <= 3; i++) {
        join_all();
        for (int r = 0; r < METERS; r++)
            ck_assert_uint_eq(newest_of(r), i < 3 ? i * ZFI_METER_SHARED + 2 : BURST);
    }
    for (int r = 0; r < METERS; r++) {
        for (uint64_t t = 1; t <= BURST; t++)
            for (uint32_t g = 0; g < GROUPS; g++) {
                ck_assert_int_ne(zfi_meter_read(&meters[r], t, g, &got), 0);
                ck_assert(got.loss == (double)t * (g + 1));
            }
        ck_assert_uint_eq(got.n_steps, BURST);
        ck_assert(got.sum == BURST * (BURST + 1)); /* of group 1 */
        zfi_meter_free(&meters[r]);
    }
}
END_TEST

ZT_MAIN("ranks_lateness", every_rank_reads_what_one_would, all_measure_or_none, a_step_counts_once_all_have_told)
