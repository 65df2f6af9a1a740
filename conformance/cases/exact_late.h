/* SPDX-License-Identifier: Apache-2.0 */
/* exact_late.h - a checkpoint of a late step: its counts of updates and its clock are moved on before it is loaded, as
 * abi/CHECKPOINT.md says that a tool may do. So steps with bias corrections, and random numbers, of millions of steps
 * are compared as all others. */
#pragma once

#include "exact_run.h"
#include "exact_store.h"

/* Perhaps moves on what was saved, of a case at most once; the oracle and the case's hyper-parameters follow.
 * has_clock: the steps of its schedule, too. is_there: the files are this process's to change. */
void zx_late_move(zx_run_t *run, const zx_store_t *store, int has_clock, int is_there);
