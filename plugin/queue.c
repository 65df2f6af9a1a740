/* plugin/queue.c - an in-order queue of commands run by one thread (contract in queue.h). */
#include "queue.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"

int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg) {
    sigset_t all, before;
    int rc;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(out, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*out, name);
    return rc;
}

/* Takes the next command, or returns 0 when the queue has ended and is empty. */
static int take(zfi_queue_t *queue, uint64_t n_run, zfi_command_t *out) {
    int has_one;
    pthread_mutex_lock(&queue->lock);
    while (queue->n_pushed == n_run && !queue->is_ending)
        pthread_cond_wait(&queue->not_empty, &queue->lock);
    has_one = queue->n_pushed != n_run;
    if (has_one) {
        *out = queue->commands[n_run % ZFI_QUEUE_LENGTH];
        queue->n_taken = n_run + 1;
        pthread_cond_broadcast(&queue->not_full);
    }
    pthread_mutex_unlock(&queue->lock);
    return has_one;
}

static void *run(void *arg) {
    zfi_queue_t *queue = arg;
    zfi_command_t command;
    for (uint64_t n_run = 0; take(queue, n_run, &command); n_run++) {
        command.fn(command.args);
        zfi_timeline_signal(&queue->executed, n_run + 1);
    }
    return NULL;
}

zf_status_t zfi_queue_create(zfi_queue_t **out, const char *name, zf_error_t *err) {
    zfi_queue_t *queue = malloc(sizeof *queue);
    pthread_condattr_t attr;
    int rc;
    if (!queue)
        return zfi_error(err, ZF_ERR_MEMORY, "queue", "no memory for a queue of %zu bytes", sizeof *queue);
    memset(queue, 0, offsetof(zfi_queue_t, commands));
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->not_empty, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->not_full, &attr);
    pthread_condattr_destroy(&attr);
    zfi_timeline_init(&queue->executed, name);
    queue->magic = ZFI_QUEUE_MAGIC;
    rc = zfi_thread_start(&queue->thread, name, run, queue);
    if (rc == 0) {
        *out = queue;
        return ZF_OK;
    }
    zfi_timeline_free(&queue->executed);
    free(queue);
    return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, rc, "queue", "cannot start thread %s: %s", name,
                            strerror(rc));
}

void zfi_queue_destroy(zfi_queue_t *queue) {
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->is_ending = 1;
    pthread_cond_signal(&queue->not_empty);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    queue->magic = 0;
    zfi_timeline_free(&queue->executed);
    pthread_cond_destroy(&queue->not_empty);
    pthread_cond_destroy(&queue->not_full);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static int is_full(const zfi_queue_t *queue) { return queue->n_pushed - queue->n_taken >= ZFI_QUEUE_LENGTH; }

zf_status_t zfi_queue_push_within(zfi_queue_t *queue, uint64_t timeout_ns, zfi_queue_fn fn, const void *args,
                                  size_t args_nbytes, uint64_t *out_seq) {
    zfi_command_t *command;
    struct timespec deadline;
    int rc = 0;
    if (args_nbytes > ZFI_QUEUE_ARGS)
        return ZF_ERR_INTERNAL;
    pthread_mutex_lock(&queue->lock);
    if (is_full(queue))
        zfi_deadline(timeout_ns, &deadline);
    while (is_full(queue) && rc == 0)
        rc = pthread_cond_timedwait(&queue->not_full, &queue->lock, &deadline);
    if (is_full(queue)) {
        pthread_mutex_unlock(&queue->lock);
        return ZF_ERR_TIMEOUT;
    }
    command = &queue->commands[queue->n_pushed % ZFI_QUEUE_LENGTH];
    command->fn = fn;
    if (args_nbytes)
        memcpy(command->args, args, args_nbytes);
    queue->n_pushed++;
    if (out_seq)
        *out_seq = queue->n_pushed;
    pthread_cond_signal(&queue->not_empty);
    pthread_mutex_unlock(&queue->lock);
    return ZF_OK;
}

zf_status_t zfi_queue_push(zfi_queue_t *queue, zfi_queue_fn fn, const void *args, size_t args_nbytes,
                           uint64_t *out_seq) {
    return zfi_queue_push_within(queue, UINT64_MAX, fn, args, args_nbytes, out_seq);
}

uint64_t zfi_queue_newest(zfi_queue_t *queue) {
    uint64_t newest;
    pthread_mutex_lock(&queue->lock);
    newest = queue->n_pushed;
    pthread_mutex_unlock(&queue->lock);
    return newest;
}
