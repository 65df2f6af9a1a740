/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values_behind.h - values of closed windows travel to all ranks behind the step that closes them, where
 * each rank keeps a part of the state.
 *
 * Model. What closes at a step travels from the step on: bucket by bucket in the order of the next forward pass, each
 * as soon as this rank has replayed its part of it. Residents travel with it where values are published at fetch. Who
 * needs a matrix waits for its bucket alone: a fetch; or with publish_lag = 1 the end of the next step.
 *
 *   workers    replay bucket 2 | bucket 1 | bucket 0 |
 *   device     fill 2, 1, 0                                        residents' slices
 *   up stream                  | copy 2   | copy 1   | copy 0 |    from the host's ring into the buckets' value memory
 *   values                                | all-gather 2 | ...
 *   device                                               | write 2 where channels are not selected
 *
 * A bucket's value memory is the device's where it has none of its own, or the transport moves it. Else it is the
 * host's, page-locked: a rank's part passes through one place on the device, and what shows a matrix reads it there.
 *
 * The value memory is written again by the next closes, after all of the former has become visible. So each rank issues
 * the same exchanges in the same order, though hosts may fetch in another order, at other times, or never. */
#pragma once

#include "instance/run.h"

/* [hook] The closes of the newest step, publishing->clock->due, are complete, their replay is enqueued, and residents
 * among them are updated: their values travel. */
void zfi_values_send(zfi_publishing_t *publishing, uint64_t step);

/* [hook] The values of a matrix in these closes become visible, of every rank; or of all matrices that are not dropped
 * (unfetched.is_done). */
void zfi_values_show(zfi_publishing_t *publishing, uint32_t number);
void zfi_values_show_all(zfi_publishing_t *publishing);

/* [hook] All of them are visible or dropped: their memory is free. */
void zfi_values_end(zfi_publishing_t *publishing);
