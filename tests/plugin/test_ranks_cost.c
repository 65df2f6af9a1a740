/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_cost.c - what several ranks send, by formulas that know the number of elements, of ranks and of machines
 * alone: each other one gets a P-th of what travels, whatever the sizes of blocks and buckets. Up to 8 ranks are there;
 * of 64 and 512 one is, among its images. And what no step waits for. */
#include <stdlib.h>
#include <string.h>

#include "local_ranks.h"
#include "suite.h"

enum { COLS = 32, N_SHAPES = 5, MOST = ZT_MAX_RANKS, WINDOW = 4 };
static const double selected = 0.125, slack = 1.02;
#define ONE(rows, cols)                                                                                                \
    { rows, cols, .flags = ZF_PARAM_AVERAGE }
#define FIVE(rows)                                                                                                     \
    { ONE(rows, COLS), ONE(rows, COLS), ONE(rows, COLS), ONE(rows, COLS), ONE(rows, COLS) }
static const zt_shape_t small[N_SHAPES] = FIVE(2304), large[N_SHAPES] = FIVE(4096); /* of 2, 3, 4, 8; of 512 */

typedef struct job {
    ZT_JOB;
    uint64_t sent[3][ZT_PURPOSES]; /* before and after a window of each cohort, and after exports */
} job_t;

static zt_ranks_t ranks;
static job_t jobs[MOST];
static const zt_shape_t *shapes = small;
static uint32_t n_shares; /* P-ths of all that travels: of what a rank sends to each other one, or to other machines */

static void note(job_t *job, int at) {
    ZT_OK(&job->rig, zt_quiesce(&job->rig, ZF_QUIESCE_DRAIN));
    memcpy(job->sent[at], ranks.node_ranks ? job->rank->abroad_of : job->rank->nbytes_of, sizeof job->sent[at]);
}

/* In the order of a backward pass; the same gradients at every step. */
static void train(job_t *job, int n) {
    for (int t = 0; t < n; t++) {
        for (uint32_t i = job->rig.n_params; i-- > 0;) {
            if (job->rig.step == 0)
                zt_rig_fill_grad(&job->rig, i, 1);
            ZT_OK(&job->rig, zt_rig_deliver(&job->rig, i, 0, NULL));
        }
        ZT_OK(&job->rig, zt_rig_submit(&job->rig, ZF_STEP_WAIT, NULL));
    }
}

static void export_all(job_t *job) {
    zf_export_item_t items[N_SHAPES];
    size_t n = job->rig.params[0].n_elems;
    for (uint32_t i = 0; i < N_SHAPES; i++)
        items[i] = (zf_export_item_t){.struct_size = sizeof *items,
                                      .id = job->rig.params[i].id,
                                      .dst = calloc(n, sizeof(float)),
                                      .dst_nbytes = n * sizeof(float)};
    ZT_OK(&job->rig, job->rig.zf->export_params(job->rig.inst, items, N_SHAPES, sizeof *items, &job->rig.err));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        free(items[i].dst);
}

static void *run_job(void *raw) {
    job_t *job = raw;
    ck_assert(zt_job_open(job, shapes, N_SHAPES));
    train(job, 1); /* warm-up */
    note(job, 0);
    train(job, WINDOW);
    note(job, 1);
    export_all(job);
    note(job, 2);
    return NULL;
}

static void run(uint32_t n, uint32_t node_ranks, const char *config) {
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, &(job_t){.config = config});
    ranks.node_ranks = node_ranks;
    for (uint32_t r = 0; r < zt_n_there(&ranks); r++)
        ranks.ranks[r].flags = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS;
    shapes = n > MOST ? large : small;
    zt_jobs_run(&ranks, run_job, 0);
    zt_jobs_end(&ranks);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void check(const char *what, int to, int purpose, uint32_t n_ranks, double total) {
    for (uint32_t r = 0; r < zt_n_there(&ranks); r++) {
        double sent = (double)(jobs[r].sent[to][purpose] - jobs[r].sent[to - 1][purpose]),
               least = total * n_shares / n_ranks;
        ck_assert_msg(sent >= least * (1 - 1e-9) && sent <= least * slack,
                      "%s, machines of %u: rank %u of %u sends %.0f bytes, need %.0f to 2 %% more", what,
                      ranks.node_ranks, jobs[r].rank->rank, n_ranks, sent, least);
    }
}

