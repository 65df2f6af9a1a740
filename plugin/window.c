/* plugin/window.c - the clocks and the slot pool (contract in window.h). */
#include "window.h"

#include "interval.h"

#include <string.h>

static void clear_table(zf_instance_t *inst, uint32_t cohort) {
    const zfi_cohort_plan_t *plan = &inst->plan.cohorts[cohort];
    for (uint32_t i = plan->first_chunk; i < plan->first_chunk + plan->n_chunks; i++)
        memset(zfi_slot_table(inst, i, inst->window_table[cohort]), 0xFF,
               inst->config.update_interval * sizeof(int32_t)); /* all ZFI_NO_PIECE */
}

void zfi_window_clear_slots(zf_instance_t *inst) {
    inst->slots.free_head = 0;
    inst->slots.free_tail = inst->slots.n_pieces;
    inst->slots.in_use = 0;
    for (uint32_t i = 0; i < inst->slots.n_pieces; i++)
        inst->slots.free[i] = (struct zfi_free_piece){(int32_t)i, 0};
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        clear_table(inst, c);
}

void zfi_window_start(zf_instance_t *inst) {
    inst->clock_base = inst->config.full_warm_up_rounds;
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        inst->window_first[c] = 1;
    zfi_window_clear_slots(inst);
    zfi_window_prepare(inst);
}

static void place_slots(zf_instance_t *inst, zfi_step_row_t *row) {
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++) {
        row->cohort_slot[c] = zfi_is_moments(inst) ? 0 : (int32_t)(row->t - inst->window_first[c]);
        row->cohort_table[c] = (int32_t)inst->window_table[c];
        row->cohort_first[c] = inst->window_first[c];
        row->cohort_sums[c] = inst->cohort_sums[c];
    }
}

void zfi_window_prepare(zf_instance_t *inst) {
    zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    row->t = inst->t + 1;
    row->n_present = 0;
    row->has_choice = 0;
    row->waits_for_down = 0;
    memset(row->present, 0, inst->n_params);
    memset(row->chooses, 0, inst->plan.n_cohorts);
    place_slots(inst, row);
}

static zf_status_t take_piece(zf_instance_t *inst, int32_t *piece, uint64_t *needs_job) {
    zfi_slots_t *slots = &inst->slots;
    const struct zfi_free_piece *taken;
    if (*piece != ZFI_NO_PIECE)
        return ZF_OK;
    if (slots->free_head == slots->free_tail)
        return ZF_ERR_INTERNAL;
    taken = &slots->free[slots->free_head++ % slots->n_pieces];
    *piece = taken->piece;
    if (taken->needs_job > *needs_job)
        *needs_job = taken->needs_job;
    if (++slots->in_use > atomic_load(&inst->count.slots_peak))
        atomic_store(&inst->count.slots_peak, slots->in_use);
    return ZF_OK;
}

int32_t zfi_window_slot_of(zf_instance_t *inst, uint32_t chunk, uint64_t step) {
    uint32_t cohort = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[chunk].first_segment].matrix].cohort;
    int32_t *piece = &zfi_slot_table(inst, chunk, inst->window_table[cohort])[step - inst->window_first[cohort]];
    uint64_t needs_job = 0;
    (void)take_piece(inst, piece, &needs_job); /* everything is idle */
    return *piece;
}

zf_status_t zfi_window_slot(zf_instance_t *inst, uint32_t chunk, uint64_t *needs_job) {
    const zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    uint32_t cohort = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[chunk].first_segment].matrix].cohort;
    int32_t *piece = &zfi_slot_table(inst, chunk, (uint32_t)row->cohort_table[cohort])[row->cohort_slot[cohort]];
    return take_piece(inst, piece, needs_job);
}

int zfi_window_closes(const zf_instance_t *inst, uint32_t cohort, uint64_t t) {
    uint64_t interval = inst->config.update_interval;
    uint64_t first = inst->clock_base + (inst->config.stagger ? cohort + 1u : interval);
    if (zfi_is_warm_up(inst, t))
        return 1;
    return t >= first && (t - first) % interval == 0;
}

int zfi_window_chooses(const zf_instance_t *inst, uint32_t cohort, uint64_t t) {
    uint64_t warm_up = inst->config.full_warm_up_rounds;
    if (t <= warm_up)
        return t == warm_up;
    if (inst->config.select_strategy == ZFI_SELECT_EPOCH)
        return inst->epoch_end > inst->last_choice[cohort];
    return t - inst->last_choice[cohort] >= zfi_config_select_interval(&inst->config);
}

/* Slots in the table that a close reads: the window's, or this step's, or the two sums of the device. */
static uint32_t n_table_pieces(const zf_instance_t *inst, const zfi_close_t *close) {
    if (!zfi_is_moments(inst) || close->is_warm_up)
        return close->n_slots;
    return close->sums ? 2 : (uint32_t)close->takes_slot;
}

