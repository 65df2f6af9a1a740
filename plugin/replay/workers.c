/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/workers.c - the threads that replay closed windows (contract in workers.h).
 *
 * Closes form a ring; workers take their chunks in order, one at a time, and finish them in any order. jobs advances
 * over the prefix that is done. A chunk may not start before the same cohort's previous window is done (it changes the
 * same state), nor before the entering state of the cohort's last choice has been read from it, nor before its place in
 * the ring of values to publish is free; all of that was pushed earlier, so the wait ends. While no close waits for
 * them, workers replay chunks of the step that is being filled (early.h).
 *
 * The threads are a team's (team.h), which looks through the queues of all that it works for. */
#include "replay/workers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "launch.h"
#include "replay/affinity.h"
#include "replay/early.h"
#include "replay/replay.h"
#include "replay/team.h"

typedef struct pushed_close {
    zfi_close_t close;
    uint64_t after_job; /* the same cohort's previous close ends there */
    uint32_t n_done;
} pushed_close_t;

/* A launch of the device stream's, cut into parts: one at a time. */
typedef struct shared {
    zfi_part_fn fn; /* NULL: there is none, or no more of it to take */
    void *arg;
    uint32_t n;
    _Atomic uint32_t next; /* the first part that nobody has taken */
    uint32_t n_helpers;    /* workers that are in it; guarded by the lock, as fn, arg and n */
} shared_t;

typedef struct zfi_workers {
    zfi_member_of_team_t member;
    zfi_team_t *team;
    const zfi_replays_t *of;
    struct zfi_early *early;
    zfi_replay_view_t view;
    pthread_mutex_t *lock; /* the team's; guards all below */
    pthread_cond_t has_helped;
    shared_t shared;
    int is_ending;
    pushed_close_t *ring;
    uint64_t ring_size, head, tail; /* closes [head, tail) still have chunks to take */
    uint32_t next_chunk;            /* of close head */
    uint8_t *is_done;               /* [n_flags] chunk job q % n_flags is replayed, prefix not yet past it */
    uint64_t n_flags, prefix;
    uint64_t *cohort_end; /* [n_cohorts] end job of the newest close of each cohort */
    float *scratch;       /* [n][scratch_elems] of replays that need some */
    uint64_t scratch_elems;
    unsigned char *room; /* [n][room_nbytes] a chunk's values, then its gradients */
    uint64_t room_nbytes;
} zfi_workers_t;

typedef enum { NOTHING, TO_REPLAY, TO_REPLAY_EARLY, TO_HELP } task_t;

typedef struct job {
    task_t task;
    pushed_close_t *close;
    uint32_t chunk;   /* of the close */
    zfi_part_fn part; /* of what is shared */
} job_t;

uint32_t zfi_workers_count(const zfi_config_t *config) {
    zfi_node_t node = zfi_node_find(getenv);
    zfi_cpus_t cpus;
    if (config->threads)
        return config->threads;
    zfi_affinity_read(&cpus);
    uint32_t cores = zfi_affinity_n_cores(&cpus, &node);
    return cores > 1 ? cores - 1 : 1;
}

static task_t task_now(const zfi_workers_t *workers) {
    if (workers->shared.fn)
        return TO_HELP;
    if (workers->head != workers->tail)
        return TO_REPLAY;
    return zfi_early_has_work(workers->early) && !workers->is_ending ? TO_REPLAY_EARLY : NOTHING;
}

/* [under the lock] */
static int take(void *raw, void *raw_job) {
    zfi_workers_t *workers = raw;
    job_t *out = raw_job;
    _Static_assert(sizeof *out <= ZFI_TEAM_JOB_NBYTES, "a job fits");
    out->task = task_now(workers);
    workers->shared.n_helpers += out->task == TO_HELP;
    out->part = workers->shared.fn;
    if (out->task == TO_REPLAY) {
        out->close = &workers->ring[workers->head % workers->ring_size];
        out->chunk = workers->next_chunk++;
        if (workers->next_chunk == out->close->close.n_chunks) {
            workers->head++;
            workers->next_chunk = 0;
        }
    }
    return out->task != NOTHING;
}

