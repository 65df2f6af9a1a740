/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_dry_run.c - zf.plan/0 says the bytes that a run maps, without touching memory of that size. */
#define _GNU_SOURCE
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "instance/run.h"
#include "local_ranks.h"
#include "rig.h"
#include "suite.h"
#include "zf/ext/draft/plan.h"

static const zt_shape_t shapes[] = {{.rows = 140, .cols = 500, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 1000, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 64, .cols = 48, .flags = ZF_PARAM_AVERAGE, .group = 1},
                                    {.rows = 160, .cols = 512, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, STEPS = 4, RANKS = 4 };
enum { SHARDS = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS };

static const char *const texts[] = {
    "",
    "[zenflow]\nupdate_interval = 1\n",
    "[zenflow]\nupdate_interval = 4\ntopk_ratio = 0\n[log]\nlateness = 0\n",
    "[zenflow]\nupdate_interval = auto\nfull_warm_up_rounds = 2\n",
    "[zenflow]\nmode = mean\non_overwrite = off\n",
    "[device]\nstate_mib = all\n[host]\nmoments_dtype = bfloat16\n",
    "[zenflow]\nupdate_interval = 16\n[host]\nmoments_dtype = bfloat16\n",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static const zf_plan_ext_t *plan_table(void) { return zt_table()->get_extension(ZF_EXT_PLAN); }

static zf_plan_t ask(const zt_rig_t *rig, const char *config, uint32_t flags, uint32_t rank, uint32_t n_ranks) {
    zf_create_args_t create = {.struct_size = sizeof create,
                               .flags = flags,
                               .host = &rig->host,
                               .config_text = config,
                               .device_type = ZF_DEVICE_CPU};
    zf_bind_args_t bind = zt_rig_bind_args(rig);
    zf_plan_args_t args = {
        .struct_size = sizeof args, .n_ranks = n_ranks, .rank = rank, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st = plan_table()->plan(&args, &out, &err);
    ck_assert_msg(st >= 0, "%s: %s", config, err.message);
    return out;
}

static void check_equal(const zf_plan_t *plan, zt_rig_t *rig, const char *config) {
    ck_assert_msg(plan->host_nbytes == zt_rig_counter(rig, "host_measured_nbytes"),
                  "%s: host %llu planned, %llu mapped", config, (unsigned long long)plan->host_nbytes,
                  (unsigned long long)zt_rig_counter(rig, "host_measured_nbytes"));
    ck_assert_msg(plan->device_nbytes + plan->staging_nbytes == zt_rig_counter(rig, "device_measured_nbytes"),
                  "%s: device %llu + %llu planned, %llu mapped", config, (unsigned long long)plan->device_nbytes,
                  (unsigned long long)plan->staging_nbytes,
                  (unsigned long long)zt_rig_counter(rig, "device_measured_nbytes"));
    ck_assert_uint_eq(plan->host_state_nbytes, zt_rig_parts(rig)->host_state_nbytes);
    ck_assert_uint_eq(plan->host_slots_nbytes, zt_rig_parts(rig)->host_slots_nbytes);
    ck_assert_uint_eq(plan->host_publish_nbytes, zt_rig_parts(rig)->host_publish_nbytes);
    ck_assert_uint_eq(plan->n_selected_elems, zt_rig_parts(rig)->n_selected_elems);
    ck_assert_uint_eq(plan->n_elems, rig->layout.n_elems);
    ck_assert_uint_eq(plan->host_nbytes, rig->layout.host_nbytes);
    ck_assert_uint_eq(plan->device_nbytes + (plan->n_buckets ? plan->staging_nbytes : 0), rig->layout.device_nbytes);
}

/* The rig delivers gradients that are borrowed for the hook alone, so staging is mapped. */
static void check_run(const char *config, uint32_t flags) {
    zt_rig_t rig;
    zf_plan_t plan;
    zt_rig_start(&rig, shapes, N_SHAPES);
    plan = ask(&rig, config, flags, 0, 1);
    zt_rig_open(&rig, config, flags);
    zt_rig_steps(&rig, STEPS);
    check_equal(&plan, &rig, config);
    ck_assert_uint_eq(plan.n_owned_elems, plan.n_elems);
    ck_assert_uint_le(plan.least_close_elems, plan.most_close_elems);
    ck_assert_uint_le(plan.most_close_elems, plan.n_elems);
    ck_assert_uint_eq(plan.most_close_elems == 0, strstr(config, "state_mib = all") != NULL);
    ck_assert_uint_eq(plan.n_buckets, 0);
    zt_rig_end(&rig);
}

START_TEST(bytes_are_those_of_a_run) {
    for (int i = 0; i < N_TEXTS; i++) {
        check_run(texts[i], 0);
        check_run(texts[i], ZF_CREATE_CAP_FETCH);
    }
}
END_TEST

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

typedef struct job {
    zt_rig_t rig;
    zt_rank_t *rank;
    const char *config;
    zf_plan_t plan;
    zf_status_t st;
} job_t;

static void *run_job(void *raw) {
    job_t *job = raw;
    zt_rig_start(&job->rig, shapes, N_SHAPES);
    job->plan = ask(&job->rig, job->config, job->rank->flags, job->rank->rank, job->rank->all->size);
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, 0);
    for (int i = 0; i < STEPS && job->st >= 0; i++)
        job->st = zt_rig_try_step(&job->rig);
    return NULL;
}

static void check_ranks(uint32_t n, const char *config, uint32_t flags) {
    static zt_ranks_t ranks;
    static job_t jobs[RANKS];
    uint64_t n_owned = 0;
    zt_ranks_init(&ranks, n);
    for (uint32_t r = 0; r < n; r++) {
        jobs[r] = (job_t){.rank = &ranks.ranks[r], .config = config};
        ranks.ranks[r].flags = flags;
    }
    zt_ranks_run(n, run_job, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < n; r++) {
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", r, jobs[r].rig.err.message);
        check_equal(&jobs[r].plan, &jobs[r].rig, config);
        ck_assert_uint_ge(jobs[r].plan.n_buckets, 1);
        n_owned += jobs[r].plan.n_owned_elems;
    }
    ck_assert_uint_eq(n_owned, jobs[0].plan.n_elems * (strstr(config, "stage") ? 1 : n));
    for (uint32_t r = 0; r < n; r++)
        zt_rig_end(&jobs[r].rig);
    zt_ranks_free(&ranks);
}

START_TEST(bytes_of_a_rank_are_those_of_a_run) {
    for (uint32_t n = 2; n <= RANKS; n++) {
        check_ranks(n, "[shard]\nbucket_bytes = 100000\n[log]\nlevel = error\n", 0);
        check_ranks(n, "[shard]\nstage = 1\nbucket_bytes = 100000\n[log]\nlevel = error\n", 0);
        check_ranks(n, "[shard]\nstage = 1\n[zenflow]\nupdate_interval = 4\n[log]\nlevel = error\n", SHARDS);
        check_ranks(n, "[shard]\nstage = 2\n[log]\nlevel = error\n", 0);
        check_ranks(n, "[shard]\nstage = 3\n[log]\nlevel = error\n", SHARDS);
    }
}
END_TEST

/* Of n buckets of BUCKET bytes: what exchanges take beside the parts that a rank keeps. */
static double n_exchanged(uint32_t n, const char *config, uint32_t flags, double kept) {
    enum { ROWS = 256, COLS = 256, BUCKET = ROWS * COLS * 4, MOST = 24 };
    zt_shape_t many[MOST];
    zt_rig_t rig;
    double nbytes;
    for (uint32_t i = 0; i < n; i++)
        many[i] = (zt_shape_t){.rows = ROWS, .cols = COLS, .flags = ZF_PARAM_AVERAGE};
    zt_rig_start(&rig, many, n);
    nbytes = (double)ask(&rig, config, flags, 0, RANKS).staging_nbytes;
    zt_rig_end(&rig);
    return nbytes / BUCKET - kept * n / RANKS;
}

/* Gradients of two buckets, their parts and those that arrive; values of two, or of all where the host fetches them one
 * by one. At stage 3 values of residents, of which there are none, two whole buckets of parameters, and parts of one.
 */
START_TEST(exchanges_take_a_number_of_buckets) {
    static const char *const stages[] = {"[shard]\nbucket_bytes = 1\nstage = 1\n",
                                         "[shard]\nbucket_bytes = 1\nstage = 2\n",
                                         "[shard]\nbucket_bytes = 1\nstage = 3\n"};
    for (uint32_t n = 12; n <= 24; n += 12) {
        for (int i = 0; i < 2; i++) {
            ck_assert_double_eq_tol(n_exchanged(n, stages[i], 0, 1), 6, 0.1);
            ck_assert_double_eq_tol(n_exchanged(n, stages[i], ZF_CREATE_CAP_FETCH, 1), 4 + n, 0.1);
        }
        ck_assert_double_eq_tol(n_exchanged(n, stages[2], SHARDS, 2), 7, 0.1);
    }
}
END_TEST

/* ---- what a machine does not have -------------------------------------------------------------------------------- */

/* 2^36 parameters on CUDA: address space that cannot be read, no driver asked for. */
START_TEST(nothing_is_touched) {
    static const int64_t shape[2] = {1 << 18, 1 << 18};
    const uint64_t nbytes = (uint64_t)2 << 36;
    void *reserved = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    zf_tensor_t tensor = {.struct_size = sizeof tensor};
    zf_param_decl_t decl = {.struct_size = sizeof decl, .name = "w", .tensor = &tensor};
    zf_host_t host = {.struct_size = sizeof host};
    zf_create_args_t create = {.struct_size = sizeof create, .host = &host, .device_type = ZF_DEVICE_CUDA};
    zf_bind_args_t bind = {.struct_size = sizeof bind, .decls = &decl, .n_decls = 1, .decl_size = sizeof decl};
    zf_plan_args_t args = {.struct_size = sizeof args, .n_ranks = 64, .rank = 63, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    ck_assert(reserved != MAP_FAILED);
    create.config_text = "[shard]\nstage = 1\n";
    zt_tensor(&tensor, reserved, shape, 2, 1);
    tensor.dl.device_type = ZF_DEVICE_CUDA;
    ck_assert_msg(plan_table()->plan(&args, &out, &err) >= 0, "%s", err.message);
    ck_assert_uint_eq(out.n_elems, (uint64_t)1 << 36);
    ck_assert_uint_eq(out.n_owned_elems, (uint64_t)1 << 30);
    ck_assert_uint_ge(out.host_state_nbytes, (uint64_t)12 << 30);
    ck_assert_uint_le(out.host_state_nbytes, ((uint64_t)12 << 30) + (1 << 20));
    munmap(reserved, nbytes);
}
END_TEST

START_TEST(what_is_wrong_is_refused) {
    zt_rig_t rig;
    zf_create_args_t create = {.struct_size = sizeof create, .device_type = ZF_DEVICE_CPU};
    zf_bind_args_t bind;
    zf_plan_args_t args = {.struct_size = sizeof args, .n_ranks = 2, .rank = 2, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    zt_rig_start(&rig, shapes, N_SHAPES);
    create.host = &rig.host;
    bind = zt_rig_bind_args(&rig);
    ck_assert_int_eq(plan_table()->plan(&args, &out, &err), ZF_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, "rank = 2 of 2"));
    args.rank = 1;
    create.config_text = "[shard]\nstage = 3\n[zenflow]\nmode = mean\n";
    zt_refused(&err, plan_table()->plan(&args, &out, &err), ZF_ERR_CONFIG,
               "stage = 3 on 2 ranks needs [zenflow] mode = exact or windows");
    args.create = NULL;
    ck_assert_int_eq(plan_table()->plan(&args, &out, &err), ZF_ERR_ARGUMENT);
    ck_assert_uint_eq(out.n_elems, 0);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("dry_run", bytes_are_those_of_a_run, bytes_of_a_rank_are_those_of_a_run, exchanges_take_a_number_of_buckets,
        nothing_is_touched, what_is_wrong_is_refused)
