/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/stream.c - streams: issuing operations, parking what cannot be issued yet (model in backend.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "device/cuda/backend.h"

enum { NUMBERS_PER_OP = 4 }; /* progress numbers of one operation: before it and after it */

/* An operation, or the end of a call of enqueue, with its progress number; what op points to lies behind it. */
typedef struct item {
    uint64_t nbytes; /* in the ring, everything included */
    int is_end, is_skip;
    int has_begun; /* a wait whose time is being measured */
    uint32_t from; /* ranges or gradients before it are issued */
    uint64_t done; /* bytes of that range that are issued, too */
    uint64_t number;
    zfi_op_t op;
} item_t;

static void lock(zfi_device_t *device) {
    pthread_mutex_lock(&device->lock);
    zfi_cuda_enter(device);
}

static void unlock(zfi_device_t *device) {
    zfi_cuda_leave(device);
    pthread_mutex_unlock(&device->lock);
}

/* ---- waits whose time is measured -------------------------------------------------------------------------------- */

/* Where all places are taken the wait is not measured. */
static void begin_wait(zfi_stream_t *stream, const item_t *item) {
    zfi_device_t *device = stream->device;
    uint32_t i = 0;
    pthread_mutex_lock(&device->poll_lock);
    while (i < ZFI_CUDA_WAITS && device->waits[i].stream)
        i++;
    if (i < ZFI_CUDA_WAITS)
        device->waits[i] = (zfi_cuda_wait_t){.stream = stream,
                                             .begin = item->number,
                                             .end = item->number + 2,
                                             .timeline = item->op.timeline,
                                             .value = item->op.value,
                                             .stall_ns = item->op.stall_ns,
                                             .is_patient = item->op.is_patient};
    pthread_mutex_unlock(&device->poll_lock);
}

static zf_status_t begin(zfi_stream_t *stream, item_t *item) {
    if (item->has_begun)
        return ZF_OK;
    item->has_begun = 1;
    begin_wait(stream, item);
    return zfi_cuda_signal(stream, stream->progress, item->number);
}

/* ---- issuing ----------------------------------------------------------------------------------------------------- */

/* ZF_IN_PROGRESS: it must be parked. The progress number before the wait is only written where there is a wait. */
static zf_status_t issue_wait(zfi_stream_t *stream, item_t *item) {
    zfi_cuda_line_t *line = zfi_cuda_line(stream->device, item->op.timeline, 1);
    zf_status_t st;
    if (!line)
        return ZF_ERR_DEVICE;
    if (zfi_timeline_now(line->timeline) >= item->op.value) {
        st = ZF_DISABLED;
    } else {
        st = begin(stream, item);
        if (stream->is_host) /* it cannot be parked: what it waits for had better be enqueued */
            zfi_cuda_flush(stream->device);
        if (!st)
            st = zfi_cuda_wait(stream, line, item->op.value);
    }
    if (st == ZF_IN_PROGRESS || st < 0)
        return st;
    return item->has_begun ? zfi_cuda_signal(stream, stream->progress, item->number + 2) : ZF_OK;
}

static zf_status_t issue_fill(zfi_stream_t *stream, const zfi_op_t *op) {
    CUresult rc;
    if (!op->nbytes)
        return ZF_OK;
    zfi_cuda_begin_call(stream);
    rc = stream->device->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)op->to, 0, op->nbytes, stream->handle);
    return zfi_cuda_end_call(stream, rc, "a fill");
}

static zf_status_t issue_signal(zfi_stream_t *stream, const zfi_op_t *op) {
    zfi_cuda_line_t *line = zfi_cuda_line(stream->device, op->timeline, 1);
    return line ? zfi_cuda_signal(stream, line, op->value) : ZF_ERR_DEVICE;
}

/* What was enqueued before poison runs to its end; what comes after it is skipped, but for the numbers. */
static zf_status_t issue(zfi_stream_t *stream, item_t *item) {
    const zfi_op_t *op = &item->op;
    if (!zfi_cuda_has_room(stream))
        return ZF_IN_PROGRESS;
    if (item->is_end)
        return zfi_cuda_signal(stream, stream->progress, item->number);
    if (op->kind == ZFI_OP_WAIT)
        return issue_wait(stream, item);
    if (zfi_cuda_is_poisoned(stream->device))
        return ZF_OK;
    switch (op->kind) {
    case ZFI_OP_SIGNAL:
        return issue_signal(stream, op);
    case ZFI_OP_DOWN:
    case ZFI_OP_UP:
        return zfi_cuda_copy(stream, op, &item->from, &item->done);
    case ZFI_OP_FILL:
        return issue_fill(stream, op);
    case ZFI_OP_LAUNCH:
        return zfi_cuda_launch(stream, op->kernel, op->args, &item->from);
    default:
        return ZF_ERR_INTERNAL;
    }
}

