/* plugin/instance.c - life of an instance: create, bind, destroy; and what every hook does on entry (instance.h). */
#include "instance.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/device.h"
#include "error.h"
#include "hooks.h"
#include "memory.h"
#include "offload/workers.h"
#include "struct.h"
#include "window.h"

/* ---- every hook's entry ------------------------------------------------------------------------------------------ */

static const char *state_name(int state) {
    static const char *const names[] = {"created", "bound", "active", "quiesced"};
    return names[state];
}

zf_status_t zfi_enter(zf_instance_t *inst, unsigned states, const char *origin, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "instance is %s", inst ? "not one of this plugin's" : "NULL");
    if (!*inst->alive)
        return zfi_error_scoped(err, ZF_ERR_FORKED, ZF_SCOPE_INSTANCE, 0, origin, "called in a child process after "
                                "fork(): the instance's threads live in the parent; create one here instead");
    if (atomic_exchange(&inst->is_busy, 1))
        return zfi_error(err, ZF_ERR_BUSY, origin, "another hook of this instance is running: a host that calls hooks "
                         "from several threads must lock");
    if (atomic_load(&inst->is_poisoned)) {
        pthread_mutex_lock(&inst->poison_lock);
        st = zfi_error_copy(err, &inst->poison);
        pthread_mutex_unlock(&inst->poison_lock);
    } else if (!(states & (1u << inst->state))) {
        st = zfi_error(err, ZF_ERR_STATE, origin, "not legal in state \"%s\"%s", state_name(inst->state),
                       inst->state == ZFI_STATE_CREATED ? ": call bind_params first" : ": parameters are already bound; "
                       "binding again is not in this version");
    }
    if (st) atomic_store(&inst->is_busy, 0);
    return st;
}

void zfi_leave(zf_instance_t *inst) { atomic_store(&inst->is_busy, 0); }

void zfi_log_at(zf_instance_t *inst, int32_t level, const char *component, const char *file, int32_t line,
                const char *format, ...) {
    char text[512];
    va_list args;
    int n;
    if (!inst->host->log || level > inst->config.level) return;
    va_start(args, format);
    n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) return;
    inst->host->log(inst->host->ctx, level, component, file, line, text,
                    (uint64_t)n < sizeof text ? (uint64_t)n : sizeof text - 1);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static void list_timelines(zf_instance_t *inst, zfi_timeline_t **out) {
    zfi_timeline_t *all[ZFI_N_TIMELINES] = {&inst->shipped, &inst->batches, &inst->finished, &inst->down, &inst->jobs,
                                            &inst->up, &inst->merged, &inst->chosen, &inst->host_sel, &inst->enter_up,
                                            &inst->enter_done, &inst->entered, &inst->control, &inst->stepped,
                                            &inst->publish_due, &inst->enter_due};
    memcpy(out, all, sizeof all);
}

static void init_timelines(zf_instance_t *inst) {
    static const char *const names[ZFI_N_TIMELINES] = {"shipped", "batches", "finished", "down", "jobs", "up", "merged",
                                                       "chosen", "host_sel", "enter_up", "enter_done", "entered",
                                                       "control", "stepped", "publish_due", "enter_due"};
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++) zfi_timeline_init(all[i], names[i]);
}

void zfi_poison(zf_instance_t *inst, const zf_error_t *error) {
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    pthread_mutex_lock(&inst->poison_lock);
    if (!atomic_load(&inst->is_poisoned)) {
        inst->poison = *error;
        inst->poison.struct_size = sizeof inst->poison;
        inst->poison.scope = ZF_SCOPE_INSTANCE;
        atomic_store(&inst->is_poisoned, 1);
    }
    pthread_mutex_unlock(&inst->poison_lock);
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++) zfi_timeline_poison(all[i]);
}

static void poison_timeout(zf_instance_t *inst, const zfi_timeline_t *timeline, uint64_t value) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    char dump[352];
    size_t at = 0;
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES && at < sizeof dump; i++)
        at += (size_t)snprintf(dump + at, sizeof dump - at, " %s=%" PRIu64, all[i]->name, zfi_timeline_now(all[i]));
    zfi_error_scoped(&error, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, timeline->name,
                     "waited %u ms ([host] deadline_ms) for %s to reach %" PRIu64 ";%s", inst->config.deadline_ms,
                     timeline->name, value, dump);
    zfi_poison(inst, &error);
}

zf_status_t zfi_wait(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *waited_ns) {
    uint64_t waited = 0;
    zf_status_t st = zfi_timeline_wait(timeline, value, inst->timeout_ns, &waited);
    if (waited && waited_ns) atomic_fetch_add(waited_ns, waited);
    if (st == ZF_ERR_TIMEOUT) poison_timeout(inst, timeline, value);
    if (!st && atomic_load(&inst->is_poisoned)) st = ZF_ERR_POISONED;
    return st;
}

