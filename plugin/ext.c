/* plugin/ext.c - the plugin's extensions: zf.stats/1, zf.config/1, zf.cpu/1, zf.inspect/0, zf.digest/0, and the
 * list of all (zf.state/1: state.c). */
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "digest.h"
#include "error.h"
#include "hooks.h"
#include "instance.h"
#include "memory.h"
#include "state.h"
#include "struct.h"
#include "tensor.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/stats.h"

const char zfi_provided_extensions[] =
    ZF_EXT_STATS " " ZF_EXT_CONFIG " " ZF_EXT_CPU " " ZF_EXT_STATE " " ZF_EXT_INSPECT " " ZF_EXT_DIGEST;

/* [any-thread] An instance argument of an extension, without the hook's lock. */
static zf_status_t check_instance(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    if (inst && inst->magic == ZFI_INSTANCE_MAGIC)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, origin, "instance is %s", inst ? "not one of this plugin's" : "NULL");
}

/* ---- zf.stats/1 -------------------------------------------------------------------------------------------------- */

static void fill_stats(zf_instance_t *inst, zf_stats_t *out) {
    zfi_counters_t *count = &inst->count;
    uint64_t applied = atomic_load(&count->steps_applied), skipped = atomic_load(&count->steps_skipped);
    *out = (zf_stats_t){
        .struct_size = sizeof *out,
        .n_workers = inst->n_workers,
        .steps = atomic_load(&count->steps),
        .steps_applied = applied,
        .steps_skipped = skipped,
        .window_closes = atomic_load(&count->window_closes),
        .closes_by_data = atomic_load(&count->closes_by_data),
        .reselects = atomic_load(&count->reselects),
        .channels_entered = atomic_load(&count->channels_entered),
        .channels_left = atomic_load(&count->channels_left),
        .down_grad_nbytes = atomic_load(&count->down_grad_nbytes),
        .down_record_nbytes = atomic_load(&count->down_record_nbytes),
        .up_publish_nbytes = atomic_load(&count->up_publish_nbytes),
        .up_enter_nbytes = atomic_load(&count->up_enter_nbytes),
        .lost_overlap_nbytes = atomic_load(&count->lost_overlap_nbytes),
        .host_planned_nbytes = inst->layout.host_nbytes,
        .host_measured_nbytes = zfi_memory_host_nbytes(inst),
        .device_planned_nbytes = inst->layout.device_nbytes + atomic_load(&inst->extra_device_nbytes),
        .device_measured_nbytes = zfi_memory_device_nbytes(inst),
        .slot_chunks_peak = atomic_load(&count->slots_peak),
        .slot_chunks_total = inst->slots.n_pieces,
        .stall_replay_ns = atomic_load(&count->stall_replay_ns),
        .stall_select_ns = atomic_load(&count->stall_select_ns),
        .stall_pool_ns = atomic_load(&count->stall_pool_ns),
        .host_wait_ns = atomic_load(&count->host_wait_ns),
        .replay_ns = atomic_load(&count->replay_ns),
        .replay_elems = atomic_load(&count->replay_elems),
        .overwritten_elems = atomic_load(&count->overwritten_elems),
    };
}

static zf_status_t stats_read(zf_instance_t *inst, zf_stats_t *out, zf_error_t *err) {
    zf_stats_t stats;
    zf_status_t st = check_instance(inst, "stats", err);
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "stats", "out is NULL");
    if (!st)
        st = zfi_struct_check_out(out, "zf_stats_t", err);
    if (st)
        return st;
    fill_stats(inst, &stats);
    zfi_struct_write(out, &stats, sizeof stats);
    return ZF_OK;
}

static const zf_stats_ext_t stats_ext = {.struct_size = sizeof stats_ext, .read = stats_read};

/* ---- zf.config/1 ------------------------------------------------------------------------------------------------- */

