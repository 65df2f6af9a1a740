/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/control.c - the control thread's part of a step (contract in control.h; SCHEDULE.md, steps 4, 8 and
 * 9).
 *
 * A choice travels on the enter stream, which the control thread alone feeds. First go the lists of entering channels,
 * once the device has finished the step of the choice: then its maps change (`maps`), and the next step's gradients may
 * be gathered by them. The state of what enters follows, block by block, as soon as the windows that closed with the
 * choice are replayed (`entered`). The next choice waits until the device has shown what entered (`shown`), since it
 * writes the same lists. */
#include "step/control.h"

#include <string.h>

#include "ranks/entering.h"
#include "ranks/gathering.h"
#include "ranks/importance.h"
#include "ranks/nonfinite.h"
#include "schedule/choose.h"
#include "schedule/interval.h"
#include "schedule/select.h"
#include "step/selected.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void copy_up(zfi_engine_t *engine, void *to, const void *from, uint64_t nbytes) {
    zfi_list_copy(&engine->to_enter, ZFI_OP_UP, to, from, nbytes);
    atomic_fetch_add(&engine->count.up_enter_nbytes, nbytes);
}

/* Copies of every matrix the first n_enter of an array that is indexed by position. */
static void copy_entering(const zfi_state_t *state, uint32_t *to, const uint32_t *from) {
    for (uint32_t i = 0; i < state->plan->n_matrices; i++) {
        uint64_t base = state->plan->matrices[i].index_base;
        if (state->sel->n_enter[i])
            copy_up(state->engine, to + base, from + base, state->sel->n_enter[i] * sizeof *from);
    }
}

static zf_status_t send_lists(const zfi_state_t *state, const zfi_step_row_t *row) {
    zfi_engine_t *engine = state->engine;
    const zfi_selection_t *sel = state->sel;
    uint64_t t = row->t;
    zfi_enter_maps_args_t args = {state->dev->data, zfi_device_entering(state->dev), sel->last_choice != 0,
                                  row->choice_turn};
    zfi_list_add(&engine->to_enter, zfi_op_wait(&engine->lines.stepped, t, NULL));
    copy_up(state->engine, state->dev->enter_n, sel->n_enter, state->plan->n_matrices * sizeof *sel->n_enter);
    copy_entering(state, state->dev->enter_position, sel->enter_pos);
    copy_entering(state, state->dev->enter_channel, sel->enter_channel);
    zfi_list_add(&engine->to_enter, zfi_op_launch(ZFI_KERNEL_ENTER_MAPS, &args, sizeof args));
    zfi_list_add(&engine->to_enter, zfi_op_signal(&engine->lines.maps, t));
    return zfi_list_send(&engine->to_enter);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* The staged block, of n elements, goes up and is taken. */
static zf_status_t send_block(const zfi_state_t *state, const zfi_enter_block_t *block, uint32_t n_elems) {
    zfi_engine_t *engine = state->engine;
    uint32_t n_arrays = zfi_enter_arrays(state->n_moments);
    zfi_enter_block_t *to = (void *)(state->dev->enter_blocks +
                                     state->sel->enter_block % ZFI_ENTER_BLOCKS * state->dev->enter_block_nbytes);
    zfi_enter_state_args_t args = {state->dev->data, zfi_device_entering(state->dev), to, n_arrays};
    copy_up(state->engine, to, block, offsetof(zfi_enter_block_t, rects) + block->n_rects * sizeof *block->rects);
    copy_up(state->engine, to->values, block->values, (uint64_t)n_elems * n_arrays * sizeof(float));
    zfi_list_add(&engine->to_enter, zfi_op_launch(ZFI_KERNEL_ENTER_STATE, &args, sizeof args));
    zfi_list_add(&engine->to_enter, zfi_op_signal(&engine->lines.enter_done, ++state->sel->enter_block));
    return zfi_list_send(&engine->to_enter);
}

/* The next block on its way up may be written. */
static zf_status_t await_block(zfi_engine_t *engine, const zfi_selection_t *sel, uint64_t nbytes,
                               zfi_enter_block_t **out) {
    uint64_t number = sel->enter_block;
    *out = (void *)(sel->staging + number % ZFI_ENTER_BLOCKS * nbytes);
    if (number < ZFI_ENTER_BLOCKS)
        return ZF_OK;
    return zfi_wait(engine, &engine->lines.enter_done, number - ZFI_ENTER_BLOCKS + 1, NULL);
}

/* As many blocks as there is room for: they become those of all ranks, each of which has the elements that it owns.
 * *out_n: how many; fewer than there is room for where that was all. */
static zf_status_t send_joined(const zfi_state_t *state, zfi_enter_walk_t *walk, uint64_t t, uint32_t *out_n) {
    uint32_t n = 0, n_elems[ZFI_MOST_BLOCKS];
    while (n < state->ranks->reduction->n_blocks &&
           (n_elems[n] = zfi_enter_walk_fill(walk, zfi_entering_block(state->ranks->reduction, n))) != 0)
        n++;
    *out_n = n;
    zf_status_t st = n ? zfi_entering_join(state->ranks, n, t) : ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_enter_block_t *block;
        st = await_block(state->engine, state->sel, state->dev->enter_block_nbytes, &block);
        if (st)
            return st;
        memcpy(block, zfi_entering_block(state->ranks->reduction, i), state->dev->enter_block_nbytes);
        st = send_block(state, block, n_elems[i]);
    }
    return st;
}

