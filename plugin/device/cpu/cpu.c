/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cpu/cpu.c - the CPU backend: a stream is a queue with a thread, device memory is memory (contract in
 * device.h).
 *
 * Device arrays are apart from the host's although both are plain memory, and every transfer is a copy that a stream
 * makes, so that a missing wait shows here as it would on a GPU. */
#include "device/cpu/cpu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/node.h"

struct zfi_device {
    zfi_device_env_t env;
};

/* ---- device and memory ------------------------------------------------------------------------------------------- */

static zf_status_t cpu_open(int32_t device_id, const zfi_device_env_t *env, zfi_device_t **out, zf_error_t *err) {
    if (device_id != 0)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "device id %d: the CPU backend has device 0 only", device_id);
    zfi_device_t *device = malloc(sizeof *device);
    if (!device)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a device handle");
    device->env = *env;
    *out = device;
    return ZF_OK;
}

static void cpu_close(zfi_device_t *device) { free(device); }

static void cpu_info(const zfi_device_t *device, zfi_device_info_t *out) {
    zfi_room_t room;
    (void)device;
    zfi_room_read(&room);
    *out = (zfi_device_info_t){.free_nbytes = room.available, .total_nbytes = room.total, .is_host_memory = 1};
}

static zf_status_t cpu_alloc(zfi_device_t *device, uint64_t nbytes, const char *what, void **out, zf_error_t *err) {
    zfi_arena_t arena = {0};
    (void)device;
    zfi_arena_take(&arena, nbytes, 1);
    zf_status_t st = zfi_arena_map(&arena, what, err);
    if (!st)
        *out = arena.base;
    return st;
}

static void cpu_free(zfi_device_t *device, void *memory, uint64_t nbytes) {
    zfi_arena_t arena = {.base = memory, .total_nbytes = nbytes};
    (void)device;
    zfi_arena_free(&arena);
}

/* The pages go and the addresses stay, where every access faults. */
static zf_status_t cpu_release(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    for (uint32_t i = 0; i < n; i++)
        if (madvise(blocks[i].memory, blocks[i].nbytes, MADV_DONTNEED) ||
            mprotect(blocks[i].memory, blocks[i].nbytes, PROT_NONE)) {
            zfi_error(&why, ZF_ERR_MEMORY, "release", "memory cannot be given back: %s", strerror(errno));
            device->env.failed(device->env.ctx, why.message);
            return zfi_error_copy(err, &why);
        }
    return ZF_OK;
}

static zf_status_t cpu_resume(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    (void)device;
    for (uint32_t i = 0; i < n; i++)
        if (mprotect(blocks[i].memory, blocks[i].nbytes, PROT_READ | PROT_WRITE))
            return zfi_error(err, ZF_ERR_MEMORY, "resume", "%" PRIu64 " bytes cannot be mapped again: %s",
                             blocks[i].nbytes, strerror(errno));
    return ZF_OK;
}

static zf_status_t cpu_pin(zfi_device_t *device, void *memory, uint64_t nbytes, int *out_is_pageable, zf_error_t *err) {
    (void)device;
    (void)memory;
    (void)nbytes;
    (void)err;
    *out_is_pageable = 0; /* the CPU reaches every page */
    return ZF_OK;
}

static void cpu_unpin(zfi_device_t *device, void *memory, uint64_t nbytes) {
    (void)device;
    (void)memory;
    (void)nbytes;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static zf_status_t cpu_stream_create(zfi_device_t *device, const char *name, zfi_stream_t **out, zf_error_t *err) {
    zfi_queue_t *queue;
    zf_status_t st = zfi_queue_create(&queue, name, err);
    if (st)
        return st;
    queue->is_void = device->env.is_poisoned;
    *out = zfi_cpu_stream(queue);
    return ZF_OK;
}

static void cpu_stream_destroy(zfi_stream_t *stream) { zfi_queue_destroy(zfi_cpu_queue(stream)); }

static zf_status_t cpu_stream_resolve(zfi_device_t *device, const zf_stream_t *given, const char *origin,
                                      zfi_stream_t **out, zf_error_t *err) {
    zfi_queue_t *queue = (zfi_queue_t *)(uintptr_t)given->handle;
    (void)device;
    *out = NULL;
    if (given->device_id != 0)
        return zfi_error(err, ZF_ERR_DEVICE, origin, "stream of CPU device %d, the instance was created for 0",
                         given->device_id);
    if (given->kind == ZF_STREAM_HOST_THREAD)
        return ZF_OK;
    if (given->kind != ZF_STREAM_CPU_QUEUE)
        return zfi_error(err, ZF_ERR_DEVICE, origin,
                         "stream kind %d: the CPU backend knows %d (host thread) and %d (CPU queue)", given->kind,
                         ZF_STREAM_HOST_THREAD, ZF_STREAM_CPU_QUEUE);
    if (!zfi_is_host_queue(queue))
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "handle 0x%" PRIx64 " is not a queue of zf.cpu/1",
                         given->handle);
    *out = zfi_cpu_stream(queue);
    return ZF_OK;
}

