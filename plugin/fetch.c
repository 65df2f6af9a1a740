/* plugin/fetch.c - param_fetch and param_release (contracts in zf/plugin.h).
 *
 * Visible writes are commands on the device stream. Work that the host enqueues on that stream comes after them by
 * itself; another queue is made to wait; a host that computes on its own thread gets the sequence number of the newest
 * write. */
#include "device/device.h"
#include "error.h"
#include "hooks.h"
#include "instance.h"
#include "stream.h"
#include "struct.h"

static zf_status_t check_ids(const zf_instance_t *inst, const uint32_t *ids, uint32_t n, const char *origin,
                             zf_error_t *err) {
    if (n && !ids)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "ids is NULL with n = %u", n);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= inst->n_params)
            return zfi_error(err, ZF_ERR_PARAM, origin, "unknown parameter id %u; %u are bound", ids[i],
                             inst->n_params);
    return ZF_OK;
}

static uint64_t newest_write(const zf_instance_t *inst, const uint32_t *ids, uint32_t n) {
    uint64_t newest = inst->visible_floor;
    for (uint32_t i = 0; i < (n ? n : inst->n_params); i++) {
        const zfi_grad_state_t *grad = &inst->grads[inst->params[n ? ids[i] : i].owner];
        if (grad->visible_epoch == inst->stream_epoch && grad->visible_seq > newest)
            newest = grad->visible_seq;
    }
    return newest;
}

zf_status_t zfi_param_fetch(zf_instance_t *inst, const uint32_t *ids, uint32_t n, const zf_stream_t *given,
                            zf_fence_t *out_ready, zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_STREAM_ORDER};
    zfi_queue_t *queue = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_enter(inst, legal, "param_fetch", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_ready, "zf_fence_t", err);
    if (!st)
        st = check_ids(inst, ids, n, "param_fetch", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_fetch", &queue, &is_host_thread, err);
    if (!st && is_host_thread) {
        fence.kind = ZF_FENCE_HOST_COUNTER;
        fence.counter = (const uint64_t *)&inst->stream->executed.value;
        fence.value = newest_write(inst, ids, n);
    } else if (!st && queue != inst->stream) {
        st = zfi_stream_follow(inst, queue, "param_fetch", err);
    }
    if (!st)
        zfi_struct_write(out_ready, &fence, sizeof fence);
    zfi_leave(inst);
    return st;
}

zf_status_t zfi_param_release(zf_instance_t *inst, const uint32_t *ids, uint32_t n, const zf_stream_t *given,
                              zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zfi_queue_t *queue = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_enter(inst, legal, "param_release", err);
    if (st)
        return st;
    st = check_ids(inst, ids, n, "param_release", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_release", &queue, &is_host_thread, err);
    zfi_leave(inst); /* one rank: parameters are never sharded, there is nothing to give back */
    return st;
}
