/* SPDX-License-Identifier: Apache-2.0 */
/* test_groups.c - process groups: one norm of two models that share some parameters, and what is refused. The whole
 * comparison with the oracle is zf-conform shard --groups (tests/ranks.sh). */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "local_ranks.h"
#include "memory_store.h"
#include "rig.h"
#include "state_rig.h"
#include "suite.h"

enum { N_PARAMS = 3, N_MOST = 10, N_RANKS = 2, MOST = 4, NORM = 1, SECOND = 2, STEPS = 6 };

#define COMMON                                                                                                         \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 2\nfull_warm_up_rounds = 1\npredict = off\n"                       \
    "[host]\nthreads = 1\ndeadline_ms = 3000\n"
static const char plain[] = COMMON, stage_1[] = COMMON "[shard]\nstage = 1\n";
static const char auto_strategy[] =
    "[zenflow]\nselect_strategy = auto\nupdate_interval = 2\n[host]\ndeadline_ms = 3000\n"
    "";

typedef struct job {
    ZT_JOB;
    void (*declare)(struct job *job); /* what is declared; the groups follow it */
    void (*script)(struct job *job);
    const double *norms; /* the host's own, of each rank; NULL: none */
    uint32_t step_flags;
    uint32_t n_more;     /* parameters of the second model beside the three */
    int64_t n_rows_more; /* of its first one */
    zf_step_report_t report;
    char why[sizeof((zf_error_t *)0)->message];
} job_t;

static zt_ranks_t ranks;

/* Of two models, or two ranks of one. */
static uint32_t is_second(const job_t *job) { return job->rank->rank >= job->rank->all->size / 2; }

static void *run_job(void *raw) {
    static const zt_shape_t shapes[N_MOST] = {{.rows = 24, .cols = 40},
                                              {.rows = 33, .cols = 8},
                                              {.rows = 17},
                                              {.rows = 9},
                                              {.rows = 8},
                                              {.rows = 7},
                                              {.rows = 6},
                                              {.rows = 5},
                                              {.rows = 4},
                                              {.rows = 33, .cols = 8}};
    job_t *job = raw;
    zt_shape_t own[N_MOST];
    memcpy(own, shapes, sizeof own);
    own[0].rows += is_second(job) ? job->n_rows_more : 0;
    zt_rig_start(&job->rig, own, N_PARAMS + (is_second(job) ? job->n_more : 0));
    job->rig.norm_group = NORM;
    if (job->declare)
        job->declare(job);
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config ? job->config : plain, 0);
    if (job->st >= 0 && job->script)
        job->script(job);
    snprintf(job->why, sizeof job->why, "%s", job->st < 0 ? job->rig.err.message : "");
    return NULL;
}

static job_t jobs[MOST];

/* is_spread: each is a model by itself; 2: each pair is. */
static void run_on(uint32_t n_ranks, const job_t *as, int is_spread) {
    zt_jobs_start(&ranks, n_ranks, jobs, sizeof *jobs, as);
    ranks.is_spread = is_spread;
    zt_jobs_run(&ranks, run_job, 1);
}

static void run(const job_t *as, int is_spread) { run_on(N_RANKS, as, is_spread); }

static void expect_on(uint32_t n_ranks, const job_t *as, int is_spread, zf_status_t st, const char *text) {
    run_on(n_ranks, as, is_spread);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ck_assert_msg(jobs[r].st == st, "rank %u: status %d: %s", r, jobs[r].st, jobs[r].why);
        ck_assert_msg(strstr(jobs[r].why, text) != NULL, "\"%s\" is not in \"%s\"", text, jobs[r].why);
    }
    zt_jobs_end(&ranks);
}
static void expect(const job_t *as, int is_spread, zf_status_t st, const char *text) {
    expect_on(N_RANKS, as, is_spread, st, text);
}

/* ---- one norm ---------------------------------------------------------------------------------------------------- */

