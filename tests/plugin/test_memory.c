/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_memory.c - the plan is what is mapped; what does not fit is refused before any allocation. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/node.h"
#include "instance/instance.h"
#include "instance/memory.h"
#include "instance/run.h"
#include "lib/cgroup.h"
#include "local_ranks.h"
#include "ranks/ranks.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"

static const zt_shape_t shapes[] = {
    {.rows = 300, .cols = 500},
    {.rows = 1000},
    {.rows = 256, .cols = 512, .is_bf16 = 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Updated by workers, so that some of it may begin early. */
static const zt_shape_t on_host[N_SHAPES] = {
    {.rows = 300, .cols = 500, .home = ZF_HOME_HOST},
    {.rows = 1000, .home = ZF_HOME_HOST},
    {.rows = 256, .cols = 512, .is_bf16 = 1, .home = ZF_HOME_HOST},
};

static zt_rig_t rig;
static int n_mapped; /* arenas */

/* Bytes of this process's anonymous mappings, from the kernel. */
static uint64_t mapped_nbytes(void) {
    uint64_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert(file && fscanf(file, "%" SCNu64, &pages) == 1);
    fclose(file);
    return pages * 4096;
}

static void check_planned_is_measured(void) {
    ck_assert_uint_eq(zt_rig_counter(&rig, "host_planned_nbytes"), zt_rig_counter(&rig, "host_measured_nbytes"));
    ck_assert_uint_eq(zt_rig_counter(&rig, "device_planned_nbytes"), zt_rig_counter(&rig, "device_measured_nbytes"));
    ck_assert_uint_eq(zt_rig_counter(&rig, "host_planned_nbytes"), rig.layout.host_nbytes);
    ck_assert_uint_ge(zt_rig_counter(&rig, "device_planned_nbytes"), rig.layout.device_nbytes);
}

ZT_TEST(sums_and_staging_are_counted) {
    zt_rig_make(&rig, shapes, N_SHAPES, "", 0);
    for (int part = 0; part < 2; part++) {
        zt_rig_fill_grad(&rig, 0, 1);
        ZT_OK(&rig, zt_rig_deliver(&rig, 0, ZF_GRAD_PART | ZF_GRAD_MORE, NULL));
        check_planned_is_measured();
    }
    ck_assert_uint_gt(zt_rig_counter(&rig, "device_planned_nbytes"),
                      rig.layout.device_nbytes + 8 * rig.layout.n_elems - 1);
    zt_rig_end(&rig);
}

/* Room for one gradient, not for the sums of several: the part is refused, and a whole gradient goes on. */
ZT_TEST(sums_that_do_not_fit_are_the_trainer_s) {
    static const char *const config = "[host]\nthreads = 1\nearly_mib = 0\nmemory_limit_mib = %" PRIu64 "\n";
    char text[96];
    snprintf(text, sizeof text, config, (uint64_t)1000);
    zt_rig_make(&rig, shapes, N_SHAPES, text, 0);
    uint64_t fits = rig.layout.host_nbytes + rig.layout.device_nbytes + 4 * rig.layout.n_elems;
    rig.zf->destroy(rig.inst, NULL);
    snprintf(text, sizeof text, config, (fits >> 20) + 1);
    zt_rig_open(&rig, text, 0);
    zt_rig_fill_grad(&rig, 0, 1);
    zt_refused(&rig.err, zt_rig_deliver(&rig, 0, ZF_GRAD_PART | ZF_GRAD_MORE, NULL), ZF_ERR_MEMORY,
               "accumulate micro-batches in the trainer");
    zt_contains(rig.err.message, "need 1 MiB on the device, 4 bytes per parameter on every rank, have 0 MiB");
    zt_rig_steps(&rig, 3);
    check_planned_is_measured();
    zt_rig_end_flushed(&rig);
}

ZT_TEST(refused_with_need_and_have) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, "[zenflow]\npublish_lag = 1\n[host]\nmemory_limit_mib = 5\nthreads = 1\n", 0);
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_ERR_MEMORY); /* allocators settle */
    uint64_t before = mapped_nbytes();
    zf_bind_report_t layout = rig.layout;
    for (int i = 0; i < 50; i++)
        zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_MEMORY, "need ");
    zt_contains(rig.err.message, "have 5 MiB ([host] memory_limit_mib)");
    ck_assert_uint_le(mapped_nbytes(), before + (1u << 20));
    ck_assert_int_eq(memcmp(&layout, &rig.layout, sizeof layout), 0); /* outputs only on success */
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE);
    for (uint32_t p = 0; p < N_SHAPES; p++)
        ck_assert_int_eq(memcmp(rig.params[p].tensor.dl.data, rig.params[p].visible, 4), 0);
    zt_rig_end(&rig);
}

