/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/windows.c - windows close, are replayed and published, and channels are chosen (contract in updater.h;
 * rules in SCHEDULE.md, "Step t"); and the same where none is chosen, and each step is a window. */
#include "replay/workers.h"
#include "schedule/window.h"
#include "step/control.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/resident.h"
#include "step/selected.h"
#include "step/updater.h"

/* A window closes, and is replayed. */
static zfi_close_t begin_close(zfi_run_t *run, uint32_t cohort, uint64_t t, int publishes_all) {
    zfi_close_t close;
    zfi_window_close(&run->windows, cohort, t, publishes_all, &close);
    atomic_fetch_add(&run->engine->count.window_closes, 1);
    zfi_workers_push(run->workers, &close);
    return close;
}

/* The selected channels' part of a close. Where it has no chunk, other ranks keep the state of all its matrices, but
 * what is selected is here too. */
static void round_selected(const zfi_device_side_t *side, const zfi_close_t *close) {
    if (close->n_chunks || zfi_is_sharded(side->engine))
        zfi_selected_round_moments(side, close);
}

static void close_window(zfi_run_t *run, uint32_t cohort, uint64_t t) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    zfi_clock_t *clock = &run->clock;
    zfi_close_t close = begin_close(run, cohort, t, 0);
    round_selected(&run->side, &close);
    (close.is_warm_up ? &zfi_publisher_at_step : run->publisher)->close(&run->publishing, &close);
    if (zfi_window_chooses(clock, cohort, t)) {
        row->chooses[cohort] = 1;
        row->has_choice = 1;
        clock->last_choice[cohort] = t;
        clock->waiting_choice = t;
    }
}

static void update(const zfi_device_side_t *side, uint64_t t, int is_warm_up, uint32_t first, uint32_t end) {
    zfi_selected_run_ahead(side, t, is_warm_up, first, end);
    zfi_resident_update(side, t, first, end);
}

/* Windows, publications and choices. */
static void end(zfi_run_t *run, uint64_t t) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    zfi_resident_end(run->engine, t);
    run->publisher->due(&run->publishing);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        if (row->closes[c])
            close_window(run, c, t);
    run->publisher->end(&run->publishing, t);
    row->end_job = run->clock.next_job;
    if (row->has_choice) /* closes of this step were merged, or are, by the mask before it */
        row->choice_turn = ++run->clock.n_choices & 1;
}

static void flush(zfi_run_t *run) {
    zfi_resident_show(&run->publishing);
    run->publisher->due(&run->publishing);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++) {
        zfi_close_t close = begin_close(run, c, run->clock.t, 1);
        round_selected(&run->side, &close);
        zfi_publisher_at_step.close(&run->publishing, &close);
    }
}

const zfi_updater_t zfi_updater_windows = {update, end, zfi_control_start, flush, 1 << 20};

/* ---- no channel is selected -------------------------------------------------------------------------------------- */

/* Every window closes at its one step. */
static void end_exact(zfi_run_t *run, uint64_t t) {
    zfi_resident_end(run->engine, t);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++) {
        zfi_close_t close = begin_close(run, c, t, 1);
        run->publisher->close(&run->publishing, &close);
    }
    run->publisher->end(&run->publishing, t);
    zfi_row(&run->rows, t)->end_job = run->clock.next_job;
}

const zfi_updater_t zfi_updater_exact = {zfi_resident_alone, end_exact, zfi_control_pass, flush, 1 << 20};

/* Nothing is due or open, and the memory of what is shown may have the coming step's gradients. */
static void flush_nothing(zfi_run_t *run) { (void)run; }

const zfi_updater_t zfi_updater_carried = {zfi_resident_alone, end_exact, zfi_control_pass, flush_nothing, 1 << 20};
