/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/landing.h - sums over ranks go into the slots of their step as soon as they are there, during backward.
 *
 * Model. A bucket that this rank hands over before the step has a gradient of every parameter, so its slots can be
 * taken then. What this rank keeps of the sums is copied into them before `exchanged` says that they are there. So an
 * early replay (replay/early.h) needs nothing of the device stream, which waits for exchanges at the step alone:
 *
 *   device stream    collect 1 | collect 0 |                        | step: statistics of 1, of 0 ...
 *   ranks            | reduce-scatter 1, land | reduce-scatter 0, land |
 *   workers                                   | early replays of 1     | of 0
 *
 * What is completed at the step is shipped as on one rank (step/gradients.h): only then do ranks know what any has. */
#pragma once

#include "instance/run.h"

#define ZFI_NOT_LANDING UINT64_MAX

/* [own threads] The lane of gradients: the sums of a bucket at a step, into slots that are free when `jobs` reaches
 * needs_job; on the lane's stream where the device's memory is exchanged. */
zf_status_t zfi_landing(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, uint64_t needs_job);