/* Block by block, of which this rank has all. */
static zf_status_t send_own(const zfi_state_t *state, int is_sharded) {
    zfi_enter_walk_t walk = {.state = state, .is_sharded = is_sharded};
    zfi_enter_block_t *block;
    uint32_t n_elems = 1;
    zf_status_t st = ZF_OK;
    while (n_elems && !st) {
        st = await_block(state->engine, state->sel, state->dev->enter_block_nbytes, &block);
        n_elems = st ? 0 : zfi_enter_walk_fill(&walk, block);
        if (n_elems)
            st = send_block(state, block, n_elems);
    }
    return st;
}

static zf_status_t send_blocks(const zfi_state_t *state, uint64_t t) {
    zfi_enter_walk_t walk = {.state = state};
    uint32_t most = state->ranks->reduction->n_blocks, n = most;
    zf_status_t st = ZF_OK;
    if (!zfi_is_sharded(state->engine))
        return send_own(state, 0);
    while (n == most && !st)
        st = send_joined(state, &walk, t, &n);
    return st ? st : send_own(state, 1);
}

static void walk_counts(zfi_gathering_t *gathering, uint32_t rank) {
    const zfi_selection_t *sel = gathering->arg;
    (void)rank;
    for (uint32_t i = 0; i < gathering->ranks->plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &gathering->ranks->plan->matrices[i];
        if (matrix->holders == gathering->holders)
            zfi_gathering_pass(gathering, sel->enter_n + matrix->index_base, sel->n_enter[i] * sizeof *sel->enter_n);
    }
}

/* The update counts of what enters: a rank that has nothing of a cohort does not count its updates, so each becomes the
 * largest of any rank. */
static zf_status_t join_counts(const zfi_state_t *state, uint64_t t) {
    zfi_gathering_t gathering = {.ranks = state->ranks, .walk = walk_counts, .arg = state->sel, .keeps_most = 1};
    return zfi_gathering_by_control(&gathering, ZF_COLLECTIVE_FOR_ENTERING, t);
}

