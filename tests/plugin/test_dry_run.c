/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_dry_run.c - zf.plan/0 says the bytes that a run maps, without touching memory of that size.
 *
 * Mapped is what the plugin asks the kernel for: calls of mmap and munmap are counted on their way (link option
 * --wrap), those of the device's memory by themselves. What is resident, and so the host's state, is worked out here
 * from sizes alone. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "instance/memory.h"
#include "instance/residency.h"
#include "instance/run.h"
#include "local_ranks.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"

static const zt_shape_t shapes[] = {{.rows = 140, .cols = 500}, {.rows = 1000}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, RANKS = 4, MOST_SHAPES = 9, SPLITS = 100 };
enum { SHARDS = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS, WHOLE_NBYTES = 1000 };

/* ---- what the kernel is asked for -------------------------------------------------------------------------------- */

static _Thread_local uint64_t mapped[2]; /* on the host, and on the device: */
static _Thread_local int is_of_device;

/* Queues reserve addresses, and have few pages. */
ZT_WRAP(void *, mmap, void *addr, size_t nbytes, int prot, int flags, int fd, off_t offset) {
    if (!(flags & MAP_NORESERVE))
        mapped[is_of_device] += nbytes;
    return __real_mmap(addr, nbytes, prot, flags, fd, offset);
}

/* While a run is made, and trains, nothing is given back but what lies around an aligned piece. */
ZT_WRAP(int, munmap, void *addr, size_t nbytes) {
    mapped[is_of_device] -= nbytes;
    return __real_munmap(addr, nbytes);
}

ZT_WRAP(zf_status_t, zfi_device_take, zfi_engine_t *engine, uint64_t nbytes, const char *what, void **out,
        zf_error_t *err) {
    is_of_device = 1;
    zf_status_t st = __real_zfi_device_take(engine, nbytes, what, out, err);
    is_of_device = 0;
    return st;
}

static _Thread_local uint64_t exchanged; /* what state_mib = auto leaves room for, beside the arenas */

ZT_WRAP(uint64_t, zfi_memory_left, zfi_run_t *run) {
    exchanged = zfi_memory_staging_nbytes(&run->ranks);
    return __real_zfi_memory_left(run);
}

static const zf_plan_ext_t *plan_table(void) { return zt_table()->get_extension(ZF_EXT_PLAN); }

/* ---- random splits ----------------------------------------------------------------------------------------------- */

typedef struct split {
    zt_shape_t shapes[MOST_SHAPES];
    uint32_t n_shapes, n_ranks, stage, flags, interval;
    uint64_t state_nbytes;
    int is_mean, is_bf16, is_all, is_exact, has_experts;
    char config[512];
} split_t;

typedef struct job {
    ZT_JOB; /* rank = NULL: one rank */
    const split_t *split;
    zf_plan_t plan;
    uint64_t host, device, said[2]; /* mapped; as zf.stats/1 says it */
    uint64_t exchanged;             /* 0: nobody asked */
} job_t;

static uint64_t draw(uint64_t *at, uint64_t n) { return zt_hash((*at)++) % n; }

static void draw_shapes(uint64_t *at, split_t *out) {
    out->n_shapes = 2 + (uint32_t)draw(at, MOST_SHAPES - 1);
    for (uint32_t i = 0; i < out->n_shapes; i++) {
        int32_t homes[] = {ZF_HOME_PLUGIN, ZF_HOME_PLUGIN, ZF_HOME_PLUGIN, ZF_HOME_RESIDENT, ZF_HOME_HOST};
        out->shapes[i] = (zt_shape_t){.rows = 1 + (int64_t)draw(at, 150),
                                      .cols = draw(at, 4) ? 1 + (int64_t)draw(at, 120) : 0,
                                      .is_bf16 = !draw(at, 3),
                                      .flags = ZF_PARAM_AVERAGE,
                                      .channels = draw(at, 3) ? ZF_CHANNELS_COLUMNS : ZF_CHANNELS_ROWS,
                                      .home = homes[draw(at, 5)]};
    }
}

