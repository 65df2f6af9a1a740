/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_late_sums.c - ranks that sum on a stream of their own, as over NCCL: a step is discarded while the
 * sums of its gradients are slow, and the next one's gradients come where those lie.
 *
 * zfi_cpu_sum_parts is wrapped (-Wl,--wrap): the first sum of a step that is discarded is held up. The transport's
 * exchanges come behind what the stream has been given, as NCCL's do. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "instance/instance.h"
#include "launch.h"
#include "local_ranks.h"
#include "suite.h"

enum { N_RANKS = 2, HELD_US = 200000, OTHER = 1000 /* a step with other gradients */ };

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 5, .cols = 7}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct job {
    zt_rig_t rig;
    zfi_comm_ops_t comm_ops;
    uint32_t rank;
    int is_slow;
    zf_status_t st;
} job_t;

static zt_ranks_t ranks[2]; /* of the usual instances and of the slow ones, which live together */
static _Atomic int holds[N_RANKS];

void __real_zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw);
void __wrap_zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw);

void __wrap_zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_sum_parts_args_t *args = raw;
    if (atomic_exchange(&holds[args->rank], 0))
        usleep(HELD_US);
    __real_zfi_cpu_sum_parts(kernels, raw);
}

static zf_status_t exchange_behind(zfi_comm_t *comm, const zfi_exchange_t *what, zf_error_t *err) {
    uint64_t waited_ns;
    if (what->stream)
        zfi_device_cpu.synchronise(what->stream, zfi_device_cpu.mark(what->stream), UINT64_C(60000000000), &waited_ns);
    return zfi_comm_host.exchange(comm, what, err);
}

static void discard_a_step(job_t *job) {
    zt_rig_t *rig = &job->rig;
    atomic_store(&holds[job->rank], job->is_slow);
    for (uint32_t i = 0; i < N_SHAPES && job->st >= 0; i++) {
        zt_rig_fill_grad(rig, i, OTHER + rig->step);
        job->st = zt_rig_deliver(rig, i, 0, NULL);
    }
    if (job->st >= 0)
        job->st = zt_rig_submit(rig, ZF_STEP_DISCARD, NULL);
}

static void *run_job(void *raw) {
    static const char config[] =
        "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\npredict = off\n"
        "[host]\nthreads = 1\ndeadline_ms = 60000\n[log]\nlevel = error\n"
        "[shard]\nstage = 1\nbucket_bytes = 1000\n";
    job_t *job = raw;
    zt_rig_t *rig = &job->rig;
    zt_rig_start(rig, shapes, N_SHAPES);
    job->st = zt_ranks_try_open(&ranks[job->is_slow].ranks[job->rank], rig, config, 0);
    if (job->st >= 0) {
        zfi_engine_t *engine = &rig->inst->engine;
        zfi_comm_ops_t *ops = &job->comm_ops;
        *ops = zfi_comm_host;
        ops->exchange = exchange_behind;
        engine->comm_ops = ops;
        job->st = engine->ops->stream_create(engine->device, "zf-ranks", &engine->ranks_stream, &rig->err);
    }
    for (int t = 0; t < 6 && job->st >= 0; t++) {
        if (t % 2)
            discard_a_step(job);
        if (job->st >= 0)
            job->st = zt_rig_try_step(rig);
    }
    if (job->st >= 0)
        job->st = zt_quiesce(rig, ZF_QUIESCE_FLUSH);
    return NULL;
}

static void run(job_t jobs[N_RANKS], int is_slow) {
    zt_ranks_init(&ranks[is_slow], N_RANKS);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        jobs[r].rank = r;
        jobs[r].is_slow = is_slow;
    }
    zt_ranks_run(N_RANKS, run_job, jobs, sizeof *jobs);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", r, jobs[r].rig.err.message);
        ck_assert_int_eq(atomic_load(&holds[r]), 0);
    }
    zt_ranks_free(&ranks[is_slow]);
}

START_TEST(a_discarded_step_leaves_nothing) {
    static job_t usual[N_RANKS], slow[N_RANKS];
    run(usual, 0);
    run(slow, 1);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        for (uint32_t i = 0; i < N_SHAPES; i++) {
            const zt_param_t *param = &slow[r].rig.params[i];
            ck_assert_mem_eq(param->visible, usual[0].rig.params[i].visible, param->n_elems * sizeof(float));
        }
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        zt_rig_end(&usual[r].rig);
        zt_rig_end(&slow[r].rig);
    }
}
END_TEST

ZT_MAIN("late_sums", a_discarded_step_leaves_nothing)
