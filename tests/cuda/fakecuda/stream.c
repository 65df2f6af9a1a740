/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/stream.c - streams, and the places in them that others wait for (queue.c runs them).
 *
 * The handle of a stream is gone with its destruction, but its work ends by itself. */
#define _GNU_SOURCE
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>

static const uint64_t magic = 0x66616b65737472ull;

struct fc_queue {
    pthread_t thread;
    fc_lock_t lock;
    fc_op_t *head, *tail;
    uint32_t n_enqueued; /* what the thread sleeps on */
    uint32_t n_streams;
    uint64_t depth;      /* 0: any number */
    uint32_t n_commands; /* that take room, enqueued and not over; at most so many */
    uint32_t n_hindered; /* calls that wait for room */
    int is_closing;
    uint64_t random;
};

static CUstream all_streams;
static uint64_t n_created, n_drawn;

uint64_t fc_mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint64_t fc_random(void) {
    return fc_mix(fc_config.seed * 0x9e3779b97f4a7c15ull + __atomic_add_fetch(&n_drawn, 1, __ATOMIC_RELAXED));
}

/* ---- markers ----------------------------------------------------------------------------------------------------- */

fc_marker_t *fc_marker_new(fc_context_t *c) {
    fc_marker_t *m = emu_zeros(1, sizeof *m);
    m->n_refs = 1;
    m->context = c;
    return m;
}

fc_marker_t *fc_marker_keep(fc_marker_t *m) {
    __atomic_add_fetch(&m->n_refs, 1, __ATOMIC_RELAXED);
    return m;
}

