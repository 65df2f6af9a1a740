/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/fence.c - waiting for fences (contract in zf/plugin.h). */
#include <inttypes.h>

#include "base/error.h"
#include "base/struct.h"
#include "hooks/hooks.h"
#include "instance/instance.h"

/* The timeline that a counter of this instance's fences is the value of, its first member; NULL: none of them. */
static zfi_timeline_t *find_line(zfi_engine_t *engine, const uint64_t *counter) {
    zf_fence_t of_stream;
    if (counter == (const uint64_t *)&engine->lines.batches.value)
        return &engine->lines.batches;
    engine->ops->fence(engine->own_stream, 0, &of_stream);
    return counter == of_stream.counter ? (zfi_timeline_t *)(uintptr_t)counter : NULL;
}

static zf_status_t wait_on(zfi_engine_t *engine, const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err) {
    zfi_timeline_t *line = find_line(engine, fence->counter);
    if (!line)
        return zfi_error(err, ZF_ERR_ARGUMENT, "fence_wait", "the fence's counter %p is not one of this instance's",
                         (const void *)fence->counter);
    zf_status_t st = zfi_timeline_wait(line, fence->value, timeout_ns, NULL);
    if (st == ZF_ERR_TIMEOUT)
        return zfi_error(err, st, "fence_wait", "the fence is at %" PRIu64 ", waited %" PRIu64 " ns for %" PRIu64,
                         zfi_timeline_now(line), timeout_ns, fence->value);
    return st ? zfi_poisoned(engine, err) : ZF_OK;
}

zf_status_t zfi_fence_wait(zf_instance_t *inst, const zf_fence_t *given, uint64_t timeout_ns, zf_error_t *err) {
    zf_fence_t fence;
    zf_status_t st = zfi_instance_check_process(inst, "fence_wait", err);
    if (!st)
        st = ZFI_READ(&fence, given, zf_fence_t, err);
    if (st || fence.kind == ZF_FENCE_NONE)
        return st;
    if (fence.kind == ZF_FENCE_HOST_COUNTER)
        return wait_on(&inst->engine, &fence, timeout_ns, err);
    return zfi_error(err, ZF_ERR_ARGUMENT, "fence_wait", "a fence of kind %d cannot be waited for on the host%s",
                     fence.kind,
                     fence.kind == ZF_FENCE_STREAM_ORDER ? ": synchronise the stream of the call that gave it" : "");
}