/* Parameter 1 is of both, parameter 2 a duplicate; each rank has half of the gradient of what is shared. */
static void share(job_t *job) {
    job->rig.decls[1].reduce_group2 = SECOND;
    job->rig.decls[2].flags |= job->rank->rank ? ZF_PARAM_NOT_IN_NORM : 0;
}

static float *gradient(const job_t *job, uint32_t param) { return (float *)(void *)job->rig.params[param].grad; }

/* Multiples of 1/64, so that every sum is exact. The first parameter's are r + 1 times as large on rank r. */
static void make_gradients(job_t *job, uint64_t step) {
    for (uint32_t p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < job->rig.params[p].n_elems; i++) {
            float g = (float)(zt_hash(step * 1000003 + p * 7919 + i) % 129) / 64.0f - 1.0f;
            gradient(job, p)[i] = p == 0 ? g * (float)(job->rank->rank + 1) : p == 1 ? g / 2 : g;
        }
}

static void step(job_t *job) {
    zf_step_args_t args = {.struct_size = sizeof args,
                           .flags = ZF_STEP_WAIT | job->step_flags,
                           .groups = job->rig.groups,
                           .n_groups = ZT_MAX_GROUPS,
                           .elem_size = sizeof *job->rig.groups,
                           .clip_norm = 1.0,
                           .host_norm = job->norms ? &job->norms[job->rank->rank] : NULL,
                           .stream = &job->rig.stream};
    job->report = (zf_step_report_t){.struct_size = sizeof job->report};
    for (uint32_t p = N_PARAMS; p-- > 0 && job->st >= 0;)
        job->st = zt_rig_deliver(&job->rig, p, 0, NULL);
    if (job->st >= 0)
        job->st = job->rig.zf->step(job->rig.inst, &args, &job->report, &job->rig.err);
}

static void train(job_t *job) {
    for (uint64_t t = 1; t <= STEPS && job->st >= 0; t++) {
        make_gradients(job, t);
        step(job);
    }
}

/* What is not finite in one model skips the step in both; only that one can say where it is. */
static void spoil(job_t *job) {
    make_gradients(job, 1);
    gradient(job, 0)[3] = job->rank->rank ? INFINITY : 0.0f;
    step(job);
}

ZT_TEST(one_skips_all_skip) {
    run(&(job_t){.declare = share, .script = spoil}, 1);
    for (int r = 0; r < N_RANKS; r++) {
        ck_assert_int_eq(jobs[r].st, ZF_SKIPPED);
        ck_assert_int_eq(jobs[r].report.skip_reason, ZF_SKIP_NONFINITE);
    }
    ck_assert_uint_eq(jobs[0].report.nonfinite_param, ZF_NO_ID);
    ck_assert_uint_eq(jobs[1].report.nonfinite_param, 0);
    zt_jobs_end(&ranks);
}

ZT_TEST(models_of_other_sizes) {
    expect(&(job_t){.declare = share, .script = train, .n_more = 6}, 1, ZF_OK, "");
    expect(&(job_t){.declare = share, .script = train, .n_more = 6, .config = stage_1}, 1, ZF_OK, "");
}

/* An expert of both beside models that each has alone. */
static void expert_of_both(job_t *job) { job->rig.decls[0].reduce_group = SECOND; }
static void train_apart(job_t *job) {
    for (uint64_t t = 1; t <= STEPS && job->st >= 0; t++) {
        make_gradients(job, t + STEPS * job->rank->rank);
        step(job);
    }
}

/* Without ranks to be data-parallel with there is no NCCL, which would sum. */
ZT_TEST(an_expert_of_ranks_that_are_alone) {
    static const char native[] = COMMON "[shard]\ntransport = nccl_native\n";
    static float sums[N_RANKS][24 * 40];
    for (int is_native = 0; is_native < 2; is_native++) {
        run(&(job_t){.declare = expert_of_both, .script = train_apart, .config = is_native ? native : plain}, 1);
        for (int r = 0; r < N_RANKS; r++) {
            ck_assert_msg(jobs[r].st == ZF_OK, "%s", jobs[r].why);
            if (!is_native)
                memcpy(sums[r], jobs[r].rig.params[0].visible, sizeof sums[r]);
            ck_assert_mem_eq(sums[r], jobs[r].rig.params[0].visible, sizeof sums[r]);
        }
        zt_jobs_end(&ranks);
    }
}

