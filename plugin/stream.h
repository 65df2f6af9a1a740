/* plugin/stream.h - the host's streams: which queue a descriptor means, and changing from one to another. */
#ifndef ZFI_STREAM_H
#define ZFI_STREAM_H

#include "instance.h"

/* [hook] The queue a descriptor names; for a host that computes on its own thread, ours. Errors name `origin`. */
zf_status_t zfi_stream_resolve(zf_instance_t *inst, const zf_stream_t *given, const char *origin, zfi_queue_t **out,
                               int *out_is_host_thread, zf_error_t *err);

/* [hook] Work enqueued on the host's queue waits for everything on the device stream. destroy waits for such queues. */
zf_status_t zfi_stream_follow(zf_instance_t *inst, zfi_queue_t *queue, const char *origin, zf_error_t *err);

/* [hook] Makes the named queue the device stream; work of the former one comes first. */
zf_status_t zfi_stream_use(zf_instance_t *inst, const zf_stream_t *given, int *out_is_host_thread, zf_error_t *err);

#endif
