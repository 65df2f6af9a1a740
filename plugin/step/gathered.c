/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/gathered.c - publishing behind a step where each rank keeps a part of the state: at fetch, or at the end
 * of the next step (contract in publisher.h; model in ranks/values_behind.h). */
#include "ranks/values_behind.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/unfetched.h"

/* ---- at fetch ---------------------------------------------------------------------------------------------------- */

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

const zfi_publisher_t zfi_publisher_gathered = {zfi_unfetched_keep, end, zfi_publish_nothing, fetch, rest, drop};

/* ---- at the end of the next step --------------------------------------------------------------------------------- */

/* Residents have no window: all ranks show them in their own step, by the memory that windows' values take next. */
static void end_later(zfi_publishing_t *publishing, uint64_t t) {
    zfi_publish_share(publishing, t);
    zfi_values_send(publishing, t);
}

static void due(zfi_publishing_t *publishing) {
    zfi_clock_t *clock = publishing->clock;
    for (uint32_t i = 0; i < clock->n_due; i++)
        clock->due[i].turn = clock->n_choices & 1; /* of the newest choice */
    zfi_values_show_all(publishing);
    for (uint32_t i = 0; i < clock->n_due; i++)
        zfi_publish_note(publishing->engine, publishing->writes, &publishing->writes->publish[clock->due[i].cohort]);
    zfi_values_end(publishing);
    clock->n_due = 0;
}

static zf_status_t fetch_nothing(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    (void)publishing, (void)first, (void)end;
    return ZF_OK;
}

static zf_status_t rest_later(zfi_publishing_t *publishing) {
    (void)publishing;
    return ZF_OK;
}

const zfi_publisher_t zfi_publisher_gathered_later = {zfi_unfetched_keep, end_later,  due,
                                                      fetch_nothing,      rest_later, drop};