/* A window of each cohort after the first choice: its channels enter, and are selected at every step of it. */
static void check_bytes(uint32_t n_ranks) {
    double n = N_SHAPES * COLS * (double)shapes->rows;
    check("gradients", 1, ZF_COLLECTIVE_FOR_GRADIENTS, n_ranks, WINDOW * 4.0 * n);
    check("selected sums", 1, ZF_COLLECTIVE_FOR_SUMS, n_ranks, WINDOW * 4.0 * selected * n);
    for (uint32_t r = 0; r < zt_n_there(&ranks); r++) /* they may enter as soon as they are chosen */
        jobs[r].sent[0][ZF_COLLECTIVE_FOR_ENTERING] = 0;
    check("entering state", 1, ZF_COLLECTIVE_FOR_ENTERING, n_ranks, 12.0 * selected * n);
    check("values", 1, ZF_COLLECTIVE_FOR_VALUES, n_ranks, 4.0 * n);
    if (ranks.node_ranks < 4) /* else the meeting before it, which goes in one level, is more than 2 % of it */
        check("exports", 2, ZF_COLLECTIVE_FOR_STATE, n_ranks, 4.0 * n);
}

#define CONFIG(bucket_bytes, more)                                                                                     \
    "[zenflow]\ntopk_ratio = 0.125\nupdate_interval = 4\nfull_warm_up_rounds = 1\nselect_interval = 100\n"             \
    "predict = off\n[host]\nthreads = 1\ndeadline_ms = 60000\n[shard]\n"                                               \
    "bucket_bytes = " bucket_bytes "\n" more "\n"

/* Blocks of half a parameter and of a 36th; buckets of one parameter and of all. */
ZT_TEST(bytes_are_a_share_of_what_travels) {
    static const char *const blocks[] = {"65536", "2048"};
    static const char *const configs[] = {CONFIG("1", "stage = 1"), CONFIG("100000000", "stage = 1")};
    static const uint32_t sizes[] = {2, 3, 8};
    for (size_t i = 0; i < ZT_FEWER(4 * sizeof sizes / sizeof *sizes); i++) {
        ck_assert_int_eq(setenv("ZF_TEST_BLOCK_ELEMS", blocks[i % 2], 1), 0);
        n_shares = 1;
        run(sizes[i / 4], 0, configs[i / 2 % 2]);
        check_bytes(sizes[i / 4]);
    }
}

/* Of N machines with L ranks, each rank sends (N-1)/N of an L-th of it all; in one level, of all of it. At stage 3 each
 * step gathers the bucket with which a forward pass begins. */
static void check_machines(uint32_t n, uint32_t per_node) {
#define IN(transport) CONFIG("1", "stage = 1\n" transport), CONFIG("100000000", "stage = 3\n" transport)
    static const char *const configs[2][2] = {{IN("transport = host")}, {IN("transport = host_two_level")}};
    uint64_t importance[2];
    for (uint32_t is_two = 0; is_two < 2; is_two++) {
        n_shares = (n - per_node) / (is_two ? per_node : 1);
        run(n, per_node, configs[is_two][0]);
        check_bytes(n);
        importance[is_two] = jobs[0].sent[0][ZF_COLLECTIVE_FOR_IMPORTANCE];
        run(n, per_node, configs[is_two][1]);
        check("parameters", 1, ZF_COLLECTIVE_FOR_PARAMETERS, n, WINDOW * 4.0 * N_SHAPES * COLS * (double)shapes->rows);
    }
    /* half of it are a step's sums, which go to whoever counts them in one level */
    ck_assert_uint_eq(2 * per_node * importance[1], (per_node + 1) * importance[0]);
}

