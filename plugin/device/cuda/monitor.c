/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/monitor.c - the thread that turns what the device writes into signals for the host's threads,
 * issues parked operations, and measures waits (model in backend.h).
 *
 * While anything is under way it looks again and again, without a call of the driver; else it sleeps until something is
 * enqueued. The longer nothing has come, the longer it sleeps between two looks, by a share of that time: a signal is
 * late by at most a PATIENCE-th of what it was waited for, and a device that computes for 100 ms costs some hundred
 * looks in place of some thousand. It takes `lock` only if nobody holds it: its holder may be waiting for a signal. */
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/cuda/backend.h"

enum {
    POLL_NS = 15000,       /* between two looks, at least, ... */
    LONG_POLL_NS = 500000, /* ... and at most */
    PATIENCE = 16,
    QUERY_NS = 100000000 /* between two looks for errors of the driver, or after one */
};

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Whether the line has signals under way. */
static int poll_line(zfi_cuda_line_t *line, int *has_come) {
    uint64_t value = atomic_load(line->device_word);
    if (value != line->seen && line->timeline) {
        line->seen = value;
        zfi_timeline_signal(line->timeline, value);
        *has_come = 1;
    }
    return line->timeline && value != atomic_load(&line->enqueued);
}

static int poll_lines(zfi_device_t *device, int *has_come) {
    int n = 0;
    pthread_mutex_lock(&device->poll_lock);
    for (uint32_t i = 0; i < atomic_load(&device->n_lines); i++)
        n += poll_line(&device->lines[i], has_come);
    pthread_mutex_unlock(&device->poll_lock);
    return n;
}

/* ---- without memory operations [lock] ---------------------------------------------------------------------------- */

/* What the device would have written. */
static void ask_line(zfi_device_t *device, zfi_cuda_line_t *line) {
    while (line->timeline && line->n_asked != line->n_signals) {
        const zfi_cuda_signal_t *signal = &line->signals[line->n_asked % ZFI_CUDA_SIGNALS];
        CUresult rc = device->driver->cuEventQuery(signal->event->handle);
        if (rc == CUDA_ERROR_NOT_READY)
            return;
        if (zfi_cuda_check(device, rc, "asking for an event"))
            return;
        line->n_asked++;
        atomic_store(line->device_word, signal->value);
    }
}

static void ask_lines(zfi_device_t *device) {
    for (uint32_t i = 0; i < atomic_load(&device->n_lines) && !device->has_memops; i++)
        ask_line(device, &device->lines[i]);
}

/* ---- time [lock] ------------------------------------------------------------------------------------------------- */

static uint64_t busy_ns(const zfi_device_env_t *env) { return env->host_busy_ns ? env->host_busy_ns(env->ctx) : 0; }

static int is_late(const zfi_device_env_t *env, const zfi_cuda_wait_t *wait, uint64_t now) {
    uint64_t more = busy_ns(env) - wait->busy_ns, most = ZFI_HOST_DEADLINES * env->timeout_ns;
    return now - wait->reached_ns > env->timeout_ns + (more < most ? more : most);
}

static void watch_wait(zfi_device_t *device, zfi_cuda_wait_t *wait, uint64_t now) {
    const zfi_device_env_t *env = &device->env;
    uint64_t at = zfi_timeline_now(&wait->stream->executed);
    if (at >= wait->end) {
        if (wait->reached_ns && wait->stall_ns)
            atomic_fetch_add(wait->stall_ns, now - wait->reached_ns);
        wait->stream = NULL;
    } else if (at >= wait->begin && !wait->reached_ns) {
        wait->reached_ns = now;
        wait->busy_ns = busy_ns(env);
    } else if (wait->reached_ns && !wait->is_patient && !zfi_cuda_is_poisoned(device) &&
               zfi_timeline_now(wait->timeline) < wait->value && is_late(env, wait, now)) {
        env->timed_out(env->ctx, wait->timeline, wait->value);
    }
}

