/* SPDX-License-Identifier: Apache-2.0 */
/* mock_queue.c - one thread, one list, one mutex. n_left counts what was launched and has not ended. */
#include "mock_queue.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct work {
    void (*fn)(void *arg);
    void *arg;
    struct work *next;
} work_t;

struct zf_cpu_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work_t *head, **tail;
    uint64_t n_left;
    int is_ending;
};

static void *serve(void *arg) {
    zf_cpu_queue_t *q = arg;
    work_t *work;

    fesetenv(FE_DFL_ENV); /* the oracle works here, whatever mode the host's thread has */
    pthread_mutex_lock(&q->lock);
    while (q->head || !q->is_ending) {
        if (!(work = q->head)) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        q->head = work->next;
        if (!q->head)
            q->tail = &q->head;
        pthread_mutex_unlock(&q->lock);
        work->fn(work->arg);
        free(work);
        pthread_mutex_lock(&q->lock);
        q->n_left--;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static zf_status_t queue_create(zf_cpu_queue_t **out_queue, zf_stream_t *out_stream, zf_error_t *err) {
    zf_cpu_queue_t *q = calloc(1, sizeof *q);

    (void)err;
    if (!q)
        return ZF_ERR_MEMORY;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    q->tail = &q->head;
    if (pthread_create(&q->thread, NULL, serve, q) != 0) {
        free(q);
        return ZF_ERR_MEMORY;
    }
    *out_queue = q;
    *out_stream = (zf_stream_t){.struct_size = sizeof *out_stream,
                                .kind = ZF_STREAM_CPU_QUEUE,
                                .device_type = ZF_DEVICE_CPU,
                                .handle = (uint64_t)(uintptr_t)q};
    return ZF_OK;
}

static void queue_destroy(zf_cpu_queue_t *q) {
    if (!q)
        return;
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
    work_t *work = malloc(sizeof *work);

    (void)err;
    if (!work)
        return ZF_ERR_MEMORY;
    *work = (work_t){.fn = fn, .arg = arg};
    pthread_mutex_lock(&q->lock);
    *q->tail = work;
    q->tail = &work->next;
    q->n_left++;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return ZF_OK;
}

static zf_status_t queue_sync(zf_cpu_queue_t *q, uint64_t timeout_ns, zf_error_t *err) {
    (void)timeout_ns;
    (void)err;
    pthread_mutex_lock(&q->lock);
    while (q->n_left)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return ZF_OK;
}

static zf_status_t fence_wait(const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err) {
    (void)timeout_ns;
    (void)err;
    return fence->kind == ZF_FENCE_NONE ? ZF_OK : ZF_ERR_ARGUMENT;
}

const zf_cpu_ext_t mock_cpu = {.struct_size = sizeof mock_cpu,
                               .queue_create = queue_create,
                               .queue_destroy = queue_destroy,
                               .queue_launch = queue_launch,
                               .queue_sync = queue_sync,
                               .fence_wait = fence_wait};

static zf_cpu_queue_t *queue_of(const zf_stream_t *stream) {
    return stream->kind == ZF_STREAM_CPU_QUEUE ? (zf_cpu_queue_t *)(uintptr_t)stream->handle : NULL;
}

void mock_launch(const zf_stream_t *stream, void (*fn)(void *arg), void *arg) {
    if (queue_of(stream))
        queue_launch(queue_of(stream), fn, arg, NULL);
    else
        fn(arg);
}

void mock_sync(const zf_stream_t *stream) {
    if (queue_of(stream))
        queue_sync(queue_of(stream), 0, NULL);
}
