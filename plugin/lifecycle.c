/* plugin/lifecycle.c - create, bind_params and destroy (contracts in zf/plugin.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bound.h"
#include "callback.h"
#include "device/device.h"
#include "error.h"
#include "hooks.h"
#include "instance.h"
#include "memory.h"
#include "offload/workers.h"
#include "struct.h"

/* ---- create ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_host(const zf_host_t *host, zf_error_t *err) {
    return zfi_struct_check(host, sizeof *host, sizeof *host, "zf_host_t", err);
}

static zf_status_t check_args(const zf_create_args_t *args, zf_error_t *err) {
    if (args->flags & ~ZF_CREATE_CAP_FETCH)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "unknown flags 0x%x", args->flags);
    if (args->norm_group)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create",
                         "norm_group = %u: adding up norms of several "
                         "instances is not in this version; 0",
                         args->norm_group);
    if (args->rule > ZF_RULE_CALLBACK)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "rule = %u; allowed: 0 (AdamW) .. 5 (callback)",
                         args->rule);
    if ((args->rule == ZF_RULE_CALLBACK) != (args->rule_callback != NULL))
        return zfi_error(err, ZF_ERR_ARGUMENT, "create", "rule = %u (%s), but rule_callback is %s", args->rule,
                         zfi_rule_name(args->rule), args->rule_callback ? "given: it needs rule = 5" : "NULL");
    if (args->device_type != ZF_DEVICE_CPU || args->device_id != 0)
        return zfi_error(err, ZF_ERR_DEVICE, "create",
                         "device type %d, id %d: this version has the CPU backend only (1, "
                         "0)",
                         args->device_type, args->device_id);
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
            return zfi_error(err, ZF_ERR_CONFIG, "create",
                             "ZF_FORCE_ISA = %s, but this CPU (or this build) has %s at "
                             "most",
                             forced, zfi_isa_name(isa));
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
    if (!st)
        st = zfi_queue_create(&inst->down_stream, "zf-down", err);
    if (!st)
        st = zfi_queue_create(&inst->up_stream, "zf-up", err);
    if (!st)
        st = zfi_queue_create(&inst->control_stream, "zf-control", err);
    inst->stream = inst->own_stream;
    return st;
}

static void free_instance(zf_instance_t *inst) {
    zfi_queue_destroy(inst->own_stream);
    zfi_queue_destroy(inst->control_stream);
    zfi_workers_stop(inst->workers);
    zfi_queue_destroy(inst->up_stream);
    zfi_queue_destroy(inst->down_stream);
    zfi_memory_free(inst);
    zfi_plan_free(&inst->plan);
    zfi_params_free(inst->params, inst->n_params);
    zfi_timelines_free(inst);
    pthread_mutex_destroy(&inst->poison_lock);
    if (inst->alive)
        munmap((void *)(uintptr_t)inst->alive, 4096);
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
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "create", "out_instance is NULL");
    if (!st)
        st = check_args(&args, err);
    if (st)
        return st;
    inst = calloc(1, sizeof *inst);
    if (!inst)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for an instance");
    inst->host = args.host;
    inst->flags = args.flags;
    inst->rule = args.rule;
    inst->device_type = args.device_type;
    inst->device = &zfi_device_cpu;
    pthread_mutex_init(&inst->poison_lock, NULL);
    zfi_timelines_init(inst);
    st = read_config(&args, &inst->config, err);
    if (!st)
        st = zfi_rule_check_config(inst->rule, &inst->config, err);
    if (!st && inst->rule == ZF_RULE_CALLBACK)
        st = zfi_callback_take(inst, args.rule_callback, err);
    if (!st)
        st = choose_kernels(&inst->kernels, err);
    if (!st)
        st = map_alive_page(inst, err);
    if (!st)
        st = start_streams(inst, err);
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

static zf_status_t bind(zf_instance_t *inst, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                        zf_error_t *err) {
    zfi_param_t *params = NULL;
    zf_status_t st = zfi_params_build(decls, n, elem_size, inst->device_type, &params, err);
    if (st)
        return st;
    inst->n_workers = zfi_workers_count(&inst->config);
    return zfi_bound_make(inst, params, n, 1, "bind_params", err);
}

enum {
    ANY_STATE = 1u << ZFI_STATE_CREATED | 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED
};

static const char *deferred_name(const zf_instance_t *inst) {
    if (zfi_is_mean(inst))
        return "mean";
    return zfi_is_moments(inst) ? "moments" : "replay";
}

static void log_plan(zf_instance_t *inst) {
    const zf_layout_t *layout = &inst->layout;
    double per = (double)layout->n_elems;
    char topk[16] = "auto";
    if (!zfi_config_is_topk_auto(&inst->config))
        snprintf(topk, sizeof topk, "%.3g", inst->config.topk_ratio);
    zfi_log(
        inst, ZF_LOG_INFO, "bind",
        "ZenFlow %s of %s: %" PRIu64 " elements in %u tensors, %s; window %u, topk %s, lag %u; kernels %s, "
        "%u worker(s); host %.1f MiB (%.2f bytes per parameter: state %.2f, slots %.2f, publish %.2f), device %.1f MiB",
        deferred_name(inst), inst->rule == ZF_RULE_CALLBACK ? inst->rule_name : zfi_rule_name(inst->rule),
        layout->n_elems, inst->n_params, inst->device->name, inst->config.update_interval, topk,
        inst->config.publish_lag, inst->kernels->name, inst->n_workers, (double)layout->host_nbytes / 1048576,
        (double)layout->host_nbytes / per, (double)layout->host_state_nbytes / per,
        (double)layout->host_slots_nbytes / per, (double)layout->host_publish_nbytes / per,
        (double)layout->device_nbytes / 1048576);
}

zf_status_t zfi_bind_params(zf_instance_t *inst, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                            uint32_t *out_ids, zf_layout_t *out_layout, zf_error_t *err) {
    zf_status_t st = zfi_enter(inst, ANY_STATE, "bind_params", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_layout, "zf_layout_t", err);
    if (!st)
        st = (inst->state == ZFI_STATE_CREATED ? bind : zfi_rebind)(inst, decls, n, elem_size, err);
    if (!st) {
        if (inst->state == ZFI_STATE_CREATED)
            inst->state = ZFI_STATE_BOUND;
        for (uint32_t i = 0; i < n && out_ids; i++)
            out_ids[i] = i;
        zfi_struct_write(out_layout, &inst->layout, sizeof inst->layout);
        log_plan(inst);
    }
    zfi_leave(inst);
    return st;
}

/* ---- destroy ----------------------------------------------------------------------------------------------------- */

