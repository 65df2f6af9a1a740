/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/fetch.c - param_fetch and param_release (contracts in zf/plugin.h).
 *
 * With publish_lag = 0 this is where a closed window's values become visible (offload/at_fetch.h).
 * Visible writes are commands on the device stream. Work that the host enqueues on that stream comes after them by
 * itself; another stream is made to wait; a host that computes on its own thread gets the sequence number of the newest
 * write. */
#include "base/error.h"
#include "base/struct.h"
#include "device/device.h"
#include "hooks/hooks.h"
#include "hooks/stream.h"
#include "instance/instance.h"
#include "offload/at_fetch.h"
#include "offload/pace.h"
#include "offload/program.h"

static zf_status_t check_ids(const zf_instance_t *inst, const uint32_t *ids, uint32_t n, const char *origin,
                             zf_error_t *err) {
    if (n && !ids)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "ids is NULL with n = %u", n);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= inst->run->n_params)
            return zfi_error(err, ZF_ERR_PARAM, origin, "unknown parameter id %u; %u are bound", ids[i],
                             inst->run->n_params);
    return ZF_OK;
}

/* What a closed window has published of the parameters becomes visible, where it waits for that. */
static zf_status_t publish(zf_instance_t *inst, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    zf_status_t st = n ? ZF_OK : zfi_at_fetch_merge(inst->run, 0, inst->run->n_params);
    for (uint32_t i = 0; i < n && !st; i++) {
        uint32_t owner = inst->run->params[ids[i]].owner;
        st = zfi_at_fetch_merge(inst->run, owner, owner + 1);
    }
    return zfi_hook_failed(inst, st, "param_fetch", "the device did not take the merge", err);
}

/* n = 0: of all parameters. */
static uint64_t newest_write(const zf_instance_t *inst, const uint32_t *ids, uint32_t n) {
    uint64_t newest = n ? 0 : inst->run->writes.any;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t write = zfi_program_newest_write(inst->run, inst->run->params[ids[i]].owner);
        newest = write > newest ? write : newest;
    }
    return newest > inst->engine.visible_floor ? newest : inst->engine.visible_floor;
}

zf_status_t zfi_param_fetch(zf_instance_t *inst, const uint32_t *ids, uint32_t n, const zf_stream_t *given,
                            zf_fence_t *out_ready, zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_STREAM_ORDER};
    zfi_stream_t *stream = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_hook_begin(inst, legal, "param_fetch", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_ready, "zf_fence_t", err);
    if (!st)
        st = check_ids(inst, ids, n, "param_fetch", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_fetch", &stream, &is_host_thread, err);
    if (!st && zfi_config_publishes_at_fetch(&inst->engine.config))
        st = publish(inst, ids, n, err);
    if (!st)
        st = zfi_hook_failed(inst, zfi_pace_fetch(inst->run, ids, n), "param_fetch", "the device did not take a signal",
                             err);
    if (!st && is_host_thread) {
        inst->engine.ops->fence(inst->engine.stream, newest_write(inst, ids, n), &fence);
    } else if (!st && stream != inst->engine.stream) {
        st = zfi_stream_follow(inst, stream, "param_fetch", err);
    }
    if (!st)
        zfi_struct_write(out_ready, &fence, sizeof fence);
    zfi_hook_end(inst);
    return st;
}

zf_status_t zfi_param_release(zf_instance_t *inst, const uint32_t *ids, uint32_t n, const zf_stream_t *given,
                              zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zfi_stream_t *stream = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_hook_begin(inst, legal, "param_release", err);
    if (st)
        return st;
    st = check_ids(inst, ids, n, "param_release", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_release", &stream, &is_host_thread, err);
    zfi_hook_end(inst); /* one rank: parameters are never sharded, there is nothing to give back */
    return st;
}
