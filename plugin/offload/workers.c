/* plugin/offload/workers.c - the threads that replay closed windows (contract in workers.h).
 *
 * Closes form a ring; workers take their chunks in order, one at a time, and finish them in any order. jobs advances
 * over the prefix that is done. A chunk may not start before the same cohort's previous window is done (it changes the
 * same state), nor before the entering state of the cohort's last choice has been read from it, nor before its place in
 * the ring of values to publish is free; all of that was pushed earlier, so the wait ends. */
#include "offload/workers.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "offload/affinity.h"
#include "offload/replay.h"
#include "offload/replay_columns.h"

typedef struct pushed_close {
    zfi_close_t close;
    uint64_t after_job; /* the same cohort's previous close ends there */
    uint32_t n_done;
} pushed_close_t;

typedef struct zfi_workers {
    zf_instance_t *inst;
    uint32_t n;
    pthread_t *threads;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t has_work;
    int is_ending;
    pushed_close_t *ring;
    uint64_t ring_size, head, tail; /* closes [head, tail) still have chunks to take */
    uint32_t next_chunk;            /* of close head */
    uint8_t *is_done;               /* [n_flags] chunk job q % n_flags is replayed, prefix not yet past it */
    uint64_t n_flags, prefix;
    uint64_t *cohort_end; /* [n_cohorts] end job of the newest close of each cohort */
    float *scratch;       /* [n][scratch_elems] mean mode */
    uint64_t scratch_elems;
    uint32_t n_started;
} zfi_workers_t;

typedef struct job {
    pushed_close_t *close;
    uint32_t chunk; /* of the close */
} job_t;

uint32_t zfi_workers_count(const zfi_config_t *config) {
    uint32_t cores;
    if (config->threads)
        return config->threads;
    cores = zfi_affinity_n_cores();
    return cores > 1 ? cores - 1 : 1;
}

static int take(zfi_workers_t *workers, job_t *out) {
    int has_one;
    pthread_mutex_lock(&workers->lock);
    while (workers->head == workers->tail && !workers->is_ending)
        pthread_cond_wait(&workers->has_work, &workers->lock);
    has_one = workers->head != workers->tail;
    if (has_one) {
        out->close = &workers->ring[workers->head % workers->ring_size];
        out->chunk = workers->next_chunk++;
        if (workers->next_chunk == out->close->close.n_chunks) {
            workers->head++;
            workers->next_chunk = 0;
        }
    }
    pthread_mutex_unlock(&workers->lock);
    return has_one;
}

static void finish(zfi_workers_t *workers, const job_t *job) {
    zf_instance_t *inst = workers->inst;
    uint64_t prefix;
    int is_last;
    pthread_mutex_lock(&workers->lock);
    is_last = ++job->close->n_done == job->close->close.n_chunks;
    pthread_mutex_unlock(&workers->lock);
    if (is_last && !job->close->close.is_sums_only)
        zfi_replay_count(inst, &job->close->close);
    pthread_mutex_lock(&workers->lock);
    workers->is_done[(job->close->close.first_job + job->chunk) % workers->n_flags] = 1;
    while (workers->is_done[workers->prefix % workers->n_flags]) {
        workers->is_done[workers->prefix % workers->n_flags] = 0;
        workers->prefix++;
    }
    prefix = workers->prefix;
    pthread_mutex_unlock(&workers->lock);
    zfi_timeline_signal(&inst->jobs, prefix);
}

static zf_status_t wait_for_inputs(zf_instance_t *inst, const pushed_close_t *pushed, uint64_t p) {
    uint64_t ring = inst->plan.max_close_chunks;
    zf_status_t st = zfi_wait(inst, &inst->down, pushed->close.step, NULL);
    if (!st)
        st = zfi_wait(inst, &inst->jobs, pushed->after_job, NULL);
    if (!st && pushed->close.is_sums_only)
        return ZF_OK;
    if (!st)
        st = zfi_wait(inst, &inst->sums, pushed->close.sums, NULL);
    if (!st && p >= ring)
        st = zfi_wait(inst, &inst->up, p - ring + 1, NULL);
    if (!st)
        st = zfi_wait(inst, &inst->host_sel, pushed->close.choice_step, NULL);
    return st;
}

/* Where the sums of a chunk's window lie for its replay. */
static void place_sums(const zf_instance_t *inst, const zfi_close_t *close, uint32_t number,
                       zfi_replay_target_t *target) {
    const zfi_chunk_t *chunk = &inst->plan.chunks[number];
    const int32_t *table = zfi_slot_table(inst, number, close->table);
    if (zfi_sums_on_host(inst)) {
        target->sum1 = inst->hs.sum1 + chunk->state_base;
        target->sum2 = inst->hs.sum2 + chunk->state_base;
        target->sum_dtype = ZFI_F32;
    } else if (close->sums) {
        target->sum1 = zfi_piece(inst, table[0]);
        target->sum2 = zfi_piece(inst, table[1]);
        target->sum_dtype = zfi_sum_dtype(chunk);
    }
}