static uint64_t elems_of(const zt_shape_t *shape) { return (uint64_t)(shape->rows * (shape->cols ? shape->cols : 1)); }

static void draw_split(uint64_t number, split_t *out) {
    static const uint32_t intervals[] = {1, 1, 2, 3, 4, 7, 16, 64};
    static const char *const modes[] = {"exact", "windows", "windows", "mean"}, *const ratios[] = {"0", "0.1", "0.5",
                                                                                                   "1"};
    uint64_t at = number << 32, n_elems = 0;
    char state[32] = "all", window[64] = "";
    *out = (split_t){.n_ranks = 1 + (uint32_t)draw(&at, RANKS)};
    draw_shapes(&at, out);
    for (uint32_t i = 0; i < out->n_shapes; i++)
        n_elems += elems_of(&out->shapes[i]);
    out->stage = out->n_ranks > 1 ? (uint32_t)draw(&at, 4) : 0;
    out->flags = out->stage == 3 ? SHARDS : draw(&at, 2) ? ZF_CREATE_CAP_FETCH : 0;
    const char *mode = modes[draw(&at, out->stage == 3 ? 3 : 4)];
    out->is_mean = !strcmp(mode, "mean");
    out->is_exact = !strcmp(mode, "exact");
    out->is_bf16 = !draw(&at, 3);
    out->interval = intervals[draw(&at, 8)];
    out->is_all = !draw(&at, 8);
    if (draw(&at, 4))
        out->state_nbytes = 1 + draw(&at, n_elems * 13) / (out->stage ? out->n_ranks : 1);
    if (!out->is_all)
        snprintf(state, sizeof state, "%s", out->state_nbytes ? "1" : draw(&at, 2) ? "auto" : "0");
    if (strcmp(mode, "exact") != 0)
        snprintf(window, sizeof window, "update_interval = %u\npublish_lag = %d\n", out->interval, !draw(&at, 3));
    snprintf(out->config, sizeof out->config,
             "[zenflow]\nmode = %s\ntopk_ratio = %s\nfull_warm_up_rounds = 2\n%s[device]\nstate_mib = %s\n"
             "[host]\nthreads = 1\nmoments_dtype = %s\n[shard]\nstage = %u\n%s",
             mode, ratios[draw(&at, 4)], window, state, out->is_bf16 ? "bfloat16" : "float32", out->stage,
             draw(&at, 2) ? "bucket_bytes = 20000\n" : "");
}

static void measure(job_t *job) {
    job->exchanged = exchanged;
    job->host = mapped[0];
    job->device = mapped[1];
    job->said[0] = zt_rig_counter(&job->rig, "host_measured_nbytes");
    job->said[1] = zt_rig_counter(&job->rig, "device_measured_nbytes");
}

/* One rank maps its staging with the first gradients that are borrowed for the hook alone. Several have it from the
 * start, and may take more buckets than they need when gradients come in another order than that of a backward pass. */
static void *run_job(void *raw) {
    job_t *job = raw;
    const split_t *split = job->split;
    zt_rig_start(&job->rig, split->shapes, split->n_shapes);
    if (split->has_experts) {
        job->rig.norm_group = 2;
        job->rig.host.get_extension = zt_ranks_extension; /* which says how many ranks a group has */
        job->rig.host.ctx = job->rank;
        job->rig.decls[0].reduce_group = ZT_ACROSS_PAIRS;
    }
    job->plan = zt_rig_plan(&job->rig, split->config, split->flags, job->rank ? job->rank->rank : 0, split->n_ranks);
    mapped[0] = mapped[1] = exchanged = 0;
    if (job->rank)
        job->st = zt_ranks_try_open(job->rank, &job->rig, split->config, 0);
    else
        zt_rig_open(&job->rig, split->config, split->flags);
    if (job->rank && job->st >= 0)
        measure(job);
    for (int i = 0; i < 5 && job->st >= 0; i++)
        job->st = zt_rig_try_step(&job->rig);
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    if (!job->rank)
        measure(job);
    return NULL;
}

