/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/backend.h - the CUDA backend as its files know it.
 *
 * Words. Whatever passes between the device and the host's threads is a 64-bit word in page-locked memory, written by
 * one side alone: the device's word of a line (a timeline seen from here) is what streams signal
 * (cuStreamWriteValue64), and the words' thread turns that into zfi_timeline_signal, which wakes the host's threads;
 * the host's word follows the timeline, for streams that wait for it. A stream's progress, how much of what was
 * enqueued has run, is such a timeline as well.
 *
 * Order between two streams of CUDA is invisible in words, so it is made by events: every signal records one, and a
 * wait for a value whose signal was enqueued before becomes cuStreamWaitEvent. A stream of the plugin never carries a
 * wait for what was not enqueued yet, or for what the host alone decides: the driver may run two streams on one
 * hardware queue, and what would end the wait might lie behind it. Such operations are parked here, in order, until
 * they can be issued. A stream of the host cannot be held back, so the hook that would put such a wait into it waits
 * itself, until the value is reached or its signal is enqueued. A host function never waits, for a context may run them
 * one by one.
 *
 * Drivers let other threads' calls stand behind one that frees memory, page-locks it, makes a stream or loads a kernel,
 * until everything that is enqueued is over. So nothing that is enqueued may need a call that is still to come: that is
 * why hooks wait. With ZF_CUDA_MEMOPS=wait in the environment the host's streams wait for the host's word instead
 * (cuStreamWaitValue64, cyclic GEQ), and the trainer's thread goes on: for trainers that make no such call while they
 * train, on drivers that were seen to do without the lock. Where the process asks for fewer hardware queues than the
 * driver takes by itself (CUDA_DEVICE_MAX_CONNECTIONS; some trainers set 1) or for launches that wait
 * (CUDA_LAUNCH_BLOCKING), or shares them with others (MPS), hooks wait all the same: what would end the wait might lie
 * behind it.
 *
 * Without 64-bit memory operations (an attribute of the device) signals are events that the monitor asks for.
 *
 * Room. A driver takes about a thousand commands per stream; a call that brings one more blocks until one is over.
 *  - A stream of the plugin: what is in flight is counted (flight.c), never above `most_in_flight`, and operations
 *    beyond are parked. All of them together stay below what one queue takes, for they may share it. So no such call
 *    blocks, and it is made under `lock`.
 *  - A stream of the host: its own commands are not known, so every call may block. It is made without `lock`
 *    (zfi_cuda_begin_call lets it go), by the hook that brings the operation and by no other thread.
 *
 * Why nothing stands still. What is enqueued is over some time without any further call. So a call that blocks in the
 * driver, by whichever thread and whatever stands behind it, ends, and the monitor and the control thread come to issue
 * what can be issued. The words' thread calls nothing of the driver: it tells what is over, and finds what takes too
 * long, even while every other thread stands. Nobody holds `lock` while he waits for a signal; holders of `poll_lock`
 * wait for nothing.
 *
 * No event is made, no memory page-locked and no kernel launched for the first time once an instance is bound: events
 * come from a pool (line.c), and all kernels are launched once when the device is opened.
 *
 * Threads. `lock` guards lines, streams and parked operations, and is held while the driver is called for a stream of
 * the plugin. The words' thread reads words without it: `n_lines` and `n_streams` only rise, and rows are complete
 * before. `poll_lock` guards `seen` and measured waits. A signal is found only once its event is recorded, and an event
 * that a call without `lock` waits for is not recorded again. One thread at a time signals a line, and one enqueues on
 * a stream. */
#pragma once

#include <pthread.h>

#include "cuda/params.h"
#include "device/cuda/cuda.h"
#include "device/cuda/driver.h"

enum {
    ZFI_CUDA_QUEUES = 8,                   /* hardware queues of a process that asks for no number */
    ZFI_CUDA_LINES = 112,                  /* timelines: the instance's, and one of each stream */
    ZFI_CUDA_HOSTS = 64,                   /* streams of the host that have work of ours at once */
    ZFI_CUDA_STREAMS = 8 + ZFI_CUDA_HOSTS, /* and the plugin's */
    ZFI_CUDA_SIGNALS = 32,                 /* of one line that can still be waited for by events */
    ZFI_CUDA_WAITS = 256,                  /* whose time is measured at once */
    ZFI_CUDA_PARK_NBYTES = 1 << 20,
    ZFI_CUDA_WORD_NBYTES = 64, /* distance of words */
    ZFI_CUDA_WORDS = 2 * ZFI_CUDA_LINES,
    ZFI_CUDA_IN_FLIGHT = 128, /* commands in flight in a stream of the plugin, which has six; drivers take a thousand */
    ZFI_CUDA_MARKS = 8        /* events that tell how many of them are over */
};