/* ---- parking ----------------------------------------------------------------------------------------------------- */

static uint64_t payload_nbytes(const item_t *item) {
    if (item->is_end)
        return 0;
    if (item->op.kind == ZFI_OP_LAUNCH)
        return item->op.nbytes;
    return item->op.kind == ZFI_OP_DOWN || item->op.kind == ZFI_OP_UP ? item->op.n_ranges * sizeof *item->op.ranges : 0;
}

static item_t *item_at(const zfi_cuda_park_t *park, uint64_t at) {
    return (item_t *)(void *)(park->ring + at % ZFI_CUDA_PARK_NBYTES);
}

static int is_parked(const zfi_stream_t *stream) { return stream->park.head != stream->park.tail; }

/* Whether there was room. An item lies in one piece: what is left before the ring's end may be skipped. */
static int put(zfi_cuda_park_t *park, const item_t *given) {
    uint64_t payload = payload_nbytes(given), nbytes = (sizeof *given + payload + 63) / 64 * 64;
    uint64_t left = ZFI_CUDA_PARK_NBYTES - park->tail % ZFI_CUDA_PARK_NBYTES, skip = left < nbytes ? left : 0;
    item_t *item;
    if (park->tail - park->head + skip + nbytes > ZFI_CUDA_PARK_NBYTES)
        return 0;
    if (skip) {
        item = item_at(park, park->tail);
        item->nbytes = skip;
        item->is_skip = 1;
        park->tail += skip;
    }
    item = item_at(park, park->tail);
    *item = *given;
    item->nbytes = nbytes;
    if (payload && given->op.kind == ZFI_OP_LAUNCH)
        item->op.args = memcpy(item + 1, given->op.args, payload);
    else if (payload)
        item->op.ranges = memcpy(item + 1, given->op.ranges, payload);
    park->tail += nbytes;
    return 1;
}

static int flush_stream(zfi_stream_t *stream) {
    zfi_cuda_park_t *park = &stream->park;
    int n = 0;
    while (park->head != park->tail) {
        item_t *item = item_at(park, park->head);
        zf_status_t st = item->is_skip ? ZF_OK : issue(stream, item);
        if (st == ZF_IN_PROGRESS)
            break;
        park->head += item->nbytes;
        n++;
    }
    return n;
}

/* What one stream has signalled may let another go on. */
int zfi_cuda_flush(zfi_device_t *device) {
    int total = 0, n;
    do {
        n = 0;
        for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
            if (device->streams[i] && is_parked(device->streams[i]))
                n += flush_stream(device->streams[i]);
        total += n;
    } while (n);
    return total;
}

/* [lock] Lets others go on. ZF_ERR_TIMEOUT: the stream has taken nothing since the clock began. */
static zf_status_t pause_for(zfi_stream_t *stream, zfi_run_clock_t *clock) {
    zfi_device_t *device = stream->device;
    uint64_t so_far_ns = zfi_run_ns(clock);
    if (so_far_ns > device->env.timeout_ns) {
        device->env.is_stuck(device->env.ctx, stream->executed.name,
                             (uint32_t)((stream->park.tail - stream->park.head) / sizeof(item_t)));
        return ZF_ERR_TIMEOUT;
    }
    unlock(device);
    zfi_cuda_nap(&stream->executed, ZFI_TIMELINE_POISON, so_far_ns);
    lock(device);
    zfi_cuda_flush(device);
    return ZF_OK;
}

/* [lock] Waits until a stream's parked operations leave room. */
static zf_status_t make_room(zfi_stream_t *stream) {
    zfi_run_clock_t clock = zfi_run_clock();
    uint64_t head = stream->park.head;
    zf_status_t st = ZF_OK;
    while (stream->park.head == head && !st)
        st = pause_for(stream, &clock);
    return st;
}

/* [lock] A stream of the host cannot be held back: the hook waits, until the value is there or its signal is enqueued.
 */
