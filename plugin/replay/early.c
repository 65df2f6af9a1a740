/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/early.c - replays that begin before their step (contract in early.h).
 *
 * Backward ends where forward begins, so what arrived last is needed first: it is replayed first, and where no spare is
 * left it takes that of the oldest. What is left at the step is needed last.
 *
 * Whether it pays is learned: a step of which nothing could be taken (it was clipped, say) is followed by a pause, each
 * twice as long as the one before, up to MOST_PAUSE steps. */
#include "replay/early.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/window.h"

enum { MOST_PAUSE = 16 };

typedef enum { NOTHING, RUNNING, DONE } phase_t;

/* Of the step that is being filled: none of its gradients is final; some are; nothing (more) begins early. */
typedef enum { OFF, EXPECTED, OPEN } stage_t;

/* The end of a chunk's early replay. */
typedef struct result {
    phase_t phase;
    uint32_t spare;    /* but with NOTHING: it gets, or holds, the new state */
    uint64_t order;    /* the lower, the earlier its gradients came */
    zfi_close_t close; /* as expected */
    float s;
    zfi_replayed_t replayed;
} result_t;

/* A chunk whose gradients are final. */
typedef struct queued {
    uint32_t chunk;
    uint64_t needs, order; /* of `arrived` */
} queued_t;

struct zfi_early {
    const zfi_replays_t *of;
    zfi_replay_view_t view;
    zfi_timeline_t *arrived; /* how far gradients are in their slots */
    /* The host's thread's: */
    uint32_t *n_open;   /* [n_chunks] segments whose gradient is not final */
    uint32_t *open;     /* [n_chunks] chunks whose gradients are about to be sent */
    uint32_t n_in_open; /* how many of them */
    uint64_t n_queued;  /* since new() */
    uint32_t pause, paused;
    stage_t stage;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t is_over;
    queued_t *queue;        /* [n_chunks] by arrival */
    uint32_t n;             /* how many of them */
    zfi_close_t *closes;    /* [n_cohorts] expected at this step; n_chunks = 0: does not close */
    zfi_step_row_t row;     /* expected: t, hyper, present, scalars */
    result_t *results;      /* [n_chunks] */
    uint32_t *free, n_free; /* spares */
    uint32_t n_running;
    uint64_t needs_jobs;      /* all closes of earlier steps are over when `jobs` reaches it */
    uint64_t n_taken, n_lost; /* since the newest begin() */
};

/* ---- made and freed ---------------------------------------------------------------------------------------------- */

void zfi_early_free(zfi_early_t *early) {
    if (!early)
        return;
    free(early->n_open);
    free(early->open);
    free(early->queue);
    free(early->closes);
    free(early->results);
    free(early->free);
    pthread_cond_destroy(&early->is_over);
    pthread_mutex_destroy(&early->lock);
    free(early);
}

zf_status_t zfi_early_new(const zfi_replays_t *replays, zfi_early_t **out) {
    uint32_t n_chunks = replays->plan->n_chunks, n_spares = replays->host->n_spares;
    *out = NULL;
    if (!n_spares)
        return ZF_OK;
    zfi_early_t *early = calloc(1, sizeof *early);
    if (!early)
        return ZF_ERR_MEMORY;
    pthread_mutex_init(&early->lock, NULL);
    pthread_cond_init(&early->is_over, NULL);
    early->of = replays;
    zfi_replay_view(replays, &early->view);
    early->arrived =
        zfi_has_peers(replays->engine) ? &replays->engine->lines.exchanged : &replays->engine->lines.batches;
    early->n_open = calloc(n_chunks, sizeof *early->n_open);
    early->open = calloc(n_chunks, sizeof *early->open);
    early->queue = calloc(n_chunks, sizeof *early->queue);
    early->closes = calloc(replays->plan->n_cohorts, sizeof *early->closes);
    early->results = calloc(n_chunks, sizeof *early->results);
    early->free = calloc(n_spares, sizeof *early->free);
    if (!early->n_open || !early->open || !early->queue || !early->closes || !early->results || !early->free) {
        zfi_early_free(early);
        return ZF_ERR_MEMORY;
    }
    for (; early->n_free < n_spares; early->n_free++)
        early->free[early->n_free] = early->n_free;
    *out = early;
    return ZF_OK;
}

/* ---- the host's thread ------------------------------------------------------------------------------------------- */

