/* SPDX-License-Identifier: Apache-2.0 */
/* mock_queue.c - one thread, one ring, one mutex (mock_queue.h). Launching allocates nothing. */
#define _GNU_SOURCE
#include "mock_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "mock.h"

enum { N_PLACES = 1024 };

typedef struct work {
    void (*fn)(void *arg);
    void *arg;
} work_t;

struct zf_cpu_queue {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    work_t ring[N_PLACES];
    uint64_t n_launched, n_done;
    int is_ending;
    zf_cpu_queue_t *next; /* of all that live */
};

static pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER; /* guards: */
static zf_cpu_queue_t *living;

static void *serve(void *arg) {
    zf_cpu_queue_t *q = arg;
    pthread_mutex_lock(&q->lock);
    while (q->n_done < q->n_launched || !q->is_ending) {
        work_t work = q->ring[q->n_done % N_PLACES];
        if (q->n_done == q->n_launched) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        work.fn(work.arg);
        pthread_mutex_lock(&q->lock);
        q->n_done++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static zf_status_t queue_create(zf_cpu_queue_t **out_queue, zf_stream_t *out_stream, zf_error_t *err) {
    zf_cpu_queue_t *q;
    zf_stream_t stream = {.kind = ZF_STREAM_CPU_QUEUE, .device_type = ZF_DEVICE_CPU};
    zf_status_t st = mock_check_out(out_stream, "zf_stream_t", err);
    if (!st && !out_queue)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "out_queue is NULL");
    if (st)
        return st;
    q = calloc(1, sizeof *q);
    if (!q)
        return mock_fail(err, ZF_ERR_MEMORY, "no memory for a queue");
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (pthread_create(&q->thread, NULL, serve, q) != 0) {
        free(q);
        return mock_fail(err, ZF_ERR_MEMORY, "no thread for a queue");
    }
    stream.handle = (uint64_t)(uintptr_t)q;
    pthread_mutex_lock(&living_lock);
    q->next = living, living = q;
    pthread_mutex_unlock(&living_lock);
    mock_write(out_stream, &stream, sizeof stream);
    *out_queue = q;
    return ZF_OK;
}

int mock_queue_lives(uint64_t handle) {
    zf_cpu_queue_t *q;
    pthread_mutex_lock(&living_lock);
    for (q = living; q && (uint64_t)(uintptr_t)q != handle;)
        q = q->next;
    pthread_mutex_unlock(&living_lock);
    return q != NULL;
}

static void queue_destroy(zf_cpu_queue_t *q) {
    if (!q)
        return;
    pthread_mutex_lock(&living_lock);
    for (zf_cpu_queue_t **at = &living; *at; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            break;
        }
    pthread_mutex_unlock(&living_lock);
    pthread_mutex_lock(&q->lock);
    q->is_ending = 1;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static zf_status_t queue_launch(zf_cpu_queue_t *q, void (*fn)(void *arg), void *arg, zf_error_t *err) {
    if (!q || !fn)
        return mock_fail(err, ZF_ERR_ARGUMENT, "queue or fn is NULL");
    pthread_mutex_lock(&q->lock);
    while (q->n_launched - q->n_done == N_PLACES)
        pthread_cond_wait(&q->changed, &q->lock);
    q->ring[q->n_launched++ % N_PLACES] = (work_t){fn, arg};
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return ZF_OK;
}

static zf_status_t queue_sync(zf_cpu_queue_t *q, uint64_t timeout_ns, zf_error_t *err) {
    struct timespec end;
    uint64_t want;
    int rc = 0;
    if (!q)
        return mock_fail(err, ZF_ERR_ARGUMENT, "queue is NULL");
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)(timeout_ns / 1000000000u) + 1;
    pthread_mutex_lock(&q->lock);
    want = q->n_launched;
    while (q->n_done < want && rc == 0)
        rc = pthread_cond_timedwait(&q->changed, &q->lock, &end);
    pthread_mutex_unlock(&q->lock);
    return rc ? mock_fail(err, ZF_ERR_TIMEOUT, "the queue has not ended") : ZF_OK;
}

static zf_status_t fence_wait(const zf_fence_t *given, uint64_t timeout_ns, zf_error_t *err) {
    zf_fence_t fence;
    zf_status_t st = mock_read(&fence, given, sizeof fence, "zf_fence_t", err);
    (void)timeout_ns;
    if (!st && fence.kind != ZF_FENCE_NONE)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "a fence of kind %d", fence.kind);
    return st;
}

const zf_cpu_ext_t mock_cpu_table = {.struct_size = sizeof mock_cpu_table,
                                     .queue_create = queue_create,
                                     .queue_destroy = queue_destroy,
                                     .queue_launch = queue_launch,
                                     .queue_sync = queue_sync,
                                     .fence_wait = fence_wait};

zf_cpu_queue_t *mock_queue_of(const zf_stream_t *stream) {
    return stream->kind == ZF_STREAM_CPU_QUEUE && mock_queue_lives(stream->handle)
               ? (zf_cpu_queue_t *)(uintptr_t)stream->handle
               : NULL;
}
