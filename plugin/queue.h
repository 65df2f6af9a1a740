/* plugin/queue.h - an in-order queue of commands run by one thread: the CPU backend's stream.
 *
 * A command is a function and up to ZFI_QUEUE_ARGS bytes of arguments, copied in. Any thread may push; commands run in
 * the order of their pushes, each after the one before has returned. executed counts those that have run: the sequence
 * number of a push is what executed must reach for it to be over. The same queue serves the plugin's own streams
 * (device proxy, down, up, control) and the host's (zf.cpu/1).
 */
#ifndef ZFI_QUEUE_H
#define ZFI_QUEUE_H

#include <fenv.h>
#include <pthread.h>
#include <stdint.h>

#include "timeline.h"
#include "zf/types.h"

#define ZFI_QUEUE_ARGS 120u
#define ZFI_QUEUE_LENGTH 1024u

typedef void (*zfi_queue_fn)(void *args);

typedef struct zfi_command {
    zfi_queue_fn fn;
    _Alignas(8) unsigned char args[ZFI_QUEUE_ARGS];
} zfi_command_t;

typedef struct zfi_queue {
    pthread_mutex_t lock; /* guards commands, n_pushed, n_taken, is_ending */
    pthread_cond_t not_empty, not_full;
    uint64_t n_pushed, n_taken;
    int is_ending;
    pthread_t thread;
    zfi_timeline_t executed; /* written by the queue's thread alone */
    fenv_t host_mode;        /* floating-point mode of the host's launches, which ours must not change */
    int has_host_mode;       /* both: the queue's thread alone */
    uint32_t magic;          /* ZFI_QUEUE_MAGIC while alive: a stream handle of another kind is refused */
    zfi_command_t commands[ZFI_QUEUE_LENGTH];
} zfi_queue_t;

#define ZFI_QUEUE_MAGIC 0x5A465155u

/* [any-thread] Starts the thread, named for debuggers (at most 15 bytes). Its signals are blocked. */
zf_status_t zfi_queue_create(zfi_queue_t **out, const char *name, zf_error_t *err);

/* [any-thread] Runs what was pushed, ends the thread, frees. NULL is legal. */
void zfi_queue_destroy(zfi_queue_t *queue);

/* [any-thread] Copies the arguments; waits while the queue is full. out_seq may be NULL. */
zf_status_t zfi_queue_push(zfi_queue_t *queue, zfi_queue_fn fn, const void *args, size_t args_nbytes,
                           uint64_t *out_seq);
/* [any-thread] The same with a deadline, for queues that the host may block: ZF_ERR_TIMEOUT, nothing pushed. */
zf_status_t zfi_queue_push_within(zfi_queue_t *queue, uint64_t timeout_ns, zfi_queue_fn fn, const void *args,
                                  size_t args_nbytes, uint64_t *out_seq);

/* [any-thread] Sequence number of the newest push. */
uint64_t zfi_queue_newest(zfi_queue_t *queue);

/* Starts a thread with every signal blocked and a name; 0 or an errno value. */
int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);

#endif
