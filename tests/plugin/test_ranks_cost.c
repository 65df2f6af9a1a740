/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_cost.c - what several ranks pay, by the model alone: memory as planned, and of what each rank has a part
 * of a part for each other rank, whatever the layout. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local_ranks.h"
#include "rig.h"
#include "suite.h"

enum { ROWS = 256, COLS = 320, N = 4, SELECTED = 32, ARRAYS = 3, STEPS = 4, MOST = 8 };
static const zt_shape_t shape = {.rows = ROWS, .cols = COLS, .flags = ZF_PARAM_AVERAGE};

typedef struct job {
    zt_rig_t rig;
    zt_rank_t *rank;
    char config[400];
    uint64_t before[ZT_PURPOSES];
    int is_trained, is_uneven;
    zf_status_t st;
} job_t;

static zt_ranks_t ranks;

static void *run_job(void *raw) {
    job_t *job = raw;
    zt_shape_t shapes[N] = {shape, shape, shape, shape};
    zf_export_item_t items[N];
    for (int i = 0; i < N && job->is_uneven; i++)
        shapes[i].rows = i == 1 ? 3 * ROWS : i == 3 ? 400 : 16;
    zt_rig_start(&job->rig, shapes, N);
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    for (int t = 0; t < STEPS && job->is_trained && job->st >= 0; t++)
        job->st = zt_rig_try_step(&job->rig);
    if (!job->is_trained || job->is_uneven || job->st < 0)
        return NULL;
    memcpy(job->before, job->rank->nbytes_of, sizeof job->before);
    for (int i = 0; i < N; i++)
        items[i] = (zf_export_item_t){.struct_size = sizeof items[i],
                                      .id = job->rig.params[i].id,
                                      .dst = calloc(ROWS * COLS, sizeof(float)),
                                      .dst_nbytes = ROWS * COLS * sizeof(float)};
    job->st = job->rig.zf->export_params(job->rig.inst, items, N, sizeof *items, &job->rig.err);
    for (int i = 0; i < N; i++)
        free(items[i].dst);
    return NULL;
}

static job_t *run(uint32_t n, uint32_t stage, int is_trained, int is_uneven) {
    job_t *jobs = calloc(n, sizeof *jobs);
    zt_ranks_init(&ranks, n);
    for (uint32_t r = 0; r < n; r++) {
        jobs[r].rank = &ranks.ranks[r];
        jobs[r].rank->flags = stage == 3 ? ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS : 0;
        jobs[r].is_trained = is_trained;
        jobs[r].is_uneven = is_uneven;
        snprintf(
            jobs[r].config, sizeof jobs[r].config,
            "[zenflow]\ntopk_ratio = 0.1\nupdate_interval = 1\nfull_warm_up_rounds = 2\nselect_interval = 8\n"
            "publish_lag = 0\n[host]\nthreads = 1\ndeadline_ms = 20000\n[log]\nlevel = error\n[shard]\nstage = %u\n"
            "resident_bytes = 25000\n",
            (unsigned)stage);
    }
    zt_ranks_run(n, run_job, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < n; r++)
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", (unsigned)r, jobs[r].rig.err.message);
    return jobs;
}

static void end(job_t *jobs, uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        zt_rig_end(&jobs[r].rig);
    zt_ranks_free(&ranks);
    free(jobs);
}

/* Each of n ranks sends its part of `all` to each other one: 2 % more, and what calls agree on. */
static void check_bytes(const char *what, uint64_t sent, uint64_t all, uint32_t n) {
    enum { AGREEMENTS = 4096 };
    ck_assert_msg(sent >= all / n, "%s, %u ranks: %llu bytes of %llu", what, (unsigned)n, (unsigned long long)sent,
                  (unsigned long long)all);
    ck_assert_msg(sent <= all / n * 102 / 100 + AGREEMENTS, "%s, %u ranks: %llu bytes of %llu", what, (unsigned)n,
                  (unsigned long long)sent, (unsigned long long)all);
}

static void send_parts(uint32_t n) {
    uint64_t entering = (uint64_t)N * SELECTED * ROWS * ARRAYS * sizeof(float);
    uint64_t all = (uint64_t)N * ROWS * COLS * sizeof(float);
    job_t *jobs = run(n, 1, 1, 0);
    for (uint32_t r = 0; r < n; r++) {
        const uint64_t *sent = ranks.ranks[r].nbytes_of;
        check_bytes("entering", sent[ZF_COLLECTIVE_FOR_ENTERING], entering, n);
        check_bytes("export", sent[ZF_COLLECTIVE_FOR_STATE] - jobs[r].before[ZF_COLLECTIVE_FOR_STATE],
                    all, n);
        check_bytes("gradients", jobs[r].before[ZF_COLLECTIVE_FOR_GRADIENTS], STEPS * all, n);
        check_bytes("values", jobs[r].before[ZF_COLLECTIVE_FOR_VALUES], STEPS * all, n);
        ck_assert_uint_le(ranks.ranks[r].n_of[ZF_COLLECTIVE_FOR_ENTERING], 2);
        ck_assert_uint_le(ranks.ranks[r].n_of[ZF_COLLECTIVE_FOR_STATE], 12);
    }
    end(jobs, n);
}

START_TEST(each_sends_its_part) {
    static const uint32_t numbers[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        send_parts(numbers[i]);
}
END_TEST

/* As bind_params said. */
static void map_plan(uint32_t n, uint32_t stage) {
    job_t *jobs = run(n, stage, 0, 0);
    for (uint32_t r = 0; r < n; r++) {
        const zt_rig_t *rig = &jobs[r].rig;
        ck_assert_uint_eq(rig->layout.host_nbytes, zt_rig_counter(rig, "host_measured_nbytes"));
        ck_assert_uint_eq(rig->layout.device_nbytes, zt_rig_counter(rig, "device_measured_nbytes"));
    }
    end(jobs, n);
}

START_TEST(planned_is_mapped) {
    for (uint32_t stage = 0; stage <= 3; stage++)
        for (uint32_t n = 1; n <= 4; n *= 2)
            map_plan(n, stage);
}
END_TEST

/* Stage 3: what enters is walked alike by ranks that have more and less of it. Small parameters, of which all need
 * all, come first and in the middle. */
START_TEST(ranks_that_have_less_walk_alike) {
    job_t *jobs = run(2, 3, 1, 1);
    ck_assert_uint_eq(ranks.ranks[0].n_of[ZF_COLLECTIVE_FOR_ENTERING], ranks.ranks[1].n_of[ZF_COLLECTIVE_FOR_ENTERING]);
    ck_assert_uint_eq(ranks.ranks[0].nbytes_of[ZF_COLLECTIVE_FOR_ENTERING],
                      ranks.ranks[1].nbytes_of[ZF_COLLECTIVE_FOR_ENTERING]);
    end(jobs, 2);
}
END_TEST

ZT_MAIN("ranks_cost", each_sends_its_part, planned_is_mapped, ranks_that_have_less_walk_alike)
