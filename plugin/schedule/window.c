/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/window.c - the clocks and the slot pool (contract in window.h). */
#include "schedule/window.h"

#include <string.h>

static void clear_table(zfi_slots_t *slots, uint32_t cohort, uint32_t table) {
    memset(zfi_slot_pieces(slots, cohort, table, 0), 0xFF,
           slots->interval * slots->n_layers * sizeof(int32_t)); /* all ZFI_NO_PIECE */
}

static void clear_slots(const zfi_windows_t *windows) {
    zfi_slots_t *slots = windows->slots;
    slots->in_use = 0;
    for (uint32_t l = 0; l < slots->n_layers; l++) {
        const zfi_layer_t *layer = &slots->layers[l];
        slots->n_taken[l] = 0;
        slots->n_given[l] = layer->n_pieces;
        for (uint32_t i = layer->first_piece; i < layer->first_piece + layer->n_pieces; i++)
            slots->free[i] = (struct zfi_free_piece){(int32_t)i, 0};
    }
    for (uint32_t c = 0; c < windows->plan->n_cohorts; c++)
        clear_table(slots, c, windows->clock->window_table[c]);
}

void zfi_window_start(const zfi_windows_t *windows) {
    zfi_clock_t *clock = windows->clock;
    clock->base = clock->t > clock->pace.warm_up ? clock->t : clock->pace.warm_up;
    for (uint32_t c = 0; c < windows->plan->n_cohorts; c++)
        clock->window_first[c] = clock->t + 1;
    clear_slots(windows);
    zfi_window_prepare(windows);
}

static void place_slots(const zfi_plan_t *plan, zfi_clock_t *clock, zfi_step_row_t *row) {
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        row->cohort_slot[c] = (int32_t)(row->t - clock->window_first[c]);
        row->cohort_table[c] = (int32_t)clock->window_table[c];
        row->cohort_first[c] = clock->window_first[c];
    }
}

void zfi_window_prepare(const zfi_windows_t *windows) {
    zfi_step_row_t *row = zfi_row(windows->rows, windows->clock->t + 1);
    row->t = windows->clock->t + 1;
    row->n_present = 0;
    row->has_choice = 0;
    row->waits_for_down = 0;
    row->nonfinite_part = 0;
    row->nonfinite_rank = ZF_NO_ID;
    memset(row->present, 0, windows->rows->n_params);
    memset(row->chooses, 0, windows->plan->n_cohorts);
    place_slots(windows->plan, windows->clock, row);
}

static struct zfi_free_piece *ring_at(zfi_slots_t *slots, uint32_t l, uint64_t i) {
    const zfi_layer_t *layer = &slots->layers[l];
    return &slots->free[layer->first_piece + i % layer->n_pieces];
}

static zf_status_t take_piece(zfi_slots_t *slots, uint32_t layer, int32_t *piece, uint64_t *needs_job) {
    if (*piece != ZFI_NO_PIECE)
        return ZF_OK;
    if (slots->n_taken[layer] == slots->n_given[layer])
        return ZF_ERR_INTERNAL;
    const struct zfi_free_piece *taken = ring_at(slots, layer, slots->n_taken[layer]++);
    *piece = taken->piece;
    if (taken->needs_job > *needs_job)
        *needs_job = taken->needs_job;
    if (++slots->in_use > atomic_load(slots->peak))
        atomic_store(slots->peak, slots->in_use);
    return ZF_OK;
}

static void give_piece(zfi_slots_t *slots, uint32_t layer, int32_t piece, uint64_t needs_job) {
    if (piece == ZFI_NO_PIECE)
        return;
    *ring_at(slots, layer, slots->n_given[layer]++) = (struct zfi_free_piece){piece, needs_job};
    slots->in_use--;
}

int zfi_window_is_any_open(const zfi_windows_t *windows) {
    for (uint32_t c = 0; c < windows->plan->n_cohorts; c++)
        if (windows->clock->window_first[c] != windows->clock->t + 1)
            return 1;
    return windows->clock->n_due > 0;
}

int zfi_window_has_slot(const zfi_windows_t *windows, uint32_t number, uint64_t step) {
    const zfi_matrix_t *matrix = &windows->plan->matrices[number];
    return !matrix->is_resident && step >= windows->clock->window_first[matrix->cohort] && step <= windows->clock->t &&
           zfi_row(windows->rows, step)->present[matrix->param];
}

/* The row is written only where it changes: another thread may be reading the same piece of an earlier parameter. */
static zf_status_t take_slot(const zfi_windows_t *windows, const zfi_chunk_t *chunk, uint64_t *needs_job) {
    const zfi_step_row_t *row = zfi_row(windows->rows, windows->clock->t + 1);
    int32_t *piece = zfi_slot_pieces(windows->slots, chunk->cohort, (uint32_t)row->cohort_table[chunk->cohort],
                                     (uint32_t)row->cohort_slot[chunk->cohort]) +
                     chunk->layer;
    int32_t *known = &row->pieces[(uint64_t)chunk->cohort * windows->slots->n_layers + chunk->layer];
    zf_status_t st = take_piece(windows->slots, chunk->layer, piece, needs_job);
    if (*known != *piece)
        *known = *piece;
    return st;
}