ZT_TEST(an_lth_of_it_goes_between_machines) {
    static const uint32_t sizes[][2] = {{8, 2}, {8, 4}, {512, 8}};
    for (int i = 0; i < (ZT_EVERY > 1 ? 2 : 3); i++)
        check_machines(sizes[i][0], sizes[i][1]);
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

enum { MANY = 1025 };
static zt_shape_t vectors[MANY];

/* Each of two ranks has the gradients of a third of all tensors, and nobody those of the last third. */
static void *run_agreement(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    zf_step_report_t report = {.struct_size = sizeof report};
    ck_assert(zt_job_open(job, vectors, MANY));
    note(job, 0);
    for (uint32_t i = 0; i < MANY; i++)
        if (i % 3 == job->rank->rank) {
            zt_rig_fill_grad(rig, i, 1);
            ZT_OK(rig, zt_rig_deliver(rig, i, 0, NULL));
        }
    ZT_OK(rig, zt_rig_submit(rig, ZF_STEP_WAIT, &report));
    job->sent[1][ZF_COLLECTIVE_FOR_STEP] = job->rank->nbytes_of[ZF_COLLECTIVE_FOR_STEP];
    ck_assert_uint_eq(report.n_present, (MANY + 1) / 3 * 2);
    for (uint32_t i = 0; i < MANY; i++) {
        float before = rig->params[i].serial.w[0], now;
        memcpy(&now, rig->params[i].visible, sizeof now);
        ck_assert_int_eq(now != before, i % 3 < 2);
    }
    return NULL;
}

/* What it says of gradients is a bit for each of as many tensors. */
ZT_TEST(a_step_says_a_bit_per_tensor) {
    static const char *const configs[] = {"[zenflow]\nmode = exact\n", "[zenflow]\nmode = exact\n[shard]\nstage = 1\n"};
    for (uint32_t i = 0; i < MANY; i++)
        vectors[i] = (zt_shape_t){1, 0, .flags = ZF_PARAM_AVERAGE};
    for (int i = 0; i < 2; i++) {
        zt_jobs_start(&ranks, 2, jobs, sizeof *jobs, &(job_t){.config = configs[i]});
        zt_jobs_run(&ranks, run_agreement, 0);
        for (int r = 0; r < 2; r++)
            ck_assert_uint_le(jobs[r].sent[1][ZF_COLLECTIVE_FOR_STEP] - jobs[r].sent[0][ZF_COLLECTIVE_FOR_STEP],
                              MANY / 8 + 64);
        zt_jobs_end(&ranks);
    }
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

enum { N_LAYER = 8 };
/* Rows as a model's matrices have them: an embedding, a layer, of matrices alike one; of 16 columns, but for the way
 * down. */
#define LAYER(hidden, ffn, kv)                                                                                         \
    {                                                                                                                  \
        ONE(32000, 16), ONE(hidden, 0), ONE(hidden, 16), ONE(kv, 16), ONE(ffn, 16), ONE(ffn, 16),                      \
            ONE(hidden, 16 * ffn / hidden), ONE(32000, 16)                                                             \
    }
static const zt_shape_t layers[][N_LAYER] = {LAYER(4096, 11008, 4096), LAYER(5120, 13824, 5120),
                                             LAYER(8192, 28672, 1024)}; /* 7B, 13B, 70B */

static void *run_work(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    uint64_t least = UINT64_MAX, most = 0, before = 0;
    ck_assert(zt_job_open(job, shapes, N_LAYER));
    zf_plan_t plan = zt_rig_plan(rig, job->config, 0, job->rank->rank, ranks.size);
    double even = (double)plan.n_elems / WINDOW / ranks.size;
    for (int t = 0; t <= 2 * WINDOW; t++) { /* warm-up, windows that begin, and whole ones */
        train(job, 1);
        ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_DRAIN));
        uint64_t all = zt_rig_counter(rig, "replay_elems"), n = (all - before) / WINDOW;
        least = t > WINDOW && n < least ? n : least;
        most = t > WINDOW && n > most ? n : most;
        before = all;
    }
    ck_assert_uint_eq(least, plan.least_close_elems);
    ck_assert_uint_eq(most, plan.most_close_elems);
    ck_assert_double_ge((double)least, 0.95 * even);
    ck_assert_double_le((double)most, 1.05 * even);
    return NULL;
}