/* Host memory is page-locked in pieces that end where addresses are multiples of this: on Linux a driver registers less
 * than 512 GiB at once. No copy goes over such an address. */
#define ZFI_CUDA_PIECE_NBYTES ((uint64_t)64 << 30)

typedef _Atomic uint64_t zfi_word_t;

typedef struct zfi_cuda_event {
    CUevent handle;
    uint32_t n_users;            /* calls for a stream of the host that wait for it, made without the lock */
    int is_out;                  /* of the ring: the last user gives it back */
    struct zfi_cuda_event *next; /* of the pool */
} zfi_cuda_event_t;

typedef struct zfi_cuda_signal {
    uint64_t value;
    zfi_cuda_event_t *event;
    const zfi_stream_t *stream;
} zfi_cuda_signal_t;

/* A timeline seen from the device. */
typedef struct zfi_cuda_line {
    zfi_timeline_t *timeline;
    uint32_t n_sets; /* of the timeline, when this was last looked at */
    zfi_word_t *host_word, *device_word;
    CUdeviceptr host_at, device_at; /* the same words as the device knows them */
    uint64_t seen;                  /* [poll_lock] of device_word */
    _Atomic uint64_t enqueued;      /* newest signal */
    int has_events;                 /* its signals can be waited for by other streams */
    uint32_t n_signals, first;      /* those in the ring: [first, n_signals), at most ZFI_CUDA_SIGNALS */
    uint32_t n_asked;               /* without memory operations: signals whose events have passed */
    zfi_cuda_signal_t signals[ZFI_CUDA_SIGNALS];
    uint64_t lost; /* value of the newest signal that is no longer in the ring */
} zfi_cuda_line_t;

/* Operations that cannot be issued yet, in a ring of bytes. */
typedef struct zfi_cuda_park {
    unsigned char *ring; /* [ZFI_CUDA_PARK_NBYTES]; NULL: a stream of the host */
    uint64_t head, tail; /* bytes taken out and put in, ever */
} zfi_cuda_park_t;

/* Commands of a stream of the plugin (flight.c). */
typedef struct zfi_cuda_flight {
    uint64_t n_given, n_over; /* ever; n_over are known to be over */
    uint32_t n_marks, n_passed;
    struct {
        CUevent event;
        uint64_t n_given; /* before it */
    } marks[ZFI_CUDA_MARKS];
} zfi_cuda_flight_t;

/* Progress is a timeline that the stream signals. Its numbers are odd while operations of the plugin run, even between
 * calls of enqueue: a stream of the host that has work of ours ahead and stands at an even number runs its own. */
struct zfi_stream {
    zfi_device_t *device;
    CUstream handle;
    uint64_t host_id; /* of the host's descriptor */
    int is_host;
    zfi_timeline_t executed;
    zfi_cuda_line_t *progress;
    _Atomic uint64_t planned; /* written under lock: newest number that was given away, parked operations included */
    zfi_cuda_event_t *order;
    uint64_t resolved; /* when the host named it last: a count */
    zfi_cuda_park_t park;
    zfi_cuda_flight_t flight;
    uint64_t idle_since_ns;   /* words' thread: the host's own work runs since; 0: it does not */
    _Atomic uint64_t busy_ns; /* words' thread */
};

/* A wait whose time is measured. */
typedef struct zfi_cuda_wait {
    zfi_stream_t *stream; /* NULL: a free place */
    uint64_t begin, end;  /* progress numbers: it is waited for from begin on, until end */
    zfi_timeline_t *timeline;
    uint64_t value;
    _Atomic uint64_t *stall_ns;
    int is_patient;
    uint64_t reached_ns, busy_ns; /* words' thread */
} zfi_cuda_wait_t;

/* How long something is waited for; the host's own work is not counted, up to ZFI_HOST_DEADLINES deadlines. */
typedef struct zfi_cuda_deadline {
    zfi_run_clock_t clock;
    uint64_t busy_ns; /* of the host, when it began */
} zfi_cuda_deadline_t;

typedef struct zfi_cuda_kernels zfi_cuda_kernels_t;

