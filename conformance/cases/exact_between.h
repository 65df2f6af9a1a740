/* SPDX-License-Identifier: Apache-2.0 */
/* exact_between.h - what a host calls between steps, and between a step's deliveries. */
#pragma once

#include "exact_run.h"

/* DRAIN, FLUSH, params_changed, looks, exports, questions, bind_params again; each with its chance. */
void zx_run_between(zx_run_t *run);
/* While memory that carries may have gradients: perhaps FLUSH, DRAIN, an export, a fetch, other memory. */
void zx_run_mid_step(zx_run_t *run);
/* FLUSH, on both sides. */
void zx_run_flush(zx_run_t *run);