/* What closes at a step of a rank is what its plan says (test_plan.c has all ranks of whole models), and even. */
ZT_TEST(work_of_a_run_is_even) {
    static const uint32_t sizes[] = {8, 64, 512}; /* 8 are there, which takes longest */
    ck_assert_int_eq(setenv("ZF_TEST_BLOCK_ELEMS", "8192", 1), 0);
    for (uint32_t i = 0; i < 3; i += ZT_EVERY) {
        shapes = layers[i];
        zt_jobs_start(&ranks, sizes[i], jobs, sizeof *jobs, &(job_t){.config = CONFIG("100000000", "stage = 1")});
        ranks.ranks[0].rank *= i % 2; /* the first or the last */
        zt_jobs_run(&ranks, run_work, 0);
        zt_jobs_end(&ranks);
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void *run_held(void *raw) {
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    zf_fence_t fence = {.struct_size = sizeof fence};
    ck_assert(zt_job_open(job, shapes, N_SHAPES));
    for (int t = 0; t < 2; t++)
        ZT_OK(rig, zt_rig_try_step(rig));
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_DRAIN));
    zt_rig_check_visible(rig);
    ZT_OK(rig, zt_rig_try_step(rig));
    zt_rig_finish_step(rig);
    ck_assert(!zt_shows(rig->params, rig->params[0].serial.w));
    ZT_OK(rig, zt_fetch(rig, rig->params[0].id, &fence));
    ck_assert_int_eq(rig->zf->fence_wait(rig->inst, &fence, 50000000, &rig->err), ZF_ERR_TIMEOUT);
    pthread_mutex_lock(&ranks.lock);
    ranks.n_let_go++;
    pthread_mutex_unlock(&ranks.lock);
    if (ranks.fails_held) {
        ck_assert_int_eq(rig->zf->fence_wait(rig->inst, &fence, 60000000000u, &rig->err), ZF_ERR_RANKS);
        zt_refused(&rig->err, zt_fetch(rig, rig->params[0].id, &fence), ZF_ERR_RANKS, "gathering of values, bucket");
        return NULL;
    }
    zt_rig_wait(rig, &fence);
    ck_assert(zt_shows(rig->params, rig->params[0].serial.w));
    return NULL;
}

static void hold(const char *config, int fails) {
    zt_jobs_start(&ranks, 2, jobs, sizeof *jobs, &(job_t){.config = config});
    ranks.held_from = 3;
    ranks.fails_held = fails;
    ranks.ranks[0].flags = ranks.ranks[1].flags = ZF_CREATE_CAP_FETCH;
    zt_jobs_run(&ranks, run_held, fails);
    zt_jobs_end(&ranks);
}

/* Of residents, all and some, the other ranks' values: a step is over without them, and a fetch waits. */
ZT_TEST(a_step_waits_for_no_values_of_residents) {
    static const char *const configs[] = {"[device]\nstate_mib = all\n[shard]\nstage = 1\n",
                                          "[device]\nstate_mib = 1\n[shard]\nstage = 2\n[zenflow]\n"
                                          "full_warm_up_rounds = 1\n"};
    ck_assert_int_eq(setenv("ZF_TEST_BLOCK_ELEMS", "2048", 1), 0);
    for (int i = 0; i < 2; i++)
        hold(configs[i], 0);
}

/* The values that a fetch waits for cannot come: whoever waits for its fence hears that, not that they are there. */
ZT_TEST(a_fetch_without_its_values_is_an_error) { hold("[device]\nstate_mib = all\n[shard]\nstage = 1\n", 1); }

ZT_SUITE("ranks_cost")
