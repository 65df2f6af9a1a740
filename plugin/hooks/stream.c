/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/stream.c - the host's streams (contract in stream.h). */
#include "hooks/stream.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/struct.h"
#include "device/device.h"
#include "step/program.h"

zf_status_t zfi_stream_resolve(zf_instance_t *inst, const zf_stream_t *given, const char *origin, zfi_stream_t **out,
                               int *out_is_host_thread, zf_error_t *err) {
    zf_stream_t descriptor;
    const uint32_t known = ZF_STREAM_FLAG_CAPTURING | ZF_STREAM_FLAG_PER_THREAD;
    zfi_stream_t *stream = NULL;
    zf_status_t st = ZFI_READ(&descriptor, given, zf_stream_t, err);
    if (!st)
        st = zfi_reserved_check(descriptor.reserved0, "zf_stream_t", err);
    if (!st && (descriptor.flags & ~known))
        st = zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, origin, "stream: unknown flags 0x%x", descriptor.flags);
    if (!st && descriptor.flags && descriptor.kind != ZF_STREAM_CUDA)
        st = zfi_error(err, descriptor.flags & ZF_STREAM_FLAG_CAPTURING ? ZF_ERR_CAPTURE : ZF_ERR_ARGUMENT, origin,
                       "stream: flags 0x%x with kind %d: only a stream of CUDA is captured, or another one in every "
                       "thread; need 0",
                       descriptor.flags, descriptor.kind);
    if (st)
        return st;
    if (descriptor.device_type != inst->engine.device_type || descriptor.device_id != inst->engine.device_id)
        return zfi_error(err, ZF_ERR_DEVICE, origin,
                         "stream of device type %d, id %d; the instance was created for %d, %d", descriptor.device_type,
                         descriptor.device_id, inst->engine.device_type, inst->engine.device_id);
    st = inst->engine.ops->stream_resolve(inst->engine.device, &descriptor, origin, &stream, err);
    if (st)
        return st;
    *out = stream ? stream : inst->engine.own_stream;
    *out_is_host_thread = stream == NULL;
    return ZF_OK;
}

/* Remembers a stream that is about to hold work of ours. */
static zf_status_t note_stream(zf_instance_t *inst, zfi_stream_t *stream, const char *origin, zf_error_t *err) {
    if (stream == inst->engine.own_stream)
        return ZF_OK;
    for (uint32_t i = 0; i < inst->n_host_streams; i++)
        if (inst->host_streams[i] == stream)
            return ZF_OK;
    if (inst->n_host_streams == ZFI_MOST_STREAMS)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "more than %d streams used with one instance", ZFI_MOST_STREAMS);
    inst->host_streams[inst->n_host_streams++] = stream;
    return ZF_OK;
}

zf_status_t zfi_stream_follow(zf_instance_t *inst, zfi_stream_t *stream, const char *origin, zf_error_t *err) {
    zf_status_t st = note_stream(inst, stream, origin, err);
    if (st)
        return st;
    st = zfi_send(&inst->engine);
    if (!st)
        st = inst->engine.ops->order(inst->engine.device, inst->engine.stream, stream);
    return zfi_hook_failed(inst, st, origin, "the stream could not be made to wait for the former one", err);
}

void zfi_stream_settle(zf_instance_t *inst) {
    zfi_program_forget_writes(inst->run);
    inst->engine.visible_floor = inst->engine.ops->mark(inst->engine.stream);
}

zf_status_t zfi_stream_change(zf_instance_t *inst, zfi_stream_t *stream, zf_error_t *err) {
    zf_status_t st = zfi_stream_follow(inst, stream, "stream", err);
    if (st)
        return st;
    zfi_use_stream(&inst->engine, stream);
    zfi_stream_settle(inst); /* the order operation: all earlier writes */
    return ZF_OK;
}
