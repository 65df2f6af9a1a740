/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values.h - each rank keeps a part of the state: what one has published, all show.
 *
 * Model. At the end of a step, each rank shows new values of its own slices of the matrices whose windows were
 * published, and of resident ones. Those alone are packed into the buckets' value memory, gathered, and written where
 * the others' slices are: how many there are of each rank follows from the layout, and each sends as many bytes as the
 * one that has most. Both go on the device stream, buckets in the order of the next forward pass: their last one first.
 * Two buckets take turns in that memory: while one travels, the next is packed. Where they need not be
 * visible at the end of the step, they travel otherwise after warm-up, and each bucket has memory of its own
 * (values_behind.h). */
#pragma once

#include "instance/run.h"

/* [hook] Values of a cohort, or (plan.n_cohorts) of what is resident, become visible with what is collected so far, on
 * the ranks that own them. */
void zfi_values_note(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t cohort);

/* [hook] What was noted becomes visible on every rank. 1: visible values are written. */
int zfi_values_share(zfi_ranks_t *ranks, uint64_t step);

/* [hook] All values that were handed over are visible with what is collected so far: their memory is free then. */
void zfi_values_free_memory(zfi_engine_t *engine);