static zf_status_t config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err) {
    zf_config_key_t key = {.struct_size = sizeof key};
    zf_status_t st = out ? zfi_struct_check_out(out, "zf_config_key_t", err)
                         : zfi_error(err, ZF_ERR_ARGUMENT, "config", "out is NULL");
    if (!st)
        st = zfi_config_key(i, &key, err);
    if (!st)
        zfi_struct_write(out, &key, sizeof key);
    return st;
}

static zf_status_t config_value(zf_instance_t *inst, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = check_instance(inst, "config", err);
    if (!st && (!buf || !nbytes))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "config", "buf is NULL or empty");
    return st ? st : zfi_config_value(&inst->config, i, buf, nbytes, err);
}

static zf_status_t config_check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n_overrides,
                                zf_error_t *err) {
    zfi_config_t config;
    if (n_overrides && !overrides)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "overrides is NULL with n_overrides = %u", n_overrides);
    return zfi_config_parse(text, nbytes, "config_text", overrides, n_overrides, &config, err);
}

static const zf_config_ext_t config_ext = {.struct_size = sizeof config_ext,
                                           .n_keys = zfi_config_n_keys,
                                           .key = config_key,
                                           .value = config_value,
                                           .check = config_check};

/* ---- zf.cpu/1 ---------------------------------------------------------------------------------------------------- */

typedef struct launch_args {
    zfi_queue_t *queue;
    void (*fn)(void *arg);
    void *arg;
} launch_args_t;

static void run_launch(void *raw) {
    const launch_args_t *args = raw;
    if (args->queue->has_host_mode)
        fesetenv(&args->queue->host_mode);
    args->fn(args->arg);
    fegetenv(&args->queue->host_mode);
    args->queue->has_host_mode = 1;
}

static zf_status_t check_queue(const zfi_queue_t *queue, zf_error_t *err) {
    if (queue && queue->magic == ZFI_QUEUE_MAGIC)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "queue is %s", queue ? "not one of this plugin's" : "NULL");
}

static zf_status_t cpu_queue_create(zf_cpu_queue_t **out_queue, zf_stream_t *out_stream, zf_error_t *err) {
    zf_stream_t stream = {.struct_size = sizeof stream, .kind = ZF_STREAM_CPU_QUEUE, .device_type = ZF_DEVICE_CPU};
    zfi_queue_t *queue;
    zf_status_t st = zfi_struct_check_out(out_stream, "zf_stream_t", err);
    if (!st && (!out_queue || !out_stream))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "%s is NULL", out_queue ? "out_stream" : "out_queue");
    if (!st)
        st = zfi_queue_create(&queue, "zf-host-queue", err);
    if (st)
        return st;
    stream.handle = (uint64_t)(uintptr_t)queue;
    zfi_struct_write(out_stream, &stream, sizeof stream);
    *out_queue = (zf_cpu_queue_t *)queue;
    return ZF_OK;
}

static void cpu_queue_destroy(zf_cpu_queue_t *queue) { zfi_queue_destroy((zfi_queue_t *)queue); }

static zf_status_t cpu_queue_launch(zf_cpu_queue_t *queue, void (*fn)(void *arg), void *arg, zf_error_t *err) {
    launch_args_t args = {(zfi_queue_t *)queue, fn, arg};
    zf_status_t st = check_queue((zfi_queue_t *)queue, err);
    if (!st && !fn)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "fn is NULL");
    return st ? st : zfi_queue_push((zfi_queue_t *)queue, run_launch, &args, sizeof args, NULL);
}

static zf_status_t cpu_queue_sync(zf_cpu_queue_t *raw, uint64_t timeout_ns, zf_error_t *err) {
    zfi_queue_t *queue = (zfi_queue_t *)raw;
    zf_status_t st = check_queue(queue, err);
    if (st)
        return st;
    st = zfi_timeline_wait(&queue->executed, zfi_queue_newest(queue), timeout_ns, NULL);
    return st ? zfi_error(err, st, "cpu", "the queue did not finish within %llu ns", (unsigned long long)timeout_ns)
              : ZF_OK;
}

