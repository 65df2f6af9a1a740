/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.h - the host's own AdamW (Loshchilov and Hutter, arXiv 1711.05101), the baseline of every comparison.
 *
 * fp32 master weights and moments; a non-finite gradient norm skips the step. */
#pragma once

#include "optimizer.h"

/* The current values become the masters. is_documented: the norm is summed as plugin/SCHEDULE.md says. Release with
 * (*out)->ops->destroy. */
int host_adamw_create(host_params_t *params, int is_documented, host_optimizer_t **out, glue_error_t *err);
