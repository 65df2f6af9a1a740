/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cpu/host_queue.c - zf.cpu/1: queues that a host without a GPU computes on (contract in
 * zf/ext/cpu.h). */
#include <fenv.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/struct.h"
#include "device/cpu/cpu.h"

typedef struct launch_args {
    zfi_queue_t *queue;
    void (*fn)(void *arg);
    void *arg;
} launch_args_t;

static void run_launch(void *raw) {
    const launch_args_t *args = raw;
    if (args->queue->has_host_mode)
        fesetenv(&args->queue->host_mode);
    atomic_store(&args->queue->host_since_ns, zfi_now_ns());
    args->fn(args->arg);
    atomic_fetch_add(&args->queue->host_ns, zfi_now_ns() - atomic_load(&args->queue->host_since_ns));
    atomic_store(&args->queue->host_since_ns, 0);
    fegetenv(&args->queue->host_mode);
    args->queue->has_host_mode = 1;
}

/* ---- the host's queues: a handle is looked for here before it is read -------------------------------------------- */

enum { MOST_QUEUES = 1024 }; /* of a process at a time */

/* Each is in one place, without a lock: every hook that is given a queue looks for it here. */
static struct {
    _Atomic(zfi_queue_t *) at[MOST_QUEUES]; /* NULL: free */
    _Atomic int n;                          /* places from here on were never used */
} queues;

static int add_queue(zfi_queue_t *queue) {
    for (int i = 0; i < MOST_QUEUES; i++) {
        zfi_queue_t *free_place = NULL;
        int n = atomic_load(&queues.n);
        if (!atomic_compare_exchange_strong(&queues.at[i], &free_place, queue))
            continue;
        while (n <= i && !atomic_compare_exchange_weak(&queues.n, &n, i + 1))
            ;
        return 1;
    }
    return 0;
}

static int find_queue(const zfi_queue_t *queue) {
    int n = atomic_load(&queues.n), i = 0;
    while (i < n && atomic_load(&queues.at[i]) != queue)
        i++;
    return i < n ? i : -1;
}

static void remove_queue(const zfi_queue_t *queue) {
    int i = find_queue(queue);
    if (i >= 0)
        atomic_store(&queues.at[i], NULL);
}

int zfi_is_host_queue(const zfi_queue_t *given) { return given && find_queue(given) >= 0; }

static zf_status_t check_queue(const zfi_queue_t *queue, zf_error_t *err) {
    if (zfi_is_host_queue(queue))
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "queue is %s", queue ? "not one of this plugin's" : "NULL");
}

static zf_status_t cpu_queue_create(zf_cpu_queue_t **out_queue, zf_stream_t *out_stream, zf_error_t *err) {
    zf_stream_t stream = {.struct_size = sizeof stream, .kind = ZF_STREAM_CPU_QUEUE, .device_type = ZF_DEVICE_CPU};
    zfi_queue_t *queue;
    zf_status_t st = zfi_struct_check_out(out_stream, "zf_stream_t", err);
    if (!st && (!out_queue || !out_stream))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "%s is NULL", out_queue ? "out_stream" : "out_queue");
    if (!st)
        st = zfi_queue_create(&queue, "zf-host-queue", err);
    if (st)
        return st;
    if (!add_queue(queue)) {
        zfi_queue_destroy(queue);
        return zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "%d queues are open, the most of a process: destroy some first",
                         MOST_QUEUES);
    }
    stream.handle = (uint64_t)(uintptr_t)queue;
    zfi_struct_write(out_stream, &stream, sizeof stream);
    *out_queue = (zf_cpu_queue_t *)queue;
    return ZF_OK;
}

static void cpu_queue_destroy(zf_cpu_queue_t *queue) {
    if (queue)
        remove_queue((zfi_queue_t *)queue);
    zfi_queue_destroy((zfi_queue_t *)queue);
}

static zf_status_t cpu_queue_launch(zf_cpu_queue_t *queue, void (*fn)(void *arg), void *arg, zf_error_t *err) {
    launch_args_t args = {(zfi_queue_t *)queue, fn, arg};
    zf_status_t st = check_queue((zfi_queue_t *)queue, err);
    if (!st && !fn)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "fn is NULL");
    return st ? st : zfi_queue_push((zfi_queue_t *)queue, run_launch, &args, sizeof args, NULL);
}

static zf_status_t cpu_queue_sync(zf_cpu_queue_t *raw, uint64_t timeout_ns, zf_error_t *err) {
    zfi_queue_t *queue = (zfi_queue_t *)raw;
    zf_status_t st = check_queue(queue, err);
    if (st)
        return st;
    st = zfi_timeline_wait(&queue->executed, zfi_queue_newest(queue), timeout_ns, NULL);
    return st ? zfi_error(err, st, "cpu", "the queue did not finish within %llu ns", (unsigned long long)timeout_ns)
              : ZF_OK;
}

const zf_cpu_ext_t zfi_cpu_ext = {.struct_size = sizeof zfi_cpu_ext,
                                  .queue_create = cpu_queue_create,
                                  .queue_destroy = cpu_queue_destroy,
                                  .queue_launch = cpu_queue_launch,
                                  .queue_sync = cpu_queue_sync};
