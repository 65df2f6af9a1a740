/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/deliver.h - gradients on their way from the host: batches, and what is still to be shipped. */
#pragma once

#include "instance/instance.h"

/* [hook] Makes the named stream the device stream; what was delivered before goes out on the former one. */
zf_status_t zfi_deliver_on(zf_instance_t *inst, const zf_stream_t *given, int *out_is_host_thread, zf_error_t *err);

/* [hook] ZF_ERR_STATE names a gradient of which ranges of matrices were delivered, but not all. */
zf_status_t zfi_deliver_check(const zf_instance_t *inst, zf_error_t *err);

/* [hook] Whether a gradient of the coming step was delivered. */
int zfi_deliver_has_begun(const zf_instance_t *inst);

/* [hook] Ships what was delivered in parts and never declared last, and pushes the open batch. */
zf_status_t zfi_deliver_finish(zf_instance_t *inst);

/* [hook] Forgets what was delivered for the coming step (DISCARD), or what was stepped. */
void zfi_deliver_reset(zf_instance_t *inst);
