/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/fake.h - the test double of the CUDA driver, as its own files see it. What it models: README.md.
 *
 * Threads. A stream's work runs on the thread of a queue, which streams share (queue.c).
 * Everything here is compiled without a sanitizer and synchronises with futexes, which the thread sanitizer does not
 * see. The only orders that it is told of are those that CUDA promises, by fc_release and fc_acquire: from an enqueue
 * to the work, from a marker (an event, a synchronisation) to who waits for it, between a stream's memory operation and
 * the host's word. */
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "emu.h"

#define FC_API __attribute__((visibility("default"))) CUresult CUDAAPI

#define FC_DRAWN UINT64_MAX

/* ---- config.c: what the environment says ------------------------------------------------------------------------- */

/* Which queue a new stream gets (queue.c). */
typedef enum fc_deal { FC_DEAL_TURN, FC_DEAL_PRIORITY, FC_DEAL_CHANCE } fc_deal_t;

typedef struct fc_config {
    uint64_t seed;          /* of delays, queues, orders of threads */
    uint64_t delay_us;      /* longest pause before an operation; 0: none */
    uint64_t n_queues;      /* CUDA_DEVICE_MAX_CONNECTIONS; 0: one per stream */
    uint64_t n_copy_queues; /* CUDA_DEVICE_MAX_COPY_CONNECTIONS, of each direction */
    fc_deal_t deal;
    uint64_t is_legacy;          /* streams that the host makes are the legacy one */
    uint64_t depth;              /* commands that a queue takes; 0: any number; FC_DRAWN: about 1,000, drawn for each */
    uint64_t device_nbytes;      /* of the device's memory */
    uint64_t adjoins;            /* allocations of device memory have no gap between them */
    uint64_t has_memops;         /* CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS */
    uint64_t has_host_pointer;   /* what an attribute says of registered memory, no more */
    uint64_t is_integrated;      /* CU_DEVICE_ATTRIBUTE_INTEGRATED */
    uint64_t teardown_ms;        /* how long exit stays in the driver, whose calls fail meanwhile; 0: it does not */
    uint64_t most_registered;    /* bytes that are page-locked at once have to be fewer */
    uint64_t most_pinned;        /* bytes that are page-locked by all calls; 0: any number */
    uint64_t has_virtual_memory; /* cuMemCreate, cuMemMap: memory at reserved addresses */
    uint64_t compute; /* 80: compute capability 8.0. Default: one that no cubin is for, so that PTX is loaded */
    uint64_t n_devices, n_multiprocessors;
    uint64_t traffic; /* count sectors, print them at the end */
    uint64_t counts;  /* print how many blocks each kernel was launched with */
    uint64_t driver_version, nccl_version;
    uint64_t nccl_delay_us; /* longest pause of a call and of an exchange */
    const char *fail;       /* NAME:N[:CODE] */
    const char *name;       /* of the devices; NULL: the double's own */
} fc_config_t;
extern fc_config_t fc_config;
void fc_config_read(void);

/* ---- sync.c: what the thread sanitizer does not see -------------------------------------------------------------- */

typedef struct fc_lock {
    uint32_t word;
} fc_lock_t;
void fc_lock(fc_lock_t *lock);
void fc_unlock(fc_lock_t *lock);
/* Sleeps while *word == value, at most 50 ms: callers look again. */
void fc_sleep_on(uint32_t *word, uint32_t value);
void fc_wake(uint32_t *word);
void fc_pause_us(uint64_t us);
uint64_t fc_now_ns(void);
/* Edges for the thread sanitizer; nothing without one. */
void fc_release(const void *at);
void fc_acquire(const void *at);

/* ---- calls.c: entry of every function, counted failures, findings ------------------------------------------------ */

typedef enum fc_need { FC_NEEDS_NOTHING, FC_NEEDS_INIT, FC_NEEDS_CONTEXT } fc_need_t;

