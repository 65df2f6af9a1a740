/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/event.c - events: an event names the place where it was recorded last. */
#include "fake.h"

#include <stdlib.h>

static const uint64_t magic = 0x66616b65657674ull;

struct CUevent_st {
    uint64_t magic;
    fc_context_t *context;
    unsigned flags;
    int is_plugin;
    fc_lock_t lock;
    fc_marker_t *marker; /* NULL: never recorded */
};

static CUresult enter_event(const char *function, CUevent e) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    return st ? st : e && e->magic == magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FC_API cuEventCreate(CUevent *out, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    CUevent e = calloc(1, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *e = (struct CUevent_st){.magic = magic, .context = fc_current(), .flags = flags};
    e->is_plugin = fc_is_plugin(__builtin_return_address(0));
    fc_count(e->context, e->is_plugin, 1);
    *out = e;
    return CUDA_SUCCESS;
}

FC_API cuEventDestroy(CUevent e) {
    CUresult st = enter_event(__func__, e);
    if (st)
        return st;
    fc_count(e->context, e->is_plugin, -1);
    fc_marker_drop(e->marker);
    e->magic = 0;
    free(e);
    return CUDA_SUCCESS;
}

/* The event's place now, with a reference; NULL: never recorded. */
static fc_marker_t *place_of(CUevent e) {
    fc_lock(&e->lock);
    fc_marker_t *m = e->marker ? fc_marker_keep(e->marker) : NULL;
    fc_unlock(&e->lock);
    return m;
}

FC_API cuEventRecord(CUevent e, CUstream given) {
    CUresult st = enter_event(__func__, e);
    CUstream s = st ? NULL : fc_stream_of(given);
    if (st)
        return st;
    if (s == NULL || s->context != e->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fc_marker_t *m = fc_marker_new(s->context);
    fc_enqueue_record(s, m);
    fc_lock(&e->lock);
    fc_marker_t *old = e->marker;
    e->marker = m;
    fc_unlock(&e->lock);
    fc_marker_drop(old);
    return CUDA_SUCCESS;
}

FC_API cuStreamWaitEvent(CUstream given, CUevent e, unsigned int flags) {
    CUresult st = enter_event(__func__, e);
    CUstream s = st ? NULL : fc_stream_of(given);
    if (st)
        return st;
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    fc_marker_t *m = place_of(e);
    if (m)
        fc_enqueue_event_wait(s, m);
    fc_marker_drop(m);
    return CUDA_SUCCESS;
}

FC_API cuEventQuery(CUevent e) {
    CUresult st = enter_event(__func__, e);
    if (st || (st = fc_unless_captured()))
        return st;
    fc_marker_t *m = place_of(e);
    int is_over = m == NULL || __atomic_load_n(&m->is_reached, __ATOMIC_ACQUIRE);
    if (m && is_over)
        fc_acquire(m);
    fc_marker_drop(m);
    return is_over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FC_API cuEventSynchronize(CUevent e) {
    CUresult st = enter_event(__func__, e);
    if (st)
        return st;
    fc_marker_t *m = place_of(e);
    if (m)
        fc_marker_wait(m);
    fc_marker_drop(m);
    return (CUresult)__atomic_load_n(&e->context->sticky, __ATOMIC_RELAXED);
}

FC_API cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    CUresult st = enter_event(__func__, start);
    st = st ? st : enter_event(__func__, end);
    if (st)
        return st;
    fc_marker_t *a = place_of(start), *b = place_of(end);
    if (a == NULL || b == NULL || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        st = CUDA_ERROR_INVALID_HANDLE;
    else if (!__atomic_load_n(&a->is_reached, __ATOMIC_ACQUIRE) || !__atomic_load_n(&b->is_reached, __ATOMIC_ACQUIRE))
        st = CUDA_ERROR_NOT_READY;
    else
        *ms = (float)((double)(int64_t)(b->reached_ns - a->reached_ns) * 1e-6);
    fc_marker_drop(a);
    fc_marker_drop(b);
    return st;
}
