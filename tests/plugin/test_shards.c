/* SPDX-License-Identifier: Apache-2.0 */
/* test_shards.c - [shard] stage = 3: parameters live as shards. Two buffers and so many gathers serve a forward and a
 * backward pass, what the host may not do is refused with a sentence, and ranks that fetch in other orders are told. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "instance/instance.h"
#include "local_ranks.h"
#include "ranks/shards.h"
#include "rig.h"
#include "state_rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/shards.h"

enum { N_PARAMS = 12, N_RANKS = 2, STEPS = 4, N_ELEMS = 24 * 48, BUCKET_NBYTES = N_ELEMS * 4 };
enum { FLAGS = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS };

/* Every parameter is a bucket, but for the last one, a vector, which is resident; every step publishes, so that plain
 * AdamW is seen. */
static const char stage_3[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 1\nfull_warm_up_rounds = 2\n"
                              "publish_lag = 0\npredict = off\n[host]\nthreads = 1\ndeadline_ms = 20000\n"
                              "[shard]\nstage = 3\nbucket_bytes = 1000\n";

typedef struct job {
    ZT_JOB;
    const zf_shards_ext_t *shards;
    void (*script)(struct job *job);
    int has_tied;
    uint32_t n_buffers;
} job_t;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void fetch(job_t *job, uint32_t param) {
    zt_rig_t *rig = &job->rig;
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(rig, zt_fetch(rig, rig->params[param].id, &fence));
    if (!rig->queue)
        ZT_OK(rig, rig->zf->fence_wait(rig->inst, &fence, 60000000000u, &rig->err));
}

static void release(job_t *job, uint32_t param) {
    zt_rig_t *rig = &job->rig;
    zf_param_item_t item = {.struct_size = sizeof item, .id = rig->params[param].id};
    ZT_OK(rig, job->shards->param_release(rig->inst, &item, 1, sizeof item, &rig->stream, &rig->err));
}

static zf_status_t place(job_t *job, uint32_t param, zf_shard_place_t *out) {
    *out = (zf_shard_place_t){.struct_size = sizeof *out};
    return job->shards->place(job->rig.inst, job->rig.params[param].id, out, &job->rig.err);
}

/* A held parameter shows what plain AdamW has come to. */
static void check_values(job_t *job, uint32_t param) {
    const zt_param_t *p = &job->rig.params[param];
    zf_shard_place_t found;
    ZT_OK(&job->rig, place(job, param, &found));
    if (job->rig.queue)
        zt_rig_sync(&job->rig);
    if (found.is_sharded != (p->shape.cols != 0) || (!found.is_sharded && found.data != p->visible))
        ck_abort_msg("%s: is_sharded %d", p->name, found.is_sharded);
    if (found.nbytes != p->n_elems * 4 || memcmp(found.data, p->serial.w, found.nbytes) != 0)
        ck_abort_msg("%s shows other values at step %llu", p->name, (unsigned long long)job->rig.step);
}

static void look(job_t *job, uint32_t param) {
    fetch(job, param);
    check_values(job, param);
    release(job, param);
}

static void deliver(job_t *job, uint32_t param) {
    zt_rig_fill_grad(&job->rig, param, job->rig.step + 1);
    ZT_OK(&job->rig, zt_rig_deliver(&job->rig, param, 0, NULL));
    zt_serial_update(&job->rig.params[param].serial, &job->rig.groups[0], job->rig.params[param].grad_values,
                     (float)job->rig.unscale);
}

/* A forward and a backward pass, and a step. */
static void train(job_t *job) {
    for (uint32_t i = 0; i < N_PARAMS; i++)
        look(job, i);
    for (uint32_t i = N_PARAMS; i-- > 0;) {
        look(job, i);
        deliver(job, i);
    }
    ZT_OK(&job->rig, zt_rig_submit(&job->rig, ZF_STEP_WAIT, NULL));
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static void open_rig(job_t *job) {
    zt_rig_t *rig = &job->rig;
    ZT_OK(rig, zt_ranks_try_open(job->rank, rig, job->config, job->uses_queue));
    job->shards = rig->zf->get_extension(ZF_EXT_SHARDS);
    for (uint32_t i = 0; i + 1 < N_PARAMS; i++) /* it is the host's again */
        memset(rig->params[i].visible, 0xFF, BUCKET_NBYTES);
}

/* ... shares the memory of the first parameter. */
enum { TIED = 7 };

static void tie(job_t *job) {
    zf_param_decl_t *decl = &job->rig.decls[TIED];
    decl->flags |= ZF_PARAM_TIED;
    decl->tied_to = 0;
    decl->tensor = &job->rig.params[0].tensor;
}

static void *run_job(void *raw) {
    static const zt_shape_t matrix = {.rows = 24, .cols = 48, .flags = ZF_PARAM_AVERAGE};
    static const zt_shape_t vector = {.rows = 40, .flags = ZF_PARAM_AVERAGE};
    job_t *job = raw;
    zt_shape_t shapes[N_PARAMS];
    for (int i = 0; i < N_PARAMS; i++)
        shapes[i] = i + 1 < N_PARAMS ? matrix : vector;
    zt_rig_start(&job->rig, shapes, N_PARAMS);
    if (job->has_tied)
        tie(job);
    open_rig(job);
    job->script(job);
    job->n_buffers = ((const zf_instance_t *)job->rig.inst)->run->shards.n_buffers;
    return NULL;
}

static job_t jobs[N_RANKS];

/* Both ranks run the script. */
static void run_as(const job_t *as) {
    static zt_ranks_t ranks;
    zt_jobs_start(&ranks, N_RANKS, jobs, sizeof *jobs, as);
    for (uint32_t r = 0; r < N_RANKS; r++)
        ranks.ranks[r].flags = FLAGS;
    zt_jobs_run(&ranks, run_job, 0);
    zt_jobs_end(&ranks);
}

static void run(void (*script)(job_t *job), int uses_queue) {
    run_as(&(job_t){.config = stage_3, .script = script, .uses_queue = uses_queue});
}

static uint64_t n_gathers(job_t *job) {
    pthread_mutex_lock(&job->rank->all->lock);
    uint64_t n = job->rank->n_of[ZF_COLLECTIVE_FOR_PARAMETERS];
    pthread_mutex_unlock(&job->rank->all->lock);
    return n;
}

/* ---- two buffers ------------------------------------------------------------------------------------------------- */

/* Waits until this rank has begun so many gathers. */
static void await_gathers(job_t *job, uint64_t n) {
    for (int i = 0; i < 5000 && n_gathers(job) < n; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (n_gathers(job) != n)
        ck_abort_msg("%llu gathers, need %llu", (unsigned long long)n_gathers(job), (unsigned long long)n);
}

/* Eleven buckets forward, backward all but the two that are still there, and after a step the first one again. */
static void passes(job_t *job) {
    enum { BUCKETS = N_PARAMS - 1, PER_STEP = BUCKETS + BUCKETS - 2 };
    for (int t = 0; t < STEPS; t++)
        train(job);
    await_gathers(job, STEPS * PER_STEP + 1);
    /* the vector is in bucket 0, which comes once in a step: 40 elements more, cut into 32 and 8 */
    if (job->rank->nbytes_of[ZF_COLLECTIVE_FOR_PARAMETERS] !=
        (STEPS * PER_STEP + 1) * BUCKET_NBYTES / N_RANKS + STEPS * 32 * 4)
        ck_abort_msg("gathers of %llu bytes", (unsigned long long)job->rank->nbytes_of[ZF_COLLECTIVE_FOR_PARAMETERS]);
    if (job->rank->nbytes_of[ZF_COLLECTIVE_FOR_VALUES] > (STEPS + 1) * 64 * 4) /* of the resident vector alone */
        ck_abort_msg("%llu bytes of values", (unsigned long long)job->rank->nbytes_of[ZF_COLLECTIVE_FOR_VALUES]);
}

ZT_TEST(two_buffers_serve_both_passes) {
    for (int uses_queue = 0; uses_queue < 2; uses_queue++) {
        run(passes, uses_queue);
        for (int r = 0; r < N_RANKS; r++)
            ck_assert_uint_eq(jobs[r].n_buffers, 2);
    }
}

/* With the first bucket comes the next one, though nobody asked for it. */
static void first_only(job_t *job) {
    fetch(job, 0);
    await_gathers(job, 2);
    check_values(job, 0);
    release(job, 0);
}

ZT_TEST(the_next_bucket_is_prefetched) { run(first_only, 0); }

static void hold_five(job_t *job) {
    for (uint32_t i = 0; i < 5; i++)
        fetch(job, i);
    for (uint32_t i = 0; i < 5; i++)
        check_values(job, i);
    for (uint32_t i = 0; i < 5; i++)
        release(job, i);
    train(job);
    train(job);
}

ZT_TEST(as_many_buffers_as_are_held) {
    run(hold_five, 0);
    ck_assert_uint_eq(jobs[0].n_buffers, 5);
}

/* Their memory goes when the last of them is released, and not before: three other buckets pass by. */
static void hold_tied(job_t *job) {
    zt_rig_t *rig = &job->rig;
    zf_shard_place_t found;
    fetch(job, 0);
    fetch(job, TIED);
    fetch(job, TIED); /* is held already: one release is enough */
    release(job, 0);
    release(job, 0);
    for (uint32_t i = 1; i < 4; i++)
        look(job, i);
    ZT_OK(rig, place(job, TIED, &found));
    if (memcmp(found.data, rig->params[0].serial.w, found.nbytes) != 0)
        ck_abort_msg("what is still held has become another bucket's");
    zt_refused(&rig->err, zt_rig_submit(rig, 0, NULL), ZF_ERR_STATE, rig->params[TIED].name);
    release(job, TIED);
    zt_refused(&rig->err, place(job, TIED, &found), ZF_ERR_STATE, "not fetched");
    if (zfi_shards_held(&((const zf_instance_t *)rig->inst)->run->ranks) != ZF_NO_ID)
        ck_abort_msg("something is held");
}

ZT_TEST(tied_parameters_are_released_each_by_itself) {
    run_as(&(job_t){.config = stage_3, .script = hold_tied, .has_tied = 1});
    ck_assert_uint_eq(jobs[0].n_buffers, 2);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void misuse(job_t *job) {
    zt_rig_t *rig = &job->rig;
    zf_shard_place_t found;
    zt_refused(&rig->err, place(job, 3, &found), ZF_ERR_STATE, "not fetched");
    zt_refused(&rig->err, zt_changed(rig, rig->params[3].id, 0), ZF_ERR_STATE, "fetch it");
    zt_refused(&rig->err, rig->zf->params_changed(rig->inst, NULL, 0, 0, 0, &rig->err), ZF_ERR_STATE, "fetch it");
    fetch(job, 3);
    zt_refused(&rig->err, zt_rig_submit(rig, 0, NULL), ZF_ERR_STATE, "fetched and not released");
    zt_refused(&rig->err, zt_quiesce(rig, ZF_QUIESCE_FLUSH), ZF_ERR_STATE, "fetched and not released");
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_DRAIN));
    check_values(job, 3);
    release(job, 3);
    zt_refused(&rig->err, place(job, 3, &found), ZF_ERR_STATE, "not fetched");
    uint32_t was = rig->decls[2].flags;
    rig->decls[2].flags |= ZF_PARAM_FROZEN;
    zt_refused(&rig->err, zt_rig_try_bind(rig), ZF_ERR_STATE, "another set");
    rig->decls[2].flags = was;
    ZT_OK(rig, zt_rig_try_bind(rig));
    train(job);
    train(job);
}

ZT_TEST(misuse_is_refused_and_training_goes_on) { run(misuse, 0); }

/* What is written in a parameter that lives as shards: nothing compares it, so the questions say by name what to do,
 * and that does it. A resident one, the last, is adopted by element as elsewhere. */
static void edits(job_t *job) {
    enum { VECTOR = N_PARAMS - 1 };
    zt_rig_t *rig = &job->rig;
    const zf_digest_ext_t *digest = rig->zf->get_extension(ZF_EXT_DIGEST);
    const uint32_t *sharded = &rig->params[3].id, *resident = &rig->params[VECTOR].id;
    float *w = (float *)(void *)rig->params[VECTOR].visible;
    uint8_t found[N_PARAMS];
    zf_shard_place_t held;
    train(job);
    fetch(job, 3);
    zt_refused(&rig->err, digest->written(rig->inst, ZF_WRITTEN_HOLD, sharded, 1, found, &rig->err), ZF_ERR_STATE,
               "is sharded");
    zt_refused(&rig->err, digest->written(rig->inst, ZF_WRITTEN_LOOK, NULL, 0, found, &rig->err), ZF_ERR_STATE,
               "is sharded");
    release(job, 3);
    ZT_OK(rig, digest->written(rig->inst, ZF_WRITTEN_LOOK, NULL, 0, found, &rig->err));
    zt_refused(&rig->err, digest->adopt(rig->inst, sharded, 1, &rig->err), ZF_ERR_STATE,
               "params_changed before param_release");
    rig->params[VECTOR].serial.w[7] = w[7] += 1;
    ZT_OK(rig, digest->adopt(rig->inst, resident, 1, &rig->err));
    zt_refused(&rig->err, digest->adopt(rig->inst, NULL, 0, &rig->err), ZF_ERR_STATE,
               "params_changed before param_release");
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_FLUSH));
    fetch(job, 3);
    ZT_OK(rig, place(job, 3, &held));
    float was = ((float *)held.data)[7];
    ((float *)held.data)[7] = NAN; /* the other rank keeps that row, or this one does: both are told */
    zt_refused(&rig->err, zt_changed(rig, *sharded, 0), ZF_ERR_NONFINITE, rig->params[3].name);
    rig->params[3].serial.w[7] = ((float *)held.data)[7] = was + 1;
    ZT_OK(rig, zt_changed(rig, *sharded, 0));
    release(job, 3);
    train(job);
    train(job);
}

