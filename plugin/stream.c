/* plugin/stream.c - the host's streams (contract in stream.h). */
#include "stream.h"

#include <inttypes.h>

#include "deliver.h"
#include "device/device.h"
#include "error.h"
#include "struct.h"

zf_status_t zfi_stream_resolve(zf_instance_t *inst, const zf_stream_t *given, const char *origin, zfi_queue_t **out,
                               int *out_is_host_thread, zf_error_t *err) {
    zf_stream_t stream;
    zfi_queue_t *queue = inst->own_stream;
    zf_status_t st = zfi_struct_read(&stream, given, sizeof stream, sizeof stream, "zf_stream_t", err);
    if (st)
        return st;
    if (stream.device_type != inst->device_type)
        return zfi_error(err, ZF_ERR_DEVICE, origin, "stream of device type %d, the instance was created for %d",
                         stream.device_type, inst->device_type);
    if (stream.kind == ZF_STREAM_CPU_QUEUE) {
        queue = (zfi_queue_t *)(uintptr_t)stream.handle;
        if (!queue || queue->magic != ZFI_QUEUE_MAGIC)
            return zfi_error(err, ZF_ERR_ARGUMENT, origin, "handle 0x%" PRIx64 " is not a queue of zf.cpu/1",
                             stream.handle);
    } else if (stream.kind != ZF_STREAM_HOST_THREAD) {
        return zfi_error(err, ZF_ERR_DEVICE, origin,
                         "stream kind %d: this version knows %d (host thread) and %d (CPU "
                         "queue)",
                         stream.kind, ZF_STREAM_HOST_THREAD, ZF_STREAM_CPU_QUEUE);
    }
    *out = queue;
    *out_is_host_thread = stream.kind == ZF_STREAM_HOST_THREAD;
    return ZF_OK;
}

/* Remembers a queue that is about to hold commands of ours. */
static zf_status_t note_queue(zf_instance_t *inst, zfi_queue_t *queue, const char *origin, zf_error_t *err) {
    if (queue == inst->own_stream)
        return ZF_OK;
    for (uint32_t i = 0; i < inst->n_host_queues; i++)
        if (inst->host_queues[i] == queue)
            return ZF_OK;
    if (inst->n_host_queues == ZFI_MOST_QUEUES)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "more than %d queues used with one instance", ZFI_MOST_QUEUES);
    inst->host_queues[inst->n_host_queues++] = queue;
    return ZF_OK;
}

zf_status_t zfi_stream_follow(zf_instance_t *inst, zfi_queue_t *queue, const char *origin, zf_error_t *err) {
    zf_status_t st = note_queue(inst, queue, origin, err);
    if (st)
        return st;
    st = inst->device->order(inst, inst->stream, queue);
    return st ? zfi_error(err, st, origin, "the stream could not be made to wait for the former one") : ZF_OK;
}

zf_status_t zfi_stream_use(zf_instance_t *inst, const zf_stream_t *given, int *out_is_host_thread, zf_error_t *err) {
    zfi_queue_t *queue = NULL;
    zf_status_t st = zfi_stream_resolve(inst, given, "stream", &queue, out_is_host_thread, err);
    if (st || queue == inst->stream)
        return st;
    st = zfi_deliver_flush(inst);
    if (!st)
        st = zfi_stream_follow(inst, queue, "stream", err);
    if (st)
        return st;
    inst->stream = queue;
    inst->visible_floor = zfi_queue_newest(queue); /* the order command: all earlier writes */
    inst->stream_epoch++;
    return ZF_OK;
}
