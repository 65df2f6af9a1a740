/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/rehearse.c - see state/rehearse.h. */
#include "state/rehearse.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "instance/moments.h"
#include "schedule/window.h"
#include "step/exchange.h"

typedef struct rehearsed_chunk {
    int is_valid;
    uint32_t number;
    float *values; /* [3][largest chunk] w, m, v */
} rehearsed_chunk_t;

struct zfi_rehearsal {
    const zfi_state_t *state;
    zfi_replay_view_t view;
    uint64_t max_elems;
    rehearsed_chunk_t *chunks; /* [n_cohorts] */
    float *scratch;            /* of the largest chunk: what mean mode needs */
};

typedef struct walk {
    const zfi_plan_t *plan;
    uint32_t matrix, ref, end_ref;
    uint64_t first, end;
} walk_t;

/* A place in a chunk: n elements, which lie `at` after the walk's first. */
typedef struct place {
    uint32_t chunk;
    uint64_t chunk_offset, at, n;
} place_t;

/* Walks elements [first, first + n) of a matrix, chunk by chunk, in no order that matters. */
static void start(walk_t *walk, const zfi_device_side_t *side, uint32_t matrix, uint64_t first, uint64_t n) {
    const zfi_plan_t *plan = side->plan;
    const zfi_param_t *param = &side->params[plan->matrices[matrix].param];
    uint32_t ref = param->first_ref, left = param->n_refs;
    while (left) { /* a parameter's segments rise with its matrices, of which it may have many */
        uint32_t half = left / 2, at = plan->segments[plan->param_segments[ref + half]].matrix < matrix;
        ref = at ? ref + half + 1 : ref;
        left = at ? left - half - 1 : half;
    }
    *walk = (walk_t){plan, matrix, ref, param->first_ref + param->n_refs, first, first + n};
}

static int next(walk_t *walk, place_t *out) {
    const zfi_plan_t *plan = walk->plan;
    while (walk->ref < walk->end_ref) {
        const zfi_segment_t *segment = &plan->segments[plan->param_segments[walk->ref++]];
        uint64_t from = segment->matrix_offset, to = from + segment->n_elems;
        if (segment->matrix != walk->matrix || from >= walk->end)
            return 0;
        if (to <= walk->first)
            continue;
        from = from > walk->first ? from : walk->first;
        to = to < walk->end ? to : walk->end;
        *out = (place_t){segment->chunk, segment->chunk_offset + (from - segment->matrix_offset), from - walk->first,
                         to - from};
        return 1;
    }
    return 0;
}

void zfi_rehearsal_free(zfi_rehearsal_t *rehearsal) {
    if (!rehearsal)
        return;
    for (uint32_t c = 0; rehearsal->chunks && c < rehearsal->state->plan->n_cohorts; c++)
        free(rehearsal->chunks[c].values);
    free(rehearsal->chunks);
    free(rehearsal->scratch);
    free(rehearsal);
}

zfi_rehearsal_t *zfi_rehearsal_new(const zfi_state_t *state, const zfi_replays_t *replays) {
    const zfi_plan_t *plan = state->plan;
    zfi_rehearsal_t *out = calloc(1, sizeof *out);
    if (!out)
        return NULL;
    out->state = state;
    zfi_replay_view(replays, &out->view);
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        if (plan->chunks[i].n_elems > out->max_elems)
            out->max_elems = plan->chunks[i].n_elems;
    out->chunks = calloc(plan->n_cohorts, sizeof *out->chunks);
    out->scratch = malloc((2 * out->max_elems + zfi_replay_scratch(&out->view, out->max_elems)) * sizeof(float));
    int has_all = out->chunks && out->scratch;
    for (uint32_t c = 0; has_all && c < plan->n_cohorts; c++) {
        out->chunks[c].values = malloc(3 * out->max_elems * sizeof(float));
        has_all = out->chunks[c].values != NULL;
    }
    if (has_all)
        return out;
    zfi_rehearsal_free(out);
    return NULL;
}

