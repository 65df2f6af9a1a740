/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_instances.c - several instances of each rank over one transport that keeps them apart
 * (ZF_COLLECTIVES_INSTANCES): driven by one thread of a rank, or each by its own, every one has the bits of one rank.
 * Gradients and rates of each are its own, so that an exchange of another one shows. */
#include <pthread.h>
#include <string.h>

#include "local_ranks.h"
#include "rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 17, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 30, .cols = 20, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_RANKS = 2, STEPS = 9 };

#define WINDOWS                                                                                                        \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\nselect_interval = 3\npredict = off\n"  \
    "[host]\nthreads = 1\ndeadline_ms = 60000\n[shard]\nbucket_bytes = 1000\n"
static const char whole[] = WINDOWS, sharded[] = WINDOWS "stage = 1\n";

typedef struct member {
    zt_rig_t rig;
    zf_status_t st;
} member_t;

typedef struct job {
    zt_rank_t *rank;
    const char *config;
    int has_threads;
    uint32_t n;
    member_t members[ZT_MAX_INSTANCES];
} job_t;

static zt_rig_t *start_member(job_t *job, uint32_t number, uint64_t seed) {
    zt_rig_t *rig = &job->members[number].rig;
    zt_rig_start(rig, shapes, N_SHAPES);
    rig->host.get_extension = zt_ranks_extension;
    rig->host.ctx = job->rank;
    rig->step = 1000 * seed; /* of its gradients */
    rig->groups[0].lr *= (double)(seed + 1);
    return rig;
}

static void create(job_t *job, uint32_t number, uint64_t seed) {
    job->members[number].st = zt_rig_try_create(start_member(job, number, seed), job->config, 0);
}

static void *bind_and_train(void *raw) {
    member_t *m = raw;
    if (m->st >= 0)
        m->st = zt_rig_try_bind(&m->rig);
    for (int t = 0; t < STEPS && m->st >= 0; t++)
        m->st = zt_rig_try_step(&m->rig);
    if (m->st >= 0)
        m->st = zt_quiesce(&m->rig, ZF_QUIESCE_FLUSH);
    return NULL;
}

/* Each call of every instance, one after the other. */
static void train_in_turn(job_t *job) {
    for (int t = -1; t <= STEPS; t++)
        for (uint32_t i = 0; i < job->n; i++) {
            member_t *m = &job->members[i];
            if (m->st >= 0)
                m->st = t < 0        ? zt_rig_try_bind(&m->rig)
                        : t == STEPS ? zt_quiesce(&m->rig, ZF_QUIESCE_FLUSH)
                                     : zt_rig_try_step(&m->rig);
        }
}

static void train_at_once(job_t *job) {
    pthread_t threads[ZT_MAX_INSTANCES];
    for (uint32_t i = 0; i < job->n; i++) /* the ranks' threads come in another order */
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, bind_and_train, &job->members[job->rank->rank ? job->n - 1 - i : i]), 0);
    for (uint32_t i = 0; i < job->n; i++)
        pthread_join(threads[i], NULL);
}

static void *run(void *raw) {
    job_t *job = raw;
    if (job->has_threads)
        train_at_once(job);
    else
        train_in_turn(job);
    return NULL;
}

static void run_ranks(job_t *jobs) { zt_ranks_run(N_RANKS, run, jobs, sizeof *jobs); }

static void check(const job_t *jobs, uint32_t n) {
    for (int r = 0; r < N_RANKS; r++)
        for (uint32_t i = 0; i < n; i++) {
            const member_t *m = &jobs[r].members[i];
            ck_assert_msg(m->st >= 0, "rank %d, instance %u: %s", r, i, m->rig.err.message);
            for (uint32_t p = 0; p < N_SHAPES; p++)
                ck_assert_msg(memcmp(m->rig.params[p].visible, m->rig.params[p].serial.w,
                                     m->rig.params[p].n_elems * sizeof(float)) == 0,
                              "rank %d, instance %u: parameter %u is not AdamW's", r, i, p);
        }
}