static void free_slots(zf_instance_t *inst, const zfi_close_t *close) {
    uint32_t n_pieces = n_table_pieces(inst, close);
    const zfi_cohort_plan_t *plan = &inst->plan.cohorts[close->cohort];
    zfi_slots_t *slots = &inst->slots;
    for (uint32_t i = plan->first_chunk; i < plan->first_chunk + plan->n_chunks; i++) {
        const int32_t *table = zfi_slot_table(inst, i, close->table);
        for (uint32_t k = 0; k < n_pieces; k++) {
            if (table[k] == ZFI_NO_PIECE)
                continue;
            slots->free[slots->free_tail++ % slots->n_pieces] =
                (struct zfi_free_piece){table[k], close->first_job + close->n_chunks};
            slots->in_use--;
        }
    }
}

/* The step that is being filled (t + 1) may already have slots in the old table: they move to slot 0 of the new one. */
static void move_open_slots(zf_instance_t *inst, uint32_t cohort, uint32_t old_table, uint32_t old_slot) {
    const zfi_cohort_plan_t *plan = &inst->plan.cohorts[cohort];
    if (old_slot >= inst->config.update_interval)
        return; /* the window was full: nothing can be there */
    if (zfi_sums_on_device(inst) && !zfi_is_warm_up(inst, inst->t + 1))
        return; /* the coming step's gradients are on the device; what is there were sums */
    for (uint32_t i = plan->first_chunk; i < plan->first_chunk + plan->n_chunks; i++)
        zfi_slot_table(inst, i, inst->window_table[cohort])[0] = zfi_slot_table(inst, i, old_table)[old_slot];
}

/* Pieces for the two sums of each chunk, on their way down. */
static void take_pieces_for_sums(zf_instance_t *inst, zfi_close_t *close) {
    const zfi_cohort_plan_t *plan = &inst->plan.cohorts[close->cohort];
    for (uint32_t i = plan->first_chunk; i < plan->first_chunk + plan->n_chunks; i++)
        for (uint32_t k = 0; k < 2; k++)
            (void)take_piece(inst, &zfi_slot_table(inst, i, close->table)[k],
                             &close->needs_job); /* the pool has them */
}

static void fill_close(zf_instance_t *inst, uint32_t cohort, uint64_t t, zfi_close_t *out) {
    *out = (zfi_close_t){
        .cohort = cohort,
        .table = inst->window_table[cohort],
        .n_slots = (uint32_t)(t + 1 - inst->window_first[cohort]),
        .n_chunks = inst->plan.cohorts[cohort].n_chunks,
        .step = t,
        .first_step = inst->window_first[cohort],
        .first_job = inst->next_job,
        .first_publish = inst->next_publish,
        .choice_step = inst->last_choice[cohort],
        .is_warm_up = zfi_is_warm_up(inst, t),
    };
    inst->next_job += out->n_chunks;
}

static void next_table(zf_instance_t *inst, uint32_t cohort) {
    inst->window_table[cohort] = (inst->window_table[cohort] + 1) % inst->slots.n_tables;
    clear_table(inst, cohort);
}

void zfi_window_close(zf_instance_t *inst, uint32_t cohort, uint64_t t, int publishes_all, zfi_close_t *out) {
    fill_close(inst, cohort, t, out);
    out->publishes_all = publishes_all;
    out->takes_slot = zfi_sums_on_host(inst) && !out->is_warm_up && !publishes_all;
    inst->next_publish += out->n_chunks;
    if (zfi_sums_on_device(inst) && !out->is_warm_up) {
        out->sums = inst->cohort_sums[cohort];
        take_pieces_for_sums(inst, out);
    }
    free_slots(inst, out);
    inst->window_first[cohort] = t + 1;
    next_table(inst, cohort);
    atomic_fetch_add(&inst->count.window_closes, 1);
}

void zfi_window_open(const zf_instance_t *inst, uint32_t cohort, zfi_close_t *out) {
    *out = (zfi_close_t){
        .cohort = cohort,
        .table = inst->window_table[cohort],
        .n_slots = (uint32_t)(inst->t + 1 - inst->window_first[cohort]),
        .step = inst->t,
        .first_step = inst->window_first[cohort],
        .is_warm_up = zfi_is_warm_up(inst, inst->t),
    };
}

uint64_t zfi_window_first(const zf_instance_t *inst, uint32_t cohort) {
    uint64_t t = inst->t;
    if (zfi_is_warm_up(inst, t))
        return t + 1;
    while (t > inst->clock_base && !zfi_window_closes(inst, cohort, t))
        t--;
    return t + 1;
}

void zfi_window_add(zf_instance_t *inst, uint32_t cohort, uint64_t t, zfi_close_t *out) {
    fill_close(inst, cohort, t, out);
    out->takes_slot = out->is_sums_only = 1;
    free_slots(inst, out);
    next_table(inst, cohort);
}

void zfi_window_restart(zf_instance_t *inst) {
    zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        move_open_slots(inst, c, (uint32_t)row->cohort_table[c], (uint32_t)row->cohort_slot[c]);
    place_slots(inst, row);
    if (inst->t >= inst->config.full_warm_up_rounds)
        inst->clock_base = inst->t;
    zfi_interval_restart(inst);
}