static void finish(zfi_workers_t *workers, const job_t *job) {
    zfi_engine_t *engine = workers->of->engine;
    uint64_t prefix;
    pthread_mutex_lock(workers->lock);
    int is_last = ++job->close->n_done == job->close->close.n_chunks;
    pthread_mutex_unlock(workers->lock);
    if (is_last)
        zfi_replay_count(&workers->view, &job->close->close);
    pthread_mutex_lock(workers->lock);
    workers->is_done[(job->close->close.first_job + job->chunk) % workers->n_flags] = 1;
    while (workers->is_done[workers->prefix % workers->n_flags]) {
        workers->is_done[workers->prefix % workers->n_flags] = 0;
        workers->prefix++;
    }
    prefix = workers->prefix;
    pthread_mutex_unlock(workers->lock);
    zfi_timeline_signal(&engine->lines.jobs, prefix);
    if (zfi_early_has_work(workers->early))
        zfi_workers_wake(workers);
}

static zf_status_t wait_for_inputs(zfi_engine_t *engine, const zfi_plan_t *plan, const pushed_close_t *pushed,
                                   uint64_t p) {
    uint64_t ring = plan->n_value_places; /* 0: no value is on its way up */
    zf_status_t st = zfi_wait(engine, &engine->lines.down, pushed->close.step, NULL);
    if (!st)
        st = zfi_wait(engine, &engine->lines.jobs, pushed->after_job, NULL);
    if (!st && ring && p >= ring)
        st = zfi_wait(engine, &engine->lines.up, p - ring + 1, NULL);
    if (!st)
        st = zfi_wait(engine, &engine->lines.host_sel, pushed->close.choice_step, NULL);
    return st;
}

static void poison_nonfinite(const zfi_replays_t *of, const zfi_close_t *close, uint32_t matrix) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, ZF_ERR_NONFINITE, ZF_SCOPE_INSTANCE, 0, "replay",
                     "a weight of \"%s\" became Inf or NaN in the window that closed at step %" PRIu64
                     ": lower the learning rate or check the gradients",
                     of->params[of->plan->matrices[matrix].param].name, close->step);
    (void)zfi_error_about(&error, ZF_ERR_NONFINITE, of->plan->matrices[matrix].param);
    zfi_poison(of->engine, &error);
}

/* The place of publication p, which goes up from there. */
static unsigned char *value_place(const zfi_replays_t *of, uint64_t p) {
    return of->host->published + p % of->plan->n_value_places * of->plan->publish_piece_nbytes;
}

/* A thread's room for the values of a chunk, which it shows itself; and for its gradients, where they lie apart. */
static uint64_t values_nbytes(const zfi_plan_t *plan) { return (plan->publish_piece_nbytes + 63ull) / 64 * 64; }

static unsigned char *gathered_in(const zfi_workers_t *workers, unsigned char *room) {
    return workers->of->plan->carries ? room + values_nbytes(workers->of->plan) : NULL;
}

/* A chunk's state, and the place of publication p. */
static zfi_replay_target_t target_of(const zfi_workers_t *workers, uint32_t number, uint64_t p, uint32_t thread) {
    const zfi_replays_t *of = workers->of;
    const zfi_chunk_state_t *state = &of->host->chunks[number];
    unsigned char *room = workers->room ? workers->room + thread * workers->room_nbytes : NULL;
    zfi_replay_target_t target = {.w = state->w, .m = state->m, .v = state->v, .visible = room};
    if (!of->host->shows)
        target.visible = value_place(of, p);
    target.gathered = gathered_in(workers, room);
    target.scratch = workers->scratch ? workers->scratch + thread * workers->scratch_elems : NULL;
    return target;
}

/* Writes the values of a replayed chunk, publication p, where the model reads them. */
static void show(const zfi_replays_t *of, const job_t *job, uint64_t p, const unsigned char *values) {
    const zfi_merge_args_t args = {.data = of->host->shows,
                                   .staged = values,
                                   .first_number = p,
                                   .n_places = 1,
                                   .first = of->plan->cohorts[job->close->close.cohort].first_chunk + job->chunk,
                                   .n = 1,
                                   .takes_all = 1,
                                   .end_segment = of->plan->n_segments};
    zfi_launch_cpu[ZFI_KERNEL_MERGE](of->engine->kernels, &args);
}