/* Notes what closes at step t, numbered as it will be. */
static void expect_closes(zfi_early_t *early, uint64_t t) {
    const zfi_plan_t *plan = early->of->plan;
    const zfi_clock_t *clock = early->of->windows->clock;
    uint64_t job = clock->next_job;
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        zfi_close_t *close = &early->closes[c];
        *close = (zfi_close_t){.cohort = c};
        if (!zfi_window_closes(clock, c, t))
            continue;
        zfi_window_expect(plan, clock, c, t, job, close);
        job += close->n_chunks;
    }
}

/* Whether the step is to be tried. */
static int pays(zfi_early_t *early) {
    if (early->n_taken)
        early->pause = 0;
    else if (early->n_lost)
        early->pause = early->pause ? early->pause * 2 : 1;
    early->pause = early->pause < MOST_PAUSE ? early->pause : MOST_PAUSE;
    if (early->n_taken + early->n_lost)
        early->paused = 0;
    early->n_taken = early->n_lost = 0;
    return early->paused++ >= early->pause;
}

void zfi_early_begin(zfi_early_t *early, uint64_t t, double unscale) {
    if (!early)
        return;
    zfi_step_row_t *row = zfi_row(early->of->windows->rows, t);
    pthread_mutex_lock(&early->lock);
    if (early->row.t != t)
        early->stage = pays(early) ? EXPECTED : OFF;
    early->row = (zfi_step_row_t){.t = t, .hyper = row->hyper, .present = row->present};
    early->row.scalars.s = (float)unscale;
    early->row.scalars.applied = 1;
    pthread_mutex_unlock(&early->lock);
}

/* The first gradient of the step is final: the clocks stay as they are up to the step, or drop() is called. */
static void open_step(zfi_early_t *early) {
    pthread_mutex_lock(&early->lock);
    early->stage = OPEN;
    early->n_in_open = early->n = 0;
    early->needs_jobs = early->of->windows->clock->next_job;
    expect_closes(early, early->row.t);
    for (uint32_t i = 0; i < early->of->plan->n_chunks; i++)
        early->n_open[i] = early->of->plan->chunks[i].n_segments;
    pthread_mutex_unlock(&early->lock);
}

void zfi_early_final(zfi_early_t *early, const zfi_param_t *param) {
    if (!early || early->stage == OFF)
        return;
    if (early->stage == EXPECTED)
        open_step(early);
    const zfi_plan_t *plan = early->of->plan;
    for (uint32_t i = 0; i < param->n_refs; i++) {
        uint32_t chunk = plan->segments[plan->param_segments[param->first_ref + i]].chunk;
        if (--early->n_open[chunk] == 0 && early->closes[plan->chunks[chunk].cohort].n_chunks)
            early->open[early->n_in_open++] = chunk;
    }
}

int zfi_early_sent(zfi_early_t *early, uint64_t arrival) {
    if (!early || early->stage != OPEN || early->n_in_open == 0)
        return 0;
    pthread_mutex_lock(&early->lock);
    for (uint32_t i = 0; i < early->n_in_open; i++)
        early->queue[early->n++] = (queued_t){early->open[i], arrival, early->n_queued++};
    pthread_mutex_unlock(&early->lock);
    early->n_in_open = 0;
    return 1;
}

void zfi_early_end(zfi_early_t *early) {
    if (!early)
        return;
    pthread_mutex_lock(&early->lock);
    early->stage = OFF;
    early->n = 0;
    pthread_mutex_unlock(&early->lock);
}

/* What lies in the spare is not needed any more. */
static void give_up(zfi_early_t *early, result_t *result) {
    early->free[early->n_free++] = result->spare;
    result->phase = NOTHING;
}

/* It is not as expected. */
static void lose(zfi_early_t *early, result_t *result) {
    give_up(early, result);
    early->n_lost++;
    atomic_fetch_add(&early->of->engine->count.early_lost, 1);
}

void zfi_early_drop(zfi_early_t *early) {
    if (!early)
        return;
    pthread_mutex_lock(&early->lock);
    if (early->stage == OPEN)
        early->stage = OFF;
    early->n = 0;
    while (early->n_running)
        pthread_cond_wait(&early->is_over, &early->lock);
    for (uint32_t i = 0; i < early->of->plan->n_chunks; i++)
        if (early->results[i].phase == DONE && early->results[i].close.step > early->of->windows->clock->t)
            lose(early, &early->results[i]);
    pthread_mutex_unlock(&early->lock);
}

/* ---- the workers ------------------------------------------------------------------------------------------------- */