static char said[512]; /* the newest line of the log */

ZT_WRAP(zf_status_t, zfi_arena_map, zfi_arena_t *arena, const char *what, zf_error_t *err) {
    n_mapped++;
    if (arena->promised_nbytes > 1 << 30)
        return zfi_error(err, ZF_ERR_DEVICE, "bind_params", "when it is mapped, the log has said: %s", said);
    return __real_zfi_arena_map(arena, what, err);
}

static void note_said(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                      uint64_t length) {
    (void)ctx, (void)level, (void)component, (void)file, (void)line;
    snprintf(said, sizeof said, "%.*s", (int)length, msg);
}

ZT_TEST(memory_that_takes_seconds_is_said_before) {
    const int64_t sizes[] = {8192, 12288};
    zt_rig_start(&rig, shapes, 1);
    void *memory = mmap(NULL, 4 * 8192 * 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    rig.host.log = note_said;
    zt_rig_create(&rig, "[host]\nthreads = 1\nearly_mib = 0\n", 0);
    zt_tensor(&rig.params[0].tensor, memory, sizes, 2, 0);
    rig.decls[0].home = ZF_HOME_HOST;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_DEVICE, " MiB of host memory, which takes seconds");
    munmap(memory, 4 * 8192 * 12288);
    zt_rig_end(&rig);
}

/* The CPU as a device with memory of its own, of which ranks exchange page-locked copies. */
static int is_away;
ZT_WRAP(zf_status_t, zfi_ranks_plan, zfi_ranks_t *ranks, zf_error_t *err) {
    static zfi_device_ops_t away;
    away = *ranks->engine->ops;
    away.has_own_memory = 1;
    if (is_away)
        ranks->engine->ops = &away;
    return __real_zfi_ranks_plan(ranks, err);
}

/* Binds one of many ranks, among its images. */
static zf_status_t bind_among_ranks(zt_ranks_t *ranks, zt_job_t *job, uint64_t limit_mib) {
    static char config[160];
    snprintf(config, sizeof config,
             "[host]\nmemory_limit_mib = %" PRIu64 "\nthreads = 1\nearly_mib = 0\n[shard]\nstage = 1\n", limit_mib);
    zt_jobs_start(ranks, 16, job, sizeof *job, &(zt_job_t){.config = config});
    n_mapped = 0;
    (void)zt_job_open(job, shapes, N_SHAPES);
    return job->st;
}

/* Under every limit either nothing of the run is mapped, or all of it. */
ZT_TEST(what_ranks_exchange_is_counted_before_anything_is_mapped) {
    static zt_ranks_t ranks;
    static zt_job_t job;
    uint64_t least_mib[2] = {0};
    for (is_away = 0; is_away < 2; is_away++) {
        int n_by_create = 0;
        zf_status_t st = ZF_ERR_MEMORY;
        while (st < 0) {
            st = bind_among_ranks(&ranks, &job, ++least_mib[is_away]);
            n_by_create = least_mib[is_away] == 1 ? n_mapped : n_by_create;
            if (st < 0) {
                zt_refused(&job.rig.err, st, ZF_ERR_MEMORY, "what ranks exchange");
                ck_assert_int_eq(strstr(job.rig.err.message, "transport = nccl") != NULL, is_away);
            }
            ck_assert_msg((n_mapped == n_by_create) == (st < 0), "%d MiB: %d arenas were mapped",
                          (int)least_mib[is_away], n_mapped);
            ck_assert_uint_lt(least_mib[is_away], 1000);
            zt_jobs_end(&ranks);
        }
    }
    is_away = 0;
    ck_assert_uint_gt(least_mib[1], least_mib[0]);
}

/* Another instance has been given everything and has not touched it yet. */
ZT_TEST(what_others_were_promised_is_not_there) {
    zfi_arena_t other = {0};
    zfi_room_t room;
    zfi_room_read(&room);
    zfi_arena_take(&other, room.total, 1);
    zfi_arena_promise(&other);
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, "[host]\nthreads = 1\n", 0);
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_MEMORY, "(available to this process)");
    ck_assert_uint_eq(zfi_arena_all_promised(), other.promised_nbytes); /* nothing is left of what was refused */
    zfi_arena_free(&other);
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_OK);
    ck_assert_uint_eq(zfi_arena_all_promised(), 0);
    zt_rig_end(&rig);
}

