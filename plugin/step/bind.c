/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/bind.c - the ways of a run's steps (contract in updater.h). */
#include "step/matrices.h"
#include "step/publisher.h"
#include "step/updater.h"

typedef enum { EXACT, CARRIED, WINDOWS, WHOLE } way_t;
static const zfi_updater_t *const updaters[] = {[EXACT] = &zfi_updater_exact,
                                                [CARRIED] = &zfi_updater_carried,
                                                [WINDOWS] = &zfi_updater_windows,
                                                [WHOLE] = &zfi_updater_whole};

static way_t way_of(const zfi_policy_t *policy, const zfi_plan_t *plan) {
    if (policy->is_whole || (!policy->selects && plan->n_resident == plan->n_matrices))
        return WHOLE;
    return policy->selects ? WINDOWS : plan->carries ? CARRIED : EXACT;
}

/* [published][gathers_behind] */
static const zfi_publisher_t *const publishers[][2] = {
    [ZFI_PUBLISHED_AT_STEP] = {&zfi_publisher_at_step, &zfi_publisher_at_step},
    [ZFI_PUBLISHED_NEXT_STEP] = {&zfi_publisher_next_step, &zfi_publisher_gathered_later},
    [ZFI_PUBLISHED_AT_FETCH] = {&zfi_publisher_at_fetch, &zfi_publisher_gathered},
};

void zfi_step_bind(zfi_run_t *run) {
    const zfi_policy_t *policy = &run->engine->policy;
    run->updater = updaters[way_of(policy, &run->plan)];
    run->by_host = run->plan.n_whole ? zfi_matrices_update : NULL;
    run->publisher = publishers[policy->published][zfi_gathers_behind(run->engine)];
}
