/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/waits.h - what a trainer that does not fetch waits for, said once.
 *
 * With publish_lag = auto its steps wait until the values of the windows that they close are there (SCHEDULE.md), so
 * that it trains on the same values as one that fetches. Nobody asked for that wait, so the log says how long it is and
 * what takes it away, if it is more than 3 % of a step and a millisecond. */
#ifndef ZFI_WAITS_H
#define ZFI_WAITS_H

#include "instance/instance.h"

/* [hook] After each step that the device has been given. */
void zfi_waits_watch(zf_instance_t *inst);

#endif
