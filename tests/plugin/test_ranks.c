/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks.c - several ranks as threads of one process: sums, holes, and what goes wrong. The whole comparison with
 * the oracle is tests/ranks.sh; this is for sanitizers and for failures of the transport. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "instance/instance.h"
#include "instance/memory.h"
#include "local_ranks.h"
#include "ranks/ranks.h"
#include "rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/state.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 17, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 30, .cols = 20, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 5, .cols = 7, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST = 4, STEPS = 9 };

static const char config[] =
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\npredict = off\n"
    "[host]\nthreads = 2\ndeadline_ms = 60000\n"
    "[shard]\nbucket_bytes = 1000\n";
static const char sharded[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\n"
                              "select_interval = 3\npredict = off\n[host]\nthreads = 2\ndeadline_ms = 60000\n"
                              "[shard]\nstage = 1\nbucket_bytes = 1000\n";
#define IMPATIENT(stage)                                                                                               \
    "[zenflow]\nupdate_interval = 2\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\n"                                   \
    "deadline_ms = 800\n[shard]\nbucket_bytes = 1000\nstage = " stage "\n"

typedef struct job {
    ZT_JOB;
    uint64_t leaves_before; /* this rank ends before this step; 0: it does not */
    int is_edited, has_other_values, asks_for_other;
    uint32_t drifts_to; /* windows of so many steps in the end */
} job_t;

static zt_ranks_t ranks;

/* The host writes a parameter. */
static void edit(job_t *job) {
    static _Thread_local float exported[24 * 40];
    zt_rig_t *rig = &job->rig;
    float *w = (float *)(void *)rig->params[0].visible;
    for (size_t i = 0; i < rig->params[0].n_elems; i++)
        w[i] = (float)(zt_hash(i) % 64) / 64.0f;
    w[0] += (float)job->has_other_values;
    job->st = zt_changed(rig, rig->params[0].id, ZF_CHANGED_RESET);
    for (int i = 0; i < 2 && job->st >= 0; i++)
        job->st = zt_rig_try_step(rig);
    if (job->st >= 0)
        job->st = zt_try_export(rig, (uint32_t)job->asks_for_other, exported);
}

static void *run_job(void *raw) {
    job_t *job = raw;
    zt_job_open(job, shapes, N_SHAPES);
    for (uint64_t t = 1; t <= STEPS && job->st >= 0; t++) {
        if (job->leaves_before == t)
            return NULL;
        if (job->drifts_to && t == STEPS)
            job->rig.inst->engine.policy.interval = job->drifts_to;
        job->st = zt_rig_try_step(&job->rig);
    }
    if (job->st >= 0 && job->is_edited)
        edit(job);
    if (job->st >= 0 && strstr(job->config, "stage = 1")) /* a collective call there */
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    return NULL;
}

static job_t jobs[MOST];

static void start(uint32_t n, const job_t *as) { zt_jobs_start(&ranks, n, jobs, sizeof *jobs, as); }

/* n ranks alike, all of which come through. */
static void run_alike(void *(*run)(void *), uint32_t n, const job_t *as) {
    start(n, as);
    zt_jobs_run(&ranks, run, 0);
}

/* ---- a host that flushes denormals ------------------------------------------------------------------------------- */

enum { FLUSHED_STEPS = 3 };
static const double unscale_of_denormals = 0x1p120; /* so that a lost gradient is a lost update */

#if defined(__x86_64__)
static void flush_denormals(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u); }
#else
static void flush_denormals(void) {} /* the mode of other processors is not set here */
#endif

static void denormal_gradient(uint64_t step, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 1 + (uint32_t)(zt_hash(step * 10000 + i) % 0x700000) + (i % 2 ? 0x80000000u : 0);
        memcpy(out + i, &bits, sizeof bits);
    }
}

static void *run_flushing_job(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    flush_denormals(); /* every thread that the plugin starts begins with it */
    zt_job_open(job, shapes, N_SHAPES);
    rig->unscale = unscale_of_denormals;
    for (uint64_t t = 1; t <= FLUSHED_STEPS && job->st >= 0; t++) {
        denormal_gradient(t, (float *)(void *)rig->params[0].grad, rig->params[0].n_elems);
        job->st = zt_rig_deliver(rig, 0, 0, NULL);
        if (job->st >= 0)
            job->st = zt_rig_submit(rig, ZF_STEP_WAIT, NULL);
    }
    return NULL;
}