struct zfi_device {
    zfi_device_env_t env;
    const zfi_cuda_driver_t *driver;
    CUdevice id;
    CUcontext context;
    int has_context, has_memops, n_processors;
    int is_integrated;  /* its memory is the host's */
    int has_few_queues; /* of the environment (device.c): streams wait behind others */
    int streams_wait;   /* the host's streams wait for words; 0: hooks wait */
    uint32_t most_in_flight;
    int lowest_priority, highest_priority, n_created;
    zfi_cuda_kernels_t *kernels;
    CUstream control;   /* for what is waited for at once */
    size_t granularity; /* of blocks that may be released; 0: they may not */
    CUmemAllocationProp block_kind;
    int is_released;       /* blocks.c */
    CUdeviceptr has_ended; /* a word in device memory (kernels/cuda/params.h) */
    unsigned char *words;  /* page-locked */
    CUdeviceptr words_at;
    uint32_t n_words;
    int is_pinned;
    _Atomic int has_failed;
    pthread_mutex_t lock, poll_lock;
    _Atomic uint32_t n_lines, n_streams;
    zfi_cuda_line_t lines[ZFI_CUDA_LINES];
    zfi_stream_t *streams[ZFI_CUDA_STREAMS]; /* NULL: ended */
    uint32_t n_hosts;                        /* [lock] records of streams of the host */
    uint64_t n_resolved;                     /* [lock] */
    const zfi_stream_t *current;             /* [lock] of the host, that work was ordered on last */
    zfi_cuda_event_t *events;                /* [lock] free ones */
    zfi_cuda_wait_t waits[ZFI_CUDA_WAITS];   /* [poll_lock] */
    pthread_t monitor, reader;               /* reader: of words */
    zfi_run_clock_t clock;                   /* words' thread */
    int has_monitor, has_reader;
    _Atomic uint64_t pinned_nbytes; /* by pin() */
    _Atomic int is_ending;
    _Atomic uint32_t n_inside, n_parked; /* hooks that enqueue; streams that have parked operations */
    zfi_timeline_t news;                 /* rises with every call that enqueues: wakes both threads */
    _Atomic uint64_t n_news;
};

static inline int zfi_cuda_is_poisoned(const zfi_device_t *device) { return atomic_load(device->env.is_poisoned) != 0; }

/* device.c. The first failure of the driver is for good: ZF_ERR_DEVICE, and the instance ends. */
zf_status_t zfi_cuda_check(zfi_device_t *device, CUresult rc, const char *what);
void zfi_cuda_enter(zfi_device_t *device); /* the host's primary context, pushed and popped; no part in captures */
void zfi_cuda_leave(zfi_device_t *device);
/* Of nbytes of host memory, those before the end of a piece. */
uint64_t zfi_cuda_in_one_piece(const void *memory, uint64_t nbytes);
/* A free pair of addresses of one word, zero. */
zfi_word_t *zfi_cuda_word(zfi_device_t *device, CUdeviceptr *out_at);

/* [context] Fills memory, which nothing uses yet, and waits: on a stream of its own, as the host's may stand still. */
CUresult zfi_cuda_fill(zfi_device_t *device, CUdeviceptr at, unsigned char byte, uint64_t nbytes);

/* blocks.c [context]. begin: blocks may be released; CUDA_ERROR_NOT_SUPPORTED where the device cannot. */
CUresult zfi_cuda_blocks_begin(zfi_device_t *device);
CUresult zfi_cuda_block_take(zfi_device_t *device, uint64_t nbytes, CUdeviceptr *out);
void zfi_cuda_block_give(zfi_device_t *device, CUdeviceptr at, uint64_t nbytes);
zf_status_t zfi_cuda_release(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err);
zf_status_t zfi_cuda_resume(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err);

/* kernels.c */
zf_status_t zfi_cuda_kernels_load(zfi_device_t *device, zf_error_t *err);
void zfi_cuda_kernels_free(zfi_device_t *device);
const char *zfi_cuda_kernels_image(const zfi_device_t *device);           /* which image was loaded, and why */
CUresult zfi_cuda_kernels_warm_up(zfi_device_t *device, CUstream stream); /* while *has_ended is set; waits */
/* [lock, context] From gradient *from on, for kernels that take a list of them. ZF_IN_PROGRESS: no room for more in the
 * stream; *from says where to go on. */
zf_status_t zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from);
zf_status_t zfi_cuda_launch_copy(zfi_stream_t *stream, const zfi_cuda_ranges_t *ranges);
zf_status_t zfi_cuda_gate(zfi_stream_t *stream, CUdeviceptr word);

