/* plugin/select.c - which channels run ahead (contract in select.h; rules in SCHEDULE.md, steps 4, 8 and 9).
 *
 * Runs on the control stream: the only writer of importance and of the host's maps. The device reads the lists of
 * entering channels between `chosen` and `entered` of a choice, so the next choice waits for `entered`. */
#include "select.h"

#include <string.h>

#include "choose.h"
#include "fault.h"
#include "interval.h"

/* ---- blocks of entering state ------------------------------------------------------------------------------------ */

void zfi_enter_walk_start(zfi_enter_walk_t *walk, const zf_instance_t *inst, const zfi_step_row_t *row) {
    *walk = (zfi_enter_walk_t){.inst = inst, .row = row, .fill = ZFI_ENTER_ELEMS};
}

/* Extents of the walked rectangle of a matrix: rows x columns with the channel axis replaced by the entering list. */
static void extents(const zfi_matrix_t *matrix, uint32_t n_enter, uint64_t *rows, uint64_t *cols) {
    *rows = matrix->channels_are_rows ? n_enter : matrix->rows;
    *cols = matrix->channels_are_rows ? matrix->cols : n_enter;
}

static void next_matrix(zfi_enter_walk_t *walk) {
    const zfi_plan_t *plan = &walk->inst->plan;
    walk->a = walk->b = 0;
    if (++walk->at >= plan->cohorts[walk->cohort].n_matrices) {
        walk->at = 0;
        walk->cohort++;
    }
}

/* The rest of the current rows x cols, as far as one block takes it. */
static void take_rect(zfi_enter_walk_t *walk, uint64_t rows, uint64_t cols, zfi_enter_rect_t *out) {
    out->a0 = walk->a;
    out->b0 = walk->b;
    out->nb = cols - walk->b < ZFI_ENTER_ELEMS ? cols - walk->b : ZFI_ENTER_ELEMS;
    out->opens_block = ZFI_ENTER_ELEMS - walk->fill < out->nb;
    if (out->opens_block)
        walk->fill = 0;
    out->at = walk->fill;
    out->na = (ZFI_ENTER_ELEMS - walk->fill) / out->nb;
    if (out->na > rows - walk->a)
        out->na = rows - walk->a;
    walk->fill += (uint32_t)(out->na * out->nb);
    walk->a += out->na;
    if (walk->a >= rows) {
        walk->a = 0;
        walk->b += out->nb;
    }
}

int zfi_enter_walk_next(zfi_enter_walk_t *walk, zfi_enter_rect_t *out) {
    const zfi_plan_t *plan = &walk->inst->plan;
    while (walk->cohort < plan->n_cohorts) {
        const zfi_cohort_plan_t *cohort = &plan->cohorts[walk->cohort];
        uint32_t number;
        uint64_t rows, cols;
        if (!walk->row->chooses[walk->cohort] || cohort->n_matrices == 0) {
            walk->cohort++;
            continue;
        }
        number = plan->cohort_matrices[cohort->first_matrix + walk->at];
        extents(&plan->matrices[number], walk->inst->sel.n_enter[number], &rows, &cols);
        if (rows == 0 || cols == 0 || walk->b >= cols) {
            next_matrix(walk);
            continue;
        }
        out->matrix = number;
        take_rect(walk, rows, cols, out);
        return 1;
    }
    return 0;
}

/* ---- maps ------------------------------------------------------------------------------------------------------- */

/* The host's own maps follow once the closing windows, which were selected by the old ones, are replayed. */
static void update_maps(zf_instance_t *inst, const zfi_step_row_t *row) {
    const zfi_plan_t *plan = &inst->plan;
    zfi_selection_t *sel = &inst->sel;
    for (uint32_t number = 0; number < plan->n_matrices; number++) {
        const zfi_matrix_t *matrix = &plan->matrices[number];
        if (!row->chooses[matrix->cohort])
            continue;
        for (uint32_t e = 0; e < sel->n_enter[number]; e++) {
            uint32_t *held = &sel->index[matrix->index_base + sel->enter_pos[matrix->index_base + e]];
            uint32_t channel = sel->enter_channel[matrix->index_base + e];
            if (sel->last_choice)
                sel->mask[matrix->channel_base + *held] = 0;
            *held = channel;
            if (zfi_is_mean(inst))
                sel->enter_n[matrix->index_base + e] = inst->hs.n[matrix->channel_base + channel];
        }
        for (uint32_t e = 0; e < sel->n_enter[number]; e++)
            sel->mask[matrix->channel_base + sel->enter_channel[matrix->index_base + e]] = 1;
    }
}

/* ---- entering state ---------------------------------------------------------------------------------------------- */

