/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/expect.h - which parameters have a gradient in a step, and which one is missing: had one in every
 * step before. */
#pragma once

#include "instance/run.h"

/* [hook] At step: fills n_present, n_missing and first_missing of its row, and remembers what is expected from now on.
 * Returns how many of the present gradients are not shipped yet: sums that no delivery has ended. */
uint32_t zfi_expect_note(zfi_incoming_t *incoming, uint32_t n_params, zfi_step_row_t *row);