/* flight.c [lock, context]. Each call that puts a command into a stream stands between begin_call and end_call. */
zf_status_t zfi_cuda_flight_open(zfi_stream_t *stream);
void zfi_cuda_flight_close(zfi_stream_t *stream);
/* Whether a stream of the plugin takes the commands of one more piece of work; one of the host always does. */
int zfi_cuda_has_room(zfi_stream_t *stream);
void zfi_cuda_begin_call(zfi_stream_t *stream);                                     /* of the host: lets the lock go */
zf_status_t zfi_cuda_end_call(zfi_stream_t *stream, CUresult rc, const char *what); /* as zfi_cuda_check */
void zfi_cuda_count_lent(zfi_stream_t *stream); /* what another library may have given the stream */

/* copies.c [lock, context]. A copy from byte *done of range *from on. ZF_IN_PROGRESS: as launch. */
zf_status_t zfi_cuda_copy(zfi_stream_t *stream, const zfi_op_t *op, uint32_t *from, uint64_t *done);

/* line.c [lock, context]. The line of a timeline, made at first use; NULL: it could not be made. */
zfi_cuda_line_t *zfi_cuda_line(zfi_device_t *device, zfi_timeline_t *timeline, int has_events);
void zfi_cuda_lines_close(zfi_device_t *device);
/* Events are made when a device is opened; later one is made only where more are in use than ever were thought of. */
zf_status_t zfi_cuda_events_open(zfi_device_t *device);
void zfi_cuda_events_close(zfi_device_t *device);
zf_status_t zfi_cuda_event_take(zfi_device_t *device, zfi_cuda_event_t **out);
void zfi_cuda_event_give(zfi_device_t *device, zfi_cuda_event_t *event); /* NULL is legal */
/* The stream signals a value. ZF_IN_PROGRESS: it must be parked; never of a stream's progress. */
zf_status_t zfi_cuda_signal(zfi_stream_t *stream, zfi_cuda_line_t *line, uint64_t value);
/* The stream waits. ZF_IN_PROGRESS: the wait must be parked, or the hook waits; ZF_DISABLED: there is nothing to wait
 * for. */
zf_status_t zfi_cuda_wait(zfi_stream_t *stream, zfi_cuda_line_t *line, uint64_t value);

/* stream.c. flush [lock, context]: issues what is parked and can be issued; whether anything was. */
int zfi_cuda_flush(zfi_device_t *device);
zf_status_t zfi_cuda_stream_create(zfi_device_t *device, const char *name, zfi_stream_t **out, zf_error_t *err);
void zfi_cuda_stream_destroy(zfi_stream_t *stream);
zf_status_t zfi_cuda_stream_resolve(zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                    zfi_stream_t **out, zf_error_t *err);
uint64_t zfi_cuda_mark(zfi_stream_t *stream);
zf_status_t zfi_cuda_synchronise(zfi_stream_t *stream, uint64_t mark, uint64_t timeout_ns, uint64_t *waited_ns);
void zfi_cuda_fence(zfi_stream_t *stream, uint64_t mark, zf_fence_t *out);
uint64_t zfi_cuda_host_busy_ns(zfi_stream_t *stream);
zf_status_t zfi_cuda_order(zfi_device_t *device, zfi_stream_t *from, zfi_stream_t *to);
zf_status_t zfi_cuda_lend(zfi_stream_t *stream, void **out_handle);
void zfi_cuda_take_back(zfi_stream_t *stream);
zf_status_t zfi_cuda_enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n);
/* Frees the streams that are left: the host's. */
void zfi_cuda_streams_close(zfi_device_t *device);

/* words.c: the thread that calls nothing of the driver. */
void *zfi_cuda_words(void *device);
zfi_cuda_deadline_t zfi_cuda_deadline(const zfi_device_env_t *env);
int zfi_cuda_is_late(const zfi_device_env_t *env, zfi_cuda_deadline_t *deadline);
/* Sleeps by a share of the time for which nothing has come, but no longer than until the timeline has the value. */
void zfi_cuda_nap(zfi_timeline_t *timeline, uint64_t value, uint64_t quiet_ns);

/* monitor.c: start and stop, of both threads. */
zf_status_t zfi_cuda_monitor_start(zfi_device_t *device, zf_error_t *err);
void zfi_cuda_monitor_stop(zfi_device_t *device);
void zfi_cuda_monitor_wake(zfi_device_t *device);