static uint64_t left_by_groups = UINT64_MAX;

ZT_WRAP(void, zf_cgroup_read, const char *root, zf_cgroup_t *out) {
    __real_zf_cgroup_read(root, out);
    if (left_by_groups < out->memory_left)
        out->memory_left = out->memory_limit = left_by_groups;
}

ZT_TEST(a_control_group_leaves_too_little) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, "[host]\nthreads = 1\n", 0);
    left_by_groups = 3 << 20;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_MEMORY,
               "have 3 MiB (left by the limit of this process's cgroup)");
    left_by_groups = UINT64_MAX;
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_OK);
    zt_rig_end(&rig);
}

#define NO_SPARES "[zenflow]\npublish_lag = 1\n[host]\nthreads = 1\n"

ZT_TEST(the_limit_is_exact) { /* in MiB: what the plan says fits, one MiB less does not */
    char text[128];
    zt_rig_make(&rig, shapes, N_SHAPES, NO_SPARES, 0);
    uint64_t need = rig.layout.host_nbytes + rig.layout.device_nbytes;
    rig.zf->destroy(rig.inst, NULL);
    snprintf(text, sizeof text, NO_SPARES "memory_limit_mib = %" PRIu64 "\n", (need >> 20) + 1);
    zt_rig_open(&rig, text, 0);
    rig.zf->destroy(rig.inst, NULL);
    snprintf(text, sizeof text, NO_SPARES "memory_limit_mib = %" PRIu64 "\n", need >> 20);
    zt_rig_create(&rig, text, 0);
    ck_assert_int_eq(zt_rig_try_bind(&rig), need % (1u << 20) ? ZF_ERR_MEMORY : ZF_OK);
    zt_rig_end(&rig);
}

/* A budget is kept to, as well as chunks can, and planned; 0 is none, and with a lag there is none. */
ZT_TEST(early_room_is_a_budget) {
    uint64_t all, none;
    zt_rig_make(&rig, on_host, N_SHAPES, NO_SPARES, 0);
    ck_assert_uint_eq(rig.inst->run->hs.n_spares, 0);
    rig.zf->destroy(rig.inst, NULL);
    zt_rig_open(&rig, "[host]\nthreads = 1\nearly_mib = 0\n", 0);
    none = rig.layout.host_nbytes;
    ck_assert_uint_eq(rig.inst->run->hs.n_spares, 0);
    rig.zf->destroy(rig.inst, NULL);
    zt_rig_open(&rig, "[host]\nthreads = 1\nearly_mib = 1000\n", 0);
    all = rig.layout.host_nbytes - none;
    ck_assert_uint_gt(all, 2 << 20);
    rig.zf->destroy(rig.inst, NULL);
    zt_rig_open(&rig, "[host]\nthreads = 1\nearly_mib = 1\n", 0);
    ck_assert_uint_gt(rig.inst->run->hs.n_spares, 0);
    ck_assert_uint_le(rig.layout.host_nbytes, none + (1 << 20) + 4096);
    ck_assert_uint_ge(rig.layout.host_nbytes, none + (1 << 19));
    zt_rig_steps(&rig, 4);
    check_planned_is_measured();
    zt_rig_end_flushed(&rig);
}

/* ---- the formulas of docs/memory.md ------------------------------------------------------------------------------ */

static const char *in_windows(uint32_t interval) {
    static char text[160];
    snprintf(text, sizeof text,
             "[zenflow]\nupdate_interval = %u\npublish_lag = 1\nfull_warm_up_rounds = 1\npredict = off\n"
             "topk_ratio = 0.1\n[host]\nthreads = 1\n",
             (unsigned)interval);
    return text;
}

/* Counters over two whole windows, per parameter and step. */
static void check_link(uint32_t interval) {
    const double per = 2.0 * interval * (double)rig.layout.n_elems, up = 2.0 / interval;
    zt_rig_steps(&rig, 2 * (int)interval);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    uint64_t downs = zt_rig_counter(&rig, "down_grad_nbytes");
    uint64_t ups = zt_rig_counter(&rig, "up_publish_nbytes");
    zt_rig_steps(&rig, 2 * (int)interval);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    downs = zt_rig_counter(&rig, "down_grad_nbytes") - downs;
    ups = zt_rig_counter(&rig, "up_publish_nbytes") - ups;
    ck_assert_double_eq_tol((double)downs / per, 2.0, 0.01);
    ck_assert_double_eq_tol((double)ups / per, up, 0.005 * up);
}