static zf_status_t cpu_fence_wait(const zf_fence_t *given, uint64_t timeout_ns, zf_error_t *err) {
    zf_fence_t fence;
    uint64_t seen;
    zf_status_t st = zfi_struct_read(&fence, given, sizeof fence, sizeof fence, "zf_fence_t", err);
    if (st || fence.kind == ZF_FENCE_NONE)
        return st;
    if (fence.kind != ZF_FENCE_HOST_COUNTER || !fence.counter)
        return zfi_error(err, ZF_ERR_ARGUMENT, "cpu", "fence of kind %d cannot be waited for on the host", fence.kind);
    /* every counter this plugin hands out is the value of a timeline, its first member */
    st = zfi_timeline_wait((zfi_timeline_t *)(uintptr_t)fence.counter, fence.value, timeout_ns, NULL);
    seen = __atomic_load_n(fence.counter, __ATOMIC_ACQUIRE);
    if (st == ZF_ERR_TIMEOUT)
        return zfi_error(err, st, "cpu", "the fence is at %llu, waited %llu ns for %llu", (unsigned long long)seen,
                         (unsigned long long)timeout_ns, (unsigned long long)fence.value);
    if (st)
        return zfi_error(err, st, "cpu", "the instance has failed: poll() tells why");
    return ZF_OK;
}

static const zf_cpu_ext_t cpu_ext = {.struct_size = sizeof cpu_ext,
                                     .queue_create = cpu_queue_create,
                                     .queue_destroy = cpu_queue_destroy,
                                     .queue_launch = cpu_queue_launch,
                                     .queue_sync = cpu_queue_sync,
                                     .fence_wait = cpu_fence_wait};

/* ---- zf.inspect/0 ------------------------------------------------------------------------------------------------ */

static const zf_inspect_ext_t inspect_ext = {.struct_size = sizeof inspect_ext, .read = zfi_inspect};

/* ---- zf.digest/0 ------------------------------------------------------------------------------------------------- */

static zf_status_t digest_check(const zf_instance_t *inst, const zf_tensor_t *const *tensors, uint32_t n,
                                const uint64_t *out, zf_error_t *err) {
    zfi_view_t view;
    zf_status_t st = check_instance(inst, "digest", err);
    if (!st && n && (!tensors || !out))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "digest", "%s is NULL with n = %u", tensors ? "out" : "tensors", n);
    for (uint32_t i = 0; i < n && !st; i++) {
        char name[24];
        snprintf(name, sizeof name, "tensors[%u]", i);
        st = zfi_tensor_check_bytes(tensors[i], "contents", name, ZF_DEVICE_CPU, &view, err);
    }
    return st;
}

/* Checks all, then digests each: so the views need no memory. */
static zf_status_t digest(zf_instance_t *inst, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                          zf_error_t *err) {
    zfi_view_t view;
    zf_status_t st = digest_check(inst, tensors, n, out, err);
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_tensor_check_bytes(tensors[i], "contents", "", ZF_DEVICE_CPU, &view, NULL);
        out[i] = zfi_digest(&view);
    }
    return st;
}

static const zf_digest_ext_t digest_ext = {.struct_size = sizeof digest_ext, .digest = digest};

const void *zfi_get_extension(const char *id) {
    static const struct {
        const char *id;
        const void *table;
    } all[] = {{ZF_EXT_STATS, &stats_ext},     {ZF_EXT_CONFIG, &config_ext},   {ZF_EXT_CPU, &cpu_ext},
               {ZF_EXT_STATE, &zfi_state_ext}, {ZF_EXT_INSPECT, &inspect_ext}, {ZF_EXT_DIGEST, &digest_ext}};
    for (size_t i = 0; id && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].id, id) == 0)
            return all[i].table;
    return NULL;
}
