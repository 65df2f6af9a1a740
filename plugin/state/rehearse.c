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

/* Elements [at, at + n) of the chunk. */
static void read_chunk(const zfi_rehearsal_t *rehearsal, const rehearsed_chunk_t *chunk, zfi_array_t what, uint64_t at,
                       uint64_t n, float *out) {
    const zfi_state_t *state = rehearsal->state;
    const zfi_chunk_state_t *from = &state->host->chunks[chunk->number];
    const float *values = chunk->values + (uint64_t)what * rehearsal->max_elems;
    if (what == ZFI_STATE_W)
        memcpy(out, values + at, n * sizeof(float));
    else
        zfi_moments_get(state->plan->chunks[chunk->number].moments, what == ZFI_STATE_M ? ZFI_M : ZFI_V,
                        (what == ZFI_STATE_M ? from->m : from->v) ? values : NULL, at, n, out);
}

zf_status_t zfi_rehearsal_read(zfi_rehearsal_t *rehearsal, zfi_array_t what, uint32_t number, uint64_t first,
                               uint64_t n, float *out) {
    const zfi_plan_t *plan = rehearsal->state->plan;
    const zfi_matrix_t *matrix = &plan->matrices[number];
    zf_status_t st = ZF_OK;
    if (matrix->is_resident) /* no window has a part of it */
        return zfi_state_get(rehearsal->state, what, number, first, n, out);
    for (uint64_t done = 0, m; done < n && !st; done += m) {
        uint64_t at = zfi_state_find(matrix, first + done);
        uint32_t of = zfi_state_chunk(plan, at, 0);
        at -= plan->chunks[of].state_base;
        m = n - done < plan->chunks[of].n_elems - at ? n - done : plan->chunks[of].n_elems - at;
        st = rehearse(rehearsal, matrix->cohort, of);
        if (!st)
            read_chunk(rehearsal, &rehearsal->chunks[matrix->cohort], what, at, m, out + done);
    }
    return st;
}

uint32_t zfi_rehearsal_count(zfi_rehearsal_t *rehearsal, uint32_t matrix, uint32_t channel) {
    const zfi_state_t *state = rehearsal->state;
    zfi_close_t window;
    if (state->plan->matrices[matrix].is_resident)
        return state->host->n[zfi_count_at(&state->plan->matrices[matrix], channel)];
    zfi_window_open(state->windows->clock, state->plan->matrices[matrix].cohort, &window);
    return zfi_replay_count_of(&rehearsal->view, &window, matrix, channel);
}