/* First thing in every API function; not CUDA_SUCCESS: return it. */
CUresult fc_enter(const char *function, fc_need_t need);
/* Once, when it is initialised. */
void fc_tear_down_at_exit(void);
/* Calls of libzfplugin so far that make or end anything of the driver's, or load code. */
__attribute__((visibility("default"))) uint64_t fakecuda_n_makes(void);
void fc_count_make(int is_plugin);
__attribute__((visibility("default"))) uint64_t fakecuda_n_findings(void);
__attribute__((visibility("default"))) uint64_t fakecuda_n_commands(void); /* of all streams so far; stream.c */
extern __thread int fc_in_host_function;

/* ---- lock.c ------------------------------------------------------------------------------------------------------ */

/* Calls that may keep others waiting. */
typedef enum fc_call {
    FC_CALL_FREE,
    FC_CALL_ALLOC,
    FC_CALL_PIN, /* page-locks memory, or lets it go */
    FC_CALL_STREAM,
    FC_CALL_LOAD,
    FC_CALL_ROOM, /* waits for room in a queue */
    FC_N_CALLS
} fc_call_t;

void fc_locks_read(const char *text); /* FAKECUDA_LOCKS */
void fc_stand_behind(const char *function);
void fc_hold(fc_call_t call);
void fc_let_go(fc_call_t call);
/* Waits for everything that is enqueued, and holds the driver meanwhile; nothing where nobody stands behind the call.
 */
CUresult fc_drain(fc_call_t call);

/* ---- context.c --------------------------------------------------------------------------------------------------- */

typedef struct CUctx_st {
    int n_retained;
    uint64_t used_nbytes;
    int sticky;               /* CUresult that every later call returns */
    uint64_t number;          /* another one after each destruction */
    fc_lock_t host_functions; /* held by the one that runs */
    CUstream legacy;
    int64_t n_objects; /* live ones, for the count of leaks */
} fc_context_t;

fc_context_t *fc_current(void);                        /* NULL: the thread has none */
extern fc_context_t fc_primary;                        /* the only one, of the only device */
void fc_fail_context(fc_context_t *c, CUresult error); /* from now on */
int fc_is_initialised(void);
int fc_priority(int wanted);     /* the nearest that the device has */
extern fc_lock_t fc_global_lock; /* lists of streams */
/* Whether the code at `caller` is in libzfplugin: what it made has to be gone at the end, while the program around it
 * may leave its own behind. */
int fc_is_plugin(const void *caller);
/* One object more or less, of a context and perhaps of libzfplugin. */
void fc_count(fc_context_t *c, int is_plugin, int by);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

typedef enum fc_memory { FC_DEVICE_MEMORY, FC_HOST_ALLOC, FC_HOST_REGISTERED } fc_memory_t;

typedef struct fc_zone {
    uint64_t lo, hi;
    unsigned char *bytes;
    fc_memory_t kind;
    int is_plugin;     /* made by libzfplugin */
    int is_for_copies; /* registered without DEVICEMAP: kernels and memory operations do not reach it */
    int is_mapped;     /* device memory by cuMemMap */
} fc_zone_t;

int fc_memory_start(void); /* 0: no address space */
int fc_zone_of(uint64_t a, fc_zone_t *out);
/* As kernels find memory. */
int fc_find_for_kernel(uint64_t a, emu_range_t *out);
int fc_is_in_window(uint64_t a);
uint64_t fc_window_range(uint64_t nbytes); /* fresh addresses, with a gap behind them unless they adjoin */
void fc_add_zone(const fc_zone_t *zone);
void fc_remove_zone(uint64_t lo);
/* Bytes behind [a, a + n) for a copy: device memory, page-locked or any host memory. NULL: no place for copies. */
unsigned char *fc_bytes_for_copy(uint64_t a, uint64_t n, int *out_is_pageable);

/* Of the current context's device, which has so many and no more, and back. New ones are not zero. NULL: none left. */
unsigned char *fc_take_device_bytes(uint64_t nbytes, int is_plugin);
void fc_give_device_bytes(unsigned char *bytes, uint64_t nbytes, int is_plugin);

/* Bytes behind a range of device memory; NULL: there are none. */
__attribute__((visibility("default"))) unsigned char *fakecuda_device_bytes(uint64_t a, uint64_t n);
/* Bytes that libzfplugin has now: of the device, and page-locked ones of the host. */
__attribute__((visibility("default"))) void fakecuda_plugin_nbytes(uint64_t *out_device, uint64_t *out_host);