static int has_room(const zfi_early_t *early, uint32_t spare, uint32_t chunk) {
    const zfi_chunk_state_t *room = &early->of->host->spares[spare];
    const zfi_chunk_t *need = &early->of->plan->chunks[chunk];
    return room->n_room >= need->n_elems && room->m_room >= zfi_moment_nbytes(need->moments, ZFI_M, need->n_elems) &&
           room->v_room >= zfi_moment_nbytes(need->moments, ZFI_V, need->n_elems) &&
           room->visible_room >= need->n_elems * zfi_dtype_nbytes(need->dtype);
}

/* The place in the list of the smallest spare with room for a chunk, or n_free. */
static uint32_t find_spare(const zfi_early_t *early, uint32_t chunk) {
    uint32_t best = early->n_free, least = UINT32_MAX;
    for (uint32_t i = 0; i < early->n_free; i++) {
        uint32_t n_room = early->of->host->spares[early->free[i]].n_room;
        if (has_room(early, early->free[i], chunk) && n_room < least) {
            best = i;
            least = n_room;
        }
    }
    return best;
}

/* Gives up what is needed last, of those in whose place this chunk fits. */
static void free_a_spare(zfi_early_t *early, uint32_t chunk) {
    result_t *oldest = NULL;
    for (uint32_t i = 0; i < early->of->plan->n_chunks; i++) {
        result_t *result = &early->results[i];
        if (result->phase == DONE && result->close.step == early->row.t && has_room(early, result->spare, chunk) &&
            (!oldest || result->order < oldest->order))
            oldest = result;
    }
    if (oldest)
        give_up(early, oldest);
}

/* UINT32_MAX: none. */
static uint32_t take_spare(zfi_early_t *early, uint32_t chunk) {
    uint32_t at = find_spare(early, chunk), spare;
    if (at == early->n_free) {
        free_a_spare(early, chunk);
        at = find_spare(early, chunk);
    }
    if (at == early->n_free)
        return UINT32_MAX;
    spare = early->free[at];
    early->free[at] = early->free[--early->n_free];
    return spare;
}

/* Windows before are over, so that state and counts are there. */
static int may_run(const zfi_early_t *early) {
    return early->n > 0 && !zfi_is_poisoned(early->of->engine) &&
           zfi_timeline_now(&early->of->engine->lines.jobs) >= early->needs_jobs;
}

int zfi_early_has_work(zfi_early_t *early) {
    if (!early)
        return 0;
    pthread_mutex_lock(&early->lock);
    int has_work = may_run(early);
    pthread_mutex_unlock(&early->lock);
    return has_work;
}

/* The newest whose gradients are in their slots, and those of the window's earlier steps with their scalars: on several
 * ranks they come by another way (ranks/landing.h). */
static int take_queued(zfi_early_t *early, queued_t *out) {
    uint64_t arrived = zfi_timeline_now(early->arrived);
    uint32_t i = zfi_timeline_now(&early->of->engine->lines.down) + 1 < early->row.t ? 0 : early->n;
    while (i > 0 && early->queue[i - 1].needs > arrived)
        i--;
    if (i == 0)
        return 0;
    *out = early->queue[i - 1];
    memmove(early->queue + i - 1, early->queue + i, (early->n - i) * sizeof *early->queue);
    early->n--;
    return 1;
}

/* One chunk's replay, as it was taken from the queue. */
typedef struct early_job {
    uint32_t chunk, spare;
    zfi_step_row_t row;
    zfi_close_t close;
} early_job_t;

static int begin_job(zfi_early_t *early, early_job_t *out) {
    queued_t queued;
    pthread_mutex_lock(&early->lock);
    int has_one = may_run(early) && take_queued(early, &queued);
    if (has_one) {
        *out = (early_job_t){.chunk = queued.chunk, .spare = take_spare(early, queued.chunk), .row = early->row};
        out->close = early->closes[early->of->plan->chunks[queued.chunk].cohort];
        has_one = out->spare != UINT32_MAX;
    }
    if (has_one) {
        early->results[out->chunk] = (result_t){
            .phase = RUNNING, .spare = out->spare, .order = queued.order, .close = out->close, .s = out->row.scalars.s};
        early->n_running++;
    }
    pthread_mutex_unlock(&early->lock);
    return has_one;
}

static void end_job(zfi_early_t *early, const early_job_t *job, int is_done, const zfi_replayed_t *replayed) {
    result_t *result = &early->results[job->chunk];
    pthread_mutex_lock(&early->lock);
    result->phase = DONE;
    result->replayed = *replayed;
    if (!is_done)
        give_up(early, result);
    early->n_running--;
    pthread_cond_broadcast(&early->is_over);
    pthread_mutex_unlock(&early->lock);
}

