/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/queue.h - an in-order queue of commands run by one thread.
 *
 * A command is a function and its arguments, copied in. Any thread may push; commands run in the order of their pushes,
 * each after the one before has returned. executed counts those that have run: the sequence number of a push is what
 * executed must reach for it to be over. Several commands can be pushed at once: they lie together in the queue, and
 * the thread is woken once.
 *
 * Memory. Commands lie in a ring of cells, a command in as many cells side by side as its arguments need. The ring is
 * address space that is reserved at creation; it starts again at its first cell whenever it is empty, so that a queue
 * which never holds much never touches much. No push allocates; one that finds the ring full waits. */
#pragma once

#include <fenv.h>
#include <pthread.h>
#include <stdint.h>

#include "base/timeline.h"
#include "zf/types.h"

enum {
    ZFI_QUEUE_CELL = 128,        /* bytes */
    ZFI_QUEUE_CELLS = 16384,     /* of one queue: 2 MiB of address space */
    ZFI_QUEUE_ARGS = 2048 - 16,  /* most bytes of arguments of one command */
    ZFI_QUEUE_MOST_COMMANDS = 32 /* in one push */
};

typedef void (*zfi_queue_fn)(void *args);

/* One command to push; its arguments are copied, in two parts that lie one behind the other. */
typedef struct zfi_queue_item {
    zfi_queue_fn fn;
    const void *args;
    size_t nbytes;
    const void *more;
    size_t more_nbytes;
} zfi_queue_item_t;

typedef struct zfi_queue {
    pthread_mutex_t lock; /* guards first_cell, n_cells, n_pushed, is_ending, is_asleep */
    pthread_cond_t not_empty, not_full;
    uint32_t first_cell; /* of the oldest command */
    uint32_t n_cells;    /* in use from there on, around the end */
    uint64_t n_pushed;
    int is_ending, is_asleep;
    pthread_t thread;
    zfi_timeline_t executed; /* written by the queue's thread alone */
    /* NULL, or a flag that commands heed: once it is set, they may do nothing. told is what executed is until then. */
    const _Atomic int *is_void;
    zfi_timeline_t told;
    fenv_t host_mode;  /* floating-point mode of the host's launches, which ours must not change */
    int has_host_mode; /* both: the queue's thread alone */
    _Atomic uint64_t host_ns, host_since_ns; /* time spent in the host's launches that are over; start of one, or 0 */
    unsigned char *cells;
} zfi_queue_t;

/* [any-thread] Starts the thread, named for debuggers (at most 15 bytes). Its signals are blocked. */
zf_status_t zfi_queue_create(zfi_queue_t **out, const char *name, zf_error_t *err);

/* [any-thread] Runs what was pushed, ends the thread, frees. NULL is legal. */
void zfi_queue_destroy(zfi_queue_t *queue);

/* [any-thread] Copies the arguments; waits while the queue is full. out_seq may be NULL. */
zf_status_t zfi_queue_push(zfi_queue_t *queue, zfi_queue_fn fn, const void *args, size_t args_nbytes,
                           uint64_t *out_seq);
/* [any-thread] Pushes n <= ZFI_QUEUE_MOST_COMMANDS commands side by side, with a deadline, for queues that the host may
 * block: ZF_ERR_TIMEOUT, nothing pushed. *out_seq is the last one's. */
zf_status_t zfi_queue_push_all(zfi_queue_t *queue, uint64_t timeout_ns, const zfi_queue_item_t *items, uint32_t n,
                               uint64_t *out_seq);

/* [any-thread] Sequence number of the newest push. */
uint64_t zfi_queue_newest(zfi_queue_t *queue);

/* [any-thread] Time that the queue has spent in the host's own launches, the present one included. */
uint64_t zfi_queue_host_ns(const zfi_queue_t *queue);
