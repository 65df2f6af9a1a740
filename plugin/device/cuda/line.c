/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/line.c - timelines as the device sees them (model in backend.h). */
#include <stdlib.h>

#include "device/cuda/backend.h"

enum { MORE_EVENTS = 64 /* than all lines and streams have */ };

/* ---- events ------------------------------------------------------------------------------------------------------ */

static zf_status_t make_event(zfi_device_t *device, zfi_cuda_event_t **out) {
    zfi_cuda_event_t *event = calloc(1, sizeof *event);
    zf_status_t st = zfi_cuda_check(device,
                                    event ? device->driver->cuEventCreate(&event->handle, CU_EVENT_DISABLE_TIMING)
                                          : CUDA_ERROR_OUT_OF_MEMORY,
                                    "creating an event");
    if (st)
        free(event);
    else
        *out = event;
    return st;
}

void zfi_cuda_event_give(zfi_device_t *device, zfi_cuda_event_t *event) {
    if (!event)
        return;
    event->is_out = 0;
    event->next = device->events;
    device->events = event;
}

zf_status_t zfi_cuda_event_take(zfi_device_t *device, zfi_cuda_event_t **out) {
    if (!device->events)
        return make_event(device, out);
    *out = device->events;
    device->events = (*out)->next;
    return ZF_OK;
}

/* Lines of streams have events only where those are all that tells of a signal. */
zf_status_t zfi_cuda_events_open(zfi_device_t *device) {
    uint32_t n_lines = device->has_memops ? ZFI_CUDA_LINES - ZFI_CUDA_STREAMS : ZFI_CUDA_LINES;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < n_lines * ZFI_CUDA_SIGNALS + ZFI_CUDA_STREAMS + MORE_EVENTS && !st; i++) {
        zfi_cuda_event_t *event = NULL;
        st = make_event(device, &event);
        zfi_cuda_event_give(device, event);
    }
    return st;
}

void zfi_cuda_events_close(zfi_device_t *device) {
    zfi_cuda_event_t *event;
    while ((event = device->events) != NULL) {
        device->events = event->next;
        device->driver->cuEventDestroy(event->handle);
        free(event);
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static zf_status_t take_events(zfi_device_t *device, zfi_cuda_line_t *line) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < ZFI_CUDA_SIGNALS && !st; i++)
        st = zfi_cuda_event_take(device, &line->signals[i].event);
    return st;
}

static zfi_cuda_line_t *add_line(zfi_device_t *device, zfi_timeline_t *timeline, int has_events) {
    uint32_t n = atomic_load(&device->n_lines);
    zfi_cuda_line_t *line = &device->lines[n];
    if (n == ZFI_CUDA_LINES) {
        device->env.failed(device->env.ctx, "more timelines than the CUDA backend keeps");
        return NULL;
    }
    line->timeline = timeline;
    line->n_sets = atomic_load(&timeline->n_sets);
    line->has_events = has_events;
    line->host_word = zfi_cuda_word(device, &line->host_at);
    line->device_word = zfi_cuda_word(device, &line->device_at);
    if ((has_events || !device->has_memops) && take_events(device, line))
        return NULL;
    if (has_events)
        zfi_timeline_set_mirror(timeline, line->host_word);
    atomic_store(&device->n_lines, n + 1);
    return line;
}

/* A load has set the timeline back: nothing is under way, and former signals mean nothing. */
static void restart(zfi_device_t *device, zfi_cuda_line_t *line) {
    line->n_sets = atomic_load(&line->timeline->n_sets);
    line->n_signals = line->first = line->n_asked = 0;
    line->lost = 0;
    pthread_mutex_lock(&device->poll_lock);
    atomic_store(line->device_word, 0);
    atomic_store(&line->enqueued, 0);
    line->seen = 0;
    pthread_mutex_unlock(&device->poll_lock);
}

zfi_cuda_line_t *zfi_cuda_line(zfi_device_t *device, zfi_timeline_t *timeline, int has_events) {
    uint32_t n = atomic_load(&device->n_lines);
    for (uint32_t i = 0; i < n; i++)
        if (device->lines[i].timeline == timeline) {
            if (device->lines[i].n_sets != atomic_load(&timeline->n_sets))
                restart(device, &device->lines[i]);
            return &device->lines[i];
        }
    return add_line(device, timeline, has_events);
}

void zfi_cuda_lines_close(zfi_device_t *device) {
    uint32_t n = atomic_load(&device->n_lines);
    for (uint32_t i = 0; i < n; i++) {
        if (device->lines[i].has_events)
            zfi_timeline_set_mirror(device->lines[i].timeline, NULL);
        for (uint32_t k = 0; k < ZFI_CUDA_SIGNALS; k++)
            zfi_cuda_event_give(device, device->lines[i].signals[k].event);
    }
}

/* ---- signal ------------------------------------------------------------------------------------------------------ */