static zf_status_t run_job(zfi_workers_t *workers, const job_t *job, float *scratch) {
    zf_instance_t *inst = workers->inst;
    const zfi_close_t *close = &job->close->close;
    uint64_t p = close->first_publish + job->chunk, start;
    uint32_t number = inst->plan.cohorts[close->cohort].first_chunk + job->chunk;
    uint64_t base = inst->plan.chunks[number].state_base;
    zfi_replay_target_t target = {
        .w = inst->hs.w + base,
        .m = zfi_moment_at(inst, inst->hs.m, base),
        .v = zfi_moment_at(inst, inst->hs.v, base),
        .visible = inst->publish + p % inst->plan.max_close_chunks * inst->plan.publish_piece_nbytes,
        .scratch = scratch,
    };
    zf_status_t st = wait_for_inputs(inst, job->close, p);
    if (st)
        return st;
    place_sums(inst, close, number, &target);
    start = zfi_now_ns();
    st = zfi_replay_chunk(inst, close, number, &target);
    atomic_fetch_add(&inst->count.replay_ns, zfi_now_ns() - start);
    return st;
}

static void *work(void *raw) {
    zfi_workers_t *workers = raw;
    float *scratch;
    job_t job;
    pthread_mutex_lock(&workers->lock);
    scratch = workers->scratch ? workers->scratch + workers->n_started * workers->scratch_elems : NULL;
    workers->n_started++;
    pthread_mutex_unlock(&workers->lock);
    zfi_fp_mode_ieee();
    while (take(workers, &job))
        if (run_job(workers, &job, scratch) == ZF_OK)
            finish(workers, &job); /* else the instance is poisoned */
    return NULL;
}

void zfi_workers_push(zf_instance_t *inst, const zfi_close_t *close) {
    zfi_workers_t *workers = inst->workers;
    pushed_close_t *pushed;
    if (close->n_chunks == 0)
        return;
    pthread_mutex_lock(&workers->lock);
    pushed = &workers->ring[workers->tail++ % workers->ring_size];
    pushed->close = *close;
    pushed->n_done = 0;
    pushed->after_job = workers->cohort_end[close->cohort];
    workers->cohort_end[close->cohort] = close->first_job + close->n_chunks;
    pthread_cond_broadcast(&workers->has_work);
    pthread_mutex_unlock(&workers->lock);
}

void zfi_workers_restart(zfi_workers_t *workers, zf_instance_t *inst, uint64_t next_job) {
    pthread_mutex_lock(&workers->lock);
    workers->inst = inst;
    workers->prefix = next_job;
    memset(workers->is_done, 0, workers->n_flags);
    memset(workers->cohort_end, 0, inst->plan.n_cohorts * sizeof *workers->cohort_end);
    pthread_mutex_unlock(&workers->lock);
}

static void free_workers(zfi_workers_t *workers) {
    free(workers->threads);
    free(workers->ring);
    free(workers->is_done);
    free(workers->cohort_end);
    free(workers->scratch);
    pthread_cond_destroy(&workers->has_work);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

static zfi_workers_t *new_workers(zf_instance_t *inst, uint32_t n) {
    uint64_t n_ahead = inst->config.max_steps_ahead + 4u; /* steps whose closes can wait at once */
    zfi_workers_t *workers = calloc(1, sizeof *workers);
    if (!workers)
        return NULL;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->has_work, NULL);
    workers->inst = inst;
    workers->ring_size = n_ahead * inst->plan.n_cohorts;
    workers->n_flags = n_ahead * inst->plan.n_chunks;
    workers->threads = calloc(n, sizeof *workers->threads);
    workers->ring = calloc(workers->ring_size, sizeof *workers->ring);
    workers->is_done = calloc(workers->n_flags, 1);
    workers->cohort_end = calloc(inst->plan.n_cohorts, sizeof *workers->cohort_end);
    if (zfi_is_mean(inst)) {
        workers->scratch_elems = zfi_replay_columns_scratch(inst->plan.piece_nbytes / 2);
        workers->scratch = calloc(n * workers->scratch_elems, sizeof(float));
    }
    if (workers->threads && workers->ring && workers->is_done && workers->cohort_end &&
        (workers->scratch || !zfi_is_mean(inst)))
        return workers;
    free_workers(workers);
    return NULL;
}

zf_status_t zfi_workers_start(zf_instance_t *inst, uint32_t n, zf_error_t *err) {
    zfi_workers_t *workers = new_workers(inst, n);
    if (!workers)
        return zfi_error(err, ZF_ERR_MEMORY, "workers", "no memory for %u workers", n);
    for (uint32_t i = 0; i < n; i++) {
        int rc = zfi_thread_start(&workers->threads[i], "zf-worker", work, workers);
        if (rc) {
            zfi_workers_stop(workers);
            return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, rc, "workers",
                                    "cannot start worker %u of %u: %s", i + 1, n, strerror(rc));
        }
        workers->n++;
    }
    if (inst->config.affinity == ZFI_AFFINITY_AUTO)
        zfi_affinity_pin(workers->threads, n);
    inst->workers = workers;
    return ZF_OK;
}

void zfi_workers_stop(zfi_workers_t *workers) {
    if (!workers)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->is_ending = 1;
    pthread_cond_broadcast(&workers->has_work);
    pthread_mutex_unlock(&workers->lock);
    for (uint32_t i = 0; i < workers->n; i++)
        pthread_join(workers->threads[i], NULL);
    free_workers(workers);
}