/* A stream of the host whose next work of ours is enqueued and has not begun runs the host's. */
static void watch_stream(zfi_stream_t *stream, uint64_t now) {
    uint64_t at = zfi_timeline_now(&stream->executed);
    int is_busy = stream->is_host && at % 2 == 0 && at < atomic_load(&stream->planned);
    if (stream->idle_since_ns)
        atomic_fetch_add(&stream->busy_ns, now - stream->idle_since_ns);
    stream->idle_since_ns = is_busy ? now : 0;
}

/* By a clock that stands while the process is stopped: the host's threads stand, too. */
static void watch(zfi_device_t *device) {
    uint64_t now = 1 + zfi_run_ns(&device->clock); /* 0 has a meaning of its own */
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        if (device->streams[i])
            watch_stream(device->streams[i], now);
    for (uint32_t i = 0; i < ZFI_CUDA_WAITS; i++)
        if (device->waits[i].stream)
            watch_wait(device, &device->waits[i], now);
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

/* The device failed: numbers may never be written. Whoever waits for a stream goes on when nothing runs there any more,
 * for what ran before the failure may still read and write memory that is freed next. */
static void release(zfi_device_t *device) {
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++) {
        zfi_stream_t *stream = device->streams[i];
        if (stream && device->driver->cuStreamQuery(stream->handle) != CUDA_ERROR_NOT_READY)
            zfi_timeline_signal(&stream->executed, atomic_load(&stream->planned));
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* [lock] Whether operations are parked. */
static int serve(zfi_device_t *device, uint64_t *queried_ns) {
    int n = 0;
    uint64_t now = zfi_now_ns();
    zfi_cuda_enter(device);
    ask_lines(device);
    zfi_cuda_flush(device);
    watch(device);
    if (now - *queried_ns > QUERY_NS) {
        *queried_ns = now;
        query(device);
    }
    if (atomic_load(&device->has_failed))
        release(device);
    zfi_cuda_leave(device);
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        n += device->streams[i] && device->streams[i]->park.head != device->streams[i]->park.tail;
    return n;
}

static void nap(uint64_t quiet_ns) {
    uint64_t ns = quiet_ns / PATIENCE;
    ns = ns < POLL_NS ? POLL_NS : ns > LONG_POLL_NS ? LONG_POLL_NS : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void *monitor(void *raw) {
    zfi_device_t *device = raw;
    uint64_t queried_ns = zfi_now_ns(), came_ns = queried_ns, known = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    device->clock = zfi_run_clock();
    while (!atomic_load(&device->is_ending)) {
        uint64_t news = zfi_timeline_now(&device->news);
        int has_come = news != known, n = poll_lines(device, &has_come);
        known = news;
        if (pthread_mutex_trylock(&device->lock) == 0) {
            int n_parked = serve(device, &queried_ns);
            has_come |= n_parked > 0; /* room comes command by command */
            n += n_parked;
            pthread_mutex_unlock(&device->lock);
        } else {
            n++;
        }
        if (has_come)
            came_ns = zfi_now_ns();
        if (n && !atomic_load(&device->has_failed))
            nap(zfi_now_ns() - came_ns);
        else
            zfi_timeline_wait(&device->news, news + 1, QUERY_NS, NULL);
    }
    return NULL;
}

void zfi_cuda_monitor_wake(zfi_device_t *device) {
    zfi_timeline_signal(&device->news, atomic_fetch_add(&device->n_news, 1) + 1);
}

zf_status_t zfi_cuda_monitor_start(zfi_device_t *device, zf_error_t *err) {
    zfi_thread_why_t why;
    int rc = zfi_thread_start(&device->monitor, "zf-cuda", monitor, device);
    if (rc) {
        zfi_thread_why(rc, &why);
        return zfi_error(err, ZF_ERR_MEMORY, "create", "cannot start the CUDA backend's thread: %s", why.text);
    }
    device->has_monitor = 1;
    return ZF_OK;
}

void zfi_cuda_monitor_stop(zfi_device_t *device) {
    if (!device->has_monitor)
        return;
    atomic_store(&device->is_ending, 1);
    zfi_cuda_monitor_wake(device);
    pthread_join(device->monitor, NULL);
}
