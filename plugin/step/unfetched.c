/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/unfetched.c - what waits to be fetched (contract in unfetched.h). */
#include "step/unfetched.h"

#include <string.h>

#include "step/guard.h"

void zfi_unfetched_keep(zfi_run_t *run, const zfi_close_t *close) {
    zfi_clock_t *clock = &run->clock;
    if (clock->n_due == 0) {
        run->unfetched.merged = close->first_job;
        memset(run->unfetched.is_done, 0, run->plan.n_matrices);
    }
    clock->due[clock->n_due++] = *close;
    for (uint32_t i = 0; i < close->n_chunks; i++)
        run->unfetched.n_left[(close->first_job + i) % run->plan.max_close_chunks] =
            run->plan.chunks[zfi_cohort_chunk(&run->plan, close->cohort, i)].n_segments;
}

/* Matrices [first, end), none of which is done. */
static zf_status_t show_matrices(zfi_run_t *run, uint32_t first, uint32_t end, int is_checked, zfi_show_fn show) {
    zf_status_t st;
    for (uint32_t i = 0; i < run->clock.n_due && !is_checked; i++)
        zfi_guard_check_close(run, &run->clock.due[i], first, end);
    show(run, first, end);
    zfi_list_mark(&run->engine->to_device, &run->writes.any);
    st = zfi_send(run->engine);
    for (uint32_t i = first; i < end; i++) {
        run->unfetched.is_done[i] = 1;
        run->writes.fetched[i] = run->writes.any;
    }
    return st;
}

zf_status_t zfi_unfetched_show(zfi_run_t *run, uint32_t first, uint32_t end, int is_checked, zfi_show_fn show) {
    const uint8_t *is_done = run->unfetched.is_done;
    zf_status_t st = ZF_OK;
    uint32_t next;
    for (; run->clock.n_due && first < end && !st; first = next) {
        for (next = first; next < end && !is_done[next]; next++) {
        }
        if (next == first)
            next++;
        else
            st = show_matrices(run, first, next, is_checked, show);
    }
    return st;
}
