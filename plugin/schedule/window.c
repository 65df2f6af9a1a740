/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/window.c - the clocks and the slot pool (contract in window.h). */
#include "schedule/window.h"

#include <string.h>

static void clear_table(zfi_slots_t *slots, uint32_t cohort, uint32_t table) {
    memset(zfi_slot_pieces(slots, cohort, table, 0), 0xFF,
           slots->interval * slots->n_layers * sizeof(int32_t)); /* all ZFI_NO_PIECE */
}

void zfi_window_clear_slots(zfi_run_t *run) {
    run->slots.in_use = 0;
    for (uint32_t l = 0; l < run->plan.n_layers; l++) {
        const zfi_layer_t *layer = &run->plan.layers[l];
        run->slots.n_taken[l] = 0;
        run->slots.n_given[l] = layer->n_pieces;
        for (uint32_t i = layer->first_piece; i < layer->first_piece + layer->n_pieces; i++)
            run->slots.free[i] = (struct zfi_free_piece){(int32_t)i, 0};
    }
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        clear_table(&run->slots, c, run->clock.window_table[c]);
}

zfi_pace_t zfi_pace_of(const zfi_config_t *config) {
    return (zfi_pace_t){.warm_up = zfi_config_warm_up(config),
                        .interval = config->update_interval,
                        .choose_every =
                            config->select_strategy == ZFI_SELECT_EPOCH ? 0 : zfi_config_select_interval(config),
                        .is_auto = config->is_interval_auto,
                        .keeps_sets = config->select_strategy == ZFI_SELECT_AUTO};
}

void zfi_window_start(zfi_run_t *run) {
    run->clock.pace = zfi_pace_of(&run->engine->config);
    run->clock.base = run->clock.pace.warm_up;
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        run->clock.window_first[c] = 1;
    zfi_window_clear_slots(run);
    zfi_window_prepare(run);
}

static void place_slots(const zfi_plan_t *plan, zfi_clock_t *clock, zfi_step_row_t *row) {
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        row->cohort_slot[c] = (int32_t)(row->t - clock->window_first[c]);
        row->cohort_table[c] = (int32_t)clock->window_table[c];
        row->cohort_first[c] = clock->window_first[c];
    }
}

void zfi_window_prepare(zfi_run_t *run) {
    zfi_step_row_t *row = zfi_row(run, run->clock.t + 1);
    row->t = run->clock.t + 1;
    row->n_present = 0;
    row->has_choice = 0;
    row->waits_for_down = 0;
    memset(row->present, 0, run->n_params);
    memset(row->chooses, 0, run->plan.n_cohorts);
    place_slots(&run->plan, &run->clock, row);
}

static struct zfi_free_piece *ring_at(zfi_slots_t *slots, uint32_t l, uint64_t i) {
    const zfi_layer_t *layer = &slots->layers[l];
    return &slots->free[layer->first_piece + i % layer->n_pieces];
}

static zf_status_t take_piece(zfi_slots_t *slots, uint32_t layer, int32_t *piece, uint64_t *needs_job,
                              _Atomic uint64_t *peak) {
    const struct zfi_free_piece *taken;
    if (*piece != ZFI_NO_PIECE)
        return ZF_OK;
    if (slots->n_taken[layer] == slots->n_given[layer])
        return ZF_ERR_INTERNAL;
    taken = ring_at(slots, layer, slots->n_taken[layer]++);
    *piece = taken->piece;
    if (taken->needs_job > *needs_job)
        *needs_job = taken->needs_job;
    if (++slots->in_use > atomic_load(peak))
        atomic_store(peak, slots->in_use);
    return ZF_OK;
}

static void give_piece(zfi_slots_t *slots, uint32_t layer, int32_t piece, uint64_t needs_job) {
    if (piece == ZFI_NO_PIECE)
        return;
    *ring_at(slots, layer, slots->n_given[layer]++) = (struct zfi_free_piece){piece, needs_job};
    slots->in_use--;
}

unsigned char *zfi_window_slot_of(zfi_run_t *run, uint32_t number, uint64_t step) {
    const zfi_chunk_t *chunk = &run->plan.chunks[number];
    uint32_t table = run->clock.window_table[chunk->cohort];
    uint32_t slot = (uint32_t)(step - run->clock.window_first[chunk->cohort]);
    uint64_t needs_job = 0; /* everything is idle */
    (void)take_piece(&run->slots, chunk->layer, &zfi_slot_pieces(&run->slots, chunk->cohort, table, slot)[chunk->layer],
                     &needs_job, &run->engine->count.slots_peak);
    return zfi_slot(&run->slots, chunk, table, slot);
}

int zfi_window_has_slot(const zfi_run_t *run, uint32_t number, uint64_t step) {
    const zfi_matrix_t *matrix = &run->plan.matrices[number];
    return !matrix->is_resident && step >= run->clock.window_first[matrix->cohort] && step <= run->clock.t &&
           zfi_row(run, step)->present[matrix->param];
}

zf_status_t zfi_window_slot(zfi_run_t *run, uint32_t number, uint64_t *needs_job) {
    const zfi_step_row_t *row = zfi_row(run, run->clock.t + 1);
    const zfi_chunk_t *chunk = &run->plan.chunks[number];
    int32_t *pieces = zfi_slot_pieces(&run->slots, chunk->cohort, (uint32_t)row->cohort_table[chunk->cohort],
                                      (uint32_t)row->cohort_slot[chunk->cohort]);
    return take_piece(&run->slots, chunk->layer, &pieces[chunk->layer], needs_job, &run->engine->count.slots_peak);
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
    };
}

void zfi_window_close(zfi_run_t *run, uint32_t cohort, uint64_t t, int publishes_all, zfi_close_t *out) {
    zfi_window_expect(&run->plan, &run->clock, cohort, t, run->clock.next_job, out);
    out->publishes_all = publishes_all;
    run->clock.next_job += out->n_chunks;
    free_slots(&run->slots, out);
    run->clock.window_first[cohort] = t + 1;
    run->clock.window_table[cohort] = (run->clock.window_table[cohort] + 1) % run->slots.n_tables;
    clear_table(&run->slots, cohort, run->clock.window_table[cohort]);
    atomic_fetch_add(&run->engine->count.window_closes, 1);
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

uint64_t zfi_window_first(const zfi_clock_t *clock, uint32_t cohort) {
    uint64_t t = clock->t;
    if (zfi_is_warm_up(clock, t))
        return t + 1;
    while (t > clock->base && !zfi_window_closes(clock, cohort, t))
        t--;
    return t + 1;
}

void zfi_window_restart(zfi_run_t *run) {
    zfi_step_row_t *row = zfi_row(run, run->clock.t + 1);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        move_open_slots(&run->slots, c, run->clock.window_table[c], (uint32_t)row->cohort_table[c],
                        (uint32_t)row->cohort_slot[c]);
    place_slots(&run->plan, &run->clock, row);
    if (run->clock.t >= run->clock.pace.warm_up)
        run->clock.base = run->clock.t;
}
