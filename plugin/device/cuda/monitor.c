/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/monitor.c - the thread that issues parked operations and asks the driver for errors and, without
 * memory operations, for events (model in backend.h). It may stand in a call of the driver; words are read elsewhere
 * (words.c). */
#include <sys/prctl.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/cuda/backend.h"

enum { QUERY_NS = 100000000 /* between two looks for errors of the driver, or after one */ };

/* ---- without memory operations [lock] ---------------------------------------------------------------------------- */

/* Stores what the device would have written; whether events are still under way. */
static int ask_line(zfi_device_t *device, zfi_cuda_line_t *line) {
    while (line->timeline && line->n_asked != line->n_signals) {
        const zfi_cuda_signal_t *signal = &line->signals[line->n_asked % ZFI_CUDA_SIGNALS];
        CUresult rc = device->driver->cuEventQuery(signal->event->handle);
        if (rc == CUDA_ERROR_NOT_READY)
            return 1;
        if (zfi_cuda_check(device, rc, "asking for an event"))
            return 0;
        line->n_asked++;
        atomic_store(line->device_word, signal->value);
    }
    return 0;
}

static int ask_lines(zfi_device_t *device) {
    int n = 0;
    for (uint32_t i = 0; i < atomic_load(&device->n_lines) && !device->has_memops; i++)
        n += ask_line(device, &device->lines[i]);
    return n;
}

/* ---- errors [lock] ----------------------------------------------------------------------------------------------- */

static void query(zfi_device_t *device) {
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++) {
        const zfi_stream_t *stream = device->streams[i];
        CUresult rc = stream && !stream->is_host ? device->driver->cuStreamQuery(stream->handle) : CUDA_SUCCESS;
        if (rc && rc != CUDA_ERROR_NOT_READY)
            zfi_cuda_check(device, rc, "work on the device");
    }
}

/* The device failed: numbers may never be written. A thread that waits for a stream goes on when nothing runs there any
 * more, for what ran before the failure may still read and write memory that is freed next. */
static void release(zfi_device_t *device) {
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++) {
        zfi_stream_t *stream = device->streams[i];
        if (stream && device->driver->cuStreamQuery(stream->handle) != CUDA_ERROR_NOT_READY)
            zfi_timeline_signal(&stream->executed, atomic_load(&stream->planned));
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* [lock] Whether anything is left to issue or to ask for. */
static int serve(zfi_device_t *device, uint64_t *queried_ns, int *has_come) {
    uint32_t n_parked = 0;
    uint64_t now = zfi_now_ns();
    zfi_cuda_enter(device);
    int n = ask_lines(device);
    *has_come |= zfi_cuda_flush(device);
    if (now - *queried_ns > QUERY_NS) {
        *queried_ns = now;
        query(device);
    }
    if (atomic_load(&device->has_failed))
        release(device);
    zfi_cuda_leave(device);
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        n_parked += device->streams[i] && device->streams[i]->park.head != device->streams[i]->park.tail;
    atomic_store(&device->n_parked, n_parked);
    return n + (int)n_parked;
}

static void *monitor(void *raw) {
    zfi_device_t *device = raw;
    uint64_t queried_ns = zfi_now_ns(), came_ns = queried_ns, known = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!atomic_load(&device->is_ending)) {
        uint64_t news = zfi_timeline_now(&device->news);
        int has_come = news != known;
        known = news;
        pthread_mutex_lock(&device->lock);
        int n = serve(device, &queried_ns, &has_come);
        pthread_mutex_unlock(&device->lock);
        if (has_come)
            came_ns = zfi_now_ns();
        if (n && !atomic_load(&device->has_failed))
            zfi_cuda_nap(&device->news, news + 1, zfi_now_ns() - came_ns);
        else
            zfi_timeline_wait(&device->news, news + 1, QUERY_NS, NULL);
    }
    return NULL;
}

void zfi_cuda_monitor_wake(zfi_device_t *device) {
    zfi_timeline_signal(&device->news, atomic_fetch_add(&device->n_news, 1) + 1);
}

static zf_status_t begin_thread(pthread_t *thread, int *has, const char *name, void *(*run)(void *),
                                zfi_device_t *device, zf_error_t *err) {
    zfi_thread_why_t why;
    int rc = zfi_thread_start(thread, name, run, device);
    *has = rc == 0;
    if (!rc)
        return ZF_OK;
    zfi_thread_why(rc, &why);
    return zfi_error(err, ZF_ERR_MEMORY, "create", "cannot start the CUDA backend's thread %s: %s", name, why.text);
}

zf_status_t zfi_cuda_monitor_start(zfi_device_t *device, zf_error_t *err) {
    zf_status_t st = begin_thread(&device->monitor, &device->has_monitor, "zf-cuda", monitor, device, err);
    return st ? st : begin_thread(&device->reader, &device->has_reader, "zf-words", zfi_cuda_words, device, err);
}

void zfi_cuda_monitor_stop(zfi_device_t *device) {
    atomic_store(&device->is_ending, 1);
    zfi_cuda_monitor_wake(device);
    if (device->has_monitor)
        pthread_join(device->monitor, NULL);
    if (device->has_reader)
        pthread_join(device->reader, NULL);
}