/* ---- stream.c ---------------------------------------------------------------------------------------------------- */

/* A place in a stream. Whoever waits for it is ordered behind all that was enqueued there before. */
typedef struct fc_marker {
    uint32_t is_reached, n_refs;
    uint64_t reached_ns;
    fc_context_t *context;
} fc_marker_t;

typedef struct fc_op fc_op_t;
typedef enum fc_direction { FC_NO_COPY, FC_COPY_UP, FC_COPY_DOWN } fc_direction_t;
typedef struct fc_queue fc_queue_t;

struct fc_op {
    void (*run)(fc_op_t *op);
    fc_op_t *next;
    CUstream stream;
    fc_marker_t *marker; /* to reach, or to wait for */
    CUevent event;       /* recorded here */
    uint64_t to, from, nbytes;
    int byte; /* to fill with */
    CUfunction function;
    uint32_t n_blocks, n_threads;
    unsigned char *params;
    CUhostFn host_function;
    void *user;
    uint64_t value;
    uint32_t flags;
    fc_direction_t direction;
    uint32_t copy_number; /* in its line of copies */
    int is_order;         /* runs after an error of the context, too */
    int takes_room;       /* of its queue */
    int tells;            /* the host sees that it is over by what it does */
};

struct CUstream_st {
    uint64_t magic;
    fc_context_t *context;
    fc_queue_t *queue;
    unsigned flags;
    int priority;
    uint64_t id;
    CUstreamCaptureStatus capture;
    CUstreamCaptureMode capture_mode;
    uint64_t n_enqueued;
    int is_plugin;
    CUstream next; /* all streams of the process */
};

/* The stream behind a handle, the legacy one for NULL and CU_STREAM_LEGACY; NULL: no such stream. */
CUstream fc_stream_of(CUstream given);
CUresult fc_stream_new(fc_context_t *c, unsigned flags, int priority, CUstream *out);
/* Copies *op to the end of the stream, with the order that the legacy stream brings along. */
CUresult fc_enqueue(CUstream stream, const fc_op_t *op);
void fc_marker_wait(fc_marker_t *m); /* of a host thread */
void fc_marker_drop(fc_marker_t *m);
fc_marker_t *fc_marker_keep(fc_marker_t *m);
fc_marker_t *fc_marker_new(fc_context_t *c);
void fc_enqueue_record(CUstream stream, fc_marker_t *m); /* commands of the caller: they take room */
void fc_enqueue_event_wait(CUstream stream, fc_marker_t *m);
CUresult fc_synchronise(CUstream stream);
CUresult fc_synchronise_context(fc_context_t *c);
/* A stream of libzfplugin that is alone on its queue has commands that are not over. */
int fc_has_plugin_work(fc_context_t *c);
void fc_destroy_streams_of(fc_context_t *c);
uint64_t fc_random(void); /* [any-thread] */
uint64_t fc_mix(uint64_t z);
int fc_spoil_global_captures(void); /* the number of streams captured in that mode */
/* Entry of a function of a stream: *s becomes the stream behind the handle. */
CUresult fc_enter_stream(const char *function, CUstream *s);

/* ---- queue.c ----------------------------------------------------------------------------------------------------- */

/* Calls that wait for room in a queue now. */
__attribute__((visibility("default"))) uint32_t fakecuda_n_waiting_calls(void);

/* [fc_global_lock] The queue of a new stream; NULL: there are no threads. leave: whether it was the last one, after
 * whose work the caller ends the queue. */
fc_queue_t *fc_queue_for(int priority);
int fc_queue_leave(fc_queue_t *q);
void fc_queue_end(fc_queue_t *q);
void fc_queue_append(CUstream s, const fc_op_t *op);
void fc_queue_take_room(CUstream s); /* for one command; waits */
/* A queue of one stream has commands that are not over. */
int fc_queue_has_own_work(const fc_queue_t *q);

/* ---- capture.c, host_function.c ---------------------------------------------------------------------------------- */

CUresult fc_unless_captured(void); /* of a call that is unsafe beside a capture: the error that it returns */
/* For the double of NCCL: what its kernels would do, in stream order. */
CUresult fc_launch_work(CUstream s, CUhostFn fn, void *user);
