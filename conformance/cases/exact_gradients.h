/* SPDX-License-Identifier: Apache-2.0 */
/* exact_gradients.h - a step's gradients. */
#pragma once

#include "exact_run.h"

/* Delivers them to both sides, with control calls in between. */
void zx_run_gradients(zx_run_t *run);
