/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/bind.c - the ways of a run's steps (contract in updater.h). */
#include "step/matrices.h"
#include "step/publisher.h"
#include "step/updater.h"

/* [is_whole][selects] */
static const zfi_updater_t *const updaters[][2] = {{&zfi_updater_exact, &zfi_updater_windows}, {&zfi_updater_whole}};

/* [published][gathers_behind] */
static const zfi_publisher_t *const publishers[][2] = {
    [ZFI_PUBLISHED_AT_STEP] = {&zfi_publisher_at_step, &zfi_publisher_at_step},
    [ZFI_PUBLISHED_NEXT_STEP] = {&zfi_publisher_next_step, &zfi_publisher_gathered_later},
    [ZFI_PUBLISHED_AT_FETCH] = {&zfi_publisher_at_fetch, &zfi_publisher_gathered},
};

void zfi_step_bind(zfi_run_t *run) {
    const zfi_policy_t *policy = &run->engine->policy;
    int is_whole = policy->is_whole || (!policy->selects && run->plan.n_resident == run->plan.n_matrices);
    run->updater = updaters[is_whole][policy->selects];
    run->by_host = run->plan.n_whole ? zfi_matrices_update : NULL;
    run->publisher = publishers[policy->published][zfi_gathers_behind(run->engine)];
}
