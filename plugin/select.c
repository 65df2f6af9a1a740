/* plugin/select.c - which channels run ahead (contract in select.h; rules in SCHEDULE.md, steps 4, 8 and 9).
 *
 * Runs on the control stream: the only writer of importance and of the host's maps. The device reads the lists of
 * entering channels between `chosen` and `entered` of a choice, so the next choice waits for `entered`. */
#include "select.h"

#include <string.h>

#include "choose.h"
#include "fault.h"

/* ---- blocks of entering state ------------------------------------------------------------------------------------ */

void zfi_enter_walk_start(zfi_enter_walk_t *walk, const zf_instance_t *inst, const zfi_step_row_t *row) {
    *walk = (zfi_enter_walk_t){.inst = inst, .row = row};
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

int zfi_enter_walk_next(zfi_enter_walk_t *walk, zfi_enter_block_t *out) {
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
        out->a0 = walk->a;
        out->b0 = walk->b;
        out->nb = cols - walk->b < ZFI_ENTER_ELEMS ? cols - walk->b : ZFI_ENTER_ELEMS;
        out->na = ZFI_ENTER_ELEMS / out->nb;
        if (out->na > rows - walk->a)
            out->na = rows - walk->a;
        walk->a += out->na;
        if (walk->a >= rows) {
            walk->a = 0;
            walk->b += out->nb;
        }
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

static void gather_block(const zf_instance_t *inst, const zfi_enter_block_t *block, float *out) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[block->matrix];
    const uint32_t *channels = inst->sel.enter_channel + matrix->index_base;
    uint64_t n = block->na * block->nb, at = 0;
    for (uint64_t i = block->a0; i < block->a0 + block->na; i++)
        for (uint64_t j = block->b0; j < block->b0 + block->nb; j++, at++) {
            uint64_t r = matrix->channels_are_rows ? channels[i] : i;
            uint64_t c = matrix->channels_are_rows ? j : channels[j];
            uint64_t from = matrix->state_base + r * matrix->cols + c;
            out[at] = inst->hs.w[from];
            out[n + at] = ZFI_FAULT_RESET_MOMENTS_AT_RESELECT && inst->sel.last_choice ? 0.0f : inst->hs.m[from];
            out[2 * n + at] = ZFI_FAULT_RESET_MOMENTS_AT_RESELECT && inst->sel.last_choice ? 0.0f : inst->hs.v[from];
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

static zf_status_t send_blocks(zf_instance_t *inst, const zfi_step_row_t *row) {
    uint64_t first = inst->sel.enter_block;
    zfi_enter_walk_t walk;
    zfi_enter_block_t block;
    zfi_enter_walk_start(&walk, inst, row);
    while (zfi_enter_walk_next(&walk, &block)) {
        uint64_t e = inst->sel.enter_block, at = e % ZFI_ENTER_BLOCKS * 3u * ZFI_ENTER_ELEMS;
        uint64_t nbytes = block.na * block.nb * 3u * sizeof(float);
        if (wait_for_staging(inst, row->t, e, first))
            return ZF_ERR_POISONED;
        gather_block(inst, &block, inst->sel.staging + at);
        memcpy(inst->dev.enter + at, inst->sel.staging + at, nbytes);
        atomic_fetch_add(&inst->count.up_enter_nbytes, nbytes);
        inst->sel.enter_block = e + 1;
        zfi_timeline_signal(&inst->enter_up, e + 1);
    }
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