zf_status_t zfi_wait_for_host(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value) {
    zf_status_t st = zfi_timeline_wait(timeline, value, UINT64_MAX, NULL);
    return !st && atomic_load(&inst->is_poisoned) ? ZF_ERR_POISONED : st;
}

/* ---- create ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_host(const zf_host_t *host, zf_error_t *err) {
    return zfi_struct_check(host, sizeof *host, sizeof *host, "zf_host_t", err);
}

static zf_status_t check_args(const zf_create_args_t *args, zf_error_t *err) {
    if (args->flags & ~ZF_CREATE_CAP_FETCH)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "unknown flags 0x%x", args->flags);
    if (args->norm_group)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "norm_group = %u: adding up norms of several "
                         "instances is not in this version; 0", args->norm_group);
    if (args->device_type != ZF_DEVICE_CPU || args->device_id != 0)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "device type %d, id %d: this version has the CPU backend only (1, "
                         "0)", args->device_type, args->device_id);
    if (args->config_text && args->config_path)
        return zfi_error(err, ZF_ERR_ARGUMENT, "create", "both config_text and config_path are given");
    if (args->n_overrides && !args->overrides)
        return zfi_error(err, ZF_ERR_ARGUMENT, "create", "overrides is NULL with n_overrides = %u", args->n_overrides);
    return check_host(args->host, err);
}

static zf_status_t choose_kernels(const zfi_kernels_t **out, zf_error_t *err) {
    const char *forced = getenv("ZF_FORCE_ISA");
    zfi_isa_t isa = zfi_isa_best();
    if (forced && *forced) {
        int wanted = zfi_isa_parse(forced);
        if (wanted < 0)
            return zfi_error(err, ZF_ERR_CONFIG, "create", "ZF_FORCE_ISA = \"%.32s\"; allowed: generic, avx2, avx512",
                             forced);
        if (!zfi_kernels_of((zfi_isa_t)wanted))
            return zfi_error(err, ZF_ERR_CONFIG, "create", "ZF_FORCE_ISA = %s, but this CPU (or this build) has %s at "
                             "most", forced, zfi_isa_name(isa));
        isa = (zfi_isa_t)wanted;
    }
    *out = zfi_kernels_of(isa);
    return ZF_OK;
}

static zf_status_t map_alive_page(zf_instance_t *inst, zf_error_t *err) {
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, errno, "create", "cannot map a page: %s",
                                strerror(errno));
    madvise(page, 4096, MADV_WIPEONFORK); /* where the kernel lacks it, a forked child is not noticed */
    *page = 1;
    inst->alive = page;
    return ZF_OK;
}

static zf_status_t start_streams(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_queue_create(&inst->own_stream, "zf-device", err);
    if (!st) st = zfi_queue_create(&inst->down_stream, "zf-down", err);
    if (!st) st = zfi_queue_create(&inst->up_stream, "zf-up", err);
    if (!st) st = zfi_queue_create(&inst->control_stream, "zf-control", err);
    inst->stream = inst->own_stream;
    return st;
}

static void free_instance(zf_instance_t *inst) {
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    zfi_queue_destroy(inst->own_stream);
    zfi_queue_destroy(inst->control_stream);
    zfi_workers_stop(inst->workers);
    zfi_queue_destroy(inst->up_stream);
    zfi_queue_destroy(inst->down_stream);
    zfi_memory_free(inst);
    zfi_plan_free(&inst->plan);
    zfi_params_free(inst->params, inst->n_params);
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++) zfi_timeline_free(all[i]);
    pthread_mutex_destroy(&inst->poison_lock);
    if (inst->alive) munmap((void *)(uintptr_t)inst->alive, 4096);
    inst->magic = 0;
    free(inst);
}

static zf_status_t read_config(const zf_create_args_t *args, zfi_config_t *out, zf_error_t *err) {
    if (args->config_path)
        return zfi_config_parse_file(args->config_path, args->overrides, args->n_overrides, out, err);
    return zfi_config_parse(args->config_text, args->config_text_nbytes, "config_text", args->overrides,
                            args->n_overrides, out, err);
}

zf_status_t zfi_create(const zf_create_args_t *given, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t args;
    zf_instance_t *inst;
    zf_status_t st = zfi_struct_read(&args, given, sizeof args, sizeof args, "zf_create_args_t", err);
    if (!st && !out) st = zfi_error(err, ZF_ERR_ARGUMENT, "create", "out_instance is NULL");
    if (!st) st = check_args(&args, err);
    if (st) return st;
    inst = calloc(1, sizeof *inst);
    if (!inst) return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for an instance");
    inst->host = args.host;
    inst->flags = args.flags;
    inst->device_type = args.device_type;
    inst->device = &zfi_device_cpu;
    inst->overwritten_param = ZF_NO_ID;
    pthread_mutex_init(&inst->poison_lock, NULL);
    init_timelines(inst);
    st = read_config(&args, &inst->config, err);
    if (!st) st = choose_kernels(&inst->kernels, err);
    if (!st) st = map_alive_page(inst, err);
    if (!st) st = start_streams(inst, err);
    if (st) {
        free_instance(inst);
        return st;
    }
    inst->timeout_ns = (uint64_t)inst->config.deadline_ms * 1000000u;
    inst->magic = ZFI_INSTANCE_MAGIC;
    *out = inst;
    return ZF_OK;
}

