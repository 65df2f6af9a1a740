/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/lost.c - updates that a destroy without FLUSH loses (contract in lost.h). */
#include "hooks/lost.h"

#include <inttypes.h>

#include "schedule/window.h"

/* A gradient that was applied waits in the open window. */
static int has_open_update(const zfi_windows_t *windows, uint32_t number) {
    uint32_t cohort = windows->plan->matrices[number].cohort;
    for (uint64_t t = windows->clock->window_first[cohort]; t <= windows->clock->t; t++)
        if (zfi_window_has_slot(windows, number, t) && zfi_row(windows->rows, t)->scalars.applied)
            return 1;
    return 0;
}

/* A closed window's values wait for the next step, or for a fetch. */
static int is_due(const zfi_publishing_t *publishing, uint32_t number) {
    const zfi_clock_t *clock = publishing->clock;
    const zfi_matrix_t *matrix = &publishing->plan->matrices[number];
    const uint8_t *is_done = publishing->unfetched->is_done;
    for (uint32_t i = 0; i < clock->n_due; i++)
        if (clock->due[i].cohort == zfi_listed_cohort(publishing->plan, matrix))
            return (!is_done || !is_done[number]) && clock->due[i].first_job >= clock->skip_publish_below[number];
    return 0;
}

/* Elements of channels that are not selected, which are those that lag behind. */
static uint64_t n_deferred(const zfi_selection_t *sel, const zfi_matrix_t *matrix) {
    uint32_t k = sel->last_choice ? matrix->k : 0;
    return (matrix->n_channels - k) * (matrix->rows * matrix->cols / matrix->n_channels);
}

void zfi_lost_warn(const zf_instance_t *inst) {
    const zfi_run_t *run = inst->run;
    uint32_t n_params = 0, last = ZF_NO_ID;
    uint64_t n_elems = 0;
    for (uint32_t i = 0; i < run->plan.n_matrices; i++) {
        uint64_t n = n_deferred(&run->sel, &run->plan.matrices[i]);
        if (!n || !(has_open_update(&run->windows, i) || is_due(&run->publishing, i)))
            continue;
        n_elems += n;
        n_params += run->plan.matrices[i].param != last;
        last = run->plan.matrices[i].param;
    }
    if (n_elems)
        zfi_log(&inst->engine, ZF_LOG_WARN, "destroy",
                "%" PRIu64 " elements of %" PRIu32 " parameters end without their newest updates, which were under "
                "way: quiesce(FLUSH) or ZF_DESTROY_FLUSH brings them",
                n_elems, n_params);
}
