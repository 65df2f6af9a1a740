/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/landing.h - sums over ranks go into the slots of their step as soon as they are there, during backward.
 *
 * Model. A bucket that this rank hands over before the step has a gradient of every parameter, so its slots can be
 * taken then. What this rank keeps of the sums lands there, then the bucket's selected channels travel (the last one's
 * later, ranks.h); then `exchanged` says that it is over. So an early replay (replay/early.h) needs nothing of the
 * device stream, which waits for exchanges at the step alone:
 *
 *   device stream    collect 0 | collect 1 |                                       | step: statistics of 0, of 1 ...
 *   ranks            | reduce-scatter 0, land, selected 0 | reduce-scatter 1, land |
 *   workers                                               | early replays of 0     | of 1
 *
 * What is completed at the step is shipped as on one rank (step/gradients.h): only then do ranks know what any has. */
#pragma once

#include "instance/run.h"

#define ZFI_NOT_LANDING UINT64_MAX

/* [own threads] The lane of gradients: the sums of a bucket at a step, into slots that are free when `jobs` reaches
 * needs_job; on the lane's stream where the device's memory is exchanged. */
zf_status_t zfi_landing(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, uint64_t needs_job);