/* Copies the values of a chunk, publication p, to where they go up from, or writes them where the model reads them. */
static void publish(const zfi_replays_t *of, const job_t *job, uint64_t p, const unsigned char *values) {
    const zfi_chunk_t *chunk = &of->plan->chunks[zfi_cohort_chunk(of->plan, job->close->close.cohort, job->chunk)];
    if (of->host->shows)
        show(of, job, p, values);
    else
        memcpy(value_place(of, p), values, chunk->n_elems * zfi_dtype_nbytes(chunk->dtype));
}

static zf_status_t run_job(zfi_workers_t *workers, const job_t *job, uint32_t thread) {
    const zfi_replays_t *of = workers->of;
    const zfi_plan_t *plan = of->plan;
    zfi_engine_t *engine = of->engine;
    const zfi_close_t *close = &job->close->close;
    uint64_t p = close->first_job + job->chunk, start, began;
    uint32_t number = zfi_cohort_chunk(plan, close->cohort, job->chunk);
    zfi_replayed_t replayed;
    uint32_t spare;
    zf_status_t st = wait_for_inputs(engine, plan, job->close, p);
    if (st)
        return st;
    start = zfi_now_ns();
    began = zfi_trace_begin(engine->trace);
    if (zfi_early_take(workers->early, close, number, &spare, &replayed)) {
        publish(of, job, p, of->host->spares[spare].visible);
        zfi_early_give_back(workers->early, spare);
    } else {
        /* not before: the close before may have exchanged its places */
        zfi_replay_target_t target = target_of(workers, number, p, thread);
        st = zfi_replay_chunk(&workers->view, close, number, &target, &replayed);
        if (!st && of->host->shows)
            show(of, job, p, target.visible);
    }
    atomic_fetch_add(&engine->count.replay_ns, zfi_now_ns() - start);
    zfi_trace_end(engine->trace, began, "replay", (zfi_trace_number_t){"chunk", number},
                  (zfi_trace_number_t){"closed_at_step", close->step});
    if (st == ZF_ERR_NONFINITE)
        poison_nonfinite(of, close, replayed.nonfinite_matrix);
    else if (!st)
        atomic_fetch_add(&engine->count.replay_elems, replayed.n_elems);
    return st;
}

/* Takes parts until none is left. */
static void take_parts(shared_t *shared, zfi_part_fn fn) {
    for (uint32_t i; (i = atomic_fetch_add(&shared->next, 1)) < shared->n;)
        fn(shared->arg, i);
}

static void help(zfi_workers_t *workers, zfi_part_fn fn) {
    take_parts(&workers->shared, fn);
    pthread_mutex_lock(workers->lock);
    workers->shared.fn = NULL;
    if (--workers->shared.n_helpers == 0)
        pthread_cond_signal(&workers->has_helped);
    pthread_mutex_unlock(workers->lock);
}

void zfi_workers_share(zfi_workers_t *workers, uint32_t n, zfi_part_fn fn, void *arg) {
    shared_t *shared = &workers->shared;
    pthread_mutex_lock(workers->lock);
    shared->fn = fn;
    shared->arg = arg;
    shared->n = n;
    atomic_store(&shared->next, 0);
    zfi_team_call(workers->team);
    pthread_mutex_unlock(workers->lock);
    take_parts(shared, fn);
    pthread_mutex_lock(workers->lock);
    shared->fn = NULL; /* who wakes late has come for nothing */
    while (shared->n_helpers)
        pthread_cond_wait(&workers->has_helped, workers->lock);
    pthread_mutex_unlock(workers->lock);
}

static int is_idle(void *raw) { return task_now(raw) == NOTHING; }

static void run(void *raw, void *raw_job, uint32_t thread) {
    zfi_workers_t *workers = raw;
    job_t *job = raw_job;
    if (job->task == TO_HELP)
        help(workers, job->part);
    else if (job->task == TO_REPLAY_EARLY)
        zfi_early_run(workers->early, gathered_in(workers, workers->room + thread * workers->room_nbytes));
    else if (run_job(workers, job, thread) == ZF_OK)
        finish(workers, job); /* else the instance is poisoned */
}