ZT_TEST(denormals_are_summed_for_a_host_that_flushes_them) {
    static float values[24 * 40];
    run_alike(run_flushing_job, 2, &(job_t){.config = config});
    for (int r = 0; r < 2; r++) {
        zt_rig_t *rig = &jobs[r].rig;
        for (uint64_t t = 1; t <= FLUSHED_STEPS; t++) {
            denormal_gradient(t, values, rig->params[0].n_elems);
            zt_serial_update(&rig->params[0].serial, &rig->groups[0], values, (float)unscale_of_denormals);
        }
        zt_rig_check_export(rig);
    }
    zt_jobs_end(&ranks);
}

static pthread_barrier_t both;

static void expect(job_t *job, zf_status_t st, const char *text) {
    zt_refused(&job->rig.err, job->st, st, text);
    ck_assert_int_eq(job->rig.err.scope, ZF_SCOPE_INSTANCE);
}

/* Where it had memory of others under way, that stays mapped. */
static void one_leaves(int holds_memory) {
    start(3, &(job_t){.config = IMPATIENT("0")});
    for (uint32_t r = 0; r < 3; r++)
        ranks.ranks[r].fails_to_abort = holds_memory;
    jobs[1].leaves_before = 4;
    zt_jobs_run(&ranks, run_job, 1);
    for (int r = 0; r <= 2; r += 2) { /* the agreement, or the reduction of gradients: who waits first is not said */
        expect(&jobs[r], ZF_ERR_TIMEOUT, "rank 1 has not come to the ");
        expect(&jobs[r], ZF_ERR_TIMEOUT, ", step 4 within");
    }
    ck_assert_uint_eq(jobs[0].rig.err.rank, 1);
    ck_assert_uint_eq(jobs[2].rig.err.rank, 1);
    zt_jobs_end(&ranks);
}

ZT_TEST(a_rank_that_does_not_come_is_named) {
    one_leaves(0);
    one_leaves(1);
}

/* What waits for an exchange waits longer than that does, however late it begins. */
ZT_TEST(a_rank_is_named_where_others_began_late) {
    start(3, &(job_t){.config = IMPATIENT("1")});
    for (uint32_t r = 0; r < 3; r++)
        ranks.ranks[r].tarries_ms = r == 1 ? 3000 : 400;
    zt_jobs_run(&ranks, run_job, 1);
    expect(&jobs[0], ZF_ERR_TIMEOUT, "rank 1 has not come to the norm, step 1");
    expect(&jobs[2], ZF_ERR_TIMEOUT, "rank 1 has not come to the norm, step 1");
    zt_jobs_end(&ranks);
}

/* What has begun before it failed is given up, and where that fails, too, its memory stays. */
static void fail_in_start(int holds_memory) {
    start(2, &(job_t){.config = IMPATIENT("0")});
    ranks.ranks[1].fails_to_start = 2;
    ranks.ranks[1].fails_to_abort = holds_memory;
    zt_jobs_run(&ranks, run_job, 1);
    expect(&jobs[1], ZF_ERR_RANKS, "the comparison of what was bound: the transport failed with status");
    ck_assert_uint_eq(ranks.ranks[1].n_given_up, 1);
    ck_assert_int_eq(zfi_ranks_holds_memory(&jobs[1].rig.inst->engine), holds_memory);
    zt_jobs_end(&ranks);
}

ZT_TEST(a_transport_that_fails_half_way) {
    fail_in_start(0);
    fail_in_start(1);
}

/* ---- what the host writes is held -------------------------------------------------------------------------------- */

