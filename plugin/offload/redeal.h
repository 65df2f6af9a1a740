/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/redeal.h - a run's cohorts dealt for another update_interval, in the memory that it has. */
#ifndef ZFI_REDEAL_H
#define ZFI_REDEAL_H

#include "instance/run.h"

/* [control] Whether the run's memory was bound with room for the configuration's update_interval. */
int zfi_redeal_fits(const zfi_run_t *run);

/* [control] Deals for the configuration's update_interval. The run is at rest, no window holds a slot, nothing is due
 * and nothing of the coming step is delivered; it is in warm-up, or at the end of it. All windows open with step
 * clock.t + 1, whose row is prepared. Failure is final: the run can only be freed, and the instance is poisoned. */
zf_status_t zfi_redeal(zfi_run_t *run);

#endif
