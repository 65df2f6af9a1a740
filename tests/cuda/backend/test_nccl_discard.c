/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/backend/test_nccl_discard.c - ranks that sum over NCCL, on devices that are late: a step waits for no
 * device; and one is discarded while the last sum of its gradients has yet to run, and the next one's gradients come
 * where it reads and writes. A call that all ranks make waits for no step either.
 *
 * At stage 1 the wait at the end of zfi_reduce_discard is what keeps them apart.
 *
 * Three ranks are threads of this process, on the doubles of the driver and of NCCL. zfi_cuda_launch is wrapped
 * (-Wl,--wrap): in a slow run a host function in the stream holds up the last sum of a step that is discarded. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/backend.h"
#include "instance/instance.h"
#include "launch.h"
#include "local_ranks.h"
#include "on_device.h"
#include "suite.h"

enum { N_RANKS = 3, N_STEPS = 6, HELD_US = 200000, OTHER = 1000 /* a step with other gradients */ };
enum { LONGEST_MS = 5000 };
typedef enum run_kind { USUAL, SLOW, STANDING_STILL, IN_VAIN, N_RUNS } run_kind_t;

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 5, .cols = 7}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_ranks_t ranks[N_RUNS];               /* instances of the first two live together */
static _Atomic uint32_t n_until_hold[N_RANKS]; /* sums of the rank up to the one that is held; 0: none is */

/* One rank. */
typedef struct job {
    zt_rig_t rig;
    uint32_t rank;
    run_kind_t kind;
    zf_status_t st;
    _Atomic int has_returned; /* the step */
    uint32_t n_waits;         /* steps that did not return before their device went on */
} job_t;

static void hold(void *unused) {
    (void)unused;
    usleep(HELD_US);
}

/* The device does nothing until the step has returned. */
static void stand_still(void *raw) {
    job_t *job = raw;
    for (int k = 0; k < LONGEST_MS && !atomic_load(&job->has_returned); k++)
        usleep(1000);
    job->n_waits += !atomic_load(&job->has_returned);
}

zf_status_t __real_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from);
zf_status_t __wrap_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from);

/* All sums of a rank come from one thread. */
zf_status_t __wrap_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from) {
    uint32_t rank = kernel == ZFI_KERNEL_SUM_PARTS ? ((const zfi_sum_parts_args_t *)args)->rank : N_RANKS;
    if (rank < N_RANKS && atomic_load(&n_until_hold[rank]) > 0 && atomic_fetch_sub(&n_until_hold[rank], 1) == 1)
        need(cuLaunchHostFunc(stream->handle, hold, NULL));
    return __real_zfi_cuda_launch(stream, kernel, args, from);
}

static void open_job(job_t *job, const char *config) {
    zt_rig_t *rig = &job->rig;
    CUstream stream;
    enter_device();
    need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    zt_rig_start(rig, shapes, N_SHAPES);
    move_values_to_device(rig, N_SHAPES);
    rig->stream = (zf_stream_t){.struct_size = sizeof rig->stream,
                                .kind = ZF_STREAM_CUDA,
                                .device_type = ZF_DEVICE_CUDA,
                                .handle = (uint64_t)(uintptr_t)stream};
    rig->host.get_extension = zt_ranks_extension;
    rig->host.ctx = &ranks[job->kind].ranks[job->rank];
    job->st = zt_rig_try_create(rig, config, 0);
    if (job->st >= 0)
        job->st = zt_rig_try_bind(rig);
}

static void step(job_t *job, uint32_t flags) {
    zt_rig_t *rig = &job->rig;
    int is_discarded = (flags & ZF_STEP_DISCARD) != 0;
    CUstream stream = (CUstream)(uintptr_t)rig->stream.handle;
    if (is_discarded && job->kind == SLOW)
        atomic_store(&n_until_hold[job->rank], rig->inst->run->buckets.n);
    atomic_store(&job->has_returned, 0);
    if (job->kind == STANDING_STILL && job->n_waits == 0)
        need(cuLaunchHostFunc(stream, stand_still, job));
    for (uint32_t i = 0; i < N_SHAPES && job->st >= 0; i++) {
        move_gradient_to_device(rig, i, (is_discarded ? OTHER : 1) + rig->step);
        job->st = zt_rig_deliver(rig, i, 0, NULL);
    }
    if (job->st >= 0)
        job->st = zt_rig_submit(rig, flags, NULL);
    atomic_store(&job->has_returned, 1);
    if (job->kind == STANDING_STILL)
        need(cuStreamSynchronize(stream));
}

