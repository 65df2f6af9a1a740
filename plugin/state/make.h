/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/make.h - making and freeing a run. */
#pragma once

#include "instance/run.h"

/* [control] The plan of the buckets that there are, and what ranks exchange by it: counted, and again with each call.
 */
zf_status_t zfi_run_plan(zfi_ranks_t *ranks, zf_error_t *err);

/* [control] A run of these parameters: plan, memory, windows, workers. Takes params over, also on failure.
 * reads_visible: masters are the visible values, else nothing. engine->n_workers is set. */
zf_status_t zfi_run_new(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params, int reads_visible,
                        const char *origin, zfi_run_t **out, zf_error_t *err);
/* [control] Everything else is idle. NULL is legal. */
void zfi_run_free(zfi_run_t *run);
