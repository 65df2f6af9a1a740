/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/selected_sums.h - each rank has the sums of its own parts of the buckets: what all of them need of
 * those, the gradient of the selected channels, travels packed.
 *
 * Model. Once a bucket is summed, this rank gathers what it owns of its compact gradient, whatever parameters have a
 * gradient: of others the sums are 0, and nobody reads what comes of them. Of each bucket a rank sends the elements of
 * the selected channels that it owns, one behind the other: matrix by matrix, in the order of the compact gradient.
 * Where they lie follows from layout and selection, which are the same everywhere, so nothing but gradients travels.
 * Each rank sends as many bytes as the one that has most; never more than its part of the bucket. Then every rank has
 * the whole compact gradient, and runs ahead as one rank does: the values of selected channels need not travel.
 *
 *   compact gradient   | 0 0 | 1 1 | 2 2 |     a row per row of the matrix, a column per selected channel
 *                      | 0 0 | 1 1 | 2 2 |     (here of six rows, two of each of three ranks)
 *
 * It is the communication thread's work, under the backward pass, and over before the device's run-ahead: that of each
 * bucket behind its sums, but of the last one, which ends the backward pass and begins the next forward pass, behind
 * the norm. Order and lengths follow from layout and selection alone, whenever a rank hands over which bucket. It reads
 * the device's list of selected channels, which follows the choices before this step. */
#pragma once

#include "instance/run.h"

/* n neighbours in the compact memory of a matrix, from element `at` on. */
typedef void (*zfi_selected_fn)(uint64_t at, uint64_t n, void *arg);

/* Calls fn (or not, NULL) for what a slice of a matrix has in its compact memory, in that order; index: its selected
 * channels. Returns how many elements that is. */
uint64_t zfi_selected_stretches(const zfi_matrix_t *matrix, const uint32_t *index, const zfi_slice_t *slice,
                                zfi_selected_fn fn, void *arg);

/* [communication thread] The compact gradient of a bucket, whose sums are there, becomes that of all ranks. A failure
 * has ended the instance. */
zf_status_t zfi_selected_sums_gather(zfi_ranks_t *ranks, uint32_t bucket, uint64_t t);

/* [control] Maps what it needs in page-locked memory: mirrors of the compact gradient and of the list behind it; where
 * the device's memory is exchanged, of the list alone, and the table of what the device packs and unpacks. */
zf_status_t zfi_selected_sums_map(zfi_ranks_t *ranks, zf_error_t *err);
/* [hook] The device stream, before a step's first bucket is handed over: the list comes to where the host finds it. */
void zfi_selected_sums_down(zfi_ranks_t *ranks);
