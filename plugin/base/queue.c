/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/queue.c - an in-order queue of commands run by one thread (contract in queue.h).
 *
 * The thread runs a command where it lies: its cells are given back after it has returned, and pushes write only cells
 * that are free. A command that would cross the ring's end begins at its start instead; the cells left over carry a
 * command without a function, which is skipped. */
#include "base/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/error.h"
#include "base/thread.h"

typedef struct command {
    zfi_queue_fn fn; /* NULL: cells that are left over at the ring's end */
    uint32_t n_cells;
    uint32_t reserved;
    _Alignas(16) unsigned char args[];
} command_t;

static command_t *command_at(const zfi_queue_t *queue, uint32_t cell) {
    return (command_t *)(void *)(queue->cells + (size_t)cell * ZFI_QUEUE_CELL);
}

static uint32_t cells_of(size_t nbytes) {
    return (uint32_t)((sizeof(command_t) + nbytes + ZFI_QUEUE_CELL - 1) / ZFI_QUEUE_CELL);
}

/* ---- the queue's thread ------------------------------------------------------------------------------------------ */

static void give_back(zfi_queue_t *queue, uint32_t n_cells) {
    queue->first_cell = (queue->first_cell + n_cells) % ZFI_QUEUE_CELLS;
    queue->n_cells -= n_cells;
    if (queue->n_cells == 0)
        queue->first_cell = 0;
    pthread_cond_broadcast(&queue->not_full);
}

/* Gives back the cells of the command that has run (NULL at the start) and finds the next one; NULL when the queue has
 * ended and is empty. */
static command_t *next_command(zfi_queue_t *queue, const command_t *done) {
    command_t *command;
    pthread_mutex_lock(&queue->lock);
    if (done)
        give_back(queue, done->n_cells);
    for (;;) {
        while (queue->n_cells == 0 && !queue->is_ending) {
            queue->is_asleep = 1;
            pthread_cond_wait(&queue->not_empty, &queue->lock);
            queue->is_asleep = 0;
        }
        command = queue->n_cells ? command_at(queue, queue->first_cell) : NULL;
        if (!command || command->fn)
            break;
        give_back(queue, command->n_cells); /* left over at the ring's end */
    }
    pthread_mutex_unlock(&queue->lock);
    return command;
}

static void *run(void *arg) {
    zfi_queue_t *queue = arg;
    uint64_t n_run = 0;
    for (command_t *command = next_command(queue, NULL); command; command = next_command(queue, command)) {
        command->fn(command->args);
        zfi_timeline_signal(&queue->executed, ++n_run);
        if (queue->is_void && atomic_load(queue->is_void))
            zfi_timeline_poison(&queue->told);
        else if (queue->is_void)
            zfi_timeline_signal(&queue->told, n_run);
    }
    return NULL;
}

/* ---- create, destroy --------------------------------------------------------------------------------------------- */

static void init(zfi_queue_t *queue, const char *name) {
    pthread_condattr_t attr;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->not_empty, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->not_full, &attr);
    pthread_condattr_destroy(&attr);
    zfi_timeline_init(&queue->executed, name);
    zfi_timeline_init(&queue->told, name);
}

static void release(zfi_queue_t *queue) {
    zfi_timeline_free(&queue->executed);
    zfi_timeline_free(&queue->told);
    pthread_cond_destroy(&queue->not_empty);
    pthread_cond_destroy(&queue->not_full);
    pthread_mutex_destroy(&queue->lock);
    munmap(queue->cells, (size_t)ZFI_QUEUE_CELLS * ZFI_QUEUE_CELL);
    free(queue);
}

zf_status_t zfi_queue_create(zfi_queue_t **out, const char *name, zf_error_t *err) {
    size_t nbytes = (size_t)ZFI_QUEUE_CELLS * ZFI_QUEUE_CELL;
    zfi_thread_why_t why;
    zfi_queue_t *queue = calloc(1, sizeof *queue);
    if (!queue)
        return zfi_error(err, ZF_ERR_MEMORY, "queue", "no memory for a queue of %zu bytes", sizeof *queue);
    queue->cells = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (queue->cells == MAP_FAILED) {
        free(queue);
        return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, errno, "queue",
                                "cannot map %zu bytes for the commands of %s: %s", nbytes, name, strerror(errno));
    }
    init(queue, name);
    int rc = zfi_thread_start(&queue->thread, name, run, queue);
    if (rc == 0) {
        *out = queue;
        return ZF_OK;
    }
    release(queue);
    zfi_thread_why(rc, &why);
    return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, rc, "queue", "cannot start thread %s: %s", name,
                            why.text);
}

