/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/parts.h - a model that several instances train: whose checkpoint is whose.
 *
 * Model. The norm group trains one model. Ranks that hold the same parameters hold one part of it and have one
 * checkpoint, in a directory of its own: those of group 0 (a stage of a pipeline, a slice of tensor parallelism), or,
 * where group 0 has experts, those that have the same ones. Parts are numbered by their lowest rank in the norm group.
 * An index says which part it holds, so that directories cannot be exchanged unnoticed, and before anything is loaded
 * all ranks compare what they are about to load: every part is of the same step, and weights that several parts hold
 * beside their experts are the same in each. */
#pragma once

#include "instance/instance.h"
#include "state/together.h"
#include "zf/ext/state.h"

/* [hook] Opens a meeting of the ranks that have this run's checkpoint. */
void zfi_parts_open(const zfi_run_t *run, zfi_together_t *out);

/* [hook] Which part that is goes to together->part; each has a path of its own. Of all ranks of the norm group,
 * whatever went before (st, err): what failed on one fails on all. path: NULL where that failed, or to a store. */
zf_status_t zfi_parts_meet(zf_instance_t *inst, const char *path, zfi_together_t *together, zf_status_t st,
                           zf_error_t *err);

/* [hook] What is about to be loaded; st, err: of zfi_parts_meet, which is the same on all ranks of the norm group. */
zf_status_t zfi_parts_compare(zf_instance_t *inst, const zf_state_args_t *args, zfi_together_t *together,
                              zf_status_t st, zf_error_t *err);