/* What travels to be fetched, of windows and of residents, comes to none of it. */
static void *run_held_job(void *raw) {
    static const zt_shape_t held[] = {{.rows = 24, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                      {.rows = 17, .flags = ZF_PARAM_AVERAGE, .home = ZF_HOME_RESIDENT}};
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    const zf_digest_ext_t *digest = zt_table()->get_extension(ZF_EXT_DIGEST);
    unsigned char was[24 * 40 * 4], found[2];
    zf_fence_t fence = {.struct_size = sizeof fence};
    job->rank->flags = ZF_CREATE_CAP_FETCH;
    zt_job_open(job, held, 2);
    for (int t = 0; t < 9; t++) {
        ZT_OK(rig, zt_rig_try_step(rig));
        if (t < 2) /* warm-up: what comes from other ranks may still be on its way */
            continue;
        zt_rig_finish_step(rig);
        rig->params[0].visible[4 * t] ^= 1;
        memcpy(was, rig->params[0].visible, sizeof was);
        ZT_OK(rig, digest->written(rig->inst, ZF_WRITTEN_HOLD, NULL, 0, found, &rig->err));
        ZT_OK(rig, rig->zf->param_fetch(rig->inst, NULL, 0, sizeof(zf_param_item_t), &rig->stream, &fence, &rig->err));
        zt_rig_wait(rig, &fence);
        ck_assert_mem_eq(was, rig->params[0].visible, sizeof was);
        ZT_OK(rig, zt_changed(rig, rig->params[0].id, 0));
    }
    return NULL;
}

ZT_TEST(what_is_fetched_leaves_edits_alone) {
    static const char holds[] =
        "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 1\npublish_lag = 0\nfull_warm_up_rounds = 2\n"
        "on_overwrite = ask\n[host]\nthreads = 1\n[shard]\nstage = 1\n";
    run_alike(run_held_job, 2, &(job_t){.config = holds});
    zt_jobs_end(&ranks);
}

/* ---- what differs is named --------------------------------------------------------------------------------------- */

/* All of n ranks are refused with these words, for the last one does otherwise. */
static void differ(void *(*run)(void *), uint32_t n, const job_t *usual, const job_t *last, const char *words) {
    start(n, usual);
    jobs[n - 1] = *last;
    jobs[n - 1].rank = &ranks.ranks[n - 1];
    zt_jobs_run(&ranks, run, 1);
    for (uint32_t r = 0; r < n; r++)
        zt_refused(&jobs[r].rig.err, jobs[r].st, ZF_ERR_RANKS, words);
    zt_jobs_end(&ranks);
}

ZT_TEST(other_calls_are_named) {
    const job_t plain = {.config = sharded}, edits = {.config = sharded, .is_edited = 1};
    differ(run_job, 2, &plain, &(job_t){.config = sharded, .drifts_to = 3},
           "differ at step 9 in update_interval or publish_lag");
    differ(run_job, 2, &edits, &(job_t){.config = sharded, .is_edited = 1, .has_other_values = 1},
           "differ at step 10 in what was called between the steps");
    differ(run_job, 2, &edits, &(job_t){.config = sharded, .is_edited = 1, .asks_for_other = 1},
           "rank 1 and rank 0 ask for other parameters");
}

/* One rank alone saves, or loads, before a step of the others. */
static void *run_saving_job(void *raw) {
    job_t *job = raw;
    zf_state_args_t args = {.struct_size = sizeof args, .path = "/tmp/zf-test-ranks-none"};
    zt_job_open(job, shapes, N_SHAPES);
    job->st = zt_rig_try_step(&job->rig);
    const zf_state_ext_t *state = job->rig.zf->get_extension(ZF_EXT_STATE);
    if (job->leaves_before)
        job->st = (job->leaves_before == 1 ? state->save : state->load)(job->rig.inst, &args, NULL, &job->rig.err);
    else if (job->st >= 0)
        job->st = zt_rig_try_step(&job->rig);
    return NULL;
}

ZT_TEST(a_save_of_one_rank_is_refused_at_once) {
    static const char *const configs[] = {config, sharded};
    for (uint32_t i = 0; i < 4; i++) {
        const job_t usual = {.config = configs[i / 2]}, alone = {.config = configs[i / 2], .leaves_before = 1 + i % 2};
        differ(run_saving_job, 2, &usual, &alone, "differ at step 2 in what was called between the steps (FLUSH, save");
    }
}

/* The longest line: eight axes and a name of 255 bytes. Whatever differs is found and shown: a weight, the flags. */
static void *run_long_job(void *raw) {
    static const zt_shape_t shape = {.rows = 4, .cols = 8, .flags = ZF_PARAM_AVERAGE};
    int64_t axes[8] = {1, 2, 1, 2, 1, 2, 1, 4};
    char name[256];
    job_t *job = raw;
    zt_rig_start(&job->rig, &shape, 1);
    memset(name, 'n', sizeof name - 1);
    name[255] = '\0';
    zt_tensor(&job->rig.params[0].tensor, job->rig.params[0].visible, axes, 8, 0);
    job->rig.decls[0].name = name;
    job->rig.decls[0].n_batch_axes = 6;
    if (job->has_other_values)
        ((float *)(void *)job->rig.params[0].visible)[31] += 1;
    if (job->asks_for_other)
        job->rig.decls[0].group = 1;
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    return NULL;
}

/* All ranks say the same of what they have in common, and the last one has a parameter less. */
static void *run_shorter_job(void *raw) {
    job_t *job = raw;
    zt_job_open(job, shapes, N_SHAPES - (job->rank->rank == 2));
    return NULL;
}

ZT_TEST(other_declarations_are_named) {
    static const char other[] =
        "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 3\npredict = off\n"
        "[host]\nthreads = 2\ndeadline_ms = 60000\n"
        "[shard]\nbucket_bytes = 1000\n";
    const job_t usual = {.config = config};
    differ(run_job, 3, &usual, &(job_t){.config = other},
           "rank 0 and rank 2 differ: \"[zenflow] full_warm_up_rounds = 2\" and \"[zenflow] full_warm_up_rounds = 3\"");
    differ(run_shorter_job, 3, &usual, &usual, "rank 0 and rank 2 differ");
    differ(run_long_job, 2, &usual, &(job_t){.config = config, .has_other_values = 1}, "\"parameter 0 \"nnn");
    differ(run_long_job, 2, &usual, &(job_t){.config = config, .has_other_values = 1}, "nnn ... values ");
    differ(run_long_job, 2, &usual, &(job_t){.config = config, .asks_for_other = 1}, "nnn ... group 1, ");
    run_alike(run_long_job, 2, &usual);
    zt_jobs_end(&ranks);
}

/* Rank 1 alone declares what nobody can bind: all are refused, and go on. */
static void check_refused(const job_t *job, zf_status_t st) {
    zt_refused(&job->rig.err, st, ZF_ERR_PARAM, job->rank->rank == 1 ? "n_batch_axes" : "rank 1 refused, before");
}

static void *run_unbound_job(void *raw) {
    job_t *job = raw;
    zt_rig_start(&job->rig, shapes, N_SHAPES);
    int32_t *axes = &job->rig.decls[0].n_batch_axes;
    *axes = job->rank->rank == 1 ? 9 : 0;
    check_refused(job, zt_ranks_try_open(job->rank, &job->rig, job->config, 0));
    *axes = 0;
    ZT_OK(&job->rig, zt_rig_try_bind(&job->rig));
    ZT_OK(&job->rig, zt_rig_try_step(&job->rig));
    *axes = job->rank->rank == 1 ? 9 : 0;
    check_refused(job, zt_rig_try_bind(&job->rig));
    ZT_OK(&job->rig, zt_rig_try_step(&job->rig));
    return NULL;
}

/* ... or cannot FLUSH. */
static void *run_unflushed_job(void *raw) {
    job_t *job = raw;
    zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = ZF_QUIESCE_FLUSH};
    zt_job_open(job, shapes, N_SHAPES);
    ZT_OK(&job->rig, zt_rig_try_step(&job->rig));
    args.flags = job->rank->rank == 1;
    zt_refused(&job->rig.err, job->rig.zf->quiesce(job->rig.inst, &args, &job->rig.err), ZF_ERR_UNSUPPORTED_FIELD,
               job->rank->rank == 1 ? "unknown flags" : "rank 1 of 3: unknown flags");
    ZT_OK(&job->rig, zt_rig_try_step(&job->rig));
    return NULL;
}

