/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/stream.h - the host's streams: which stream a descriptor means, and changing from one to another. */
#pragma once

#include "instance/instance.h"

/* [hook] The stream a descriptor names; for a host that computes on its own thread, ours. Errors name `origin`. */
zf_status_t zfi_stream_resolve(zf_instance_t *inst, const zf_stream_t *given, const char *origin, zfi_stream_t **out,
                               int *out_is_host_thread, zf_error_t *err);

/* [hook] Work enqueued on the host's stream waits for all on the device stream. destroy waits for such streams. */
zf_status_t zfi_stream_follow(zf_instance_t *inst, zfi_stream_t *stream, const char *origin, zf_error_t *err);

/* [hook] Every visible write so far comes before what is enqueued from now on: no parameter has a newer one. */
void zfi_stream_settle(zf_instance_t *inst);

/* [hook] Makes a stream the device stream; work of the former one comes first. */
zf_status_t zfi_stream_change(zf_instance_t *inst, zfi_stream_t *stream, zf_error_t *err);