/* Two models of two ranks, whose first parameters differ. */
static void share_over_pairs(job_t *job) {
    job->rig.decls[0].home = is_second(job) ? ZF_HOME_RESIDENT : ZF_HOME_PLUGIN;
    job->rig.decls[1].reduce_group2 = ZT_ACROSS_PAIRS;
}

/* Each rank's part of what is shared is the other model's part of it, whatever else they have. */
ZT_TEST(models_that_share_are_dealt_alike) {
    static float whole[MOST][33 * 8];
    for (int stage = 0; stage < 2; stage++) {
        run_on(4,
               &(job_t){.declare = share_over_pairs,
                        .script = train_apart,
                        .n_rows_more = 1,
                        .config = stage ? stage_1 : plain},
               2);
        for (int r = 0; r < 4; r++) {
            ck_assert_msg(jobs[r].st == ZF_OK, "%s", jobs[r].why);
            if (stage == 0)
                memcpy(whole[r], jobs[r].rig.params[1].visible, sizeof whole[r]);
            ck_assert_mem_eq(whole[r], jobs[r].rig.params[1].visible, sizeof whole[r]);
            ck_assert_mem_eq(whole[0], whole[r], sizeof whole[r]);
        }
        zt_jobs_end(&ranks);
    }
}

/* ---- what is refused at bind ------------------------------------------------------------------------------------- */

static void first_group(job_t *job) { job->rig.decls[1].reduce_group = SECOND; }
static void no_norm(job_t *job) {
    first_group(job);
    job->rig.norm_group = 0;
}
static void never_selected(job_t *job) {
    job->rig.decls[1].reduce_group2 = SECOND;
    job->rig.decls[1].home = ZF_HOME_HOST;
}
static void other_values(job_t *job) {
    share(job);
    ((float *)(void *)job->rig.params[1].visible)[5] += (float)job->rank->rank;
}
static void other_flags(job_t *job) {
    share(job);
    job->rig.decls[1].flags |= job->rank->rank ? ZF_PARAM_NOT_IN_NORM : 0;
}
/* Two models with other matrices, and an expert that both have. */
static void other_matrices_beside(job_t *job) {
    first_group(job);
    job->rig.decls[0].n_batch_axes = (int32_t)job->rank->rank;
}
/* The model is said to be one rank's alone, though its data-parallel group has two. */
static void small_norm(job_t *job) {
    pthread_mutex_lock(&job->rank->all->lock);
    ranks.is_norm_alone = 1;
    pthread_mutex_unlock(&job->rank->all->lock);
}

ZT_TEST(declarations_that_cannot_be_kept) {
    expect(&(job_t){.declare = no_norm}, 0, ZF_ERR_PARAM, "need zf_create_args_t.norm_group");
    expect(&(job_t){.declare = first_group, .config = auto_strategy}, 0, ZF_ERR_CONFIG,
           "with [zenflow] select_strategy = auto");
    expect(&(job_t){.declare = never_selected}, 1, ZF_ERR_PARAM, "home = 2 (host)");
}

/* Of two experts one differs between its ranks. */
static void other_expert(job_t *job) {
    job->rig.decls[1].reduce_group = ZT_PAIRS;
    ((float *)(void *)job->rig.params[1].visible)[5] += (float)(job->rank->rank == 3);
}

static void other_weight(job_t *job) {
    ((float *)(void *)job->rig.params[0].visible)[5] += (float)(job->rank->rank == 3);
}

/* The same parameter, which the second model has under another number. */
static void other_number(job_t *job) {
    job->rig.decls[is_second(job) ? N_MOST - 1 : 1].reduce_group2 = SECOND;
    if (is_second(job))
        memcpy(job->rig.params[N_MOST - 1].visible, job->rig.params[1].visible, 4 * job->rig.params[1].n_elems);
}

