/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/residency.c - the hooks of zf.residency/1 (contract in zf/ext/residency.h). */
#include "instance/residency.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/struct.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "hooks/stream.h"
#include "instance/memory.h"
#include "zf/ext/residency.h"

/* What both directions are given; the work that the host's stream has so far comes first. */
static zf_status_t take_stream(zf_instance_t *inst, const zf_stream_t *given, const zf_fence_t *out_done,
                               const char *origin, zf_error_t *err) {
    zfi_stream_t *stream;
    int is_host_thread;
    zf_status_t st = zfi_struct_check_out(out_done, "zf_fence_t", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, origin, &stream, &is_host_thread, err);
    return !st && stream != inst->engine.stream ? zfi_stream_change(inst, stream, err) : st;
}

static void end(zf_instance_t *inst, int state, const char *what, zf_fence_t *out_done) {
    const zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_NONE};
    inst->state = state;
    zfi_memory_report(&inst->run->ranks);
    zfi_log(&inst->engine, ZF_LOG_INFO, "residency", "%s: %" PRIu64 " MiB on the device", what,
            atomic_load(&inst->engine.count.device_measured_nbytes) >> 20);
    zfi_struct_write(out_done, &fence, sizeof fence);
}

static zf_status_t check_release(const zf_instance_t *inst, uint32_t what, zf_error_t *err) {
    if (what != ZF_RELEASE_DEVICE && what != (ZF_RELEASE_DEVICE | ZF_RELEASE_PINNED))
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "release",
                         "what = 0x%x; allowed: %u (DEVICE), %u (DEVICE and PINNED)", what, ZF_RELEASE_DEVICE,
                         ZF_RELEASE_DEVICE | ZF_RELEASE_PINNED);
    if (!(inst->engine.flags & ZF_CREATE_CAP_RELEASE))
        return zfi_error(err, ZF_ERR_STATE, "release",
                         "no memory was planned for what is released: create the instance with ZF_CREATE_CAP_RELEASE");
    zf_status_t st = zfi_reduce_check_rest(inst, "release", err);
    return st ? st : zfi_fetch_check_released(inst, "release", err);
}

static zf_status_t release(zf_instance_t *inst, uint32_t what, const zf_stream_t *stream, zf_fence_t *out_done,
                           zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "release", err);
    if (st)
        return st;
    st = check_release(inst, what, err);
    if (!st)
        st = take_stream(inst, stream, out_done, "release", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_residency_release(&inst->engine, what, err);
    if (!st)
        end(inst, ZFI_STATE_RELEASED, "released", out_done);
    return zfi_hook_end(inst, st, err);
}

static zf_status_t resume(zf_instance_t *inst, const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING | ZFI_IN_RELEASED, "resume", err);
    if (st)
        return st;
    if (inst->state != ZFI_STATE_RELEASED)
        st = zfi_error(err, ZF_ERR_STATE, "resume", "nothing is released: call release first");
    if (!st)
        st = take_stream(inst, stream, out_done, "resume", err);
    if (!st)
        st = zfi_residency_resume(&inst->engine, err);
    if (!st && inst->closes_at_resume)
        st = zfi_close_windows(inst, err);
    inst->closes_at_resume &= st != ZF_OK;
    if (!st)
        end(inst, ZFI_STATE_QUIESCED, "resumed", out_done);
    return zfi_hook_end(inst, st, err);
}

const zf_residency_ext_t zfi_residency_ext = {
    .struct_size = sizeof zfi_residency_ext, .release = release, .resume = resume};
