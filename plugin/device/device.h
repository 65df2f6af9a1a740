/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/device.h - a device as the engine sees it: memory, streams, timelines, copies, kernels.
 *
 * A backend is one zfi_device_ops_t. It gives the means and knows nothing of training: what happens in a step, in which
 * order and waiting for what, is written once, in plugin/step. The author of a backend reads this file and
 * kernels/launch.h.
 *
 * Streams. A stream runs what is enqueued on it in order. Two streams are ordered by timelines (base/timeline.h), which
 * host threads signal and wait for as well, or by `order`. All work is enqueued with `enqueue`, a list of operations at
 * once; it never waits for the work, and after the first step it allocates nothing. What an operation points to must
 * stay as it is until the operation has run; ranges and arguments themselves are copied. The ranges of one operation
 * are copied in any order, or side by side: their targets do not overlap.
 *
 * Failure. When a wait on a stream passes its deadline, the backend calls env.timed_out, which poisons the instance.
 * Once *env.is_poisoned is set, waits end at once, and copies, fills and launches are skipped: the host's memory may be
 * gone. `mark` and `synchronise` go on working, so that a caller that frees memory can wait until nothing reads it any
 * more.
 *
 * Threads: [control] functions run while nothing else uses the device handle; `enqueue` and `mark` may be called by any
 * thread, for one stream by one thread at a time. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/timeline.h"
#include "base/trace.h"
#include "launch.h"
#include "zf/plugin.h"

typedef struct zfi_device zfi_device_t; /* one device of one instance */
typedef struct zfi_stream zfi_stream_t; /* of the plugin or of the host */

/* A wait lasts no longer than this many deadlines besides its own, however long the host's own work takes. */
enum { ZFI_HOST_DEADLINES = 8 };

/* What a backend is told about the instance. It outlives the device, and so do all timelines. */
typedef struct zfi_device_env {
    const zfi_kernels_t *kernels; /* the CPU's instruction set */
    uint64_t timeout_ns;          /* of every wait on a stream, from when the stream reaches it; see host_busy_ns */
    const _Atomic int *is_poisoned;
    void *ctx;
    /* [own threads] A wait on a stream passed its deadline. */
    void (*timed_out)(void *ctx, const zfi_timeline_t *timeline, uint64_t value);
    /* [any-thread] The device failed for good: what the driver says. */
    void (*failed)(void *ctx, const char *what);
    /* [any-thread] A stream took no operation for timeout_ns. */
    void (*is_stuck)(void *ctx, const char *stream, uint32_t n_waiting);
    /* [any-thread] host_busy_ns of the stream that the host uses now, and of exchanges: deadlines do not count it.
     * NULL: they do. */
    uint64_t (*host_busy_ns)(void *ctx);
    /* What a stream's own threads do may be recorded; NULL, or NULL there: nothing is. */
    zfi_trace_t *const *trace;
    int is_releasable; /* memory from alloc may be released */
} zfi_device_env_t;

/* ---- operations -------------------------------------------------------------------------------------------------- */

typedef enum zfi_op_kind {
    ZFI_OP_WAIT,   /* until timeline >= value; time slept is added to *stall_ns */
    ZFI_OP_SIGNAL, /* timeline = value */
    ZFI_OP_DOWN,   /* copies ranges from the device (memory from alloc, or the host's own there) to the host */
    ZFI_OP_UP,     /* copies ranges from the host, pinned or not, to memory from alloc */
    ZFI_OP_FILL,   /* sets nbytes at `to` to zero */
    ZFI_OP_LAUNCH  /* runs a kernel */
} zfi_op_kind_t;

typedef struct zfi_op {
    zfi_op_kind_t kind;
    int is_patient; /* WAIT: for something that the host alone decides, without a deadline */
    zfi_timeline_t *timeline;
    uint64_t value;
    _Atomic uint64_t *stall_ns; /* or NULL */
    const zfi_range_t *ranges;
    uint32_t n_ranges;
    zfi_kernel_t kernel;
    const void *args;
    void *to;
    uint64_t nbytes; /* of args, or to fill */
} zfi_op_t;