static zf_status_t issue_later(zfi_stream_t *stream, item_t *item) {
    zfi_device_t *device = stream->device;
    zfi_cuda_deadline_t deadline = zfi_cuda_deadline(&device->env);
    zf_status_t st = ZF_IN_PROGRESS;
    while (st == ZF_IN_PROGRESS) {
        unlock(device);
        if (zfi_cuda_is_late(&device->env, &deadline) && !item->op.is_patient && !zfi_cuda_is_poisoned(device))
            device->env.timed_out(device->env.ctx, item->op.timeline, item->op.value); /* poison ends the wait */
        zfi_cuda_nap(item->op.timeline, item->op.value, deadline.clock.run_ns);
        lock(device);
        zfi_cuda_flush(device);
        st = issue(stream, item);
    }
    return st;
}

static zf_status_t issue_or_park(zfi_stream_t *stream, item_t *item) {
    zf_status_t st = is_parked(stream) ? ZF_IN_PROGRESS : issue(stream, item);
    if (st == ZF_IN_PROGRESS && stream->is_host)
        st = issue_later(stream, item);
    while (st == ZF_IN_PROGRESS && !put(&stream->park, item)) {
        zf_status_t room = make_room(stream);
        if (room)
            return room;
    }
    return st < 0 ? st : ZF_OK;
}

/* ---- enqueue ----------------------------------------------------------------------------------------------------- */

/* [lock] The host's own work is told from ours by a number before and after. */
static zf_status_t enqueue_all(zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    uint64_t number = atomic_load(&stream->planned) + 1;
    zf_status_t st = stream->is_host ? zfi_cuda_signal(stream, stream->progress, number) : ZF_OK;
    item_t item = {0};
    atomic_store(&stream->planned, number + (n + 1ull) * NUMBERS_PER_OP + 1);
    for (uint32_t i = 0; i < n && !st; i++) {
        number += NUMBERS_PER_OP;
        item = (item_t){.number = number, .op = ops[i]};
        st = issue_or_park(stream, &item);
    }
    item = (item_t){.is_end = 1, .number = atomic_load(&stream->planned)};
    return st ? st : issue_or_park(stream, &item);
}

/* What the call enqueues is told of while it lasts, as it may wait. */
static void begin_hook(zfi_device_t *device) {
    atomic_fetch_add(&device->n_inside, 1);
    zfi_cuda_monitor_wake(device);
    lock(device);
}

static void end_hook(zfi_device_t *device) {
    unlock(device);
    atomic_fetch_sub(&device->n_inside, 1);
    zfi_cuda_monitor_wake(device);
}

zf_status_t zfi_cuda_enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    begin_hook(device);
    zfi_cuda_flush(device);
    zf_status_t st = enqueue_all(stream, ops, n);
    zfi_cuda_flush(device);
    end_hook(device);
    return st;
}

/* [lock] Operations that are parked come first; then there is room for another one. */
static zf_status_t issue_parked(zfi_stream_t *stream) {
    zf_status_t st = ZF_OK;
    zfi_cuda_flush(stream->device);
    while (is_parked(stream) && !st && !zfi_cuda_is_poisoned(stream->device))
        st = make_room(stream);
    zfi_run_clock_t clock = zfi_run_clock();
    while (!st && !zfi_cuda_has_room(stream))
        st = pause_for(stream, &clock);
    return st;
}

/* [lock] */
static zf_status_t record_order(zfi_stream_t *from) {
    zfi_cuda_begin_call(from);
    CUresult rc = from->device->driver->cuEventRecord(from->order->handle, from->handle);
    return zfi_cuda_end_call(from, rc, "recording an event");
}

/* [lock] */
static zf_status_t wait_for_order(const zfi_stream_t *from, zfi_stream_t *to) {
    zfi_cuda_begin_call(to);
    CUresult rc = to->device->driver->cuStreamWaitEvent(to->handle, from->order->handle, 0);
    return zfi_cuda_end_call(to, rc, "ordering two streams");
}

zf_status_t zfi_cuda_order(zfi_device_t *device, zfi_stream_t *from, zfi_stream_t *to) {
    if (from == to)
        return ZF_OK;
    begin_hook(device);
    zf_status_t st = issue_parked(from);
    if (!st)
        st = issue_parked(to);
    if (!st)
        st = record_order(from);
    if (!st)
        st = wait_for_order(from, to);
    if (!st)
        st = enqueue_all(to, NULL, 0);
    device->current = to;
    end_hook(device);
    return st;
}

