/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values_at_fetch.h - publishing at fetch (at_fetch.h) where each rank keeps a part of the state.
 *
 * Model. What closes at a step travels from the step on, and what is resident with it, whatever the hosts fetch and
 * when: bucket by bucket in the order of the next forward pass, each as soon as this rank has replayed its part of it.
 * Whoever fetches a matrix waits for its bucket alone:
 *
 *   workers   replay bucket 2 | bucket 1 | bucket 0 |
 *   device    fill 2, 1, 0                                            with residents' slices
 *   up stream                 | copy 2   | copy 1   | copy 0 |        from the host's ring into the buckets' value
 * memory values                        | all-gather 2 | all-gather 1 | ... device fetch of 2: write  | fetch of 1 ...
 * where channels are not selected
 *
 * A bucket's value memory is the device's where it has none of its own, or the transport moves it. Else it is the
 * host's, page-locked: a rank's part passes through one place on the device, and what fetches a matrix reads it there.
 *
 * The value memory is written again by the next closes, after all that was not fetched has become visible. So each rank
 * issues the same exchanges in the same order, though hosts may fetch in another order, at other times, or never. */
#pragma once

#include "instance/run.h"

/* [hook] The closes of the newest step, publishing->clock->due, are complete, their replay is enqueued, and residents
 * are updated: their values travel. */
void zfi_values_send(zfi_publishing_t *publishing, uint64_t step);

/* [hook] The values of a matrix in these closes become visible, of every rank. */
void zfi_values_show(zfi_publishing_t *publishing, uint32_t number);

/* [hook] Nothing waits to be fetched any more: their memory is free. */
void zfi_values_end(zfi_publishing_t *publishing);