zf_status_t zfi_window_slots(const zfi_windows_t *windows, const zfi_param_t *param, uint64_t *needs_job) {
    const zfi_plan_t *plan = windows->plan;
    zf_status_t st = ZF_OK;
    for (uint32_t i = param->first_ref; i < param->first_ref + param->n_refs && !st && !plan->carries; i++)
        st = take_slot(windows, &plan->chunks[plan->segments[plan->param_segments[i]].chunk], needs_job);
    return st;
}

int zfi_window_closes(const zfi_clock_t *clock, uint32_t cohort, uint64_t t) {
    uint64_t first = clock->base + cohort + 1u;
    if (zfi_is_warm_up(clock, t))
        return 1;
    return t >= first && (t - first) % clock->pace.interval == 0;
}

int zfi_window_chooses(const zfi_clock_t *clock, uint32_t cohort, uint64_t t) {
    if (zfi_is_warm_up(clock, t))
        return t == clock->pace.warm_up;
    if (clock->pace.choose_every == 0)
        return clock->epoch_end > clock->last_choice[cohort];
    return t - clock->last_choice[cohort] >= clock->pace.choose_every;
}

static void free_slots(zfi_slots_t *slots, const zfi_close_t *close) {
    for (uint32_t k = 0; k < close->n_slots; k++)
        for (uint32_t l = 0; l < slots->n_layers; l++)
            give_piece(slots, l, zfi_slot_pieces(slots, close->cohort, close->table, k)[l],
                       close->first_job + close->n_chunks);
}

/* The step that is being filled (t + 1) may already have slots in the old table: they move to slot 0 of the new one. */
static void move_open_slots(zfi_slots_t *slots, uint32_t cohort, uint32_t table, uint32_t old_table,
                            uint32_t old_slot) {
    if (old_slot >= slots->interval)
        return; /* the window was full: nothing can be there */
    memmove(zfi_slot_pieces(slots, cohort, table, 0), zfi_slot_pieces(slots, cohort, old_table, old_slot),
            slots->n_layers * sizeof(int32_t));
}

void zfi_window_expect(const zfi_plan_t *plan, const zfi_clock_t *clock, uint32_t cohort, uint64_t t,
                       uint64_t first_job, zfi_close_t *out) {
    *out = (zfi_close_t){
        .cohort = cohort,
        .table = clock->window_table[cohort],
        .n_slots = (uint32_t)(t + 1 - clock->window_first[cohort]),
        .n_chunks = plan->cohorts[cohort].n_chunks,
        .step = t,
        .first_step = clock->window_first[cohort],
        .first_job = first_job,
        .choice_step = clock->last_choice[cohort],
        .turn = clock->n_choices & 1,
        .is_warm_up = zfi_is_warm_up(clock, t),
        .publishes_all = !clock->pace.selects,
    };
}

void zfi_window_close(const zfi_windows_t *windows, uint32_t cohort, uint64_t t, int publishes_all, zfi_close_t *out) {
    zfi_clock_t *clock = windows->clock;
    zfi_window_expect(windows->plan, clock, cohort, t, clock->next_job, out);
    out->publishes_all |= publishes_all;
    clock->next_job += out->n_chunks;
    free_slots(windows->slots, out);
    clock->window_first[cohort] = t + 1;
    clock->window_table[cohort] = (clock->window_table[cohort] + 1) % windows->slots->n_tables;
    clear_table(windows->slots, cohort, clock->window_table[cohort]);
}

void zfi_window_pass(const zfi_plan_t *plan, zfi_clock_t *clock, uint64_t t) {
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        clock->window_first[c] = t + 1;
}

void zfi_window_open(const zfi_clock_t *clock, uint32_t cohort, zfi_close_t *out) {
    *out = (zfi_close_t){
        .cohort = cohort,
        .table = clock->window_table[cohort],
        .n_slots = (uint32_t)(clock->t + 1 - clock->window_first[cohort]),
        .step = clock->t,
        .first_step = clock->window_first[cohort],
        .is_warm_up = zfi_is_warm_up(clock, clock->t),
    };
}

void zfi_window_restart(const zfi_windows_t *windows) {
    zfi_clock_t *clock = windows->clock;
    zfi_step_row_t *row = zfi_row(windows->rows, clock->t + 1);
    for (uint32_t c = 0; c < windows->plan->n_cohorts; c++)
        move_open_slots(windows->slots, c, clock->window_table[c], (uint32_t)row->cohort_table[c],
                        (uint32_t)row->cohort_slot[c]);
    place_slots(windows->plan, clock, row);
    if (clock->t >= clock->pace.warm_up)
        clock->base = clock->t;
}
