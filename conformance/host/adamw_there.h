/* SPDX-License-Identifier: Apache-2.0 */
/* adamw_there.h - the host's own AdamW for parameters that lie on a device: adamw.h on copies of them.
 *
 * The baseline of a comparison, so it is the same arithmetic: gradients come down, values go up, and nothing of it is
 * meant to be fast. */
#ifndef ZF_CONFORMANCE_HOST_ADAMW_THERE_H
#define ZF_CONFORMANCE_HOST_ADAMW_THERE_H

#include "optimizer.h"

/* Release with (*out)->ops->destroy. */
int host_adamw_there_create(host_params_t *params, host_optimizer_t **out, glue_error_t *err);

#endif
