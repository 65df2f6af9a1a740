/* plugin/state_rehearse.c - see state_rehearse.h. */
#include "state_rehearse.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "offload/replay.h"
#include "offload/replay_columns.h"
#include "window.h"

typedef struct rehearsed_chunk {
    int is_valid;
    uint32_t number;
    float *values; /* [3][largest chunk] w, m, v */
} rehearsed_chunk_t;

struct zfi_rehearsal {
    zf_instance_t *inst;
    uint64_t max_elems;
    rehearsed_chunk_t *chunks; /* [n_cohorts] */
    float *scratch;            /* of the largest chunk: what mean and moments mode need */
};

void zfi_piece_walk_start(zfi_piece_walk_t *walk, const zf_instance_t *inst, uint32_t matrix, uint64_t first,
                          uint64_t n) {
    const zfi_param_t *param = &inst->params[inst->plan.matrices[matrix].param];
    *walk = (zfi_piece_walk_t){inst, matrix, param->first_ref, param->first_ref + param->n_refs, first, first + n};
}

int zfi_piece_walk_next(zfi_piece_walk_t *walk, zfi_piece_place_t *out) {
    const zfi_plan_t *plan = &walk->inst->plan;
    while (walk->ref < walk->end_ref) {
        const zfi_segment_t *segment = &plan->segments[plan->param_segments[walk->ref++]];
        uint64_t from = segment->matrix_offset, to = from + segment->n_elems;
        if (segment->matrix != walk->matrix || to <= walk->first || from >= walk->end)
            continue;
        from = from > walk->first ? from : walk->first;
        to = to < walk->end ? to : walk->end;
        *out = (zfi_piece_place_t){segment->chunk, segment->chunk_offset + (from - segment->matrix_offset),
                                   from - walk->first, to - from};
        return 1;
    }
    return 0;
}

void zfi_rehearsal_free(zfi_rehearsal_t *rehearsal) {
    if (!rehearsal)
        return;
    for (uint32_t c = 0; rehearsal->chunks && c < rehearsal->inst->plan.n_cohorts; c++)
        free(rehearsal->chunks[c].values);
    free(rehearsal->chunks);
    free(rehearsal->scratch);
    free(rehearsal);
}

zfi_rehearsal_t *zfi_rehearsal_new(zf_instance_t *inst) {
    zfi_rehearsal_t *out = calloc(1, sizeof *out);
    int has_all;
    if (!out)
        return NULL;
    out->inst = inst;
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++)
        if (inst->plan.chunks[i].n_elems > out->max_elems)
            out->max_elems = inst->plan.chunks[i].n_elems;
    out->chunks = calloc(inst->plan.n_cohorts, sizeof *out->chunks);
    out->scratch = malloc((2 * out->max_elems + zfi_replay_columns_scratch(out->max_elems)) * sizeof(float));
    has_all = out->chunks && out->scratch;
    for (uint32_t c = 0; has_all && c < inst->plan.n_cohorts; c++) {
        out->chunks[c].values = malloc(3 * out->max_elems * sizeof(float));
        has_all = out->chunks[c].values != NULL;
    }
    if (has_all)
        return out;
    zfi_rehearsal_free(out);
    return NULL;
}

static zf_status_t rehearse(zfi_rehearsal_t *rehearsal, uint32_t cohort, uint32_t number) {
    zf_instance_t *inst = rehearsal->inst;
    rehearsed_chunk_t *chunk = &rehearsal->chunks[cohort];
    uint64_t n = inst->plan.chunks[number].n_elems, max = rehearsal->max_elems;
    uint64_t base = inst->plan.chunks[number].state_base;
    zfi_replay_target_t target = {.w = chunk->values,
                                  .m = inst->hs.m ? chunk->values + max : NULL,
                                  .v = inst->hs.v ? chunk->values + 2 * max : NULL,
                                  .scratch = rehearsal->scratch,
                                  .is_rehearsal = 1};
    zfi_close_t window;
    fenv_t callers;
    zf_status_t st;
    if (chunk->is_valid && chunk->number == number)
        return ZF_OK;
    memcpy(target.w, inst->hs.w + base, n * sizeof(float));
    if (target.m)
        memcpy(target.m, zfi_moment_at(inst, inst->hs.m, base), n * zfi_moment_nbytes(inst));
    if (target.v)
        memcpy(target.v, zfi_moment_at(inst, inst->hs.v, base), n * zfi_moment_nbytes(inst));
    zfi_window_open(inst, cohort, &window);
    zfi_replay_open_sums(inst, number, &target);
    fegetenv(&callers);
    zfi_fp_mode_ieee();
    st = zfi_replay_chunk(inst, &window, number, &target);
    fesetenv(&callers);
    chunk->is_valid = !st;
    chunk->number = number;
    return st;
}

static void read_chunk(const zfi_rehearsal_t *rehearsal, const rehearsed_chunk_t *chunk, zfi_moment_t what,
                       const zfi_piece_place_t *place, float *out) {
    const zf_instance_t *inst = rehearsal->inst;
    const float *values = chunk->values + (uint64_t)what * rehearsal->max_elems;
    if (what == ZFI_STATE_W)
        memcpy(out + place->at, values + place->chunk_offset, place->n * sizeof(float));
    else
        zfi_moments_get(inst, (what == ZFI_STATE_M ? inst->hs.m : inst->hs.v) ? values : NULL, place->chunk_offset,
                        place->n, out + place->at);
}

zf_status_t zfi_rehearsal_read(zfi_rehearsal_t *rehearsal, zfi_moment_t what, uint32_t matrix, uint64_t first,
                               uint64_t n, float *out) {
    uint32_t cohort = rehearsal->inst->plan.matrices[matrix].cohort;
    zfi_piece_walk_t walk;
    zfi_piece_place_t place;
    zfi_piece_walk_start(&walk, rehearsal->inst, matrix, first, n);
    while (zfi_piece_walk_next(&walk, &place)) {
        zf_status_t st = rehearse(rehearsal, cohort, place.chunk);
        if (st)
            return st;
        read_chunk(rehearsal, &rehearsal->chunks[cohort], what, &place, out);
    }
    return ZF_OK;
}

uint32_t zfi_rehearsal_count(zfi_rehearsal_t *rehearsal, uint32_t matrix, uint32_t channel) {
    zfi_close_t window;
    zfi_window_open(rehearsal->inst, rehearsal->inst->plan.matrices[matrix].cohort, &window);
    return zfi_replay_count_of(rehearsal->inst, &window, matrix, channel);
}