static uint64_t cpu_mark(zfi_stream_t *stream) { return zfi_queue_newest(zfi_cpu_queue(stream)); }

static zf_status_t cpu_synchronise(zfi_stream_t *stream, uint64_t mark, uint64_t timeout_ns, uint64_t *waited_ns) {
    return zfi_timeline_wait(&zfi_cpu_queue(stream)->executed, mark, timeout_ns, waited_ns);
}

static void cpu_fence(zfi_stream_t *stream, uint64_t mark, zf_fence_t *out) {
    out->kind = ZF_FENCE_HOST_COUNTER;
    out->counter = (const uint64_t *)&zfi_cpu_queue(stream)->told.value;
    out->value = mark;
}

static uint64_t cpu_host_busy_ns(zfi_stream_t *stream) { return zfi_queue_host_ns(zfi_cpu_queue(stream)); }

static uint64_t busy_ns(const zfi_device_env_t *env) { return env->host_busy_ns ? env->host_busy_ns(env->ctx) : 0; }

/* What a wait that passed its deadline is given besides: time that the host's own work took since *busy. */
static uint64_t more_time(const zfi_device_env_t *env, uint64_t timeout_ns, uint64_t *busy, uint64_t *given_ns) {
    uint64_t more = busy_ns(env) - *busy;
    *busy += more;
    if (*given_ns + more > ZFI_HOST_DEADLINES * timeout_ns)
        return 0;
    *given_ns += more;
    return more;
}

static zf_status_t wait_within(const zfi_device_env_t *env, zfi_timeline_t *timeline, uint64_t value,
                               uint64_t timeout_ns, uint64_t *waited_ns) {
    uint64_t busy, given = 0, left = timeout_ns;
    zf_status_t st;
    if (zfi_timeline_now(timeline) >= value)
        return ZF_OK;
    busy = busy_ns(env);
    do {
        st = zfi_timeline_wait(timeline, value, left, waited_ns);
        left = st == ZF_ERR_TIMEOUT ? more_time(env, timeout_ns, &busy, &given) : 0;
    } while (left);
    return st;
}

/* ---- operations on a queue's thread ------------------------------------------------------------------------------ */

static int has_ended(const zfi_device_t *device) { return atomic_load(device->env.is_poisoned); }

static zfi_trace_t *trace_of(const zfi_device_t *device) { return device->env.trace ? *device->env.trace : NULL; }

typedef struct wait_command {
    zfi_device_t *device;
    zfi_timeline_t *timeline;
    uint64_t value, timeout_ns;
    _Atomic uint64_t *stall_ns;
} wait_command_t;

static void run_wait(void *raw) {
    const wait_command_t *command = raw;
    const zfi_device_env_t *env = &command->device->env;
    uint64_t waited = 0, began;
    if (has_ended(command->device))
        return;
    began = zfi_trace_begin(trace_of(command->device));
    zf_status_t st = wait_within(env, command->timeline, command->value, command->timeout_ns, &waited);
    if (waited)
        zfi_trace_waited(trace_of(command->device), began, command->timeline->name, command->value);
    if (waited && command->stall_ns)
        atomic_fetch_add(command->stall_ns, waited);
    if (st == ZF_ERR_TIMEOUT)
        env->timed_out(env->ctx, command->timeline, command->value);
}

typedef struct signal_command {
    zfi_device_t *device;
    zfi_timeline_t *timeline;
    uint64_t value;
} signal_command_t;

static void run_signal(void *raw) {
    const signal_command_t *command = raw;
    if (!has_ended(command->device)) /* what it stands for may have been skipped */
        zfi_timeline_signal(command->timeline, command->value);
}

enum { RANGES_PER_COMMAND = 64 };