ZT_TEST(what_one_rank_cannot_flush) {
    run_alike(run_unflushed_job, 3, &(job_t){.config = sharded});
    zt_jobs_end(&ranks);
}

ZT_TEST(what_one_rank_cannot_bind) {
    start(3, &(job_t){.config = config});
    zt_jobs_run(&ranks, run_unbound_job, 0);
    zt_jobs_end(&ranks);
}

/* One row, which one of two ranks owns whole. */
static atomic_int n_warned;

static void note_padding(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                         const char *msg, uint64_t len) {
    static const char words[] = "2 ranks exchange 2.0 times the elements";
    (void)ctx, (void)component, (void)file, (void)line;
    n_warned += level == ZF_LOG_WARN && len >= sizeof words && memcmp(msg, words, sizeof words - 1) == 0;
}

static void *run_wide_job(void *raw) {
    static const zt_shape_t shape = {.rows = 1, .cols = 3 << 19, .flags = ZF_PARAM_AVERAGE};
    job_t *job = raw;
    zt_rig_start(&job->rig, &shape, 1);
    job->rig.host.log = note_padding;
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    return NULL;
}

ZT_TEST(padding_is_warned_of) {
    static const char config_wide[] = "[host]\nthreads = 1\n[shard]\nstage = 1\n";
    run_alike(run_wide_job, 2, &(job_t){.config = config_wide});
    zt_jobs_end(&ranks);
    ck_assert_int_eq(n_warned, 2);
}

ZT_TEST(a_world_size_that_differs) {
    start(2, &(job_t){.config = config});
    ranks.ranks[1].says_size = 3;
    zt_jobs_run(&ranks, run_job, 1);
    ck_assert_int_eq(jobs[0].st, ZF_ERR_RANKS);
    ck_assert_str_eq(
        jobs[0].rig.err.message,
        "this is rank 0 of 2, but rank 1 says that they are 3: the host must give every rank the same group");
    ck_assert_int_eq(jobs[1].st, ZF_ERR_RANKS);
    zt_contains(jobs[1].rig.err.message, "this is rank 1 of 3, but rank 0 says that they are 2");
    zt_jobs_end(&ranks);
}