/* ---- bind -------------------------------------------------------------------------------------------------------- */

static uint32_t count_groups(const zfi_param_t *params, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state && params[i].group > most) most = params[i].group;
    return most + 1;
}

static zf_status_t read_masters(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_params && !st; i++)
        if (inst->params[i].has_state) st = inst->device->read_visible(inst, i);
    if (!st) st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
    return st;
}

static void unbind(zf_instance_t *inst) {
    zfi_memory_free(inst);
    zfi_plan_free(&inst->plan);
    zfi_params_free(inst->params, inst->n_params);
    inst->params = NULL;
    inst->n_params = 0;
}

static zf_status_t bind(zf_instance_t *inst, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                        zf_error_t *err) {
    zf_status_t st = zfi_params_build(decls, n, elem_size, inst->device_type, &inst->params, err);
    if (st) return st;
    inst->n_params = n;
    inst->n_groups = count_groups(inst->params, n);
    st = zfi_plan_build(&inst->config, inst->params, n, &inst->plan, err);
    if (!st) st = zfi_memory_bind(inst, err);
    if (!st) {
        zfi_window_start(inst);
        st = read_masters(inst);
        if (st) zfi_error(err, st, "bind_params", "cannot read the parameters");
    }
    inst->n_workers = zfi_workers_count(&inst->config);
    if (!st) st = zfi_workers_start(inst, inst->n_workers, err);
    if (st) unbind(inst);
    return st;
}

static void log_plan(zf_instance_t *inst) {
    const zf_layout_t *layout = &inst->layout;
    double per = (double)layout->n_elems;
    zfi_log(inst, ZF_LOG_INFO, "bind",
            "ZenFlow %s: %" PRIu64 " elements in %u tensors, %s; window %u, topk %.3g, lag %u; kernels %s, "
            "%u worker(s); host %.1f MiB (%.2f bytes per parameter: state %.2f, slots %.2f, publish %.2f), device %.1f MiB",
            zfi_is_mean(inst) ? "mean" : "replay", layout->n_elems, inst->n_params, inst->device->name,
            inst->config.update_interval, inst->config.topk_ratio, inst->config.publish_lag, inst->kernels->name,
            inst->n_workers, (double)layout->host_nbytes / 1048576, (double)layout->host_nbytes / per,
            (double)layout->host_state_nbytes / per, (double)layout->host_slots_nbytes / per,
            (double)layout->host_publish_nbytes / per, (double)layout->device_nbytes / 1048576);
}

zf_status_t zfi_bind_params(zf_instance_t *inst, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                            uint32_t *out_ids, zf_layout_t *out_layout, zf_error_t *err) {
    zf_status_t st = zfi_enter(inst, 1u << ZFI_STATE_CREATED, "bind_params", err);
    if (st) return st;
    st = zfi_struct_check_out(out_layout, "zf_layout_t", err);
    if (!st) st = bind(inst, decls, n, elem_size, err);
    if (!st) {
        inst->state = ZFI_STATE_BOUND;
        for (uint32_t i = 0; i < n && out_ids; i++) out_ids[i] = i;
        zfi_struct_write(out_layout, &inst->layout, sizeof inst->layout);
        log_plan(inst);
    }
    zfi_leave(inst);
    return st;
}

/* ---- destroy ----------------------------------------------------------------------------------------------------- */

void zfi_destroy(zf_instance_t *inst) {
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC) return;
    if (!*inst->alive) return; /* a forked child: the threads that use this memory are the parent's */
    if (inst->state != ZFI_STATE_CREATED && !atomic_load(&inst->is_poisoned)) {
        zf_error_t err = {.struct_size = sizeof err};
        if (zfi_quiesce(inst, ZF_QUIESCE_DRAIN, &err) < 0) zfi_log(inst, ZF_LOG_ERROR, "destroy", "%s", err.message);
    }
    if (!atomic_load(&inst->is_poisoned)) { /* what only a next step would have released: publishes that were still due */
        zf_error_t end = {.struct_size = sizeof end, .status = ZF_ERR_STATE, .message = "the instance was destroyed"};
        zfi_poison(inst, &end);
    }
    /* programs on a host's own queue refer to this memory: poisoned, they end at once */
    zfi_timeline_wait(&inst->stream->executed, zfi_queue_newest(inst->stream), inst->timeout_ns, NULL);
    free_instance(inst);
}