typedef struct copy_head {
    zfi_device_t *device;
    uint64_t n; /* ranges, which follow */
} copy_head_t;

static void run_copy(void *raw) {
    const copy_head_t *head = raw;
    const zfi_range_t *ranges = (const void *)(head + 1);
    uint64_t began = zfi_trace_begin(trace_of(head->device)), nbytes = 0;
    for (uint64_t i = 0; i < head->n && !has_ended(head->device); i++) {
        memcpy(ranges[i].to, ranges[i].from, ranges[i].nbytes);
        nbytes += ranges[i].nbytes;
    }
    zfi_trace_end(trace_of(head->device), began, "copy", (zfi_trace_number_t){"bytes", nbytes}, ZFI_TRACE_NONE);
}

typedef struct fill_command {
    zfi_device_t *device;
    void *to;
    uint64_t nbytes;
} fill_command_t;

static void run_fill(void *raw) {
    const fill_command_t *command = raw;
    if (!has_ended(command->device))
        memset(command->to, 0, command->nbytes);
}

/* As a trace shows them. */
static const char *const kernel_names[ZFI_N_KERNELS] = {
    [ZFI_KERNEL_COLLECT] = "collect",
    [ZFI_KERNEL_STATISTICS] = "statistics",
    [ZFI_KERNEL_NORM_PART] = "norm part",
    [ZFI_KERNEL_SCALARS] = "scalars",
    [ZFI_KERNEL_RUN_AHEAD] = "run ahead",
    [ZFI_KERNEL_UPDATE_ALL] = "update all",
    [ZFI_KERNEL_GATHER] = "gather",
    [ZFI_KERNEL_ENTER_MAPS] = "enter maps",
    [ZFI_KERNEL_ENTER_STATE] = "enter state",
    [ZFI_KERNEL_ENTER_COUNTS] = "enter counts",
    [ZFI_KERNEL_SHOW_ENTERED] = "show entered",
    [ZFI_KERNEL_MERGE] = "merge",
    [ZFI_KERNEL_CHECK] = "check",
    [ZFI_KERNEL_ROUND_MOMENTS] = "round moments",
    [ZFI_KERNEL_READ_PLACE] = "read place",
    [ZFI_KERNEL_WRITE_PLACE] = "write place",
    [ZFI_KERNEL_REPORT] = "report",
};

typedef struct launch_command {
    zfi_device_t *device;
    zfi_kernel_t kernel;
    _Alignas(8) unsigned char args[ZFI_LAUNCH_ARGS];
} launch_command_t;

static void run_launch(void *raw) {
    const launch_command_t *command = raw;
    if (has_ended(command->device))
        return;
    zfi_fp_mode_ieee();
    uint64_t began = zfi_trace_begin(trace_of(command->device));
    zfi_launch_cpu[command->kernel](command->device->env.kernels, command->args);
    zfi_trace_end(trace_of(command->device), began, kernel_names[command->kernel], ZFI_TRACE_NONE, ZFI_TRACE_NONE);
}

typedef struct order_command {
    zfi_device_t *device;
    zfi_queue_t *from;
    uint64_t mark;
} order_command_t;

static void run_order(void *raw) {
    const order_command_t *command = raw;
    const zfi_device_env_t *env = &command->device->env;
    if (has_ended(command->device)) /* a host's stream, which poison does not release, may stand still */
        return;
    if (wait_within(env, &command->from->executed, command->mark, env->timeout_ns, NULL) == ZF_ERR_TIMEOUT)
        env->timed_out(env->ctx, &command->from->executed, command->mark);
}

/* ---- enqueue ----------------------------------------------------------------------------------------------------- */

/* Commands that are collected for one push. */
typedef struct batch {
    zfi_device_t *device;
    zfi_queue_t *queue;
    uint32_t n;
    zfi_queue_item_t items[ZFI_QUEUE_MOST_COMMANDS];
    union {
        wait_command_t wait;
        signal_command_t signal;
        fill_command_t fill;
        launch_command_t launch;
        copy_head_t copy;
    } small[ZFI_QUEUE_MOST_COMMANDS];
} batch_t;

/* Commands that have not run to their end. */
static uint32_t n_waiting(zfi_queue_t *queue) {
    return (uint32_t)(zfi_queue_newest(queue) - zfi_timeline_now(&queue->executed));
}

