/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/decide.h - update_interval = fit: the choice at the end of warm-up, from what pace.c has timed
 * (schedule/fit.h says which). */
#ifndef ZFI_DECIDE_H
#define ZFI_DECIDE_H

#include "instance/run.h"

/* [hook] At the end of warm-up, before anything of the next step is delivered: brings the run to rest, chooses, pins
 * the configuration and deals the cohorts for it. Returns at once where there is nothing to choose. */
zf_status_t zfi_decide(zfi_run_t *run);

#endif
