/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/control.h - the control thread's part of a step: records, choices, channels that enter. */
#pragma once

#include "instance/run.h"

/* [hook] Hands the control work of step t over; signals control. */
zf_status_t zfi_control_start(const zfi_state_t *state, uint64_t t);
/* [hook] The same where no channel is ever chosen: there is none, but that several ranks may tell whose gradient was not
 * finite. */
zf_status_t zfi_control_pass(const zfi_state_t *state, uint64_t t);