zf_status_t zfi_cuda_lend(zfi_stream_t *stream, void **out_handle) {
    begin_hook(stream->device);
    zf_status_t st = issue_parked(stream);
    end_hook(stream->device);
    if (st)
        return st;
    zfi_cuda_enter(stream->device);
    *out_handle = stream->handle;
    return ZF_OK;
}

void zfi_cuda_take_back(zfi_stream_t *stream) {
    pthread_mutex_lock(&stream->device->lock);
    zfi_cuda_count_lent(stream);
    pthread_mutex_unlock(&stream->device->lock);
    zfi_cuda_leave(stream->device);
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

uint64_t zfi_cuda_mark(zfi_stream_t *stream) { return atomic_load(&stream->planned); }

zf_status_t zfi_cuda_synchronise(zfi_stream_t *stream, uint64_t mark, uint64_t timeout_ns, uint64_t *waited_ns) {
    return zfi_timeline_wait(&stream->executed, mark, timeout_ns, waited_ns);
}

void zfi_cuda_fence(zfi_stream_t *stream, uint64_t mark, zf_fence_t *out) {
    out->kind = ZF_FENCE_HOST_COUNTER;
    out->counter = (const uint64_t *)&stream->executed.value;
    out->value = mark;
}

uint64_t zfi_cuda_host_busy_ns(zfi_stream_t *stream) { return atomic_load(&stream->busy_ns); }

/* ---- creating and resolving -------------------------------------------------------------------------------------- */

/* [lock] A stream's record; handle is set by the caller. */
static zfi_stream_t *add_stream(zfi_device_t *device, const char *name, int is_host) {
    uint32_t n = atomic_load(&device->n_streams);
    zfi_stream_t *stream = calloc(1, sizeof *stream);
    if (!stream || n == ZFI_CUDA_STREAMS) {
        free(stream);
        return NULL;
    }
    stream->device = device;
    stream->is_host = is_host;
    zfi_timeline_init(&stream->executed, name);
    if (!is_host)
        stream->park.ring = malloc(ZFI_CUDA_PARK_NBYTES);
    stream->progress = zfi_cuda_line(device, &stream->executed, 0);
    if (!stream->progress || (!is_host && (!stream->park.ring || zfi_cuda_flight_open(stream))) ||
        zfi_cuda_event_take(device, &stream->order)) {
        zfi_cuda_flight_close(stream);
        free(stream->park.ring);
        free(stream); /* the line, if there is one, waits for nothing */
        return NULL;
    }
    device->streams[n] = stream;
    atomic_store(&device->n_streams, n + 1);
    return stream;
}

/* Streams of the plugin differ in priority as far as the device goes, which keeps the scheduler from giving two of them
 * one hardware queue while it has others, so that copies go both ways beside kernels. */
zf_status_t zfi_cuda_stream_create(zfi_device_t *device, const char *name, zfi_stream_t **out, zf_error_t *err) {
    int priority = device->lowest_priority - device->n_created;
    CUresult rc = CUDA_SUCCESS;
    if (priority < device->highest_priority)
        priority = device->highest_priority;
    lock(device);
    zfi_stream_t *stream = add_stream(device, name, 0);
    if (stream)
        rc = device->driver->cuStreamCreateWithPriority(&stream->handle, CU_STREAM_NON_BLOCKING, priority);
    device->n_created++;
    unlock(device);
    if (!stream || rc)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "stream %s could not be created (CUDA error %d)", name, (int)rc);
    *out = stream;
    return ZF_OK;
}

/* [lock] Takes the record out of the list. Its line stays, without a timeline to signal. */
static void remove_stream(zfi_stream_t *stream) {
    zfi_device_t *device = stream->device;
    pthread_mutex_lock(&device->poll_lock);
    for (uint32_t i = 0; i < ZFI_CUDA_WAITS; i++)
        if (device->waits[i].stream == stream)
            device->waits[i].stream = NULL;
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        if (device->streams[i] == stream)
            device->streams[i] = NULL;
    stream->progress->timeline = NULL;
    pthread_mutex_unlock(&device->poll_lock);
    zfi_cuda_event_give(device, stream->order);
    zfi_cuda_flight_close(stream);
    if (!stream->is_host)
        device->driver->cuStreamDestroy(stream->handle);
}

