/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/pace.c - times taken during warm-up (contract in pace.h).
 *
 * A step is timed by what the timelines say of it: its norm is known, its gradients are down, its windows are replayed,
 * its weights are visible. In warm-up these follow each other, so the differences are the times of the parts. Medians
 * of the newest steps count: a host's first steps are slow (compilation, page faults), and others now and then. */
#include "offload/pace.h"

#include <string.h>

/* ---- taking times ------------------------------------------------------------------------------------------------ */

static zf_status_t pass(zfi_run_t *run, zfi_timeline_t *line, uint64_t value, uint64_t *out_ns) {
    zf_status_t st = zfi_wait(run->engine, line, value, NULL);
    *out_ns = zfi_now_ns();
    return st;
}

zf_status_t zfi_pace_measure(zfi_run_t *run, const zfi_step_row_t *row) {
    zfi_timelines_t *lines = &run->engine->lines;
    zfi_pace_t *pace = &run->pace;
    zfi_paced_step_t *step = &pace->steps[pace->n_steps % ZFI_PACE_STEPS];
    zf_status_t st;
    *step = (zfi_paced_step_t){.t = row->t};
    st = pass(run, &lines->finished, row->t, &step->normed_ns);
    if (!st)
        st = pass(run, &lines->down, row->t, &step->down_ns);
    if (!st)
        st = pass(run, &lines->jobs, row->end_job, &step->replayed_ns);
    if (!st)
        st = pass(run, &lines->stepped, row->t, &step->shown_ns);
    step->waited_ns = atomic_load(&run->engine->count.stall_replay_ns);
    step->is_whole = row->scalars.applied && row->n_present && !row->n_missing;
    pace->n_steps++;
    return st;
}

typedef struct fetch_args {
    zfi_run_t *run;
    uint64_t number, points;
} fetch_args_t;

static void note_fetch(void *raw) {
    const fetch_args_t *args = raw;
    zfi_pace_t *pace = &args->run->pace;
    uint64_t now;
    if (pass(args->run, &args->run->engine->lines.fetched, args->number, &now) || !pace->n_steps)
        return;
    for (uint32_t i = 0; i < ZFI_FIT_POINTS; i++)
        if (args->points >> i & 1)
            pace->steps[(pace->n_steps - 1) % ZFI_PACE_STEPS].fetched_ns[i] = now;
}

/* The state of this rank is cut into equal parts: the one in which a parameter's ends. */
static uint32_t point_of(const zfi_run_t *run, uint32_t id) {
    const zfi_param_t *param = &run->params[run->params[id].owner];
    uint32_t first, n = zfi_owned_matrices(&run->plan, param, &first);
    const zfi_matrix_t *last = &run->plan.matrices[first + n - 1];
    const zfi_tile_t *tile = &run->plan.tiles[last->first_tile + last->n_tiles - 1];
    return (uint32_t)((tile->state_base + tile->n_elems - 1) * ZFI_FIT_POINTS / run->plan.n_state_elems);
}

zf_status_t zfi_pace_fetch(zfi_run_t *run, const uint32_t *ids, uint32_t n) {
    zfi_engine_t *engine = run->engine;
    uint64_t points = n ? 0 : (uint64_t)1 << (ZFI_FIT_POINTS - 1);
    uint32_t first;
    fetch_args_t args;
    zf_status_t st;
    if (!engine->config.is_interval_fit || !run->plan.n_chunks)
        return ZF_OK;
    for (uint32_t i = 0; i < n; i++)
        if (zfi_owned_matrices(&run->plan, &run->params[run->params[ids[i]].owner], &first))
            points |= (uint64_t)1 << point_of(run, ids[i]);
    points &= ~run->pace.fetched;
    if (!points)
        return ZF_OK;
    run->pace.fetched |= points;
    args = (fetch_args_t){run, ++engine->n_fetches, points};
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.fetched, args.number));
    st = zfi_send(engine);
    return st ? st : zfi_serial_start(engine->control, note_fetch, &args, sizeof args);
}

void zfi_pace_step(zfi_run_t *run) { run->pace.fetched = 0; }

/* ---- what was measured ------------------------------------------------------------------------------------------- */

typedef struct sorted {
    double values[ZFI_PACE_STEPS];
    uint32_t n;
} sorted_t;

static void add_s(sorted_t *sorted, uint64_t from_ns, uint64_t to_ns) {
    double value = to_ns > from_ns ? 1e-9 * (double)(to_ns - from_ns) : 0;
    uint32_t i = sorted->n++;
    for (; i && sorted->values[i - 1] > value; i--)
        sorted->values[i] = sorted->values[i - 1];
    sorted->values[i] = value;
}

static double median(const sorted_t *sorted) {
    return sorted->n ? (sorted->values[(sorted->n - 1) / 2] + sorted->values[sorted->n / 2]) / 2 : 0;
}

/* Measured step i steps before the newest; NULL: none. */
static const zfi_paced_step_t *step_before(const zfi_pace_t *pace, uint64_t i) {
    return i < pace->n_steps && i < ZFI_PACE_STEPS ? &pace->steps[(pace->n_steps - 1 - i) % ZFI_PACE_STEPS] : NULL;
}

static void find_points(const zfi_pace_t *pace, zfi_fit_times_t *out) {
    for (uint32_t k = 0; k < ZFI_FIT_POINTS; k++) {
        sorted_t at = {.n = 0};
        const zfi_paced_step_t *step;
        for (uint64_t i = 0; (step = step_before(pace, i)) != NULL; i++)
            if (step->fetched_ns[k])
                add_s(&at, step->shown_ns, step->fetched_ns[k]);
        if (at.n)
            out->points[out->n_points++] = (zfi_fit_point_t){median(&at), (k + 1.0) / ZFI_FIT_POINTS};
    }
}

/* From the norm on, what the device does not wait it works; where that lasts longer than the replay, values came late
 * for want of the link, or were merged slowly. */
uint32_t zfi_pace_times(const zfi_run_t *run, zfi_fit_times_t *out) {
    const zfi_pace_t *pace = &run->pace;
    sorted_t steps = {.n = 0}, down = {.n = 0}, replay = {.n = 0}, whole = {.n = 0}, merge = {.n = 0};
    const zfi_paced_step_t *step, *before;
    for (uint64_t i = 0; (step = step_before(pace, i)) != NULL && (before = step_before(pace, i + 1)) != NULL; i++) {
        if (!step->is_whole || before->t + 1 != step->t)
            continue;
        add_s(&steps, before->shown_ns, step->normed_ns);
        add_s(&down, step->normed_ns, step->down_ns);
        add_s(&replay, step->down_ns, step->replayed_ns);
        add_s(&whole, step->down_ns, step->shown_ns);
        add_s(&merge, step->normed_ns + (step->waited_ns - before->waited_ns), step->shown_ns);
    }
    *out = (zfi_fit_times_t){.step_s = median(&steps), .down_s = median(&down), .merge_s = median(&merge)};
    out->replay_s[1] = median(&replay);
    out->travel_s = median(&whole);
    find_points(pace, out);
    return steps.n;
}
