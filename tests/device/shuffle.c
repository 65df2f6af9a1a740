/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/shuffle.c - a backend that delays and reorders whatever device.h lets it, to find missing waits.
 *
 * Model. Every stream of the plugin keeps a list of operations. One scheduler thread picks a stream whose first
 * operation is ready (a wait: its timeline has reached the value; everything else: at once) and runs that operation.
 * The streams of the host (zf.cpu/1) are the CPU backend's: it runs what is enqueued on them.
 *
 * What is random, from ZF_SHUFFLE_SEED (default 1; threads of the engine keep their own timing):
 *   - which ready stream runs: the one of highest priority, and priorities change now and then, so that one stream may
 *     get far ahead of another;
 *   - delays: a stream may be held until nothing else was ready for a while, so that the host, the workers and the
 *     other streams come as far as they can without it; a lazy stream is held often, and streams change that as well;
 *   - copies: the target is overwritten with POISON when the copy begins; the ranges are cut into parts, which are
 *     copied one by one in random order, while other streams run in between.
 *
 * What is checked, by abort with a message: the targets of one copy do not overlap; copies up and fills go to memory
 * from alloc that is not released; copies down come from there or from memory that is the host's own device memory,
 * never from pinned host memory; the host's side of a copy is not in device memory; freed device memory, which is
 * filled with POISON and kept until the device is closed, is not written.
 *
 * Threads. `lock` guards the list of streams and every list of operations. The scheduler thread alone
 * removes operations, and it owns the random state, the priorities and the delays. Operations run without the lock. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "shuffled_memory.h"

enum {
    POLL_NS = 30000,        /* between two looks at timelines that the scheduler does not signal */
    SHORT_HOLD_NS = 100000, /* most */
    LONG_HOLD_NS = 1000000,
    MOST_CUTS = 3 /* parts of one range */
};

/* An operation of a stream; what op points to lies behind it, then room for parts. */
typedef struct item {
    struct item *next;
    zfi_op_t op;
    zfi_range_t *parts; /* of a copy that has begun: n_parts that are not copied yet */
    uint32_t n_parts;
    int has_begun;
    uint64_t reached_ns; /* when the stream came to a wait that was not over; 0: it did not */
    uint64_t busy_ns;    /* of the host at that time */
    _Alignas(16) unsigned char tail[];
} item_t;

struct zfi_stream {
    zfi_stream_t *next;
    zfi_device_t *device;
    zfi_stream_t *of_cpu; /* the host's: everything is the CPU backend's; NULL: our own */
    item_t *first, **last;
    _Atomic uint64_t n_enqueued; /* written under lock */
    zfi_timeline_t executed;     /* written by the scheduler alone */
    uint64_t priority;
    int is_lazy;      /* it is held often and for long */
    uint64_t hold_ns; /* it runs once all others have rested for so long; 0: it is not held */
};

struct zfi_device {
    zfi_device_env_t env;
    zfi_device_t *cpu; /* the CPU backend's device, for the host's streams */
    pthread_mutex_t lock;
    zfi_timeline_t news; /* rises with every list of operations and when is_ending is set; written under lock */
    pthread_t scheduler;
    int is_ending;
    zfi_stream_t *streams;
    shuffled_t memory;
    uint64_t random, idle_since_ns;
};

static int is_poisoned(const zfi_device_t *device) { return atomic_load(device->env.is_poisoned) != 0; }

