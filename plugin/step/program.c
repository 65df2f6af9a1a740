/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/program.c - the programs of a step (contract in program.h).
 *
 * Order of what is enqueued on the device stream: finish, check of all visible values, what was not fetched,
 * entering channels, run-ahead, the host's own part (instance/run.h), publishes due, closes (published at once where
 * publish_lag = 0 and the host does not fetch), report. */
#include "step/program.h"

#include <string.h>

#include "ranks/ranks.h"
#include "ranks/shards.h"
#include "replay/early.h"
#include "replay/state_arrays.h"
#include "schedule/interval.h"
#include "schedule/window.h"
#include "step/gradients.h"
#include "step/guard.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/resident.h"
#include "step/scalars.h"
#include "step/selected.h"
#include "step/updater.h"

zf_status_t zfi_program_ship(zfi_run_t *run, uint64_t number) {
    zfi_gradients_begin(run->engine, &run->plan, &run->clock);
    zfi_gradients_ship(&run->side, &run->windows, &run->incoming.batch_ring[number % ZFI_N_BATCHES], number);
    return zfi_send(run->engine);
}

/* ---- visible writes ---------------------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

uint64_t zfi_program_newest_write(const zfi_run_t *run, uint32_t first, uint32_t end) {
    const zfi_plan_t *plan = &run->plan;
    const zfi_matrix_t *matrices = plan->matrices;
    uint64_t newest = run->writes.entered;
    if (first == end)
        return 0;
    newest = larger(newest, run->writes.run_ahead[matrices[end - 1].launch]);
    for (uint32_t i = first; i < end && run->writes.fetched; i++)
        newest = larger(newest, run->writes.fetched[i]);
    if (end - first > plan->n_cohorts) { /* in all of them, most likely */
        for (uint32_t c = 0; c < plan->n_cohorts; c++)
            newest = larger(newest, run->writes.publish[c]);
        return newest;
    }
    for (uint32_t i = first; i < end; i++)
        newest = larger(newest, run->writes.publish[matrices[i].cohort]);
    return newest;
}

void zfi_program_forget_writes(zfi_run_t *run) {
    run->shards.newest = 0;
    run->writes.any = run->writes.entered = 0;
    memset(run->writes.run_ahead, 0, run->plan.n_launches * sizeof *run->writes.run_ahead);
    memset(run->writes.publish, 0, run->plan.n_cohorts * sizeof *run->writes.publish);
    if (run->writes.fetched)
        memset(run->writes.fetched, 0, run->plan.n_matrices * sizeof *run->writes.fetched);
}

/* ---- selected channels ------------------------------------------------------------------------------------------- */

static void show_entered(zfi_run_t *run) {
    if (!run->clock.waiting_choice)
        return;
    zfi_selected_show_entered(run->engine, &run->dev, run->clock.waiting_choice);
    run->clock.waiting_choice = 0;
    zfi_publish_note(run->engine, &run->writes, &run->writes.entered);
}

/* Each launch is sent before the next one is added, so that a fetch of its parameters need not wait for others.
 * Where ranks own parts of the gradient of selected channels, it waits for the last bucket's where it has some of it.
 */
static void update_by_launches(zfi_run_t *run, uint64_t t) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < run->plan.n_launches; i++) {
        if (i)
            (void)zfi_send(run->engine);
        if (zfi_ranks_selects(&run->ranks, t))
            zfi_ranks_await_selected(&run->ranks, first, run->plan.launch_ends[i]);
        run->updater->update(&run->side, t, zfi_is_warm_up(&run->clock, t), first, run->plan.launch_ends[i]);
        zfi_publish_note(run->engine, &run->writes, &run->writes.run_ahead[i]);
        first = run->plan.launch_ends[i];
    }
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

zf_status_t zfi_program_step(zfi_run_t *run, uint64_t t, int is_checked) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    zfi_gradients_begin(run->engine, &run->plan, &run->clock);
    zfi_scalars_make(&run->side, &run->ranks, row);
    zfi_scalars_down(&run->side, &run->sel, row);
    if (!is_checked)
        zfi_guard_check(&run->side);
    (void)run->publisher->rest(&run->publishing); /* a failure stays with the lists */
    show_entered(run);
    update_by_launches(run, t);
    zf_status_t st = zfi_send(run->engine); /* run-ahead is not held up by publishes */
    if (!st && run->by_host)
        st = run->by_host(&run->state, t);
    if (st)
        return st;
    run->updater->end(run, t);
    zfi_shards_begin(&run->ranks);
    zfi_scalars_report(&run->side, row);
    st = zfi_send(run->engine);
    if (!st)
        st = run->updater->choose(&run->state, t);
    zfi_scalars_record(&run->side, &run->sel, t);
    return st ? st : zfi_send(run->engine);
}

/* ---- between steps ----------------------------------------------------------------------------------------------- */

zf_status_t zfi_program_close_all(zfi_run_t *run) {
    run->updater->flush(run);
    zfi_publish_share(&run->publishing, run->clock.t);
    zfi_shards_begin(&run->ranks);
    zfi_window_restart(&run->windows);
    zfi_interval_restart(&run->plan, &run->sel);
    return zfi_send(run->engine);
}

zf_status_t zfi_program_rest(zfi_run_t *run) {
    if (run->clock.n_due) /* a parameter that the host wrote shows nothing new, whichever of its matrices were due */
        zfi_guard_check(&run->side);
    zf_status_t st = run->publisher->rest(&run->publishing);
    return st ? st : zfi_program_rest_but_unfetched(run);
}

/* What threads and streams reach once all that they were given is over. */
enum { N_ENDS = 7 };
typedef struct end {
    zfi_timeline_t *line;
    uint64_t value;
} end_t;

static end_t end_at(const zfi_run_t *run, uint32_t i) {
    zfi_engine_t *engine = run->engine;
    const end_t ends[N_ENDS] = {
        {&engine->lines.batches, engine->n_batches},
        {&engine->lines.down, run->clock.t},
        {&engine->lines.jobs, run->clock.next_job},
        {&engine->lines.control, run->clock.t},
        /* what was chosen last has entered, though it is shown with the next step only */
        {&engine->lines.entered, run->clock.waiting_choice},
        /* what is due later stops where the device's ring is full */
        {&engine->lines.up, zfi_publish_at_rest(&run->publishing)},
        /* values of several ranks, also those that nobody has asked for yet */
        {&engine->lines.shared, engine->n_shared},
    };
    return ends[i];
}

zf_status_t zfi_program_rest_but_unfetched(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    _Atomic uint64_t *waited_ns = &engine->count.host_wait_ns;
    zfi_early_drop(run->early);
    zf_status_t st = zfi_synchronise(engine, 1);
    for (uint32_t i = 0; i < N_ENDS && !st; i++)
        st = zfi_wait(engine, end_at(run, i).line, end_at(run, i).value, waited_ns);
    if (!st)
        st = zfi_resident_check(run->engine, run->params);
    return st ? st : zfi_state_take_counts(&run->state);
}

zf_status_t zfi_program_ends_within(zfi_run_t *run, uint64_t ns) {
    zfi_engine_t *engine = run->engine;
    uint64_t waited = 0;
    zf_status_t st = zfi_send(engine);
    if (!st)
        st = engine->ops->synchronise(engine->stream, engine->ops->mark(engine->stream), ns, &waited);
    for (uint32_t i = 0; i < N_ENDS && !st; i++)
        st = zfi_timeline_wait(end_at(run, i).line, end_at(run, i).value, waited < ns ? ns - waited : 0, &waited);
    atomic_fetch_add(&engine->count.host_wait_ns, waited);
    return st;
}