void zfi_queue_destroy(zfi_queue_t *queue) {
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->is_ending = 1;
    pthread_cond_signal(&queue->not_empty);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    release(queue);
}

/* ---- push -------------------------------------------------------------------------------------------------------- */

/* The cell behind the newest command. */
static uint32_t end_cell(const zfi_queue_t *queue) { return (queue->first_cell + queue->n_cells) % ZFI_QUEUE_CELLS; }

/* Whether n cells side by side are free; cells left over at the ring's end are taken for it. */
static int make_room(zfi_queue_t *queue, uint32_t n) {
    uint32_t end = end_cell(queue), rest = ZFI_QUEUE_CELLS - end;
    if (queue->n_cells + n > ZFI_QUEUE_CELLS)
        return 0;
    if (n <= rest)
        return 1;
    if (queue->n_cells + rest + n > ZFI_QUEUE_CELLS)
        return 0;
    *command_at(queue, end) = (command_t){.n_cells = rest};
    queue->n_cells += rest;
    return 1;
}

static void put(zfi_queue_t *queue, const zfi_queue_item_t *item) {
    command_t *command = command_at(queue, end_cell(queue));
    *command = (command_t){.fn = item->fn, .n_cells = cells_of(item->nbytes + item->more_nbytes)};
    if (item->nbytes)
        memcpy(command->args, item->args, item->nbytes);
    if (item->more_nbytes)
        memcpy(command->args + item->nbytes, item->more, item->more_nbytes);
    queue->n_cells += command->n_cells;
    queue->n_pushed++;
}

static int wait_for_room(zfi_queue_t *queue, uint32_t n_cells, uint64_t left_ns) {
    int has_room = make_room(queue, n_cells);
    while (!has_room && left_ns) {
        zfi_sleep_once(&queue->not_full, &queue->lock, &left_ns);
        has_room = make_room(queue, n_cells);
    }
    return has_room;
}

zf_status_t zfi_queue_push_all(zfi_queue_t *queue, uint64_t timeout_ns, const zfi_queue_item_t *items, uint32_t n,
                               uint64_t *out_seq) {
    uint32_t n_cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].nbytes + items[i].more_nbytes > ZFI_QUEUE_ARGS)
            return ZF_ERR_INTERNAL;
        n_cells += cells_of(items[i].nbytes + items[i].more_nbytes);
    }
    if (n > ZFI_QUEUE_MOST_COMMANDS)
        return ZF_ERR_INTERNAL;
    pthread_mutex_lock(&queue->lock);
    int has_room = wait_for_room(queue, n_cells, timeout_ns);
    for (uint32_t i = 0; i < n && has_room; i++)
        put(queue, &items[i]);
    if (out_seq && has_room)
        *out_seq = queue->n_pushed;
    if (queue->is_asleep)
        pthread_cond_signal(&queue->not_empty);
    pthread_mutex_unlock(&queue->lock);
    return has_room ? ZF_OK : ZF_ERR_TIMEOUT;
}

zf_status_t zfi_queue_push(zfi_queue_t *queue, zfi_queue_fn fn, const void *args, size_t args_nbytes,
                           uint64_t *out_seq) {
    zfi_queue_item_t item = {.fn = fn, .args = args, .nbytes = args_nbytes};
    return zfi_queue_push_all(queue, UINT64_MAX, &item, 1, out_seq);
}

uint64_t zfi_queue_newest(zfi_queue_t *queue) {
    pthread_mutex_lock(&queue->lock);
    uint64_t newest = queue->n_pushed;
    pthread_mutex_unlock(&queue->lock);
    return newest;
}

uint64_t zfi_queue_host_ns(const zfi_queue_t *queue) {
    uint64_t since = atomic_load(&queue->host_since_ns), now = zfi_now_ns();
    return atomic_load(&queue->host_ns) + (since && now > since ? now - since : 0);
}