/* A random number below n (splitmix64). */
static uint64_t below(zfi_device_t *device, uint64_t n) {
    uint64_t z = device->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % n;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static zf_status_t shuffle_alloc(zfi_device_t *device, uint64_t nbytes, const char *what, void **out, zf_error_t *err) {
    if (posix_memalign(out, 4096, nbytes ? nbytes : 1))
        return zfi_error(err, ZF_ERR_MEMORY, "shuffle", "no memory for %s: %" PRIu64 " bytes", what, nbytes);
    memset(*out, 0, nbytes);
    shuffled_add(&device->memory, SHUFFLED_DEVICE, *out, nbytes);
    return ZF_OK;
}

static void shuffle_free(zfi_device_t *device, void *base, uint64_t nbytes) {
    if (base)
        shuffled_end(&device->memory, SHUFFLED_DEVICE, base, nbytes, "free of what alloc did not give");
}

static zf_status_t shuffle_release(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    (void)err;
    shuffled_turn(&device->memory, blocks, n, SHUFFLED_DEVICE, SHUFFLED_RELEASED);
    return ZF_OK;
}

static zf_status_t shuffle_resume(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    (void)err;
    shuffled_turn(&device->memory, blocks, n, SHUFFLED_RELEASED, SHUFFLED_DEVICE);
    return ZF_OK;
}

static zf_status_t shuffle_pin(zfi_device_t *device, void *base, uint64_t nbytes, int *out_is_pageable,
                               zf_error_t *err) {
    (void)err;
    shuffled_add(&device->memory, SHUFFLED_PINNED, base, nbytes);
    *out_is_pageable = 0;
    return ZF_OK;
}

static void shuffle_unpin(zfi_device_t *device, void *base, uint64_t nbytes) {
    shuffled_end(&device->memory, SHUFFLED_PINNED, base, nbytes, "unpin of what was not pinned");
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void end_wait(zfi_device_t *device, const item_t *item) {
    const zfi_device_env_t *env = &device->env;
    const zfi_op_t *op = &item->op;
    if (item->reached_ns && op->stall_ns)
        atomic_fetch_add(op->stall_ns, zfi_now_ns() - item->reached_ns);
    if (zfi_timeline_now(op->timeline) < op->value && !is_poisoned(device))
        env->timed_out(env->ctx, op->timeline, op->value);
}

/* The parts of one range, behind those of other ranges. */
static void cut_range(zfi_device_t *device, item_t *item, const zfi_range_t *range) {
    uint64_t n_cuts = 1 + below(device, MOST_CUTS), at = 0;
    for (uint64_t left = n_cuts; left > 0; left--) {
        uint64_t rest = range->nbytes - at, n = left == 1 ? rest : below(device, rest + 1);
        item->parts[item->n_parts++] =
            (zfi_range_t){(unsigned char *)range->to + at, (const unsigned char *)range->from + at, n};
        at += n;
    }
}

static void begin_copy(zfi_device_t *device, item_t *item) {
    const zfi_op_t *op = &item->op;
    item->has_begun = 1;
    for (uint32_t i = 0; i < op->n_ranges && !is_poisoned(device); i++) {
        memset(op->ranges[i].to, SHUFFLED_POISON, op->ranges[i].nbytes);
        cut_range(device, item, &op->ranges[i]);
    }
}

/* Some of the parts that are left, in random order. */
static void go_on_copying(zfi_device_t *device, item_t *item) {
    uint64_t n = item->n_parts ? 1 + below(device, item->n_parts) : 0;
    for (; n > 0 && !is_poisoned(device); n--) {
        uint64_t at = below(device, item->n_parts);
        zfi_range_t part = item->parts[at];
        item->parts[at] = item->parts[--item->n_parts];
        memcpy(part.to, part.from, part.nbytes);
    }
    if (is_poisoned(device))
        item->n_parts = 0;
}

/* Runs an operation, or a part of it; whether it is over. */
static int run_item(zfi_device_t *device, item_t *item) {
    const zfi_op_t *op = &item->op;
    switch (op->kind) {
    case ZFI_OP_WAIT:
        end_wait(device, item);
        return 1;
    case ZFI_OP_SIGNAL:
        if (!is_poisoned(device))
            zfi_timeline_signal(op->timeline, op->value);
        return 1;
    case ZFI_OP_DOWN:
    case ZFI_OP_UP:
        if (item->has_begun)
            go_on_copying(device, item);
        else
            begin_copy(device, item);
        return item->n_parts == 0;
    case ZFI_OP_FILL:
        if (!is_poisoned(device))
            memset(op->to, 0, op->nbytes);
        return 1;
    case ZFI_OP_LAUNCH:
        zfi_fp_mode_ieee();
        if (!is_poisoned(device))
            zfi_launch_cpu[op->kernel](device->env.kernels, op->args);
        return 1;
    }
    shuffled_fail("an operation of unknown kind", op, (uint64_t)op->kind);
}

/* ---- the scheduler ----------------------------------------------------------------------------------------------- */

static uint64_t busy_ns(const zfi_device_env_t *env) { return env->host_busy_ns ? env->host_busy_ns(env->ctx) : 0; }

/* What a wait may take: the deadline, and what the host's own work took meanwhile. */
static uint64_t time_of(const zfi_device_env_t *env, const item_t *item) {
    uint64_t more = busy_ns(env) - item->busy_ns, most = ZFI_HOST_DEADLINES * env->timeout_ns;
    return env->timeout_ns + (more < most ? more : most);
}

/* [lock held] A wait that is past its deadline is ready too: running it reports that. */
static int is_ready(const zfi_device_t *device, item_t *item, uint64_t now) {
    const zfi_op_t *op = &item->op;
    if (op->kind != ZFI_OP_WAIT || zfi_timeline_now(op->timeline) >= op->value || is_poisoned(device))
        return 1;
    if (!item->reached_ns) {
        item->reached_ns = now;
        item->busy_ns = busy_ns(&device->env);
    }
    return !op->is_patient && now - item->reached_ns >= time_of(&device->env, item);
}

/* [lock held] The ready stream of highest priority that is not held any more; NULL: none. */
static zfi_stream_t *pick_stream(zfi_device_t *device) {
    zfi_stream_t *best = NULL;
    uint64_t now = zfi_now_ns(), idle_ns = now - device->idle_since_ns;
    for (zfi_stream_t *stream = device->streams; stream; stream = stream->next) {
        if (!stream->first || !is_ready(device, stream->first, now) || (stream->hold_ns && idle_ns < stream->hold_ns))
            continue;
        if (!best || stream->priority > best->priority)
            best = stream;
    }
    return best;
}

/* What is random about a stream that has just run. */
static void draw(zfi_device_t *device, zfi_stream_t *stream) {
    stream->hold_ns = 0;
    if (below(device, 8) == 0)
        stream->priority = below(device, UINT64_MAX);
    if (below(device, 64) == 0)
        stream->is_lazy = below(device, 6) == 0;
    if (below(device, stream->is_lazy ? 4 : 16) == 0)
        stream->hold_ns = 1 + below(device, stream->is_lazy ? LONG_HOLD_NS : SHORT_HOLD_NS);
    if (below(device, 256) == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)below(device, SHORT_HOLD_NS)}, NULL);
}