static void gather_rect(const zf_instance_t *inst, const zfi_enter_rect_t *rect, float *out) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[rect->matrix];
    const uint32_t *channels = inst->sel.enter_channel + matrix->index_base;
    uint64_t n = rect->na * rect->nb, at = 0;
    uint32_t n_moments = zfi_n_moments(inst);
    int is_reset = ZFI_FAULT_RESET_MOMENTS_AT_RESELECT && inst->sel.last_choice;
    for (uint64_t i = rect->a0; i < rect->a0 + rect->na; i++)
        for (uint64_t j = rect->b0; j < rect->b0 + rect->nb; j++, at++) {
            uint64_t r = matrix->channels_are_rows ? channels[i] : i;
            uint64_t c = matrix->channels_are_rows ? j : channels[j];
            uint64_t from = matrix->state_base + r * matrix->cols + c;
            out[at] = inst->hs.w[from];
            if (n_moments > 0)
                out[n + at] = is_reset ? 0.0f : zfi_moment(inst, inst->hs.m, from);
            if (n_moments > 1)
                out[2 * n + at] = is_reset ? 0.0f : zfi_moment(inst, inst->hs.v, from);
        }
}

/* Block e may be staged once block e - ZFI_ENTER_BLOCKS was taken; where that belongs to this same choice, it is taken
 * when the host makes the next step. */
static zf_status_t wait_for_staging(zf_instance_t *inst, uint64_t choice_step, uint64_t e, uint64_t first) {
    zf_status_t st = ZF_OK;
    if (e < ZFI_ENTER_BLOCKS)
        return ZF_OK;
    if (e - ZFI_ENTER_BLOCKS >= first)
        st = zfi_wait_for_host(inst, &inst->enter_due, choice_step);
    return st ? st : zfi_wait(inst, &inst->enter_done, e - ZFI_ENTER_BLOCKS + 1, NULL);
}

/* The staged block, of so many elements, goes up. */
static void send_block(zf_instance_t *inst, uint32_t n_elems) {
    uint64_t at = inst->sel.enter_block % ZFI_ENTER_BLOCKS * zfi_enter_arrays(inst) * ZFI_ENTER_ELEMS;
    memcpy(inst->dev.enter + at, inst->sel.staging + at, n_elems * zfi_enter_arrays(inst) * sizeof(float));
    atomic_fetch_add(&inst->count.up_enter_nbytes, n_elems * zfi_enter_arrays(inst) * sizeof(float));
    zfi_timeline_signal(&inst->enter_up, ++inst->sel.enter_block);
}

static zf_status_t send_blocks(zf_instance_t *inst, const zfi_step_row_t *row) {
    uint64_t first = inst->sel.enter_block;
    uint32_t staged = 0; /* elements of the open block */
    zfi_enter_walk_t walk;
    zfi_enter_rect_t rect;
    zfi_enter_walk_start(&walk, inst, row);
    while (zfi_enter_walk_next(&walk, &rect)) {
        if (rect.opens_block && staged)
            send_block(inst, staged);
        if (rect.opens_block && wait_for_staging(inst, row->t, inst->sel.enter_block, first))
            return ZF_ERR_POISONED;
        gather_rect(inst, &rect,
                    inst->sel.staging + (inst->sel.enter_block % ZFI_ENTER_BLOCKS * ZFI_ENTER_ELEMS + rect.at) *
                                            zfi_enter_arrays(inst));
        staged = walk.fill;
    }
    if (staged)
        send_block(inst, staged);
    return ZF_OK;
}

/* ---- the program of a step --------------------------------------------------------------------------------------- */

static zf_status_t add_record(zf_instance_t *inst, const zfi_step_row_t *row) {
    const double *record = inst->sel.records[row->t % ZFI_RECORD_DEPTH];
    zf_status_t st = zfi_wait(inst, &inst->down, row->t, NULL);
    if (st || !row->scalars.applied)
        return st;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        if (!matrix->is_choosable || !row->present[matrix->param])
            continue;
        for (uint64_t c = matrix->sum_base; c < matrix->sum_base + matrix->n_channels; c++)
            inst->sel.importance[c] += row->scalars.s_exact * record[c];
    }
    return ZF_OK;
}

static zf_status_t run_choice(zf_instance_t *inst, zfi_step_row_t *row) {
    zf_status_t st = inst->sel.last_choice ? zfi_wait(inst, &inst->entered, inst->sel.last_choice + 1, NULL) : ZF_OK;
    if (st)
        return st;
    zfi_choose(inst, row);
    zfi_timeline_signal(&inst->chosen, row->t);
    st = zfi_wait(inst, &inst->jobs, row->end_job, NULL);
    if (st)
        return st;
    update_maps(inst, row);
    st = send_blocks(inst, row);
    if (st)
        return st;
    inst->sel.last_choice = row->t;
    zfi_timeline_signal(&inst->host_sel, row->t);
    return ZF_OK;
}

typedef struct control_args {
    zf_instance_t *inst;
    uint64_t t;
} control_args_t;

static void run_step(void *raw) {
    const control_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    zfi_step_row_t *row = zfi_row(inst, args->t);
    int record_first = args->t == inst->config.full_warm_up_rounds;
    zfi_fp_mode_ieee();
    if (zfi_wait(inst, &inst->down, row->t, NULL))
        return;
    zfi_interval_take(inst, row);
    if (record_first && add_record(inst, row))
        return;
    if (row->has_choice && run_choice(inst, row))
        return;
    if (!record_first && add_record(inst, row))
        return;
    zfi_timeline_signal(&inst->control, args->t);
}

zf_status_t zfi_select_push(zf_instance_t *inst, uint64_t t) {
    control_args_t args = {inst, t};
    return zfi_queue_push(inst->control_stream, run_step, &args, sizeof args, NULL);
}
