/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_nodes.c - [shard] transport = host_two_level: plain AdamW of the sums, and whoever does not know its
 * machine is refused (what goes between machines: test_ranks_cost.c). Gradients are whole numbers, so any order adds
 * alike. */
#include <stdio.h>
#include <string.h>

#include "local_ranks.h"
#include "suite.h"

enum { N_SHAPES = 3, STEPS = 5, ROWS = 768, COLS = 16 };
static const zt_shape_t shapes[N_SHAPES] = {
    {ROWS, COLS, .flags = ZF_PARAM_AVERAGE}, {ROWS, COLS, .is_bf16 = 1}, {ROWS, 0, .flags = ZF_PARAM_AVERAGE}};

typedef struct job {
    ZT_JOB;
    float masters[N_SHAPES][ROWS * COLS];
} job_t;

static zt_ranks_t ranks;
static job_t jobs[ZT_MAX_RANKS];
static float odd_one; /* of the first element on rank 0: makes sums that are rounded */

static float gradient(uint32_t rank, uint32_t param, uint64_t step, size_t i) {
    if (odd_one != 0.0f)
        return rank == 0 ? odd_one : rank < 3 ? 1.0f : 0.0f;
    return (float)(int)(zt_hash((uint64_t)rank << 48 | (uint64_t)param << 40 | step << 24 | i) % 17) - 8.0f;
}

/* What the ranks' gradients come to, by hand. */
static float sum_of(const zt_param_t *param, uint32_t number, uint64_t step, size_t i) {
    float sum = 0.0f;
    if (odd_one != 0.0f) /* 256 + 1 is 256 in bfloat16, and so is that + 1 */
        return param->shape.is_bf16 ? odd_one : (odd_one + 2.0f) / (float)ranks.size;
    for (uint32_t r = 0; r < ranks.size; r++)
        sum += gradient(r, number, step, i);
    return param->shape.flags & ZF_PARAM_AVERAGE ? sum / (float)ranks.size : sum;
}

static void step(job_t *job) {
    zt_rig_t *rig = &job->rig;
    for (uint32_t p = N_SHAPES; p-- > 0;) {
        zt_param_t *param = &rig->params[p];
        for (size_t i = 0; i < param->n_elems; i++) {
            zo_narrow(param->grad, zt_dtype(param), i, gradient(job->rank->rank, p, rig->step + 1, i));
            param->grad_values[i] = sum_of(param, p, rig->step + 1, i);
        }
        ZT_OK(rig, zt_rig_deliver(rig, p, 0, NULL));
        zt_serial_update(&param->serial, &rig->groups[0], param->grad_values, (float)rig->unscale);
    }
    ZT_OK(rig, zt_rig_submit(rig, ZF_STEP_WAIT, NULL));
}

static void *run_job(void *raw) {
    job_t *job = raw;
    if (!zt_job_open(job, shapes, N_SHAPES))
        return NULL;
    for (int t = 0; t < STEPS; t++)
        step(job);
    for (uint32_t i = 0; i < N_SHAPES; i++)
        ZT_OK(&job->rig, zt_try_export(&job->rig, i, job->masters[i]));
    return NULL;
}

#define CONFIG(stage, transport)                                                                                       \
    "[host]\nthreads = 1\ndeadline_ms = 30000\n[shard]\nstage = " stage "\nbucket_bytes = 1\ntransport = " transport   \
    "\n"

/* Every rank shows AdamW of the sums. */
static void train(const char *config, uint32_t n, uint32_t node_ranks, int is_dealt) {
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, &(job_t){.config = config});
    ranks.node_ranks = node_ranks;
    ranks.is_dealt = is_dealt;
    zt_jobs_run(&ranks, run_job, 0);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t p = 0; p < N_SHAPES; p++) {
            const zt_param_t *param = &jobs[r].rig.params[p];
            ck_assert_msg(memcmp(jobs[r].masters[p], param->serial.w, param->n_elems * sizeof(float)) == 0,
                          "%s: rank %u of %u, %u on a machine, dealt %d: %s is not AdamW's", config, r, n, node_ranks,
                          is_dealt, param->name);
        }
    zt_jobs_end(&ranks);
}

ZT_TEST(two_levels_are_adamw_of_the_sums) {
    static const char *const configs[] = {CONFIG("0", "host_two_level"), CONFIG("1", "host_two_level"),
                                          CONFIG("2", "host_two_level")};
    static const uint32_t sizes[][2] = {{4, 2}, {6, 3}, {6, 2}, {8, 2}, {3, 3}, {3, 1}};
    const int n_ways = 6 * (int)(sizeof sizes / sizeof *sizes); /* a size, a stage, in turn or as they are dealt */
    for (int c = 0; c < n_ways; c += ZT_EVERY)
        train(configs[c / 2 % 3], sizes[c / 6][0], sizes[c / 6][1], c % 2);
}

ZT_TEST(sums_of_a_machine_are_rounded_on_their_way) {
    odd_one = 256.0f;
    train(CONFIG("1", "host_two_level"), 4, 2, 0);
    train(CONFIG("0", "host_two_level"), 4, 2, 0);
    odd_one = 0.0f;
}

ZT_TEST(who_does_not_know_its_machine_is_refused_on_every_rank) {
    static const char *const words[] = {"no group ZF_GROUP_NODE", "not as many ranks"};
    for (int which = 0; which < 2; which++) {
        zt_jobs_start(&ranks, 4, jobs, sizeof *jobs, &(job_t){.config = CONFIG("1", "host_two_level")});
        ranks.node_ranks = which == 0 ? 0 : 2;
        ranks.ranks[3].says_size = which == 0 ? 0 : 3;
        zt_jobs_run(&ranks, run_job, 1);
        for (uint32_t r = 0; r < 4; r++) {
            zt_refused(&jobs[r].rig.err, jobs[r].st, ZF_ERR_RANKS, words[which]);
            zt_contains(jobs[r].rig.err.message, "set transport = host");
        }
        zt_jobs_end(&ranks);
    }
}

ZT_SUITE("ranks_nodes")