/* Elements whose state the ranks keep in host memory, all of them together, if each can keep so many bytes on its
 * device: declared ones, vectors, the rest. Each block is here one parameter. On one rank exact leaves the workers what
 * was declared for them. */
static uint64_t host_elems(const split_t *split) {
    uint64_t owners = split->stage ? split->n_ranks : 1, n = 0, used = 0;
    int is_resident[MOST_SHAPES] = {0}, is_over = 0;
    for (int turn = 0; turn < 3; turn++)
        for (uint32_t i = 0; i < split->n_shapes; i++) {
            const zt_shape_t *shape = &split->shapes[i];
            uint64_t cols = shape->cols ? (uint64_t)shape->cols : 1, rows = (uint64_t)shape->rows, unit = 1, each;
            if (shape->home == ZF_HOME_HOST || turn != (shape->home == ZF_HOME_RESIDENT ? 0 : shape->cols ? 2 : 1))
                continue;
            while (owners > 1 && unit * cols < 16)
                unit++;
            if (split->stage == 3 && shape->cols && shape->channels == ZF_CHANNELS_ROWS &&
                elems_of(shape) * (shape->is_bf16 ? 2 : 4) > WHOLE_NBYTES)
                unit = rows; /* it stays on one rank */
            each = ((rows + unit - 1) / unit + owners - 1) / owners * unit;
            each = (each < rows ? each : rows) * cols;
            used += (each + 15) / 16 * 16 * (split->is_bf16 ? 8 : 12);
            is_over |= turn > 0 && used > split->state_nbytes;
            is_resident[i] = !is_over;
        }
    for (uint32_t i = 0; i < split->n_shapes; i++)
        is_resident[i] |= split->is_exact && split->n_ranks == 1 && split->shapes[i].home != ZF_HOME_HOST;
    for (uint32_t i = 0; i < split->n_shapes; i++)
        n += is_resident[i] || split->is_all ? 0 : elems_of(&split->shapes[i]);
    return split->stage ? n : n * split->n_ranks;
}

static void check_bytes(const job_t *job) {
    const zf_plan_t *plan = &job->plan;
    uint64_t own =
        4096 + (uint64_t)sysconf(_SC_PAGESIZE); /* an instance's: who forks wipes it; the device's counters */
    ck_assert_msg(plan->host_nbytes + own == job->host, "host %llu planned, %llu mapped: %s",
                  (unsigned long long)plan->host_nbytes, (unsigned long long)(job->host - own), job->split->config);
    ck_assert_msg(plan->device_nbytes + plan->staging_nbytes == job->device,
                  "device %llu + %llu planned, %llu mapped: %s", (unsigned long long)plan->device_nbytes,
                  (unsigned long long)plan->staging_nbytes, (unsigned long long)job->device, job->split->config);
    ck_assert(plan->host_nbytes == job->said[0] && job->device == job->said[1]);
    ck_assert(job->exchanged == 0 || job->exchanged == plan->staging_nbytes);
    ck_assert_uint_eq(plan->host_nbytes, job->rig.layout.host_nbytes);
    ck_assert_uint_eq(plan->device_nbytes + (plan->n_buckets ? plan->staging_nbytes : 0),
                      job->rig.layout.device_nbytes);
    ck_assert_uint_eq(plan->host_slots_nbytes, zt_rig_parts(&job->rig)->host_slots_nbytes);
    ck_assert_uint_eq(plan->n_selected_elems, zt_rig_parts(&job->rig)->n_selected_elems);
}