/* Of weights and gradients of 2 bytes, in tensors of which each window has several. */
ZT_TEST(bytes_follow_the_formulas) {
    enum { N = 24 };
    zt_shape_t many[N];
    for (int k = 0; k < N; k++)
        many[k] = (zt_shape_t){.rows = 128, .cols = 128, .is_bf16 = 1};
    for (uint32_t s = 1; s <= 8; s *= ZT_EVERY > 1 ? 8 : 2) {
        zt_rig_make(&rig, many, N, in_windows(s), 0);
        double n = (double)rig.layout.n_elems;
        const zfi_layout_t *parts = zt_rig_parts(&rig);
        ck_assert_double_eq_tol((double)parts->host_state_nbytes / n, 12.0, 0.01);
        ck_assert_double_le((double)parts->host_slots_nbytes / n, 2 * ((s + 1) / 2.0 + 1) * 1.05);
        ck_assert_double_le((double)parts->host_publish_nbytes / n, 2.0 / s * 1.05);
        check_link(s);
        zt_rig_end(&rig);
    }
}

/* Exact at every step, whatever the keys of selection say: no record, choice or entering state travels, and down comes
 * the gradient, behind it the step's scalars. */
ZT_TEST(exact_selects_nothing) {
    static const char *const modes[] = {"mode = windows\nupdate_interval = 1\n", "mode = exact\n"};
    static const char *const of_selection[] = {"channels_entered", "reselects", "up_enter_nbytes"};
    char text[128];
    for (int is_exact = 0; is_exact < 2; is_exact++) {
        snprintf(text, sizeof text, "[zenflow]\n%stopk_ratio = 0.3\nselect_interval = 2\nfull_warm_up_rounds = 2\n",
                 modes[is_exact]);
        zt_rig_make(&rig, shapes, N_SHAPES, text, 0);
        zt_rig_steps(&rig, 8);
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        for (size_t i = 0; i < sizeof of_selection / sizeof *of_selection; i++)
            ck_assert_msg((zt_rig_counter(&rig, of_selection[i]) == 0) == is_exact, "%s", of_selection[i]);
        ck_assert(zt_rig_counter(&rig, "down_record_nbytes") == 8 * sizeof(zfi_step_scalars_t) || !is_exact);
        ck_assert_int_eq(zt_rig_parts(&rig)->n_selected_elems == 0, is_exact);
        check_planned_is_measured();
        zt_rig_end(&rig);
    }
}

/* Bytes per parameter in host memory beside state, slots and what waits to be published. */
static double beside(const zt_shape_t *shape, const char *block_elems) {
    setenv("ZF_TEST_BLOCK_ELEMS", block_elems, 1);
    zt_rig_make(&rig, shape, 1,
                "[zenflow]\nupdate_interval = 2\nselect_interval = 2\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\n",
                0);
    unsetenv("ZF_TEST_BLOCK_ELEMS");
    zt_rig_steps(&rig, 9);
    check_planned_is_measured();
    double nbytes = (double)(rig.layout.host_nbytes - zt_rig_parts(&rig)->host_state_nbytes -
                             zt_rig_parts(&rig)->host_slots_nbytes - zt_rig_parts(&rig)->host_publish_nbytes);
    zt_rig_end(&rig);
    return nbytes / (double)rig.layout.n_elems;
}

/* A channel is an element there, so what is kept per channel is kept per parameter: importance (8), its records on
 * their way (2 at most), masks and lists of what is selected and enters (1 + 1.2). A single row adds scratch for one
 * matrix (8), where exchanges at rest and choices take turns. */
ZT_TEST(wide_rows_cost_little_beside_their_state) {
    static const zt_shape_t usual = {.rows = 512, .cols = 512}, rows = {.rows = 64, .cols = 4096},
                            row = {.rows = 1, .cols = 64 * 4096};
    double least = beside(&usual, "4096");
    ck_assert_double_le(beside(&rows, "4096"), least + 8 + 2 + 2.2);
    ck_assert_double_le(beside(&row, "4096"), least + 8 + 2 + 2.2 + 8);
}

ZT_SUITE("memory")
