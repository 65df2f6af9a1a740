/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/gathered.c - publishing at fetch where each rank keeps a part of the state (contract in publisher.h;
 * model in ranks/values_at_fetch.h). */
#include "ranks/values_at_fetch.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/unfetched.h"

static void show(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++)
        zfi_values_show(publishing, i);
}

static void end(zfi_publishing_t *publishing, uint64_t t) {
    zfi_close_t residents = {
        .cohort = publishing->plan->n_cohorts, .step = t, .first_job = publishing->clock->next_job};
    if (zfi_is_warm_up(publishing->clock, t)) {
        zfi_publish_share(publishing, t);
        return;
    }
    if (publishing->plan->n_resident)
        zfi_unfetched_keep(publishing, &residents);
    zfi_values_send(publishing, t);
}

static zf_status_t fetch(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    return zfi_unfetched_show(publishing, first, end, 0, show);
}

static zf_status_t rest(zfi_publishing_t *publishing) {
    zf_status_t st = zfi_unfetched_show(publishing, 0, publishing->plan->n_matrices, 1, show);
    zfi_values_end(publishing);
    publishing->clock->n_due = 0;
    return st;
}

/* They travel all the same: other ranks issue the same exchanges. */
static zf_status_t drop(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end && publishing->clock->n_due; i++)
        publishing->unfetched->is_done[i] = 1;
    return ZF_OK;
}

const zfi_publisher_t zfi_publisher_gathered = {zfi_unfetched_keep, end, fetch, rest, drop};