void fc_marker_drop(fc_marker_t *m) {
    if (m && __atomic_sub_fetch(&m->n_refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(m);
}

void fc_marker_wait(fc_marker_t *m) {
    while (!__atomic_load_n(&m->is_reached, __ATOMIC_ACQUIRE))
        fc_sleep_on(&m->is_reached, 0);
    fc_acquire(m);
}

static void reach(fc_marker_t *m) {
    m->reached_ns = fc_now_ns();
    fc_release(m);
    __atomic_store_n(&m->is_reached, 1, __ATOMIC_RELEASE);
    fc_wake(&m->is_reached);
}

static void run_reach(fc_op_t *op) { reach(op->marker); }
static void run_wait(fc_op_t *op) { fc_marker_wait(op->marker); }

/* ---- order ------------------------------------------------------------------------------------------------------- */

static void append(CUstream s, const fc_op_t *op) {
    fc_queue_append(s, op);
    __atomic_add_fetch(&s->n_enqueued, 1, __ATOMIC_RELAXED);
}

static void enqueue_order(CUstream s, void (*run_order)(fc_op_t *), fc_marker_t *m, int takes_room) {
    if (takes_room)
        fc_queue_take_room(s);
    append(s, &(fc_op_t){.run = run_order,
                         .marker = fc_marker_keep(m),
                         .is_order = 1,
                         .tells = run_order == run_reach, /* who sees it may take the stream for idle */
                         .takes_room = takes_room});
}

void fc_enqueue_record(CUstream s, fc_marker_t *m) { enqueue_order(s, run_reach, m, 1); }
void fc_enqueue_event_wait(CUstream s, fc_marker_t *m) { enqueue_order(s, run_wait, m, 1); }

/* A new place at the stream's end, with one reference. */
static fc_marker_t *mark(CUstream s) {
    fc_marker_t *m = fc_marker_new(s->context);
    enqueue_order(s, run_reach, m, 0);
    return m;
}

static void order(CUstream from, CUstream to) {
    if (__atomic_load_n(&from->n_enqueued, __ATOMIC_RELAXED) == 0)
        return;
    fc_marker_t *m = mark(from);
    enqueue_order(to, run_wait, m, 0);
    fc_marker_drop(m);
}

/* The legacy stream waits for all blocking streams of its context, and they for it. */
static void order_with_legacy(CUstream s) {
    CUstream legacy = s->context->legacy;
    if (s->flags & CU_STREAM_NON_BLOCKING)
        return;
    if (s != legacy) {
        order(legacy, s);
        return;
    }
    fc_lock(&fc_global_lock);
    for (CUstream other = all_streams; other; other = other->next)
        if (other != s && other->context == s->context && !(other->flags & CU_STREAM_NON_BLOCKING))
            order(other, s);
    fc_unlock(&fc_global_lock);
}

static uint64_t n_commands;

uint64_t fakecuda_n_commands(void) { return __atomic_load_n(&n_commands, __ATOMIC_RELAXED); }

CUresult fc_enqueue(CUstream s, const fc_op_t *op) {
    if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    order_with_legacy(s);
    fc_op_t command = *op;
    command.takes_room = 1;
    __atomic_fetch_add(&n_commands, 1, __ATOMIC_RELAXED);
    fc_queue_take_room(s);
    append(s, &command);
    return CUDA_SUCCESS;
}

CUresult fc_synchronise(CUstream s) {
    if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s == s->context->legacy)
        order_with_legacy(s);
    fc_marker_t *m = mark(s);
    fc_marker_wait(m);
    fc_marker_drop(m);
    return (CUresult)__atomic_load_n(&s->context->sticky, __ATOMIC_RELAXED);
}

CUresult fc_synchronise_context(fc_context_t *c) {
    uint32_t n = 0, n_streams = 0;
    fc_lock(&fc_global_lock);
    for (CUstream s = all_streams; s; s = s->next)
        n_streams++;
    fc_marker_t **markers = emu_zeros(n_streams + 1, sizeof *markers);
    for (CUstream s = all_streams; s; s = s->next)
        if (s->context == c)
            markers[n++] = mark(s);
    fc_unlock(&fc_global_lock);
    for (uint32_t i = 0; i < n; i++) {
        fc_marker_wait(markers[i]);
        fc_marker_drop(markers[i]);
    }
    free(markers);
    return (CUresult)__atomic_load_n(&c->sticky, __ATOMIC_RELAXED);
}

int fc_has_plugin_work(fc_context_t *c) {
    int has_work = 0;
    fc_lock(&fc_global_lock);
    for (CUstream s = all_streams; s && !has_work; s = s->next)
        has_work = s->context == c && s->is_plugin && fc_queue_has_own_work(s->queue);
    fc_unlock(&fc_global_lock);
    return has_work;
}

int fc_spoil_global_captures(void) {
    int n = 0;
    fc_lock(&fc_global_lock);
    for (CUstream s = all_streams; s; s = s->next)
        if (s->capture != CU_STREAM_CAPTURE_STATUS_NONE && s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
            s->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            n++;
        }
    fc_unlock(&fc_global_lock);
    return n;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

/* Of each context that the thread uses; made at first use, gone with the context. */
static CUstream stream_of_thread(fc_context_t *c) {
    static __thread CUstream known;
    static __thread uint64_t number; /* of the context: another one has other streams */
    if (number != c->number)
        fc_stream_new(c, CU_STREAM_DEFAULT, 0, &known);
    number = c->number;
    return known;
}

CUstream fc_stream_of(CUstream given) {
    if (given == NULL || given == CU_STREAM_LEGACY)
        return fc_current()->legacy;
    if (given == CU_STREAM_PER_THREAD)
        return stream_of_thread(fc_current());
    CUstream found = NULL;
    fc_lock(&fc_global_lock);
    for (CUstream s = all_streams; s && !found; s = s->next)
        found = s == given && s->magic == magic ? s : NULL;
    fc_unlock(&fc_global_lock);
    return found;
}

CUresult fc_stream_new(fc_context_t *c, unsigned flags, int priority, CUstream *out) {
    CUstream s = emu_zeros(1, sizeof *s);
    fc_lock(&fc_global_lock);
    s->queue = fc_queue_for(priority);
    if (s->queue) {
        *s = (struct CUstream_st){.magic = magic,
                                  .context = c,
                                  .queue = s->queue,
                                  .flags = flags,
                                  .priority = priority,
                                  .id = ++n_created,
                                  .next = all_streams};
        all_streams = s;
    }
    fc_unlock(&fc_global_lock);
    if (s->queue == NULL) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = s;
    return CUDA_SUCCESS;
}

static void unlink_stream(CUstream s) {
    fc_lock(&fc_global_lock);
    CUstream *at = &all_streams;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    fc_unlock(&fc_global_lock);
}

/* Waits for the work of a stream that nobody knows any more, without being ordered behind it. */
static void stream_end(CUstream s) {
    fc_marker_t *m = mark(s);
    while (!__atomic_load_n(&m->is_reached, __ATOMIC_ACQUIRE))
        fc_sleep_on(&m->is_reached, 0);
    fc_marker_drop(m);
    unlink_stream(s);
    fc_lock(&fc_global_lock);
    int is_last = fc_queue_leave(s->queue);
    fc_unlock(&fc_global_lock);
    if (is_last)
        fc_queue_end(s->queue);
    free(s);
}

static uint32_t n_ending;

static void *end_one(void *s) {
    stream_end(s);
    __atomic_sub_fetch(&n_ending, 1, __ATOMIC_SEQ_CST);
    fc_wake(&n_ending);
    return NULL;
}

/* The handle is gone at once; the work ends by itself. */
static void stream_destroy(CUstream s) {
    pthread_t thread;
    fc_lock(&fc_global_lock);
    s->magic = 0;
    fc_unlock(&fc_global_lock);
    __atomic_add_fetch(&n_ending, 1, __ATOMIC_SEQ_CST);
    if (pthread_create(&thread, NULL, end_one, s) == 0)
        pthread_detach(thread);
    else
        end_one(s);
}

void fc_destroy_streams_of(fc_context_t *c) {
    for (uint32_t n; (n = __atomic_load_n(&n_ending, __ATOMIC_SEQ_CST)) != 0;)
        fc_sleep_on(&n_ending, n);
    for (;;) {
        fc_lock(&fc_global_lock);
        CUstream s = all_streams;
        while (s && s->context != c)
            s = s->next;
        fc_unlock(&fc_global_lock);
        if (s == NULL)
            return;
        stream_end(s);
    }
}

/* ---- the driver's functions -------------------------------------------------------------------------------------- */

CUresult fc_enter_stream(const char *function, CUstream *s) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    *s = fc_stream_of(*s);
    return *s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FC_API cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    if (out == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    int is_plugin = fc_is_plugin(__builtin_return_address(0));
    if (fc_config.is_legacy && !is_plugin) {
        *out = CU_STREAM_LEGACY;
        return CUDA_SUCCESS;
    }
    if (is_plugin && flags != CU_STREAM_NON_BLOCKING)
        fc_finding("libzfplugin makes a stream that the legacy stream waits for");
    st = fc_drain(FC_CALL_STREAM);
    st = st ? st : fc_stream_new(fc_current(), flags, fc_priority(priority), out);
    if (st)
        return st;
    (*out)->is_plugin = is_plugin;
    fc_count(fc_current(), (*out)->is_plugin, 1);
    return CUDA_SUCCESS;
}

FC_API cuStreamCreate(CUstream *out, unsigned int flags) { return cuStreamCreateWithPriority(out, flags, 0); }

FC_API cuStreamDestroy(CUstream s) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (st)
        return st;
    if (s == s->context->legacy)
        return fc_config.is_legacy ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    fc_count(s->context, s->is_plugin, -1);
    stream_destroy(s);
    return CUDA_SUCCESS;
}

FC_API cuStreamSynchronize(CUstream s) {
    CUresult st = fc_enter_stream(__func__, &s);
    return st ? st : fc_synchronise(s);
}

FC_API cuStreamQuery(CUstream s) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (st || (st = fc_unless_captured()))
        return st;
    if (!s->is_plugin && !fc_config.fail && fc_is_plugin(__builtin_return_address(0)))
        fc_finding("libzfplugin asks a stream of the host's whether it is done");
    fc_marker_t *m = mark(s);
    for (int i = 0; i < 20 && !__atomic_load_n(&m->is_reached, __ATOMIC_ACQUIRE); i++)
        fc_pause_us(5);
    int is_reached = (int)__atomic_load_n(&m->is_reached, __ATOMIC_ACQUIRE);
    if (is_reached)
        fc_acquire(m);
    fc_marker_drop(m);
    return is_reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FC_API cuStreamGetPriority(CUstream s, int *priority) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (!st)
        *priority = s->priority;
    return st;
}

FC_API cuStreamGetId(CUstream s, unsigned long long *id) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (!st)
        *id = s->id;
    return st;
}
