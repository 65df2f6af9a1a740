/* SPDX-License-Identifier: Apache-2.0 */
/* test_buffers.c - [shard] stage = 1 and 2: buckets take buffers in turn, as many as the order of deliveries needs.
 * None is taken before the exchange of its former bucket is over: else sums would be wrong. */

#include "instance/instance.h"
#include "local_ranks.h"
#include "state_rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

enum { N_PARAMS = 12, N_RANKS = 2, STEPS = 5 };

/* Every parameter is a bucket; every step publishes, so that plain AdamW is seen. */
static const char stage_2[] =
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 1\nfull_warm_up_rounds = 1\n"
    "publish_lag = 0\npredict = off\non_overwrite = ask\n[host]\nthreads = 1\ndeadline_ms = 20000\n"
    "[shard]\nstage = 2\nbucket_bytes = 1000\n";

typedef struct job {
    ZT_JOB;
    int is_forward, has_hole, flushes; /* ... before a step, and rank 0 alone has the hole */
    uint32_t n_buffers;
} job_t;

static job_t jobs[N_RANKS];

/* Whatever both ranks call while the device of one waits for the other one's step. */
static void be_refused(zt_rig_t *rig) {
    static const char words[] = "rank 1's device waits for the sums of bucket 0, which rank 0 has not handed over";
    static _Thread_local float values[24 * 48];
    const zf_digest_ext_t *digest = rig->zf->get_extension(ZF_EXT_DIGEST);
    zt_refused(&rig->err, zt_quiesce(rig, ZF_QUIESCE_FLUSH), ZF_ERR_STATE, words);
    zt_refused(&rig->err, zt_changed(rig, rig->params[3].id, 0), ZF_ERR_STATE, words);
    zt_refused(&rig->err, zt_try_export(rig, 3, values), ZF_ERR_STATE, words);
    zt_refused(&rig->err, zt_save(rig, NULL, zt_path("vain"), 0, NULL), ZF_ERR_STATE, words);
    zt_refused(&rig->err, digest->adopt(rig->inst, NULL, 0, &rig->err), ZF_ERR_STATE, words);
    zt_refused(&rig->err, zt_rig_try_bind(rig), ZF_ERR_STATE, "are on their way from rank 1");
}

static void step(job_t *job) {
    zt_rig_t *rig = &job->rig;
    zf_fence_t fence = {.struct_size = sizeof fence};
    for (uint32_t i = 0; i < N_PARAMS; i++) {
        uint32_t param = job->is_forward ? i : N_PARAMS - 1 - i;
        if (job->has_hole && param == N_PARAMS - 1 && !(job->flushes && job->rank->rank))
            continue;
        zt_rig_fill_grad(rig, param, rig->step + 1);
        ZT_OK(rig, zt_rig_deliver(rig, param, 0, rig->queue ? &fence : NULL)); /* in order: the last covers them all */
    }
    if (job->flushes && job->has_hole && rig->queue)
        be_refused(rig);
    else if (job->flushes)
        ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_FLUSH));
    ZT_OK(rig, zt_rig_submit(rig, 0, NULL));
    for (uint32_t i = 0; i + (uint32_t)job->has_hole < N_PARAMS; i++)
        zt_serial_update(&rig->params[i].serial, &rig->groups[0], rig->params[i].grad_values, (float)rig->unscale);
    if (rig->queue)
        zt_rig_wait(rig, &fence);
}

static void *run_job(void *raw) {
    static const zt_shape_t shape = {.rows = 24, .cols = 48, .flags = ZF_PARAM_AVERAGE};
    job_t *job = raw;
    zt_shape_t shapes[N_PARAMS];
    for (int i = 0; i < N_PARAMS; i++)
        shapes[i] = shape;
    ck_assert(zt_job_open(job, shapes, N_PARAMS));
    for (int t = 0; t < STEPS; t++)
        step(job);
    ZT_OK(&job->rig, zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH));
    job->n_buffers = ((const zf_instance_t *)job->rig.inst)->run->reduction.n_buffers;
    return NULL;
}

static void expect_buffers(job_t as, uint32_t n) {
    static zt_ranks_t ranks;
    as.config = stage_2;
    zt_jobs_start(&ranks, N_RANKS, jobs, sizeof *jobs, &as);
    zt_jobs_run(&ranks, run_job, 0);
    for (uint32_t r = 0; r < N_RANKS; r++)
        for (uint32_t i = 0; i + (uint32_t)as.flushes < N_PARAMS; i++) {
            const zt_param_t *param = &jobs[r].rig.params[i];
            ck_assert_mem_eq(param->visible, param->serial.w, param->n_elems * sizeof(float));
        }
    for (int r = 0; r < N_RANKS; r++) /* a host thread maps others as long as one is on its way */
        ck_assert(jobs[r].n_buffers == (r && as.flushes && as.uses_queue ? 2 : n) ||
                  (!as.uses_queue && jobs[r].n_buffers > n));
    zt_jobs_end(&ranks);
}

ZT_TEST(as_many_as_the_order_needs) {
    for (int uses_queue = 0; uses_queue < 2; uses_queue++) {
        expect_buffers((job_t){.uses_queue = uses_queue}, 2);
        expect_buffers((job_t){.uses_queue = uses_queue, .is_forward = 1}, N_PARAMS); /* the first bucket comes last */
    }
}

/* All others are open when the first bucket, of which no rank has a gradient, is to go. */
ZT_TEST(one_is_left_for_what_goes_next) {
    expect_buffers((job_t){.uses_queue = 1, .is_forward = 1, .has_hole = 1}, N_PARAMS);
}

/* Rank 1 delivers all before rank 0 has handed over the first bucket, which it does after a FLUSH of both. */
ZT_TEST(no_delivery_waits_for_a_rank_that_flushes) { expect_buffers((job_t){.has_hole = 1, .flushes = 1}, N_PARAMS); }

/* On a stream the device of rank 1 waits; not for long where rank 0 has handed over all, too. */
ZT_TEST(no_device_waits_for_a_rank_that_waits_for_it) {
    expect_buffers((job_t){.uses_queue = 1, .has_hole = 1, .flushes = 1}, N_PARAMS);
    expect_buffers((job_t){.uses_queue = 1, .flushes = 1}, 2);
}

ZT_SUITE("buffers")
