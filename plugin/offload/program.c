/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/program.c - the programs of a step (contract in program.h).
 *
 * Order of what is enqueued on the device stream: finish, sums, entering channels, run-ahead, publishes due, closes
 * (published at once where publish_lag = 0), report. */
#include "offload/program.h"

#include "offload/control.h"
#include "offload/gradients.h"
#include "offload/publish.h"
#include "offload/scalars.h"
#include "offload/selected.h"
#include "offload/sums.h"
#include "offload/workers.h"
#include "schedule/interval.h"
#include "schedule/window.h"

/* The newest work on the device stream writes visible values of this matrix: param_fetch waits for it. */
static void note_write(zfi_run_t *run, uint32_t matrix, uint64_t mark) {
    zfi_grad_state_t *grad = &run->incoming.grads[run->plan.matrices[matrix].param];
    grad->visible_seq = mark;
    grad->visible_epoch = run->engine->stream_epoch;
}

zf_status_t zfi_program_begin(zfi_run_t *run) {
    zfi_clock_t *clock = &run->clock;
    if (clock->has_begun)
        return ZF_OK;
    clock->has_begun = 1;
    return zfi_gradients_begin(run, clock->t + 1, clock->waiting_choice);
}

/* ---- selected channels ------------------------------------------------------------------------------------------- */

static zf_status_t show_entered(zfi_run_t *run) {
    zf_status_t st;
    uint64_t mark;
    if (!run->clock.waiting_choice)
        return ZF_OK;
    st = zfi_selected_show_entered(run, run->clock.waiting_choice);
    run->clock.waiting_choice = 0;
    mark = zfi_mark(run->engine);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        note_write(run, i, mark);
    return st;
}

static zf_status_t run_ahead(zfi_run_t *run, uint64_t t) {
    zf_status_t st = ZF_OK;
    for (uint32_t first = 0; first < run->plan.n_matrices && !st;) {
        uint32_t end = zfi_selected_launch_end(run, first);
        uint64_t mark;
        st = zfi_selected_run_ahead(run, t, first, end);
        mark = zfi_mark(run->engine);
        for (; first < end; first++)
            note_write(run, first, mark);
    }
    return st;
}

/* ---- closes ------------------------------------------------------------------------------------------------------ */

zf_status_t zfi_program_publish(zfi_run_t *run, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &run->plan.cohorts[close->cohort];
    zf_status_t st = zfi_publish_merge(run, close);
    uint64_t mark = zfi_mark(run->engine);
    for (uint32_t i = 0; i < cohort->n_matrices; i++)
        note_write(run, run->plan.cohort_matrices[cohort->first_matrix + i], mark);
    zfi_timeline_signal(&run->engine->lines.publish_due, close->first_publish + close->n_chunks);
    return st;
}

static zf_status_t publish_due(zfi_run_t *run) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < run->clock.n_due && !st; i++)
        st = zfi_program_publish(run, &run->clock.due[i]);
    run->clock.n_due = 0;
    return st;
}

/* The workers' part of a close, and its transfers. */
static zf_status_t start_replay(zfi_run_t *run, const zfi_close_t *close) {
    zf_status_t st = ZF_OK;
    if (close->n_chunks == 0)
        return ZF_OK;
    if (close->sums)
        st = zfi_sums_copy_down(run, close);
    zfi_workers_push(run, close);
    if (!st && !close->is_sums_only)
        st = zfi_selected_round_moments(run, close);
    return st || close->is_sums_only ? st : zfi_publish_upload(run, close);
}

/* Sums on the device: this step's gradients, and what closes now is made ready to travel. */
static zf_status_t add_sums(zfi_run_t *run, uint64_t t) {
    const zfi_config_t *config = &run->engine->config;
    zf_status_t st;
    if (!zfi_sums_on_device(config))
        return ZF_OK;
    st = zfi_sums_add(run, t);
    for (uint32_t c = 0; c < run->plan.n_cohorts && !st && !zfi_is_warm_up(config, t); c++)
        if (run->plan.cohorts[c].n_chunks && zfi_row(run, t)->closes[c])
            st = zfi_sums_round(run, c);
    return st;
}