void zfi_workers_wake(zfi_workers_t *workers) {
    pthread_mutex_lock(workers->lock);
    zfi_team_call(workers->team);
    pthread_mutex_unlock(workers->lock);
}

void zfi_workers_push(zfi_workers_t *workers, const zfi_close_t *close) {
    if (close->n_chunks == 0)
        return;
    pthread_mutex_lock(workers->lock);
    pushed_close_t *pushed = &workers->ring[workers->tail++ % workers->ring_size];
    pushed->close = *close;
    pushed->n_done = 0;
    pushed->after_job = workers->cohort_end[close->cohort];
    workers->cohort_end[close->cohort] = close->first_job + close->n_chunks;
    zfi_team_call(workers->team);
    pthread_mutex_unlock(workers->lock);
}

void zfi_workers_restart(zfi_workers_t *workers, uint64_t next_job) {
    pthread_mutex_lock(workers->lock);
    workers->prefix = next_job;
    memset(workers->is_done, 0, workers->n_flags);
    memset(workers->cohort_end, 0, workers->of->plan->n_cohorts * sizeof *workers->cohort_end);
    pthread_mutex_unlock(workers->lock);
}

static void free_workers(zfi_workers_t *workers) {
    free(workers->ring);
    free(workers->is_done);
    free(workers->cohort_end);
    free(workers->scratch);
    free(workers->room);
    pthread_cond_destroy(&workers->has_helped);
    free(workers);
}

static zfi_workers_t *new_workers(const zfi_replays_t *of, struct zfi_early *early, uint32_t n) {
    uint64_t n_ahead = ZFI_MAX_STEPS_AHEAD + 4; /* steps whose closes can wait at once */
    zfi_workers_t *workers = calloc(1, sizeof *workers);
    if (!workers)
        return NULL;
    pthread_cond_init(&workers->has_helped, NULL);
    workers->of = of;
    workers->early = early;
    zfi_replay_view(of, &workers->view);
    workers->ring_size = n_ahead * of->plan->n_cohorts;
    workers->n_flags = n_ahead * of->plan->n_chunks;
    workers->ring = calloc(workers->ring_size, sizeof *workers->ring);
    workers->is_done = calloc(workers->n_flags, 1);
    workers->cohort_end = calloc(of->plan->n_cohorts, sizeof *workers->cohort_end);
    workers->scratch_elems = zfi_replay_scratch(&workers->view, of->plan->chunk_nbytes / 2);
    if (workers->scratch_elems)
        workers->scratch = calloc(n * workers->scratch_elems, sizeof(float));
    workers->room_nbytes = of->host->shows ? values_nbytes(of->plan) * (of->plan->carries ? 2 : 1) : 0;
    if (workers->room_nbytes)
        workers->room = calloc(n, workers->room_nbytes);
    if (workers->ring && workers->is_done && workers->cohort_end && (workers->scratch || !workers->scratch_elems) &&
        (workers->room || !workers->room_nbytes))
        return workers;
    free_workers(workers);
    return NULL;
}

zf_status_t zfi_workers_start(const zfi_replays_t *replays, struct zfi_early *early, uint32_t n, zfi_workers_t **out,
                              zf_error_t *err) {
    static const zfi_team_ops_t ops = {take, run, is_idle};
    zfi_workers_t *workers = new_workers(replays, early, n);
    if (!workers)
        return zfi_error(err, ZF_ERR_MEMORY, "workers", "no memory for %u workers", n);
    workers->team = replays->engine->team;
    workers->lock = zfi_team_lock(workers->team);
    workers->member = (zfi_member_of_team_t){.ops = &ops, .of = workers};
    zfi_team_join(workers->team, &workers->member);
    *out = workers;
    return ZF_OK;
}

void zfi_workers_stop(zfi_workers_t *workers) {
    if (!workers)
        return;
    pthread_mutex_lock(workers->lock);
    workers->is_ending = 1;
    pthread_mutex_unlock(workers->lock);
    zfi_team_leave(workers->team, &workers->member);
    free_workers(workers);
}