/* One parameter less; rank 1's first one lies where rank 0's does, which is refused. Both go on with what they had. */
static void *run_rebinding_job(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    zt_job_open(job, shapes, N_SHAPES);
    const zf_tensor_t *own = rig->decls[0].tensor;
    pthread_barrier_wait(&both);
    if (job->rank->rank)
        rig->decls[0].tensor = (job - job->rank->rank)->rig.decls[0].tensor;
    rig->n_params--;
    job->st = zt_rig_try_bind(rig);
    rig->n_params++;
    pthread_barrier_wait(&both);
    if (job->rank->rank)
        rig->decls[0].tensor = own;
    zt_refused(&rig->err, job->st, ZF_ERR_PARAM, job->rank->rank ? "" : "rank 1 of 2: ");
    job->st = zt_rig_try_step(rig);
    return NULL;
}

ZT_TEST(a_set_that_one_refuses_all_refuse) {
    pthread_barrier_init(&both, NULL, 2);
    run_alike(run_rebinding_job, 2, &(job_t){.config = IMPATIENT("0")});
    pthread_barrier_destroy(&both);
    zt_jobs_end(&ranks);
}

/* A call of all ranks that one of them refuses does nothing on any, and training goes on. */
static void *run_refused_job(void *raw) {
    job_t *job = raw;
    uint32_t unknown = job->rank->rank == 1 ? 0x80u : 0u;
    zt_job_open(job, shapes, N_SHAPES);
    ZT_OK(&job->rig, zt_rig_try_step(&job->rig));
    zf_status_t st = zt_changed(&job->rig, job->rig.params[0].id, unknown);
    zt_refused(&job->rig.err, st, ZF_ERR_UNSUPPORTED_FIELD,
               unknown ? "unknown flags 0x80" : "rank 1 of 2: unknown flags");
    job->st = zt_rig_try_step(&job->rig);
    return NULL;
}

ZT_TEST(a_change_that_one_refuses_all_refuse) {
    run_alike(run_refused_job, 2, &(job_t){.config = IMPATIENT("1")});
    zt_jobs_end(&ranks);
}

/* The first item of a call completes a bucket, which goes: the second one would come too late, whether what it replaces
 * was delivered before or is in the same call. */
static void hasten(job_t *job, uint32_t replaced) {
    static const uint32_t flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST;
    zt_rig_t *rig = &job->rig;
    zf_grad_item_t items[] = {{.id = 0, .flags = flags}, {.id = replaced, .flags = flags | ZF_GRAD_REPLACE}};
    for (uint32_t i = 0; i < 2; i++) {
        items[i].tensor = &rig->params[items[i].id].grad_tensor;
        items[i].struct_size = sizeof *items;
    }
    ZT_OK(rig, zt_rig_deliver(rig, 3, 0, NULL));
    ZT_OK(rig, zt_rig_deliver(rig, 1, 0, NULL));
    zf_status_t st = rig->zf->grads_ready(rig->inst, items, 2, sizeof *items, &rig->stream, NULL, &rig->err);
    zt_refused(&rig->err, st, ZF_ERR_STATE, "is on its way to the other ranks");
    ZT_OK(rig, zt_rig_deliver(rig, 0, 0, NULL));
    job->st = zt_rig_submit(rig, 0, NULL);
}

static void *run_hasty_job(void *raw) {
    job_t *job = raw;
    zt_job_open(job, shapes, N_SHAPES);
    hasten(job, 0);
    hasten(job, 1);
    return NULL;
}

ZT_TEST(replaced_in_the_same_call) {
    for (int stage = 0; stage < 2; stage++) {
        run_alike(run_hasty_job, 2, &(job_t){.config = stage ? IMPATIENT("1") : IMPATIENT("0")});
        zt_jobs_end(&ranks);
    }
}

/* Gradients of a step that never comes are on their way to others. */
ZT_TEST(destroyed_in_the_middle_of_a_step) {
    run_alike(run_job, 2, &(job_t){.config = config});
    ZT_OK(&jobs[0].rig, zt_rig_deliver_all(&jobs[0].rig, NULL));
    zf_status_t st = zt_rig_deliver(&jobs[0].rig, 3, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_REPLACE, NULL);
    zt_refused(&jobs[0].rig.err, st, ZF_ERR_STATE, "is on its way to the other ranks");
    zt_jobs_end(&ranks);
}

ZT_SUITE("ranks")