/* A place in the ring whose event nobody waits for, taken from the oldest signal where there is none: from now on that
 * one is not found. */
static zf_status_t take_place(zfi_device_t *device, zfi_cuda_line_t *line, zfi_cuda_signal_t **out) {
    zfi_cuda_signal_t *signal = &line->signals[line->n_signals % ZFI_CUDA_SIGNALS];
    *out = signal;
    if (line->n_signals - line->n_asked == ZFI_CUDA_SIGNALS)
        line->n_asked++; /* the next one will tell as much */
    if (line->n_signals - line->first == ZFI_CUDA_SIGNALS) {
        line->lost = signal->value;
        line->first++;
    }
    if (!signal->event->n_users)
        return ZF_OK;
    signal->event->is_out = 1;
    return zfi_cuda_event_take(device, &signal->event);
}

static zf_status_t record(zfi_stream_t *stream, zfi_cuda_line_t *line, uint64_t value) {
    zfi_cuda_signal_t *signal;
    zf_status_t st = take_place(stream->device, line, &signal);
    if (st)
        return st;
    zfi_cuda_begin_call(stream);
    CUresult rc = stream->device->driver->cuEventRecord(signal->event->handle, stream->handle);
    st = zfi_cuda_end_call(stream, rc, "recording an event");
    signal->value = value;
    signal->stream = stream;
    line->n_signals++;
    return st;
}

static zf_status_t write_word(zfi_stream_t *stream, const zfi_cuda_line_t *line, uint64_t value) {
    zfi_cuda_begin_call(stream);
    CUresult rc = stream->device->driver->cuStreamWriteValue64(stream->handle, line->device_at, value,
                                                               CU_STREAM_WRITE_VALUE_DEFAULT);
    return zfi_cuda_end_call(stream, rc, "writing a word in stream order");
}

/* Without memory operations an event is all that tells of a signal: it is not recorded again before it has told. (Of a
 * stream's progress the next one tells as much.) */
static int must_be_asked_first(const zfi_device_t *device, const zfi_cuda_line_t *line) {
    return !device->has_memops && line->has_events && line->n_signals - line->n_asked == ZFI_CUDA_SIGNALS;
}

zf_status_t zfi_cuda_signal(zfi_stream_t *stream, zfi_cuda_line_t *line, uint64_t value) {
    zfi_device_t *device = stream->device;
    if (must_be_asked_first(device, line))
        return ZF_IN_PROGRESS;
    atomic_store(&line->enqueued, value);
    zf_status_t st = line->has_events || !device->has_memops ? record(stream, line, value) : ZF_OK;
    return !st && device->has_memops ? write_word(stream, line, value) : st;
}

/* ---- wait -------------------------------------------------------------------------------------------------------- */

/* The first signal that is enough; NULL: it is not enqueued, or no longer in the ring. A later one will not do: it may
 * lie behind work that waits for the caller's. */
static const zfi_cuda_signal_t *find_signal(const zfi_cuda_line_t *line, uint64_t value) {
    if (line->first && value <= line->lost)
        return NULL;
    for (uint32_t i = line->first; i != line->n_signals; i++)
        if (line->signals[i % ZFI_CUDA_SIGNALS].value >= value)
            return &line->signals[i % ZFI_CUDA_SIGNALS];
    return NULL;
}

static zf_status_t wait_for_event(zfi_stream_t *stream, zfi_cuda_event_t *event) {
    event->n_users++;
    zfi_cuda_begin_call(stream);
    CUresult rc = stream->device->driver->cuStreamWaitEvent(stream->handle, event->handle, 0);
    zf_status_t st = zfi_cuda_end_call(stream, rc, "waiting for an event");
    if (--event->n_users == 0 && event->is_out)
        zfi_cuda_event_give(stream->device, event);
    return st;
}

static zf_status_t wait_for_word(zfi_stream_t *stream, const zfi_cuda_line_t *line, uint64_t value) {
    CUresult rc;
    zfi_cuda_begin_call(stream);
    rc = stream->device->driver->cuStreamWaitValue64(stream->handle, line->host_at, value, CU_STREAM_WAIT_VALUE_GEQ);
    zf_status_t st = zfi_cuda_end_call(stream, rc, "waiting for a word in stream order");
    return st ? st : zfi_cuda_gate(stream, line->host_at);
}

zf_status_t zfi_cuda_wait(zfi_stream_t *stream, zfi_cuda_line_t *line, uint64_t value) {
    if (zfi_timeline_now(line->timeline) >= value)
        return ZF_DISABLED;
    const zfi_cuda_signal_t *signal = find_signal(line, value);
    if (signal && signal->stream == stream)
        return ZF_DISABLED;
    if (signal)
        return wait_for_event(stream, signal->event);
    return stream->is_host && stream->device->streams_wait ? wait_for_word(stream, line, value) : ZF_IN_PROGRESS;
}
