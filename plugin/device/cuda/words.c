/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/words.c - the thread that turns what the device writes into signals for the host's threads, and
 * measures waits (model in backend.h). It calls nothing of the driver, and takes no lock whose holder may be in a call.
 *
 * While anything is under way it looks again and again; else it sleeps until something is enqueued. The longer nothing
 * has come, the longer it sleeps between two looks, by a share of that time: a signal is late by at most a PATIENCE-th
 * of what it was waited for, and a device that computes for 100 ms costs some hundred looks in place of some thousand.
 */
#include <sys/prctl.h>

#include "device/cuda/backend.h"

enum {
    POLL_NS = 15000,       /* between two looks, at least */
    LONG_POLL_NS = 500000, /* and at most */
    PATIENCE = 16,
    REST_NS = 100000000 /* while nothing is under way */
};

void zfi_cuda_nap(zfi_timeline_t *timeline, uint64_t value, uint64_t quiet_ns) {
    uint64_t ns = quiet_ns / PATIENCE;
    ns = ns < POLL_NS ? POLL_NS : ns > LONG_POLL_NS ? LONG_POLL_NS : ns;
    (void)zfi_timeline_wait(timeline, value, ns, NULL);
}

/* ---- words [poll_lock] ------------------------------------------------------------------------------------------- */

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
    for (uint32_t i = 0; i < atomic_load(&device->n_lines); i++)
        n += poll_line(&device->lines[i], has_come);
    return n;
}

/* ---- time [poll_lock] -------------------------------------------------------------------------------------------- */

static uint64_t busy_ns(const zfi_device_env_t *env) { return env->host_busy_ns ? env->host_busy_ns(env->ctx) : 0; }

static int is_late(const zfi_device_env_t *env, uint64_t waited_ns, uint64_t busy_before_ns) {
    uint64_t more = busy_ns(env) - busy_before_ns, most = ZFI_HOST_DEADLINES * env->timeout_ns;
    return waited_ns > env->timeout_ns + (more < most ? more : most);
}

zfi_cuda_deadline_t zfi_cuda_deadline(const zfi_device_env_t *env) {
    return (zfi_cuda_deadline_t){zfi_run_clock(), busy_ns(env)};
}

int zfi_cuda_is_late(const zfi_device_env_t *env, zfi_cuda_deadline_t *deadline) {
    return is_late(env, zfi_run_ns(&deadline->clock), deadline->busy_ns);
}

/* Whether its deadline is over. */
static int watch_wait(zfi_device_t *device, zfi_cuda_wait_t *wait, uint64_t now) {
    const zfi_device_env_t *env = &device->env;
    uint64_t at = zfi_timeline_now(&wait->stream->executed);
    if (at >= wait->end) {
        if (wait->reached_ns && wait->stall_ns)
            atomic_fetch_add(wait->stall_ns, now - wait->reached_ns);
        wait->stream = NULL;
        return 0;
    }
    if (at >= wait->begin && !wait->reached_ns) {
        wait->reached_ns = now;
        wait->busy_ns = busy_ns(env);
    }
    return wait->reached_ns && !wait->is_patient && !zfi_cuda_is_poisoned(device) &&
           zfi_timeline_now(wait->timeline) < wait->value && is_late(env, now - wait->reached_ns, wait->busy_ns);
}

/* A stream of the host whose next work of ours is enqueued and has not begun runs the host's. While another one of the
 * host's stands at a wait, it may as well stand behind that one in a hardware queue: such time does not count. */
static void watch_stream(zfi_stream_t *stream, uint64_t now, int stands) {
    uint64_t at = zfi_timeline_now(&stream->executed);
    int is_busy = stream->is_host && at % 2 == 0 && at < atomic_load(&stream->planned);
    if (stream->idle_since_ns && !stands)
        atomic_fetch_add(&stream->busy_ns, now - stream->idle_since_ns);
    stream->idle_since_ns = is_busy ? now : 0;
}

/* By a clock that stands while the process is stopped: the host's threads stand, too. A wait that took too long is
 * copied to *out_late. */
static void watch(zfi_device_t *device, zfi_cuda_wait_t *out_late) {
    uint64_t now = 1 + zfi_run_ns(&device->clock); /* 0 has a meaning of its own */
    int stands = 0;
    for (uint32_t i = 0; i < ZFI_CUDA_WAITS; i++) {
        zfi_cuda_wait_t *wait = &device->waits[i];
        if (wait->stream && watch_wait(device, wait, now))
            *out_late = *wait;
        stands |= wait->stream && wait->stream->is_host && wait->reached_ns;
    }
    for (uint32_t i = 0; i < atomic_load(&device->n_streams); i++)
        if (device->streams[i])
            watch_stream(device->streams[i], now, stands);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

void *zfi_cuda_words(void *raw) {
    zfi_device_t *device = raw;
    uint64_t came_ns = zfi_now_ns(), known = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    device->clock = zfi_run_clock();
    while (!atomic_load(&device->is_ending)) {
        uint64_t news = zfi_timeline_now(&device->news);
        zfi_cuda_wait_t late = {0};
        int has_come = news != known;
        uint32_t n = atomic_load(&device->n_inside) + atomic_load(&device->n_parked);
        known = news;
        pthread_mutex_lock(&device->poll_lock);
        n += (uint32_t)poll_lines(device, &has_come);
        watch(device, &late);
        pthread_mutex_unlock(&device->poll_lock);
        if (late.timeline) /* the host is told without a lock */
            device->env.timed_out(device->env.ctx, late.timeline, late.value);
        if (has_come)
            came_ns = zfi_now_ns();
        if (n && !atomic_load(&device->has_failed))
            zfi_cuda_nap(&device->news, news + 1, zfi_now_ns() - came_ns);
        else
            zfi_timeline_wait(&device->news, news + 1, REST_NS, NULL);
    }
    return NULL;
}
