/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/waits.h - waits that nobody asked for, said once.
 *
 * Updates of a step are waited for where forward and backward do not hide them, and wherever the trainer does not fetch
 * (SCHEDULE.md). Where the configuration leaves mode and publish_lag open, the log says how long that is and what
 * shortens it, if it is more than 3 % of a step and a millisecond. */
#pragma once

#include "instance/instance.h"

/* [hook] After each step that the device has been given. */
void zfi_waits_watch(zf_instance_t *inst);