/* Commands on the host's queues refer to this memory; poisoned, they end as soon as they run. 0 if some did not. */
static int wait_for_host_queues(zf_instance_t *inst) {
    int is_over = 1;
    for (uint32_t i = 0; i < inst->n_host_queues && is_over; i++) {
        zfi_queue_t *queue = inst->host_queues[i];
        is_over = !zfi_timeline_wait(&queue->executed, zfi_queue_newest(queue), inst->timeout_ns, NULL);
    }
    return is_over;
}

void zfi_destroy(zf_instance_t *inst) {
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC)
        return;
    if (!*inst->alive)
        return; /* a forked child: the threads that use this memory are the parent's */
    if (inst->state != ZFI_STATE_CREATED && !atomic_load(&inst->is_poisoned)) {
        zf_error_t err = {.struct_size = sizeof err};
        if (zfi_quiesce(inst, ZF_QUIESCE_DRAIN, &err) < 0)
            zfi_log(inst, ZF_LOG_ERROR, "destroy", "%s", err.message);
    }
    if (!atomic_load(
            &inst->is_poisoned)) { /* what only a next step would have released: publishes that were still due */
        zf_error_t end = {.struct_size = sizeof end, .status = ZF_ERR_STATE, .message = "the instance was destroyed"};
        zfi_poison(inst, &end);
    }
    if (wait_for_host_queues(inst)) {
        free_instance(inst);
        return;
    }
    zfi_log(inst, ZF_LOG_ERROR, "destroy",
            "a queue of the host's still holds commands of this instance after %u ms "
            "([host] deadline_ms): its memory is left to them",
            inst->config.deadline_ms);
    inst->magic = 0;
}