static void expert_of_others(job_t *job) {
    expert_of_both(job);
    if (is_second(job))
        job->config = stage_1;
}

static void flush_alone(job_t *job) {
    train(job);
    if (job->st >= 0 && !is_second(job))
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    train(job);
}

ZT_TEST(models_that_share_train_alike) {
    static const char stochastic[] = COMMON "moments_dtype = bfloat16_stochastic\n";
    job_t job = {.declare = other_number, .script = train, .n_more = N_MOST - N_PARAMS};
    expect(&job, 1, ZF_OK, "");
    job.config = stochastic;
    expect(&job, 1, ZF_ERR_RANKS, "by number ");
    expect(&(job_t){.declare = expert_of_both, .script = flush_alone}, 1, ZF_ERR_RANKS, "in what was called between");
    expect(&(job_t){.declare = expert_of_others, .script = train}, 1, ZF_ERR_RANKS,
           "\"[shard] stage = 0\" and \"[shard] stage = 1\"");
}

/* Whatever one group finds. */
ZT_TEST(what_differs_is_refused_on_every_rank) {
    expect_on(4, &(job_t){.declare = other_weight}, 2, ZF_ERR_RANKS, "rank 0 and rank 1 differ: \"parameter 0 ");
    expect_on(4, &(job_t){.declare = other_expert}, 0, ZF_ERR_RANKS, "rank 0 and rank 1 differ: \"parameter 1 ");
}

ZT_TEST(ranks_that_declare_otherwise) {
    expect(&(job_t){.declare = other_values}, 1, ZF_ERR_RANKS, "rank 0 and rank 1 differ: \"parameter 0 of process");
    expect(&(job_t){.declare = other_flags}, 1, ZF_ERR_RANKS, "rank 0 and rank 1 differ: \"parameter 0 of process");
    expect(&(job_t){.declare = other_matrices_beside}, 1, ZF_ERR_RANKS,
           "\"beside process group 2: parameter 0 of process group 0: float32 [24, 40], gradient");
    expect(&(job_t){.declare = small_norm}, 0, ZF_ERR_RANKS, "are not both in norm_group = 1");
}

/* Group 0, that of the norm, and one for each parameter. */
static zf_status_t bind_in_groups(zt_rig_t *rig, uint32_t n) {
    static const zt_shape_t shape = {.rows = 4, .cols = 4};
    zt_shape_t shapes[16];
    for (uint32_t i = 0; i < n; i++)
        shapes[i] = shape;
    zt_ranks_init(&ranks, 1);
    zt_rig_start(rig, shapes, n);
    rig->norm_group = NORM;
    for (uint32_t i = 0; i < n; i++)
        rig->decls[i].reduce_group = SECOND + i;
    return zt_ranks_try_open(&ranks.ranks[0], rig, plain, 0);
}

ZT_TEST(as_many_groups_as_an_instance_can_be_in) {
    zt_rig_t rig;
    ZT_OK(&rig, bind_in_groups(&rig, 14));
    zt_rig_end(&rig);
    zt_ranks_free(&ranks);
    zt_refused(&rig.err, bind_in_groups(&rig, 15), ZF_ERR_RANKS, "process group 16: an instance can be in 16, no more");
    zt_rig_end(&rig);
    zt_ranks_free(&ranks);
}

ZT_TEST(a_host_without_groups) {
    static const zt_shape_t shape = {.rows = 4, .cols = 4};
    zt_rig_t rig;
    zt_rig_start(&rig, &shape, 1);
    rig.norm_group = 3;
    zt_refused(&rig.err, zt_rig_try_create(&rig, plain, 0), ZF_ERR_RANKS, "process group 3");
    zt_rig_end(&rig);
}

/* ---- ... and at a step ------------------------------------------------------------------------------------------- */