/* Sums on the host: the cohort's window stays open, its slot of this step is added. */
static zf_status_t add_slot(zfi_run_t *run, uint32_t cohort, uint64_t t) {
    zfi_close_t close;
    if (!zfi_sums_on_host(&run->engine->config))
        return ZF_OK;
    zfi_window_add(run, cohort, t, &close);
    return start_replay(run, &close);
}

static zf_status_t close_window(zfi_run_t *run, uint32_t cohort, uint64_t t) {
    zfi_step_row_t *row = zfi_row(run, t);
    zfi_clock_t *clock = &run->clock;
    zfi_close_t close;
    zf_status_t st;
    zfi_window_close(run, cohort, t, 0, &close);
    st = start_replay(run, &close);
    if (!st && (close.is_warm_up || run->engine->config.publish_lag == 0))
        st = zfi_program_publish(run, &close);
    else
        clock->due[clock->n_due++] = close;
    if (zfi_window_chooses(&run->engine->config, clock, cohort, t)) {
        row->chooses[cohort] = 1;
        row->has_choice = 1;
        clock->last_choice[cohort] = t;
        clock->waiting_choice = t;
    }
    return st;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

zf_status_t zfi_program_step(zfi_run_t *run, uint64_t t) {
    zfi_step_row_t *row = zfi_row(run, t);
    zf_status_t st = zfi_scalars_make(run, t);
    if (!st)
        st = zfi_scalars_record(run, t);
    if (!st)
        st = add_sums(run, t);
    if (!st)
        st = show_entered(run);
    if (!st)
        st = run_ahead(run, t);
    if (!st)
        st = publish_due(run);
    for (uint32_t c = 0; c < run->plan.n_cohorts && !st; c++)
        st = row->closes[c] ? close_window(run, c, t) : add_slot(run, c, t);
    row->end_job = run->clock.next_job;
    if (!st)
        st = zfi_control_start(run, t);
    return st ? st : zfi_scalars_report(run, t);
}

/* ---- between steps ----------------------------------------------------------------------------------------------- */

zf_status_t zfi_program_close_all(zfi_run_t *run) {
    const zfi_config_t *config = &run->engine->config;
    zf_status_t st = publish_due(run);
    for (uint32_t c = 0; c < run->plan.n_cohorts && !st; c++) {
        zfi_close_t close;
        if (zfi_sums_on_device(config) && run->plan.cohorts[c].n_chunks && !zfi_is_warm_up(config, run->clock.t))
            st = zfi_sums_round(run, c);
        zfi_window_close(run, c, run->clock.t, 1, &close);
        if (close.n_chunks == 0)
            continue;
        if (!st)
            st = start_replay(run, &close);
        if (!st)
            st = zfi_program_publish(run, &close);
    }
    zfi_window_restart(run);
    zfi_interval_restart(&run->plan, &run->sel);
    return st;
}

zf_status_t zfi_program_rest(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    _Atomic uint64_t *waited_ns = &engine->count.host_wait_ns;
    zf_status_t st = zfi_synchronise(engine, 1);
    if (!st)
        st = zfi_wait(engine, &engine->lines.batches, engine->n_batches, waited_ns);
    if (!st)
        st = zfi_wait(engine, &engine->lines.down, run->clock.t, waited_ns);
    if (!st)
        st = zfi_wait(engine, &engine->lines.jobs, run->clock.next_job, waited_ns);
    if (!st)
        st = zfi_wait(engine, &engine->lines.control, run->clock.t, waited_ns);
    if (!st) /* what was chosen last has entered, though it is shown with the next step only */
        st = zfi_wait(engine, &engine->lines.entered, run->clock.waiting_choice, waited_ns);
    if (!st) /* what is due later stops where the device's ring is full */
        st = zfi_wait(engine, &engine->lines.up, zfi_publish_at_rest(run), waited_ns);
    return st;
}
