/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/unfetched.c - what waits to be fetched (contract in unfetched.h). */
#include "step/unfetched.h"

#include <string.h>

#include "step/guard.h"

/* All of a close is left. */
static void count(zfi_publishing_t *publishing, const zfi_close_t *close) {
    for (uint32_t i = 0; i < close->n_chunks; i++)
        publishing->unfetched->n_left[(close->first_job + i) % publishing->plan->max_close_chunks] =
            publishing->plan->chunks[zfi_cohort_chunk(publishing->plan, close->cohort, i)].n_segments;
}

void zfi_unfetched_keep(zfi_publishing_t *publishing, const zfi_close_t *close) {
    zfi_clock_t *clock = publishing->clock;
    if (clock->n_due == 0) {
        publishing->unfetched->merged = close->first_job;
        memset(publishing->unfetched->is_done, 0, publishing->plan->n_matrices);
    }
    clock->due[clock->n_due++] = *close;
    count(publishing, close);
}

/* Matrices [first, end), none of which is done. */
static zf_status_t show_matrices(zfi_publishing_t *publishing, uint32_t first, uint32_t end, int is_checked,
                                 zfi_show_fn show) {
    if (!is_checked)
        zfi_guard_check_closes(publishing->side, publishing->clock->due, publishing->clock->n_due, first, end);
    show(publishing, first, end);
    zfi_list_mark(&publishing->engine->to_device, &publishing->writes->any);
    zf_status_t st = zfi_send(publishing->engine);
    for (uint32_t i = first; i < end; i++) {
        publishing->unfetched->is_done[i] = 1;
        publishing->writes->fetched[i] = publishing->writes->any;
    }
    return st;
}

zf_status_t zfi_unfetched_show(zfi_publishing_t *publishing, uint32_t first, uint32_t end, int is_checked,
                               zfi_show_fn show) {
    const uint8_t *is_done = publishing->unfetched->is_done;
    zf_status_t st = ZF_OK;
    uint32_t next;
    for (; publishing->clock->n_due && first < end && !st; first = next) {
        for (next = first; next < end && !is_done[next]; next++) {
        }
        if (next == first)
            next++;
        else
            st = show_matrices(publishing, first, next, is_checked, show);
    }
    return st;
}