/* [lock held] The first operation has run. */
static void remove_first(zfi_stream_t *stream) {
    item_t *item = stream->first;
    stream->first = item->next;
    if (!stream->first)
        stream->last = &stream->first;
    zfi_timeline_signal(&stream->executed, zfi_timeline_now(&stream->executed) + 1);
    free(item);
}

/* [lock held] Nothing is ready: sleeps until something is enqueued, or for a moment where a stream waits. */
static void rest(zfi_device_t *device) {
    uint64_t seen = zfi_timeline_now(&device->news), most_ns = UINT64_MAX;
    for (const zfi_stream_t *stream = device->streams; stream; stream = stream->next)
        if (stream->first)
            most_ns = POLL_NS;
    pthread_mutex_unlock(&device->lock);
    zfi_timeline_wait(&device->news, seen + 1, most_ns, NULL);
    pthread_mutex_lock(&device->lock);
}

/* [lock held] */
static void wake(zfi_device_t *device) { zfi_timeline_signal(&device->news, zfi_timeline_now(&device->news) + 1); }

static void *schedule(void *raw) {
    zfi_device_t *device = raw;
    pthread_mutex_lock(&device->lock);
    while (!device->is_ending) {
        zfi_stream_t *stream = pick_stream(device);
        if (!stream) {
            rest(device);
            continue;
        }
        pthread_mutex_unlock(&device->lock);
        int is_over = run_item(device, stream->first);
        draw(device, stream);
        pthread_mutex_lock(&device->lock);
        device->idle_since_ns = zfi_now_ns();
        if (is_over)
            remove_first(stream);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- device ------------------------------------------------------------------------------------------------------ */

/* The seed of a process is printed once; its devices draw differently. */
static uint64_t next_seed(void) {
    static _Atomic uint64_t n_opened;
    const char *text = getenv("ZF_SHUFFLE_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1, number = atomic_fetch_add(&n_opened, 1);
    if (number == 0)
        fprintf(stderr, "shuffle: ZF_SHUFFLE_SEED=%" PRIu64 "\n", seed);
    return seed * 1000003u + number;
}

static void release(zfi_device_t *device) {
    zfi_device_cpu.close(device->cpu);
    zfi_timeline_free(&device->news);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static zf_status_t shuffle_open(int32_t device_id, const zfi_device_env_t *env, zfi_device_t **out, zf_error_t *err) {
    zfi_device_t *device = shuffled_allocate(sizeof *device);
    zf_status_t st = zfi_device_cpu.open(device_id, env, &device->cpu, err);
    if (st) {
        free(device);
        return st;
    }
    device->env = *env;
    device->random = next_seed();
    pthread_mutex_init(&device->lock, NULL);
    shuffled_init(&device->memory);
    zfi_timeline_init(&device->news, "shuffle news");
    int rc = zfi_thread_start(&device->scheduler, "zf-shuffle", schedule, device);
    if (rc) {
        release(device);
        return zfi_error(err, ZF_ERR_MEMORY, "create", "cannot start the scheduler's thread: %s", strerror(rc));
    }
    *out = device;
    return ZF_OK;
}

static void shuffle_close(zfi_device_t *device) {
    if (!device)
        return;
    pthread_mutex_lock(&device->lock);
    device->is_ending = 1;
    wake(device);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->scheduler, NULL);
    for (zfi_stream_t *stream = device->streams, *next; stream; stream = next) {
        next = stream->next;
        if (!stream->of_cpu)
            shuffled_fail("the device is closed before its streams are destroyed", stream, 0);
        free(stream);
    }
    shuffled_free(&device->memory);
    release(device);
}

static void shuffle_info(const zfi_device_t *device, zfi_device_info_t *out) { zfi_device_cpu.info(device->cpu, out); }

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static zfi_stream_t *add_stream(zfi_device_t *device, const char *name, zfi_stream_t *of_cpu) {
    zfi_stream_t *stream = shuffled_allocate(sizeof *stream);
    stream->device = device;
    stream->of_cpu = of_cpu;
    stream->last = &stream->first;
    zfi_timeline_init(&stream->executed, name);
    pthread_mutex_lock(&device->lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->lock);
    return stream;
}

static zf_status_t shuffle_stream_create(zfi_device_t *device, const char *name, zfi_stream_t **out, zf_error_t *err) {
    (void)err;
    *out = add_stream(device, name, NULL);
    return ZF_OK;
}

static uint64_t shuffle_mark(zfi_stream_t *stream) {
    return stream->of_cpu ? zfi_device_cpu.mark(stream->of_cpu) : atomic_load(&stream->n_enqueued);
}

static zf_status_t shuffle_synchronise(zfi_stream_t *stream, uint64_t mark, uint64_t timeout_ns, uint64_t *waited_ns) {
    if (stream->of_cpu)
        return zfi_device_cpu.synchronise(stream->of_cpu, mark, timeout_ns, waited_ns);
    return zfi_timeline_wait(&stream->executed, mark, timeout_ns, waited_ns);
}

static void shuffle_fence(zfi_stream_t *stream, uint64_t mark, zf_fence_t *out) {
    if (stream->of_cpu) {
        zfi_device_cpu.fence(stream->of_cpu, mark, out);
        return;
    }
    out->kind = ZF_FENCE_HOST_COUNTER;
    out->counter = (const uint64_t *)&stream->executed.value;
    out->value = mark;
}

static uint64_t shuffle_host_busy_ns(zfi_stream_t *stream) {
    return stream->of_cpu ? zfi_device_cpu.host_busy_ns(stream->of_cpu) : 0;
}

static void shuffle_stream_destroy(zfi_stream_t *stream) {
    zfi_stream_t **at;
    if (!stream)
        return;
    shuffle_synchronise(stream, shuffle_mark(stream), UINT64_MAX, NULL);
    pthread_mutex_lock(&stream->device->lock);
    for (at = &stream->device->streams; *at != stream;)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&stream->device->lock);
    zfi_timeline_free(&stream->executed);
    free(stream);
}

/* A queue of the host is the same stream every time; what remembers it lives as long as the device. */
static zf_status_t shuffle_stream_resolve(zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                          zfi_stream_t **out, zf_error_t *err) {
    zfi_stream_t *of_cpu, *stream;
    zf_status_t st = zfi_device_cpu.stream_resolve(device->cpu, given, origin, &of_cpu, err);
    *out = NULL;
    if (st || !of_cpu)
        return st;
    pthread_mutex_lock(&device->lock);
    for (stream = device->streams; stream && stream->of_cpu != of_cpu;)
        stream = stream->next;
    pthread_mutex_unlock(&device->lock);
    *out = stream ? stream : add_stream(device, "a host's queue", of_cpu);
    return ZF_OK;
}

/* ---- enqueue ----------------------------------------------------------------------------------------------------- */

static item_t *copy_op(const zfi_op_t *op) {
    size_t n_args = op->kind == ZFI_OP_LAUNCH ? op->nbytes : 0;
    item_t *item = shuffled_allocate(sizeof *item + (1 + MOST_CUTS) * op->n_ranges * sizeof *op->ranges + n_args);
    item->op = *op;
    item->parts = (zfi_range_t *)(void *)item->tail + op->n_ranges;
    if (op->n_ranges)
        item->op.ranges = memcpy(item->tail, op->ranges, op->n_ranges * sizeof *op->ranges);
    if (n_args)
        item->op.args = memcpy(item->tail, op->args, n_args);
    return item;
}

/* One lock for all, so that two lists of operations do not mix. */
static void append(zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    pthread_mutex_lock(&stream->device->lock);
    for (uint32_t i = 0; i < n; i++) {
        *stream->last = copy_op(&ops[i]);
        stream->last = &(*stream->last)->next;
        atomic_fetch_add(&stream->n_enqueued, 1);
    }
    wake(stream->device);
    pthread_mutex_unlock(&stream->device->lock);
}

static zf_status_t shuffle_enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        shuffled_check(&device->memory, &ops[i]);
    if (stream->of_cpu)
        return zfi_device_cpu.enqueue(device->cpu, stream->of_cpu, ops, n);
    append(stream, ops, n);
    return ZF_OK;
}

/* A wait for the stream's counter; between two queues of the host it is the CPU backend's. */
static zf_status_t shuffle_order(zfi_device_t *device, zfi_stream_t *from, zfi_stream_t *to) {
    zfi_timeline_t *executed = from->of_cpu ? &zfi_cpu_queue(from->of_cpu)->executed : &from->executed;
    zfi_op_t op = zfi_op_wait(executed, shuffle_mark(from), NULL);
    if (from->of_cpu && to->of_cpu)
        return zfi_device_cpu.order(device->cpu, from->of_cpu, to->of_cpu);
    return shuffle_enqueue(device, to, &op, 1);
}

static const zfi_device_ops_t shuffle = {
    .name = "shuffle",
    .device_type = ZF_DEVICE_CPU,
    .open = shuffle_open,
    .close = shuffle_close,
    .info = shuffle_info,
    .alloc = shuffle_alloc,
    .free = shuffle_free,
    .pin = shuffle_pin,
    .unpin = shuffle_unpin,
    .release = shuffle_release,
    .resume = shuffle_resume,
    .stream_create = shuffle_stream_create,
    .stream_destroy = shuffle_stream_destroy,
    .stream_resolve = shuffle_stream_resolve,
    .mark = shuffle_mark,
    .synchronise = shuffle_synchronise,
    .fence = shuffle_fence,
    .host_busy_ns = shuffle_host_busy_ns,
    .order = shuffle_order,
    .enqueue = shuffle_enqueue,
};

/* The list of libzfplugin_shuffle.so, in place of plugin/device/backends.c. */
const zfi_device_ops_t *const zfi_backends[] = {&shuffle};
const uint32_t zfi_n_backends = 1;