static void check_split(uint64_t number) {
    static zt_ranks_t ranks;
    static job_t jobs[RANKS];
    split_t split;
    char state[32];
    uint64_t n_owned = 0, state_nbytes = 0, need, counts;
    draw_split(number, &split);
    snprintf(state, sizeof state, "%llu", (unsigned long long)split.state_nbytes);
    ck_assert_int_eq(split.state_nbytes ? setenv("ZF_TEST_STATE_BYTES", state, 1) : unsetenv("ZF_TEST_STATE_BYTES"), 0);
    zt_jobs_start(&ranks, split.n_ranks, jobs, sizeof *jobs, &(job_t){.split = &split});
    for (uint32_t r = 0; r < split.n_ranks; r++) {
        jobs[r].rank = split.n_ranks > 1 ? jobs[r].rank : NULL;
        ranks.ranks[r].flags = split.flags;
    }
    zt_jobs_run(&ranks, run_job, 0);
    for (uint32_t r = 0; r < split.n_ranks; r++) {
        check_bytes(&jobs[r]);
        n_owned += jobs[r].plan.n_owned_elems;
        state_nbytes += jobs[r].plan.host_state_nbytes;
        if (split.stage < 3 && !split.is_mean && !split.is_bf16 && split.n_ranks != 3) /* thirds are rounded */
            zt_rig_check_visible(&jobs[r].rig);
    }
    ck_assert_uint_eq(n_owned, jobs[0].plan.n_elems * (split.stage ? 1 : split.n_ranks));
    need = host_elems(&split) * (split.is_bf16 ? 8 : 12);
    counts = (split.is_mean ? jobs[0].plan.n_elems * 4 : 0) + 4096 * (uint64_t)split.n_shapes; /* n, and what aligns */
    ck_assert_msg(state_nbytes >= need && state_nbytes <= need + split.n_ranks * counts,
                  "split %llu: state of %llu bytes on the host, need %llu: %s", (unsigned long long)number,
                  (unsigned long long)state_nbytes, (unsigned long long)need, split.config);
    zt_jobs_end(&ranks);
}

ZT_TEST(bytes_are_those_of_a_run) {
    for (uint64_t i = 0; i < ZT_FEWER(SPLITS); i++)
        check_split(i);
}

/* An expert of which each of two ranks keeps a part, beside what all four keep. */
ZT_TEST(experts_are_cut_over_ranks_of_their_own) {
    static zt_ranks_t ranks;
    static job_t jobs[RANKS];
    for (uint32_t stage = 0; stage < 4; stage++) {
        split_t split = {.shapes = {{.rows = 140, .cols = 500, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 96, .cols = 100, .flags = ZF_PARAM_AVERAGE}},
                         .n_shapes = 2,
                         .n_ranks = RANKS,
                         .has_experts = 1};
        uint64_t n_owned = 0, n_expert = elems_of(&split.shapes[0]), n_other = elems_of(&split.shapes[1]);
        snprintf(split.config, sizeof split.config,
                 "[zenflow]\nmode = windows\n[host]\nthreads = 1\n[shard]\nstage = %u\n", (unsigned)stage);
        zt_jobs_start(&ranks, RANKS, jobs, sizeof *jobs, &(job_t){.split = &split});
        for (uint32_t r = 0; r < RANKS; r++)
            ranks.ranks[r].flags = stage == 3 ? SHARDS : 0;
        split.flags = stage == 3 ? SHARDS : 0;
        zt_jobs_run(&ranks, run_job, 0);
        for (uint32_t r = 0; r < RANKS; r++) {
            check_bytes(&jobs[r]);
            n_owned += jobs[r].plan.n_owned_elems;
        }
        ck_assert_uint_eq(n_owned, stage ? 2 * n_expert + n_other : RANKS * (n_expert + n_other));
        zt_jobs_end(&ranks);
    }
}

/* Of n buckets of BUCKET bytes: what exchanges take beside the parts that a rank keeps. */
static double n_exchanged(uint32_t n, const char *config, uint32_t flags, double kept) {
    enum { ROWS = 256, COLS = 256, BUCKET = ROWS * COLS * 4, MOST = 24 };
    zt_shape_t many[MOST];
    zt_rig_t rig;
    for (uint32_t i = 0; i < n; i++)
        many[i] = (zt_shape_t){.rows = ROWS, .cols = COLS, .flags = ZF_PARAM_AVERAGE};
    zt_rig_start(&rig, many, n);
    double nbytes = (double)zt_rig_plan(&rig, config, flags, 0, RANKS).staging_nbytes;
    zt_rig_end(&rig);
    return nbytes / BUCKET - kept * n / RANKS;
}