static void other_rate(job_t *job) {
    make_gradients(job, 1);
    job->rig.groups[0].lr *= 1 + job->rank->rank;
    step(job);
}
static void other_unscale(job_t *job) {
    make_gradients(job, 1);
    job->rig.unscale *= 1 + job->rank->rank;
    for (uint32_t p = N_PARAMS; p-- > 0;)
        job->st = zt_rig_deliver(&job->rig, p, 0, NULL);
    job->st = zt_rig_submit(&job->rig, 0, NULL);
}
static void other_write(job_t *job) {
    ((float *)(void *)job->rig.params[1].visible)[0] = (float)job->rank->rank;
    job->st = zt_changed(&job->rig, job->rig.params[1].id, 0);
    if (job->st >= 0) {
        make_gradients(job, 1);
        step(job);
    }
}

/* Each rank's norm of its own gradients, before they are summed, would clip them differently. */
ZT_TEST(norms_of_the_hosts_that_differ) {
    static const char differ[] = "rank 1 and rank 0 differ at step 1 in the arguments of step";
    expect(&(job_t){.script = train, .norms = (const double[]){3.0, 4.0}}, 0, ZF_ERR_RANKS, differ);
    expect(&(job_t){.script = train, .norms = (const double[]){NAN, 4.0}}, 0, ZF_ERR_RANKS, differ);
    expect(&(job_t){.script = train, .norms = (const double[]){3.0, 3.0}}, 0, ZF_OK, "");
    expect(&(job_t){.script = train, .norms = (const double[]){NAN, -NAN}}, 0, ZF_SKIPPED, "");
}

ZT_TEST(steps_that_differ) {
    expect(&(job_t){.declare = share, .script = other_rate}, 1, ZF_ERR_RANKS,
           "rank 1 and rank 0 of process group 2 differ at step 1 in the arguments");
    expect(&(job_t){.script = other_unscale}, 1, ZF_ERR_RANKS,
           "rank 1 and rank 0 of process group 1 differ at step 1 in the arguments");
    expect(&(job_t){.declare = share, .script = other_write}, 1, ZF_ERR_RANKS,
           "rank 1 and rank 0 of process group 2 differ at step 1 in what was called");
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static void save_all(job_t *job) { job->st = zt_save(&job->rig, NULL, zt_path("all"), 0, NULL); }

static void save_all_otherwise(job_t *job) {
    job->st = zt_save(&job->rig, NULL, zt_path(job->rank->rank ? "/all/" : "all"), 0, NULL);
}

/* Each rank has an expert of its own beside what both have. */
static void experts(job_t *job) {
    job->rig.decls[1].reduce_group = ZT_ALONE;
    for (size_t i = 0; i < job->rig.params[1].n_elems; i++)
        ((float *)(void *)job->rig.params[1].visible)[i] += (float)job->rank->rank;
}

static const char *part_of(const char *name, uint32_t part) {
    static _Thread_local char path[300];
    snprintf(path, sizeof path, "%s/%s-%u", zt_dir(), name, part);
    return path;
}
static void save_part(job_t *job, const char *name) {
    if (job->st >= 0)
        job->st = zt_save(&job->rig, NULL, part_of(name, job->rank->rank), 0, NULL);
}
static void load_part(job_t *job, const char *name, uint32_t part, uint32_t flags) {
    if (job->st >= 0)
        job->st = zt_load(&job->rig, NULL, part_of(name, part), flags, NULL);
}

static void take_image(const job_t *job, float **image) {
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        image[p] = malloc(job->rig.params[p].n_elems * 4);
        memcpy(image[p], job->rig.params[p].visible, job->rig.params[p].n_elems * 4);
    }
}
static void check_image(job_t *job, float **image) {
    for (uint32_t p = 0; p < N_PARAMS; p++) {
        if (job->st >= 0 && memcmp(image[p], job->rig.params[p].visible, job->rig.params[p].n_elems * 4) != 0)
            job->st = ZF_ERR_INTERNAL;
        free(image[p]);
    }
}

/* Saved at step 6 ("six") and at step 12, of two runs that part at step 6. The windows of S = 2 are open at neither: a
 * step more is. */