ZT_TEST(edits_are_announced) {
    char config[sizeof stage_3 + 32] = "[zenflow]\non_overwrite = ask\n";
    strcat(config, stage_3 + sizeof "[zenflow]\n" - 1);
    run_as(&(job_t){.config = config, .script = edits});
}

ZT_TEST(hosts_that_read_their_own_memory_are_refused) {
    static const zt_shape_t shape = {.rows = 24, .cols = 48};
    static const uint32_t flags[] = {0, ZF_CREATE_CAP_FETCH, ZF_CREATE_CAP_SHARDS};
    static zt_ranks_t ranks;
    zt_rig_t rig;
    zt_ranks_init(&ranks, N_RANKS);
    for (int i = 0; i < 3; i++) {
        zt_rig_start(&rig, &shape, 1);
        rig.host.get_extension = zt_ranks_extension;
        rig.host.ctx = &ranks.ranks[0];
        zt_refused(&rig.err, zt_rig_try_create(&rig, stage_3, flags[i]), ZF_ERR_CONFIG, "use stage = 2");
        zt_rig_end(&rig);
    }
    zt_ranks_free(&ranks);
}

/* Two buckets of one size, in another order on each rank: this transport pairs them. */
static void out_of_order(job_t *job) {
    fetch(job, job->rank->rank);
    fetch(job, 1 - job->rank->rank);
    release(job, 0);
    release(job, 1);
    for (uint32_t i = N_PARAMS; i-- > 0;)
        deliver(job, i);
    zt_refused(&job->rig.err, zt_rig_submit(&job->rig, ZF_STEP_WAIT, NULL), ZF_ERR_RANKS,
               "what was called between the steps");
}

ZT_TEST(another_order_of_fetches_is_found_before_anything_is_updated) { run(out_of_order, 0); }

/* ---- between steps ----------------------------------------------------------------------------------------------- */

/* Parameters were fetched before a load; and a rank has handed over the first of its gradients, which is in the last
 * bucket. */
static void load_first(job_t *job) {
    zt_rig_t *rig = &job->rig;
    ZT_OK(rig, zt_save(rig, NULL, zt_path("first"), 0, NULL));
    look(job, 3);
    if (job->rank->rank == 0) {
        zt_rig_fill_grad(rig, 0, 77);
        ZT_OK(rig, zt_rig_deliver(rig, 0, 0, NULL));
    }
    ZT_OK(rig, zt_load(rig, NULL, zt_path("first"), 0, NULL));
    train(job);
    train(job);
}

ZT_TEST(a_rank_delivers_before_a_load) { run(load_first, 0); }

static void shard_small_ones(void) { ck_assert_int_eq(setenv("ZF_TEST_WHOLE_BYTES", "100", 1), 0); }

ZT_SUITE_WITH("shards", shard_small_ones, NULL)