/* Gradients of two buckets, their parts and those that arrive; values of two, or of all where the host fetches them one
 * by one. At stage 3 values of whole parameters, of which there are none, two whole buckets of parameters, and parts of
 * one. */
ZT_TEST(exchanges_take_a_number_of_buckets) {
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

static zf_plan_t plan_within(const zt_rig_t *rig, uint64_t limit_mib, char config[128]) {
    snprintf(config, 128, "[host]\nmemory_limit_mib = %llu\n", (unsigned long long)limit_mib);
    return zt_rig_plan(rig, config, 0, 0, 1);
}

/* A limit takes room from early replays, part of it, all of it. With less than a run needs a plan says what that is. */
ZT_TEST(a_limit_takes_room_from_early_replays) {
    enum { N = 8 };
    static const zt_shape_t large[] = {{.rows = 4096, .cols = 1024, .home = ZF_HOME_HOST}};
    char config[128];
    uint64_t has[N + 1], parts = 0;
    zt_rig_t rig;
    zt_rig_start(&rig, large, 1);
    zf_plan_t most = plan_within(&rig, 0, config), least = plan_within(&rig, 1, config);
    uint64_t low = least.host_nbytes + least.device_nbytes,
             high = most.host_nbytes + most.device_nbytes + most.staging_nbytes + most.sums_nbytes;
    ck_assert_uint_ge(most.host_nbytes, least.host_nbytes + (48 << 20)); /* of 48 MiB of state */
    for (uint64_t i = 0; i <= N; i++) {
        has[i] = plan_within(&rig, ((low + (high - low) * i / N) >> 20) + 1, config).host_nbytes;
        zt_rig_open(&rig, config, 0);
        ck_assert_uint_eq(has[i], rig.layout.host_nbytes);
        parts += has[i] > least.host_nbytes && has[i] < most.host_nbytes;
        rig.zf->destroy(rig.inst, NULL);
        rig.inst = NULL;
    }
    ck_assert(has[0] == least.host_nbytes && has[N] == most.host_nbytes && parts > 0);
    zt_rig_end(&rig);
}

/* ---- what a machine does not have -------------------------------------------------------------------------------- */

/* 2^36 parameters on CUDA: address space that cannot be read, no driver asked for. */
static zf_plan_t plan_of_many(const char *config, uint32_t n_ranks) {
    static const int64_t shape[2] = {1 << 18, 1 << 18};
    const uint64_t nbytes = (uint64_t)2 << 36;
    void *reserved = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    zf_tensor_t tensor = {.struct_size = sizeof tensor};
    zf_param_decl_t decl = {.struct_size = sizeof decl, .name = "w", .tensor = &tensor};
    zf_host_t host = {.struct_size = sizeof host};
    zf_create_args_t create = {
        .struct_size = sizeof create, .host = &host, .device_type = ZF_DEVICE_CUDA, .config_text = config};
    zf_bind_args_t bind = {.struct_size = sizeof bind, .decls = &decl, .n_decls = 1, .decl_size = sizeof decl};
    zf_plan_args_t args = {
        .struct_size = sizeof args, .n_ranks = n_ranks, .rank = n_ranks - 1, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    ck_assert(reserved != MAP_FAILED);
    zt_tensor(&tensor, reserved, shape, 2, 1);
    tensor.dl.device_type = ZF_DEVICE_CUDA;
    ck_assert_msg(plan_table()->plan(&args, &out, &err) >= 0, "%s", err.message);
    munmap(reserved, nbytes);
    return out;
}

ZT_TEST(nothing_is_touched) {
    const zf_plan_t out = plan_of_many("[shard]\nstage = 1\n", 64);
    ck_assert_uint_eq(out.n_elems, (uint64_t)1 << 36);
    ck_assert_uint_eq(out.n_owned_elems, (uint64_t)1 << 30);
    ck_assert_uint_ge(out.host_state_nbytes, (uint64_t)12 << 30);
    ck_assert_uint_le(out.host_state_nbytes, ((uint64_t)12 << 30) + (1 << 20));
}

/* A tenth of all channels has 14 bytes each on the device where channels are chosen; exact chooses none. */
ZT_TEST(exact_keeps_nothing_on_the_device) {
    for (uint32_t n_ranks = 1; n_ranks <= 8; n_ranks *= 8) {
        const zf_plan_t exact = plan_of_many("[shard]\nstage = 1\n[zenflow]\ntopk_ratio = 0.1\n", n_ranks);
        const zf_plan_t windows = plan_of_many("[shard]\nstage = 1\n[zenflow]\nmode = windows\n", n_ranks);
        ck_assert_uint_eq(exact.n_selected_elems, 0);
        ck_assert_double_le((double)exact.device_nbytes / (double)exact.n_elems, 0.03);
        ck_assert_double_ge((double)windows.device_nbytes / (double)windows.n_elems, 1.4);
        ck_assert_uint_lt(exact.staging_nbytes, windows.staging_nbytes + 1);
    }
}

/* Of bf16 weights on the device: the state, a place for the gradient, and passing values. */
ZT_TEST(a_gradient_has_one_place) {
    const double n = (double)((uint64_t)1 << 36);
    const zf_plan_t out = plan_of_many("[host]\nearly_mib = 0\n", 1);
    ck_assert_double_le((double)out.host_nbytes / n, 14.1);
    ck_assert_uint_ge(out.host_slots_nbytes, (uint64_t)2 << 36);
    ck_assert_uint_le(out.host_publish_nbytes, (uint64_t)2 << 30); /* a 64th of all values */
}

/* The 12 bytes of state and the 2 of a value, where nothing bounds the room for early replays. */
ZT_TEST(early_room_is_planned) {
    const double n = (double)((uint64_t)1 << 36);
    const uint64_t none = plan_of_many("[host]\nearly_mib = 0\n", 1).host_nbytes;
    const uint64_t gib = plan_of_many("[host]\nearly_mib = 1024\n", 1).host_nbytes,
                   most = plan_of_many("", 1).host_nbytes;
    ck_assert_double_eq_tol((double)(most - none) / n, 14.0, 0.01);
    ck_assert_uint_le(gib - none, (uint64_t)1 << 30);
    ck_assert_uint_ge(gib - none, (uint64_t)1 << 29);
}

ZT_TEST(what_is_wrong_is_refused) {
    zt_rig_t rig;
    zf_create_args_t create = {.struct_size = sizeof create, .device_type = ZF_DEVICE_CPU};
    zf_bind_args_t bind;
    zf_plan_args_t args = {.struct_size = sizeof args, .n_ranks = 2, .rank = 2, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    zt_rig_start(&rig, shapes, N_SHAPES);
    create.host = &rig.host;
    bind = zt_rig_bind_args(&rig);
    zt_refused(&err, plan_table()->plan(&args, &out, &err), ZF_ERR_ARGUMENT, "rank = 2 of 2");
    args.rank = 1;
    create.norm_group = 2;
    zt_refused(&err, plan_table()->plan(&args, &out, &err), ZF_ERR_UNSUPPORTED_FIELD,
               "process group 2: the host offers no zf.collectives/0");
    create.norm_group = 0;
    create.config_text = "[shard]\nstage = 3\n[zenflow]\nmode = mean\n";
    zt_refused(&err, plan_table()->plan(&args, &out, &err), ZF_ERR_CONFIG,
               "stage = 3 on 2 ranks needs [zenflow] mode = exact or windows");
    args.create = NULL;
    ck_assert_int_eq(plan_table()->plan(&args, &out, &err), ZF_ERR_ARGUMENT);
    ck_assert_uint_eq(out.n_elems, 0);
    zt_rig_end(&rig);
}

static void shard_small_ones(void) { ck_assert_int_eq(setenv("ZF_TEST_WHOLE_BYTES", "1000", 1), 0); }

ZT_SUITE_WITH("dry_run", shard_small_ones, NULL)