static void save_and_go_on(job_t *job) {
    float *image[N_PARAMS];
    train(job);
    make_gradients(job, 77);
    step(job);
    save_part(job, "seven");
    train(job);
    take_image(job, image);
    save_part(job, "thirteen");
    load_part(job, "seven", job->rank->rank, ZF_STATE_CONTINUE);
    train(job);
    check_image(job, image);
    load_part(job, "seven", job->rank->rank, 0);
    for (uint64_t t = 1; t <= STEPS && job->st >= 0; t++) {
        make_gradients(job, t + 100);
        step(job);
    }
    save_part(job, "otherwise");
}
static zt_memory_store_t stores[N_RANKS];
static void save_own(job_t *job) {
    train(job);
    if (job->st >= 0)
        job->st = zt_save(&job->rig, &stores[job->rank->rank].table, NULL, ZF_STATE_OWN, NULL);
}
/* ... and is as it was after a step more and a load of that. */
static void load_own(job_t *job) {
    const zf_state_store_t *own = &stores[job->rank->rank].table;
    float *image[N_PARAMS];
    train(job);
    job->st = zt_save(&job->rig, own, NULL, ZF_STATE_OWN | ZF_STATE_KEEP_OPEN, NULL);
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    take_image(job, image);
    make_gradients(job, 55);
    step(job);
    if (job->st >= 0)
        job->st = zt_load(&job->rig, own, NULL, ZF_STATE_OWN, NULL);
    check_image(job, image);
}
static void load_exchanged(job_t *job) { load_part(job, "seven", !job->rank->rank, 0); }
static void load_other_steps(job_t *job) { load_part(job, job->rank->rank ? "seven" : "thirteen", job->rank->rank, 0); }
static void load_some_of_other_steps(job_t *job) {
    load_part(job, job->rank->rank ? "seven" : "thirteen", job->rank->rank, ZF_STATE_PARTIAL);
}
static void load_other_runs(job_t *job) {
    load_part(job, job->rank->rank ? "otherwise" : "thirteen", job->rank->rank, 0);
}
/* A rank has failed for a reason of its own, which the other is told as `text`. */
static void expect_own(job_t *job, uint32_t rank, zf_status_t st, const char *own, const char *text) {
    if (job->rank->rank == rank && job->st == st && strstr(job->rig.err.message, own))
        snprintf(job->rig.err.message, sizeof job->rig.err.message, "%s", text);
}
static void load_missing(job_t *job) {
    load_part(job, job->rank->rank ? "seven" : "none", job->rank->rank, 0);
    expect_own(job, 0, ZF_ERR_STORAGE, "", "cannot load its part");
}
/* Rank 1 is given what rank 0 saved, and is given, too, by another path. */
static void load_first(job_t *job) { load_part(job, job->rank->rank ? "/seven" : "seven", 0, 0); }
static void save_wrongly(job_t *job) {
    job->st =
        zt_save(&job->rig, NULL, part_of("wrongly", job->rank->rank), job->rank->rank ? ZF_STATE_PARTIAL : 0, NULL);
    expect_own(job, 1, ZF_ERR_UNSUPPORTED_FIELD, "flags", "rank 1 of the norm group refused");
}

static void check_parts(const char *config) {
    static const struct {
        void (*script)(job_t *job);
        zf_status_t st;
        const char *text;
    } refused[] = {
        {save_all, ZF_ERR_ARGUMENT, "have other parameters, but one"},
        {save_all_otherwise, ZF_ERR_ARGUMENT, "have other parameters, but one"},
        {load_exchanged, ZF_ERR_CHECKPOINT, "of 2 of a model, this rank"},
        {load_other_steps, ZF_ERR_RANKS, "other steps: 13 and 7"},
        {load_some_of_other_steps, ZF_ERR_RANKS, "other steps: 13 and 7"},
        {load_other_runs, ZF_ERR_RANKS, "load other weights"},
        {load_missing, ZF_ERR_STORAGE, "cannot load its part"},
        {load_first, ZF_ERR_ARGUMENT, "have other parameters, but one"},
    };
    run(&(job_t){.declare = experts, .script = save_and_go_on, .config = config}, 0);
    for (int r = 0; r < N_RANKS; r++)
        ck_assert_msg(jobs[r].st >= 0, "%d: %s", jobs[r].st, jobs[r].why);
    ck_assert_mem_eq(jobs[0].rig.params[0].visible, jobs[1].rig.params[0].visible, jobs[0].rig.params[0].n_elems * 4);
    ck_assert_mem_ne(jobs[0].rig.params[1].visible, jobs[1].rig.params[1].visible, jobs[0].rig.params[1].n_elems * 4);
    zt_jobs_end(&ranks);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        expect(&(job_t){.declare = experts, .config = config, .script = refused[i].script}, 0, refused[i].st,
               refused[i].text);
}