static inline zfi_op_t zfi_op_wait(zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *stall_ns) {
    return (zfi_op_t){.kind = ZFI_OP_WAIT, .timeline = timeline, .value = value, .stall_ns = stall_ns};
}
static inline zfi_op_t zfi_op_wait_for_host(zfi_timeline_t *timeline, uint64_t value) {
    return (zfi_op_t){.kind = ZFI_OP_WAIT, .timeline = timeline, .value = value, .is_patient = 1};
}
static inline zfi_op_t zfi_op_signal(zfi_timeline_t *timeline, uint64_t value) {
    return (zfi_op_t){.kind = ZFI_OP_SIGNAL, .timeline = timeline, .value = value};
}
static inline zfi_op_t zfi_op_down(const zfi_range_t *ranges, uint32_t n) {
    return (zfi_op_t){.kind = ZFI_OP_DOWN, .ranges = ranges, .n_ranges = n};
}
static inline zfi_op_t zfi_op_up(const zfi_range_t *ranges, uint32_t n) {
    return (zfi_op_t){.kind = ZFI_OP_UP, .ranges = ranges, .n_ranges = n};
}
static inline zfi_op_t zfi_op_fill(void *to, uint64_t nbytes) {
    return (zfi_op_t){.kind = ZFI_OP_FILL, .to = to, .nbytes = nbytes};
}
static inline zfi_op_t zfi_op_launch(zfi_kernel_t kernel, const void *args, size_t nbytes) {
    return (zfi_op_t){.kind = ZFI_OP_LAUNCH, .kernel = kernel, .args = args, .nbytes = nbytes};
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct zfi_device_info {
    uint64_t free_nbytes, total_nbytes; /* of device memory; UINT64_MAX: not known */
    int is_host_memory;                 /* device memory is taken from the host's */
    int has_few_queues; /* streams share hardware queues: what one of them waits for may lie behind it in another */
    const char *image;  /* which kernels were loaded, for the log; NULL: they are part of the library */
} zfi_device_info_t;

/* Memory from alloc. */
typedef struct zfi_block {
    void *memory;
    uint64_t nbytes;
} zfi_block_t;

/* What a backend may leave out. A binding that needs it is refused by name (instance/support.h); nobody asks again. */
enum {
    ZFI_LACKS_HOST_RULES = 1, /* a host's own update rule does not run on it */
    ZFI_LACKS_RULES = 2,      /* every rule but AdamW */
    ZFI_LACKS_HALVES = 4,     /* weights and gradients of two bytes an element */
    ZFI_LACKS_MOMENTS = 8,    /* ROUND_MOMENTS, and moments that are no float32 */
    ZFI_LACKS_MEAN = 16,      /* a count of updates for each channel */
    ZFI_LACKS_RESIDENT = 32,  /* UPDATE_ALL */
    ZFI_LACKS_RANKS = 64      /* SUM_PARTS and MOVE */
};

typedef struct zfi_device_ops {
    const char *name;
    int32_t device_type; /* ZF_DEVICE_... */
    uint32_t lacks;      /* ZFI_LACKS_... */
    int has_own_memory;  /* which the host's threads cannot read or write */
    int is_parallel;     /* kernels work on many matrices at once: they are given unit_squares, is_bad, and scalars for
                          * all matrices (launch.h) */

    /* device [control]. open refuses a device_id that is not there. */
    zf_status_t (*open)(int32_t device_id, const zfi_device_env_t *env, zfi_device_t **out, zf_error_t *err);
    void (*close)(zfi_device_t *device); /* NULL is legal; its streams are destroyed before */
    void (*info)(const zfi_device_t *device, zfi_device_info_t *out);

    /* memory [control]. alloc: zeroed, of exactly nbytes; `what` is for the message. pin makes host memory that is
     * mapped already one that the device reaches: *out_is_pageable where that failed and copies are slower for it. */
    zf_status_t (*alloc)(zfi_device_t *device, uint64_t nbytes, const char *what, void **out, zf_error_t *err);
    void (*free)(zfi_device_t *device, void *memory, uint64_t nbytes);
    zf_status_t (*pin)(zfi_device_t *device, void *memory, uint64_t nbytes, int *out_is_pageable, zf_error_t *err);
    void (*unpin)(zfi_device_t *device, void *memory, uint64_t nbytes);

    /* optional, both or none [control]: all bytes of n blocks, and what the backend itself keeps on the device, go back
     * to the driver while env.is_releasable, and come again at the same addresses, with any content. Everything rests,
     * and no work touches them meanwhile; `free` is legal. release fails for good or not at all. resume: all of it, or
     * ZF_ERR_MEMORY and nothing. */
    zf_status_t (*release)(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err);
    zf_status_t (*resume)(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err);

    /* streams. resolve [hook]: the stream that a host's descriptor names, the same for the same handle; NULL for a host
     * that computes on the calling thread. */
    zf_status_t (*stream_create)(zfi_device_t *device, const char *name, zfi_stream_t **out, zf_error_t *err);
    void (*stream_destroy)(zfi_stream_t *stream); /* runs what was enqueued; NULL is legal */
    zf_status_t (*stream_resolve)(zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                  zfi_stream_t **out, zf_error_t *err);

    /* marks: a number that names everything enqueued on a stream so far, on a host's stream at least what the plugin
     * enqueued; it rises. fence [any-thread]: what a host can wait for; its counter, always the same of one stream, is
     * the value of a zfi_timeline_t. */
    uint64_t (*mark)(zfi_stream_t *stream);
    zf_status_t (*synchronise)(zfi_stream_t *stream, uint64_t mark, uint64_t timeout_ns, uint64_t *waited_ns);
    void (*fence)(zfi_stream_t *stream, uint64_t mark, zf_fence_t *out);

    /* Time that a stream has spent in the host's own work, which may take as long as it likes. It only rises; 0 always
     * where the backend cannot know. */
    uint64_t (*host_busy_ns)(zfi_stream_t *stream);

    /* Work enqueued on `to` from now on waits for what is enqueued on `from` now. */
    zf_status_t (*order)(zfi_device_t *device, zfi_stream_t *from, zfi_stream_t *to);

    /* Another library works on a stream of the plugin's: its handle as the driver knows it. From lend to take_back the
     * device is the calling thread's; what that library has enqueued by then comes before what `enqueue` is given next.
     * NULL: the backend has no streams that a library knows. */
    zf_status_t (*lend)(zfi_stream_t *stream, void **out_handle);
    void (*take_back)(zfi_stream_t *stream);

    /* ZF_ERR_TIMEOUT after env.is_stuck where the stream did not take all operations in time. */
    zf_status_t (*enqueue)(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n);
} zfi_device_ops_t;

/* Every backend of this build (backends.c). */
extern const zfi_device_ops_t *const zfi_backends[];
extern const uint32_t zfi_n_backends;