/* The cohort's copy becomes a chunk's w, m, v, replayed as if its open window closed. */
static zf_status_t rehearse(zfi_rehearsal_t *rehearsal, uint32_t cohort, uint32_t number) {
    const zfi_state_t *state = rehearsal->state;
    const zfi_chunk_state_t *from = &state->host->chunks[number];
    rehearsed_chunk_t *chunk = &rehearsal->chunks[cohort];
    uint64_t max = rehearsal->max_elems, n = state->plan->chunks[number].n_elems;
    zfi_moments_t kind = state->plan->chunks[number].moments;
    zfi_replay_target_t target = {.w = chunk->values,
                                  .m = from->m ? chunk->values + max : NULL,
                                  .v = from->v ? chunk->values + 2 * max : NULL,
                                  .scratch = rehearsal->scratch};
    zfi_replayed_t replayed;
    zfi_close_t window;
    fenv_t callers;
    if (chunk->is_valid && chunk->number == number)
        return ZF_OK;
    memcpy(target.w, from->w, n * sizeof(float));
    if (target.m)
        memcpy(target.m, from->m, zfi_moment_nbytes(kind, ZFI_M, n));
    if (target.v)
        memcpy(target.v, from->v, zfi_moment_nbytes(kind, ZFI_V, n));
    zfi_window_open(state->windows->clock, cohort, &window);
    fegetenv(&callers);
    zfi_fp_mode_ieee();
    zf_status_t st = zfi_replay_chunk(&rehearsal->view, &window, number, &target, &replayed);
    fesetenv(&callers);
    chunk->is_valid = !st;
    chunk->number = number;
    return st;
}

static void read_chunk(const zfi_rehearsal_t *rehearsal, const rehearsed_chunk_t *chunk, zfi_array_t what,
                       const place_t *place, float *out) {
    const zfi_state_t *state = rehearsal->state;
    const float *values = chunk->values + (uint64_t)what * rehearsal->max_elems;
    if (what == ZFI_STATE_W)
        memcpy(out + place->at, values + place->chunk_offset, place->n * sizeof(float));
    else
        zfi_moments_get(state->plan->chunks[chunk->number].moments, what == ZFI_STATE_M ? ZFI_M : ZFI_V,
                        (what == ZFI_STATE_M ? state->host->chunks->m : state->host->chunks->v) ? values : NULL,
                        place->chunk_offset, place->n, out + place->at);
}

zf_status_t zfi_rehearsal_read(zfi_rehearsal_t *rehearsal, zfi_array_t what, uint32_t matrix, uint64_t first,
                               uint64_t n, float *out) {
    uint32_t cohort = rehearsal->state->plan->matrices[matrix].cohort;
    walk_t walk;
    place_t place;
    if (rehearsal->state->plan->matrices[matrix].is_resident) /* no window has a part of it */
        return zfi_state_get(rehearsal->state, what, matrix, first, n, out);
    start(&walk, rehearsal->state->side, matrix, first, n);
    while (next(&walk, &place)) {
        zf_status_t st = rehearse(rehearsal, cohort, place.chunk);
        if (st)
            return st;
        read_chunk(rehearsal, &rehearsal->chunks[cohort], what, &place, out);
    }
    return ZF_OK;
}

uint32_t zfi_rehearsal_count(zfi_rehearsal_t *rehearsal, uint32_t matrix, uint32_t channel) {
    const zfi_state_t *state = rehearsal->state;
    zfi_close_t window;
    if (state->plan->matrices[matrix].is_resident)
        return state->host->n[zfi_count_at(&state->plan->matrices[matrix], channel)];
    zfi_window_open(state->windows->clock, state->plan->matrices[matrix].cohort, &window);
    return zfi_replay_count_of(&rehearsal->view, &window, matrix, channel);
}