/* The queue may be the host's, who may have blocked it: a full one is given as long as every other wait. */
static zf_status_t push(batch_t *batch) {
    const zfi_device_env_t *env = &batch->device->env;
    zf_status_t st = zfi_queue_push_all(batch->queue, env->timeout_ns, batch->items, batch->n, NULL);
    if (st == ZF_ERR_TIMEOUT)
        env->is_stuck(env->ctx, batch->queue->executed.name, n_waiting(batch->queue));
    batch->n = 0;
    return st;
}

/* The next command, of which `small` holds the arguments. */
static void add(batch_t *batch, zfi_queue_fn fn, size_t nbytes) {
    batch->items[batch->n] = (zfi_queue_item_t){.fn = fn, .args = &batch->small[batch->n], .nbytes = nbytes};
    batch->n++;
}

/* As many commands as the ranges need. */
static zf_status_t add_copy(batch_t *batch, const zfi_op_t *op) {
    zf_status_t st = ZF_OK;
    for (uint32_t first = 0; first < op->n_ranges && !st; first += RANGES_PER_COMMAND) {
        uint32_t left = op->n_ranges - first, n = left < RANGES_PER_COMMAND ? left : RANGES_PER_COMMAND;
        zfi_queue_item_t *item = &batch->items[batch->n];
        batch->small[batch->n].copy = (copy_head_t){batch->device, n};
        add(batch, run_copy, sizeof(copy_head_t));
        item->more = op->ranges + first;
        item->more_nbytes = n * sizeof *op->ranges;
        if (batch->n == ZFI_QUEUE_MOST_COMMANDS)
            st = push(batch);
    }
    return st;
}

static zf_status_t add_op(batch_t *batch, const zfi_op_t *op) {
    zfi_device_t *device = batch->device;
    switch (op->kind) {
    case ZFI_OP_WAIT:
        batch->small[batch->n].wait = (wait_command_t){
            device, op->timeline, op->value, op->is_patient ? UINT64_MAX : device->env.timeout_ns, op->stall_ns};
        add(batch, run_wait, sizeof(wait_command_t));
        return ZF_OK;
    case ZFI_OP_SIGNAL:
        batch->small[batch->n].signal = (signal_command_t){device, op->timeline, op->value};
        add(batch, run_signal, sizeof(signal_command_t));
        return ZF_OK;
    case ZFI_OP_FILL:
        batch->small[batch->n].fill = (fill_command_t){device, op->to, op->nbytes};
        add(batch, run_fill, sizeof(fill_command_t));
        return ZF_OK;
    case ZFI_OP_LAUNCH:
        batch->small[batch->n].launch.device = device;
        batch->small[batch->n].launch.kernel = op->kernel;
        memcpy(batch->small[batch->n].launch.args, op->args, op->nbytes);
        add(batch, run_launch, offsetof(launch_command_t, args) + op->nbytes);
        return ZF_OK;
    case ZFI_OP_DOWN:
    case ZFI_OP_UP:
        return add_copy(batch, op);
    }
    return ZF_ERR_INTERNAL;
}

static zf_status_t cpu_enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    batch_t batch;
    zf_status_t st = ZF_OK;
    batch.device = device;
    batch.queue = zfi_cpu_queue(stream);
    batch.n = 0;
    for (uint32_t i = 0; i < n && !st; i++) {
        st = add_op(&batch, &ops[i]);
        if (!st && batch.n == ZFI_QUEUE_MOST_COMMANDS)
            st = push(&batch);
    }
    return st || batch.n == 0 ? st : push(&batch);
}

static zf_status_t cpu_order(zfi_device_t *device, zfi_stream_t *from, zfi_stream_t *to) {
    order_command_t command = {device, zfi_cpu_queue(from), cpu_mark(from)};
    batch_t batch;
    batch.device = device;
    batch.queue = zfi_cpu_queue(to);
    batch.n = 1;
    batch.items[0] = (zfi_queue_item_t){.fn = run_order, .args = &command, .nbytes = sizeof command};
    return push(&batch);
}

const zfi_device_ops_t zfi_device_cpu = {
    .name = "cpu",
    .device_type = ZF_DEVICE_CPU,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    .release = cpu_release,
    .resume = cpu_resume,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_resolve = cpu_stream_resolve,
    .mark = cpu_mark,
    .synchronise = cpu_synchronise,
    .fence = cpu_fence,
    .host_busy_ns = cpu_host_busy_ns,
    .order = cpu_order,
    .enqueue = cpu_enqueue,
};