/* The oldest, which may be dropped meanwhile: nothing of the queue is held while this waits. Not for long: other ranks
 * may not come to it before this thread has replayed what closes now (FLUSH, while a step is being filled). */
static int await_gradients(zfi_early_t *early) {
    uint64_t needs, before;
    pthread_mutex_lock(&early->lock);
    needs = may_run(early) ? early->queue[0].needs : 0;
    before = early->row.t - 1;
    pthread_mutex_unlock(&early->lock);
    return needs && zfi_timeline_wait(early->arrived, needs, ZFI_SLICE_NS, NULL) == ZF_OK &&
           zfi_timeline_wait(&early->of->engine->lines.down, before, ZFI_SLICE_NS, NULL) == ZF_OK;
}

static int replay(zfi_early_t *early, const early_job_t *job, unsigned char *gathered, zfi_replayed_t *out) {
    const zfi_host_state_t *host = early->of->host;
    zfi_engine_t *engine = early->of->engine;
    const zfi_chunk_state_t *spare = &host->spares[job->spare];
    zfi_replay_view_t view = early->view;
    uint64_t start, began;
    zfi_replay_target_t target = {
        .w = spare->w,
        .m = spare->m,
        .v = spare->v,
        .visible = spare->visible,
        .gathered = gathered,
        .from = &host->chunks[job->chunk],
    };
    view.expected = &job->row;
    start = zfi_now_ns();
    began = zfi_trace_begin(engine->trace);
    zf_status_t st = zfi_replay_chunk(&view, &job->close, job->chunk, &target, out);
    zfi_trace_end(engine->trace, began, "early replay", (zfi_trace_number_t){"chunk", job->chunk},
                  (zfi_trace_number_t){"expected_step", job->close.step});
    atomic_fetch_add(&engine->count.replay_ns, zfi_now_ns() - start);
    return st == ZF_OK;
}

void zfi_early_run(zfi_early_t *early, unsigned char *gathered) {
    zfi_replayed_t replayed = {0};
    early_job_t job;
    if (await_gradients(early) && begin_job(early, &job)) {
        int is_done = replay(early, &job, gathered, &replayed);
        end_job(early, &job, is_done, &replayed);
    }
}

static int is_same_close(const zfi_close_t *a, const zfi_close_t *b) {
    return a->step == b->step && a->first_step == b->first_step && a->first_job == b->first_job &&
           a->n_slots == b->n_slots && a->table == b->table && a->is_warm_up == b->is_warm_up &&
           a->publishes_all == b->publishes_all;
}

static int is_as_expected(const zfi_early_t *early, const result_t *result, const zfi_close_t *close) {
    const zfi_step_scalars_t *scalars = &zfi_row(early->of->windows->rows, close->step)->scalars;
    return is_same_close(&result->close, close) && scalars->applied &&
           memcmp(&scalars->s, &result->s, sizeof scalars->s) == 0;
}

/* The places of the state; that of a spare's values stays with it. */
static void exchange(zfi_chunk_state_t *chunk, zfi_chunk_state_t *spare) {
    zfi_chunk_state_t was = *chunk;
    *chunk = *spare;
    was.visible = spare->visible;
    was.visible_room = spare->visible_room;
    chunk->visible = NULL;
    chunk->visible_room = 0;
    *spare = was;
}

int zfi_early_take(zfi_early_t *early, const zfi_close_t *close, uint32_t chunk, uint32_t *out_spare,
                   zfi_replayed_t *out) {
    int is_taken = 0;
    if (!early)
        return 0;
    result_t *result = &early->results[chunk];
    pthread_mutex_lock(&early->lock);
    while (result->phase == RUNNING)
        pthread_cond_wait(&early->is_over, &early->lock);
    is_taken = result->phase == DONE && is_as_expected(early, result, close);
    if (is_taken) {
        exchange(&early->of->host->chunks[chunk], &early->of->host->spares[result->spare]);
        *out = result->replayed;
        *out_spare = result->spare;
        result->phase = NOTHING;
        early->n_taken++;
        atomic_fetch_add(&early->of->engine->count.early_taken, 1);
    } else if (result->phase == DONE) {
        lose(early, result);
    }
    pthread_mutex_unlock(&early->lock);
    return is_taken;
}

void zfi_early_give_back(zfi_early_t *early, uint32_t spare) {
    pthread_mutex_lock(&early->lock);
    early->free[early->n_free++] = spare;
    pthread_mutex_unlock(&early->lock);
}