/* Ends with one instance less, in place of which another one comes: it has its number, and nothing else of it. */
static void several(uint32_t n, int has_threads, const char *config) {
    static job_t jobs[N_RANKS];
    static zt_ranks_t ranks;
    zt_ranks_init(&ranks, N_RANKS);
    zt_ranks_keep_apart(&ranks);
    for (int r = 0; r < N_RANKS; r++) {
        jobs[r] = (job_t){.rank = &ranks.ranks[r], .config = config, .has_threads = has_threads, .n = n};
        for (uint32_t i = 0; i < n; i++)
            create(&jobs[r], i, i);
    }
    run_ranks(jobs);
    check(jobs, n);
    for (int r = 0; r < N_RANKS; r++) {
        zt_rig_end(&jobs[r].members[0].rig);
        create(&jobs[r], 0, n);
        jobs[r].n = 1;
    }
    run_ranks(jobs);
    check(jobs, n);
    for (int r = 0; r < N_RANKS; r++)
        for (uint32_t i = 0; i < n; i++)
            zt_rig_end(&jobs[r].members[i].rig);
    zt_ranks_free(&ranks);
}

ZT_TEST(by_one_thread) {
    several(2, 0, whole);
    several(3, 0, sharded);
}

ZT_TEST(by_their_own_threads) {
    for (int i = 0; i < 50; i++)
        several(2, 1, sharded);
    several(3, 1, whole);
}

/* Two of one shape and the same weights: only what the host calls them tells which is which. */
ZT_TEST(created_in_another_order) {
    static job_t jobs[N_RANKS];
    static zt_ranks_t ranks;
    zt_ranks_init(&ranks, N_RANKS);
    zt_ranks_keep_apart(&ranks);
    for (int r = 0; r < N_RANKS; r++) {
        jobs[r] = (job_t){.rank = &ranks.ranks[r], .n = 2};
        for (int i = 0; i < 2; i++) {
            start_member(&jobs[r], (uint32_t)i, 0)->host.name = i == r ? "teacher" : "student";
            jobs[r].members[i].st = zt_rig_try_create(&jobs[r].members[i].rig, whole, 0);
        }
    }
    run_ranks(jobs);
    for (int r = 0; r < N_RANKS; r++)
        for (uint32_t i = 0; i < 2; i++) {
            zt_refused(&jobs[r].members[i].rig.err, jobs[r].members[i].st, ZF_ERR_RANKS, "in host \"student\"");
            zt_rig_end(&jobs[r].members[i].rig);
        }
    zt_ranks_free(&ranks);
}

/* Over the same collectives the exchanges of two would be mixed: one at a time. Another rank's are others. */
ZT_TEST(one_instance_at_a_time) {
    zt_rig_t first, second;
    static zt_ranks_t ranks;
    zt_ranks_init(&ranks, 2);
    zt_rig_start(&first, shapes, N_SHAPES);
    zt_rig_start(&second, shapes, N_SHAPES);
    first.host.get_extension = second.host.get_extension = zt_ranks_extension;
    first.host.ctx = second.host.ctx = &ranks.ranks[0];
    zt_rig_create(&first, whole, 0);
    zt_refused(&second.err, zt_rig_try_create(&second, whole, 0), ZF_ERR_RANKS,
               "another live instance exchanges over these zf.collectives/0");
    second.host.ctx = &ranks.ranks[1];
    zt_rig_create(&second, whole, 0);
    zt_rig_end(&second);
    zt_rig_end(&first);
    zt_rig_start(&second, shapes, N_SHAPES);
    second.host.get_extension = zt_ranks_extension;
    second.host.ctx = &ranks.ranks[0];
    zt_rig_create(&second, whole, 0);
    zt_rig_end(&second);
    zt_ranks_free(&ranks);
}

ZT_SUITE("ranks_instances")