/* Rank 0 has no gradient of the first bucket, and no buffer is left for the third one. */
static void flush_in_vain(job_t *job) {
    zt_rig_t *rig = &job->rig;
    for (uint32_t i = N_SHAPES - (job->rank == 0); i-- > 0 && job->st >= 0;) {
        move_gradient_to_device(rig, i, 1 + rig->step);
        job->st = zt_rig_deliver(rig, i, 0, NULL);
    }
    zt_refused(&rig->err, zt_quiesce(rig, ZF_QUIESCE_FLUSH), ZF_ERR_STATE,
               "rank 1's device waits for the sums of bucket 0, which rank 0 has not handed over");
    job->st = zt_rig_submit(rig, 0, NULL);
}

#define CONFIG(bucket_bytes)                                                                                           \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\npredict = off\n[host]\nthreads = 1\n"  \
    "memory_limit_mib = 2000\ndeadline_ms = 60000\n[shard]\nstage = 1\ntransport = nccl\n"                             \
    "bucket_bytes = " bucket_bytes "\n"

static void *run_job(void *raw) {
    job_t *job = raw;
    open_job(job, job->kind == IN_VAIN ? CONFIG("1") : CONFIG("1000"));
    for (int t = 0; t < N_STEPS && job->st >= 0; t++) {
        if (t % 2 && job->kind < STANDING_STILL)
            step(job, ZF_STEP_DISCARD);
        if (job->kind == IN_VAIN)
            flush_in_vain(job);
        else if (job->st >= 0)
            step(job, 0);
    }
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    if (job->st >= 0)
        read_values(&job->rig, N_SHAPES);
    return NULL;
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static void run(job_t jobs[N_RANKS], run_kind_t kind) {
    pthread_t threads[N_RANKS];
    zt_ranks_init(&ranks[kind], N_RANKS);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        jobs[r].rank = r;
        jobs[r].kind = kind;
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_job, &jobs[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ck_assert_msg(jobs[r].st >= 0, "rank %u: %s", r, jobs[r].rig.err.message);
        ck_assert_uint_eq(atomic_load(&n_until_hold[r]), 0);
    }
    zt_ranks_free(&ranks[kind]);
}

ZT_TEST(a_discarded_step_leaves_nothing) {
    static job_t usual[N_RANKS], slow[N_RANKS];
    run(usual, USUAL);
    run(slow, SLOW);
    for (uint32_t r = 0; r < N_RANKS; r++)
        for (uint32_t i = 0; i < N_SHAPES; i++) {
            const zt_param_t *param = &slow[r].rig.params[i];
            ck_assert_mem_eq(param->visible, usual[0].rig.params[i].visible, param->n_elems * sizeof(float));
        }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        zt_rig_end(&usual[r].rig);
        zt_rig_end(&slow[r].rig);
    }
}

/* Nor for another rank's: what the hooks agree on for a step has a thread of its own. */
ZT_TEST(a_step_waits_for_no_device) {
    static job_t jobs[N_RANKS];
    run(jobs, STANDING_STILL);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ck_assert_uint_eq(jobs[r].n_waits, 0);
        zt_rig_end(&jobs[r].rig);
    }
}

/* Nor does a call of all ranks wait for a device that waits for another rank's step. */
ZT_TEST(a_call_of_all_ranks_waits_for_no_step) {
    static job_t jobs[N_RANKS];
    run(jobs, IN_VAIN);
    for (uint32_t r = 0; r < N_RANKS; r++)
        zt_rig_end(&jobs[r].rig);
}

ZT_SUITE("nccl_discard")