ZT_TEST(experts_have_checkpoints_with_what_is_beside_them) {
    check_parts(plain);
    check_parts(stage_1);
}

/* Two models go on from what each of them has: of other steps, and one of them without its windows. */
static void go_on_apart(job_t *job) {
    train(job);
    save_part(job, "six");
    make_gradients(job, 77);
    step(job);
    if (job->st >= 0)
        job->st =
            zt_save(&job->rig, NULL, part_of("kinds", job->rank->rank), job->rank->rank ? ZF_STATE_KEEP_OPEN : 0, NULL);
    load_part(job, job->rank->rank ? "six" : "kinds", job->rank->rank, ZF_STATE_PARTIAL);
    train(job);
    load_part(job, "kinds", job->rank->rank, 0);
    train(job);
    job->step_flags = ZF_STEP_EPOCH_END;
    train(job);
}

ZT_TEST(models_of_two_kinds_of_checkpoints) { expect(&(job_t){.script = go_on_apart}, 1, ZF_OK, ""); }

ZT_TEST(experts_out_of_stores_of_their_own) {
    for (int stage = 0; stage < 2; stage++) {
        for (int r = 0; r < N_RANKS; r++)
            zt_memory_store_start(&stores[r]);
        expect(&(job_t){.declare = experts, .script = load_own, .config = stage ? stage_1 : plain}, 0, ZF_OK, "");
        for (int r = 0; r < N_RANKS; r++)
            zt_memory_store_clear(&stores[r]);
    }
}

/* What others own of what is beside the experts, with the checksums that all of them have. */
ZT_TEST(experts_in_stores_of_their_own) {
    for (int r = 0; r < N_RANKS; r++)
        zt_memory_store_start(&stores[r]);
    run(&(job_t){.declare = experts, .script = save_own, .config = stage_1}, 0);
    for (int r = 0; r < N_RANKS; r++)
        ck_assert_msg(jobs[r].st >= 0, "%d: %s", jobs[r].st, jobs[r].why);
    for (int r = 0; r < N_RANKS; r++) {
        zt_memory_store_t whole;
        const zf_state_args_t args = {.struct_size = sizeof args, .store = &whole.table};
        zf_error_t err = {.struct_size = sizeof err};
        zt_memory_store_start(&whole);
        ck_assert_uint_ge(zt_memory_store_gather(&whole, (zt_memory_store_t[]){stores[r], stores[!r]}, N_RANKS),
                          12 * (24 * 40 + 17));
        ck_assert_msg(zt_state(&jobs[r].rig)->verify(&args, NULL, &err) == ZF_OK, "rank %d: %s", r, err.message);
        zt_memory_store_clear(&whole);
    }
    for (int r = 0; r < N_RANKS; r++)
        zt_memory_store_clear(&stores[r]);
    zt_jobs_end(&ranks);
}

ZT_TEST(a_part_that_refuses_to_save_stops_the_others) {
    expect(&(job_t){.script = save_wrongly}, 1, ZF_ERR_UNSUPPORTED_FIELD, "rank 1 of the norm group refused");
    expect(&(job_t){.declare = experts, .script = save_wrongly}, 0, ZF_ERR_UNSUPPORTED_FIELD, "rank 1 of the norm");
    ck_assert_int_ne(access(part_of("wrongly", 0), F_OK), 0);
}

ZT_SUITE("groups")