/* Mean mode: the update counts of what enters; then all of the choice is on the device. */
static zf_status_t send_end(const zfi_state_t *state, uint64_t t) {
    zfi_engine_t *engine = state->engine;
    zfi_enter_maps_args_t args = {.data = state->dev->data, .entering = zfi_device_entering(state->dev)};
    if (state->sel->enter_n) {
        zf_status_t st = join_counts(state, t);
        if (st)
            return st;
        copy_entering(state, state->dev->enter_count, state->sel->enter_n);
        zfi_list_add(&engine->to_enter, zfi_op_launch(ZFI_KERNEL_ENTER_COUNTS, &args, sizeof args));
    }
    zfi_list_add(&engine->to_enter, zfi_op_signal(&engine->lines.entered, t));
    return zfi_list_send(&engine->to_enter);
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static zf_status_t run_choice(const zfi_state_t *state, const zfi_step_row_t *row) {
    zfi_engine_t *engine = state->engine;
    zf_status_t st =
        state->sel->last_choice ? zfi_wait(engine, &engine->lines.shown, state->sel->last_choice + 1, NULL) : ZF_OK;
    if (st)
        return st;
    memset(state->sel->n_enter, 0, state->plan->n_matrices * sizeof *state->sel->n_enter);
    st = zfi_importance_join(state->ranks, row);
    if (st)
        return st;
    uint64_t began = zfi_trace_begin(engine->trace);
    zfi_choose(state->plan, &state->windows->clock->pace, state->sel, row, &engine->count);
    zfi_trace_end(engine->trace, began, "choose", (zfi_trace_number_t){"step", row->t}, ZFI_TRACE_NONE);
    st = send_lists(state, row);
    if (!st)
        st = zfi_wait(engine, &engine->lines.jobs, row->end_job, NULL);
    if (st)
        return st;
    began = zfi_trace_begin(engine->trace);
    zfi_select_update_maps(state);
    st = send_blocks(state, row->t);
    if (!st)
        st = send_end(state, row->t);
    zfi_trace_end(engine->trace, began, "enter", (zfi_trace_number_t){"step", row->t}, ZFI_TRACE_NONE);
    if (st)
        return st;
    state->sel->last_choice = row->t;
    zfi_timeline_signal(&engine->lines.host_sel, row->t);
    return ZF_OK;
}

typedef struct control_args {
    const zfi_state_t *state;
    uint64_t t;
} control_args_t;

/* Part of the record of a step, once it is here. */
static zf_status_t take_record(const zfi_state_t *state, const zfi_step_row_t *row, uint32_t part) {
    uint64_t number = zfi_first_record_part(state->plan, row->t) + part;
    zf_status_t st = zfi_wait(state->engine, &state->engine->lines.recorded, number + 1, NULL);
    return st ? st : zfi_importance_join_record(state->ranks, row, part);
}

/* The record of a step is counted, part by part as it arrives. An automatic interval has taken it before. */
static zf_status_t add_record(const zfi_state_t *state, const zfi_step_row_t *row) {
    zfi_timelines_t *lines = &state->engine->lines;
    uint64_t number = zfi_first_record_part(state->plan, row->t);
    for (uint32_t part = 0; part < state->plan->n_record_parts; part++, number++) {
        zf_status_t st = state->windows->clock->pace.is_auto ? ZF_OK : take_record(state, row, part);
        if (st)
            return st;
        zfi_select_add_record(state->plan, state->sel, row, part);
        zfi_timeline_signal(&lines->counted, number + 1);
    }
    return ZF_OK;
}

/* An automatic interval: its records are of one part, or of none. */
static zf_status_t decide_windows(const zfi_state_t *state, const zfi_step_row_t *row) {
    zfi_engine_t *engine = state->engine;
    zf_status_t st = state->plan->n_record_parts ? take_record(state, row, 0) : ZF_OK;
    if (!st && !zfi_is_warm_up(state->windows->clock, row->t)) {
        zfi_interval_take(state->plan, state->sel, row);
        st = zfi_importance_join_ready(state->ranks, row->t);
    }
    if (st)
        return st;
    zfi_interval_conclude(state->windows->clock, state->plan, state->sel, row);
    zfi_timeline_signal(&engine->lines.decided, row->t + 2);
    return ZF_OK;
}

/* The first choice counts its own step's record, later ones those up to the step before (SCHEDULE.md, step 9). */
static void run_step(void *raw) {
    const control_args_t *args = raw;
    const zfi_state_t *state = args->state;
    zfi_engine_t *engine = state->engine;
    zfi_step_row_t *row = zfi_row(state->windows->rows, args->t);
    int record_first = args->t == state->windows->clock->pace.warm_up;
    zfi_fp_mode_ieee();
    if (zfi_wait(engine, &engine->lines.down, row->t, NULL) || zfi_nonfinite_share(state->ranks, row))
        return;
    if (state->windows->clock->pace.is_auto && decide_windows(state, row))
        return;
    if (record_first && add_record(state, row))
        return;
    if (row->has_choice && run_choice(state, row))
        return;
    if (!record_first && add_record(state, row))
        return;
    zfi_timeline_signal(&engine->lines.control, args->t);
}

zf_status_t zfi_control_start(const zfi_state_t *state, uint64_t t) {
    control_args_t args = {state, t};
    return zfi_serial_start(state->engine->control, run_step, &args, sizeof args);
}

static void run_pass(void *raw) {
    const control_args_t *args = raw;
    zfi_engine_t *engine = args->state->engine;
    zfi_step_row_t *row = zfi_row(args->state->windows->rows, args->t);
    if (!zfi_wait(engine, &engine->lines.down, row->t, NULL) && !zfi_nonfinite_share(args->state->ranks, row))
        zfi_timeline_signal(&engine->lines.control, args->t);
}

zf_status_t zfi_control_pass(const zfi_state_t *state, uint64_t t) {
    control_args_t args = {state, t};
    if (zfi_has_peers(state->engine))
        return zfi_serial_start(state->engine->control, run_pass, &args, sizeof args);
    zfi_timeline_signal(&state->engine->lines.control, t);
    return ZF_OK;
}