void zfi_cuda_stream_destroy(zfi_stream_t *stream) {
    zfi_run_clock_t clock = zfi_run_clock();
    if (!stream)
        return;
    zfi_device_t *device = stream->device;
    while (zfi_timeline_now(&stream->executed) < atomic_load(&stream->planned) &&
           !(atomic_load(&device->has_failed) && zfi_run_ns(&clock) > device->env.timeout_ns)) /* it hangs */
        zfi_timeline_wait(&stream->executed, atomic_load(&stream->planned), 1000000, NULL);
    lock(device);
    remove_stream(stream);
    unlock(device);
    zfi_timeline_free(&stream->executed);
    free(stream->park.ring);
    free(stream);
}

void zfi_cuda_streams_close(zfi_device_t *device) {
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        if (device->streams[i])
            zfi_cuda_stream_destroy(device->streams[i]);
}

static CUstream handle_of(const zf_stream_t *given) {
    return given->handle ? (CUstream)(uintptr_t)given->handle : CU_STREAM_LEGACY;
}

static zf_status_t check_descriptor(const zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                    zf_error_t *err) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (given->kind != ZF_STREAM_CUDA)
        return zfi_error(err, ZF_ERR_DEVICE, origin, "stream kind %d: on a CUDA device the host computes on %d (CUDA)",
                         given->kind, ZF_STREAM_CUDA);
    if ((given->flags & ZF_STREAM_FLAG_PER_THREAD) || handle_of(given) == CU_STREAM_PER_THREAD)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin,
                         "the stream is CUDA's default of each thread (CU_STREAM_PER_THREAD), another one in every "
                         "thread: make a stream with cuStreamCreate, or give handle 0, the legacy default");
    CUresult rc = device->driver->cuStreamIsCapturing(handle_of(given), &capture);
    if (rc == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || capture != CU_STREAM_CAPTURE_STATUS_NONE ||
        (given->flags & ZF_STREAM_FLAG_CAPTURING))
        return zfi_error(err, ZF_ERR_CAPTURE, origin,
                         "the stream is being captured into a CUDA graph: call the plugin's hooks outside of captures");
    if (rc)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin,
                         "handle 0x%" PRIx64 " is not a stream of this process's driver (CUDA error %d)", given->handle,
                         (int)rc);
    return ZF_OK;
}

static zfi_stream_t *find_stream(const zfi_device_t *device, const zf_stream_t *given) {
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++) {
        zfi_stream_t *stream = device->streams[i];
        if (stream && stream->is_host && stream->handle == handle_of(given) && stream->host_id == given->id)
            return stream;
    }
    return NULL;
}

/* A record of a host's stream on which nothing of ours is left to do: the one that was named longest ago. Its numbers
 * go on. NULL: all are in use. */
static zfi_stream_t *find_idle(const zfi_device_t *device) {
    zfi_stream_t *found = NULL;
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++) {
        zfi_stream_t *stream = device->streams[i];
        if (stream && stream->is_host && stream != device->current &&
            zfi_timeline_now(&stream->executed) >= atomic_load(&stream->planned) &&
            (!found || stream->resolved < found->resolved))
            found = stream;
    }
    return found;
}

/* [lock] */
static zfi_stream_t *find_or_add(zfi_device_t *device, const zf_stream_t *given) {
    zfi_stream_t *stream = find_stream(device, given);
    if (!stream) {
        int is_new = device->n_hosts < ZFI_CUDA_HOSTS;
        stream = is_new ? add_stream(device, "host stream", 1) : find_idle(device);
        if (!stream)
            return NULL;
        device->n_hosts += (uint32_t)is_new;
        stream->handle = handle_of(given);
        stream->host_id = given->id;
    }
    stream->resolved = ++device->n_resolved;
    return stream;
}

zf_status_t zfi_cuda_stream_resolve(zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                    zfi_stream_t **out, zf_error_t *err) {
    zfi_stream_t *stream = NULL;
    lock(device);
    zf_status_t st = check_descriptor(device, given, origin, err);
    if (!st)
        stream = find_or_add(device, given);
    unlock(device);
    if (!st && !stream)
        st = zfi_error(err, ZF_ERR_ARGUMENT, origin,
                       "more than %d streams have work of this instance that is not over: wait for one of them, then "
                       "call again",
                       ZFI_CUDA_HOSTS);
    *out = stream;
    return st;
}
