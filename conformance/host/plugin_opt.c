/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_opt.c - drives libzfplugin through its ABI (plugin_opt.h).
 *
 * On the processor the host computes on the calling thread, so its stream is HOST_THREAD: grads_ready has finished
 * reading when it returns, and param_fetch gives a counter fence to wait for. On a CUDA device (compute.h) calls carry
 * the stream that it computes on: param_fetch makes that stream wait, and a gradient is written again once its fence is
 * over. Optimizer settings are passed to every step: the host is the source of truth. Each function here is a hook. */
#include "plugin_opt.h"

#include "zf/ext/stats.h"
#include "zf_loader.h"

#include <stdio.h>
#include <stdlib.h>

static const uint64_t fence_timeout_ns = UINT64_C(60000000000);

typedef struct plugin_optimizer {
    host_optimizer_t base;
    zf_loader_t *loader;
    const zf_plugin_t *zf;
    zf_host_t host;
    zf_instance_t *instance;
    uint32_t *ids; /* [base.params->n] */
    zf_bind_report_t layout;
    zf_stream_t stream;
    const host_compute_t *compute; /* NULL: the processor */
    zf_fence_t *read;              /* [base.params->n] on a device: until when a gradient is read */
    zf_description_t description;
} plugin_optimizer_t;

static int fail_with(glue_error_t *err, const char *what, const zf_error_t *error) {
    return glue_fail(err, "plugin: %s: %s (status %d)", what, error->message, (int)error->status);
}

static void describe_tensor(const host_param_t *p, void *data, zf_tensor_t *out) {
    zf_dtype_t dtype = p->dtype == HOST_FLOAT32 ? zf_dtype_float32() : zf_dtype_bfloat16();
    zf_tensor_contiguous(data, dtype, p->n_dims, p->shape, out);
    out->dl.device_type = p->compute->device_type;
    out->dl.device_id = p->compute->device_id;
}

/* What the stream does not order is waited for here. */
static int wait_for(const plugin_optimizer_t *self, zf_fence_t *fence, const char *what, glue_error_t *err) {
    zf_error_t error = {.struct_size = sizeof error};
    if (fence->kind != ZF_FENCE_NONE && fence->kind != ZF_FENCE_STREAM_ORDER &&
        self->zf->fence_wait(self->instance, fence, fence_timeout_ns, &error) < 0)
        return fail_with(err, what, &error);
    fence->kind = ZF_FENCE_NONE;
    return 0;
}

/* Before a parameter is read: wait until its current value is in place. */
static int plugin_before_forward(host_optimizer_t *base, size_t param, glue_error_t *err) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    const zf_param_item_t item = {.struct_size = sizeof item, .id = self->ids[param]};
    zf_error_t error = {.struct_size = sizeof error};
    zf_fence_t ready = {.struct_size = sizeof ready};
    if (self->compute != NULL && wait_for(self, &self->read[param], base->params->list[param].name, err) != 0)
        return -1;
    if (self->zf->param_fetch(self->instance, &item, 1, sizeof item, &self->stream, &ready, &error) < 0)
        return fail_with(err, "param_fetch", &error);
    return wait_for(self, &ready, base->params->list[param].name, err);
}

/* During backward: a gradient is complete. On the processor it may be overwritten as soon as this returns. */
static int plugin_grads_ready(host_optimizer_t *base, size_t param, unsigned flags, glue_error_t *err) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    const host_param_t *p = &base->params->list[param];
    zf_error_t error = {.struct_size = sizeof error};
    zf_fence_t *read = self->compute != NULL ? &self->read[param] : NULL;
    zf_tensor_t tensor;
    const zf_grad_item_t item = {.struct_size = sizeof item,
                                 .id = self->ids[param],
                                 .flags = ((flags & HOST_GRAD_PART) != 0 ? ZF_GRAD_PART : ZF_GRAD_TOTAL) |
                                          ((flags & HOST_GRAD_LAST) != 0 ? ZF_GRAD_LAST : ZF_GRAD_MORE),
                                 .tensor = &tensor};
    describe_tensor(p, p->grad, &tensor);
    /* without ASYNC_READ the plugin has read it when this returns: no fence, and threads are woken once per batch */
    if (read != NULL)
        *read = (zf_fence_t){.struct_size = sizeof *read};
    if (self->zf->grads_ready(self->instance, &item, 1, sizeof item, &self->stream, read, &error) < 0)
        return fail_with(err, "grads_ready", &error);
    return read != NULL && (flags & HOST_GRAD_PART) != 0 ? wait_for(self, read, p->name, err) : 0;
}

static int plugin_step(host_optimizer_t *base, const host_step_args_t *args, glue_error_t *err) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    zf_error_t error = {.struct_size = sizeof error};
    zf_group_hyper_t groups[HOST_N_GROUPS];
    const zf_step_args_t step = {.struct_size = sizeof step,
                                 .flags = args->is_epoch_end ? ZF_STEP_EPOCH_END : 0,
                                 .groups = groups,
                                 .n_groups = HOST_N_GROUPS,
                                 .elem_size = sizeof groups[0],
                                 .unscale = 1.0,
                                 .clip_norm = args->clip_norm,
                                 .stream = &self->stream};
    zf_step_report_t report = {.struct_size = sizeof report};
    for (int i = 0; i < HOST_N_GROUPS; i++)
        groups[i] = (zf_group_hyper_t){.struct_size = sizeof groups[i],
                                       .lr = args->groups[i].lr,
                                       .beta1 = args->groups[i].beta1,
                                       .beta2 = args->groups[i].beta2,
                                       .eps = args->groups[i].eps,
                                       .weight_decay = args->groups[i].weight_decay};
    return self->zf->step(self->instance, &step, &report, &error) < 0 ? fail_with(err, "step", &error) : 0;
}

/* End of training: every open window is applied and the final weights are visible. */
static int plugin_finish(host_optimizer_t *base, glue_error_t *err) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_error_t error = {.struct_size = sizeof error};
    if (self->zf->quiesce(self->instance, &flush, &error) < 0)
        return fail_with(err, "quiesce", &error);
    return 0;
}

/* 0 where the plugin has no such counter. */
static uint64_t counter(const plugin_optimizer_t *self, const char *name) {
    uint64_t value = 0;
    (void)zf_counter_value(self->zf, self->instance, name, &value, NULL);
    return value;
}

static double share(uint64_t amount, uint64_t of) { return of == 0 ? 0.0 : (double)amount / (double)of; }

static size_t plugin_counters(host_optimizer_t *base, host_counter_t out[HOST_MAX_COUNTERS]) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    uint64_t n_elems = self->layout.n_elems, steps = counter(self, "steps"), stall, down, up;
    size_t n = 0;
    if (self->zf->get_extension(ZF_EXT_STATS) == NULL)
        return 0;
    down = counter(self, "down_grad_nbytes") + counter(self, "down_record_nbytes");
    up = counter(self, "up_publish_nbytes") + counter(self, "up_enter_nbytes");
    stall = counter(self, "stall_replay_ns") + counter(self, "stall_select_ns") + counter(self, "stall_pool_ns");
    out[n++] = (host_counter_t){"steps", (double)steps};
    out[n++] = (host_counter_t){"skipped_steps", (double)counter(self, "steps_skipped")};
    out[n++] = (host_counter_t){"link_bytes_per_step", share(down + up, steps)};
    out[n++] = (host_counter_t){"down_bytes_per_step", share(down, steps)};
    out[n++] = (host_counter_t){"up_publish_bytes_per_step", share(counter(self, "up_publish_nbytes"), steps)};
    out[n++] = (host_counter_t){"up_enter_bytes_per_step", share(counter(self, "up_enter_nbytes"), steps)};
    out[n++] = (host_counter_t){"stall_us_per_step", share(stall, steps) * 1e-3};
    out[n++] = (host_counter_t){"host_bytes_per_param", share(counter(self, "host_measured_nbytes"), n_elems)};
    out[n++] = (host_counter_t){"host_planned_bytes_per_param", share(counter(self, "host_planned_nbytes"), n_elems)};
    out[n++] = (host_counter_t){"device_bytes_per_param", share(counter(self, "device_measured_nbytes"), n_elems)};
    out[n++] = (host_counter_t){"window_closes", (double)counter(self, "window_closes")};
    return n;
}

static void plugin_destroy(host_optimizer_t *base) {
    plugin_optimizer_t *self = (plugin_optimizer_t *)base;
    if (self->zf != NULL)
        self->zf->destroy(self->instance, NULL);
    zf_loader_close(self->loader);
    free(self->ids);
    free(self->read);
    free(self);
}

static const host_optimizer_ops_t plugin_ops = {.name = "plugin",
                                                .before_forward = plugin_before_forward,
                                                .grads_ready = plugin_grads_ready,
                                                .step = plugin_step,
                                                .finish = plugin_finish,
                                                .counters = plugin_counters,
                                                .destroy = plugin_destroy};

static int open_plugin(plugin_optimizer_t *self, const host_plugin_options_t *options, glue_error_t *err) {
    zf_error_t error = {.struct_size = sizeof error};
    if (zf_loader_open(options->plugin_path, &self->loader, &error) < 0)
        return glue_fail(err, "plugin: %s", error.message);
    self->zf = zf_loader_plugin(self->loader);
    self->description.struct_size = sizeof self->description;
    if (self->zf->describe(&self->description, &error) < 0)
        return fail_with(err, "describe", &error);
    return 0;
}

static int create_instance(plugin_optimizer_t *self, const host_plugin_options_t *options, glue_error_t *err) {
    zf_error_t error = {.struct_size = sizeof error};
    const zf_create_args_t args = {.struct_size = sizeof args,
                                   .flags = ZF_CREATE_CAP_FETCH,
                                   .host = &self->host,
                                   .config_path = options->config_path,
                                   .overrides = options->overrides,
                                   .n_overrides = (uint32_t)options->n_overrides,
                                   .device_type = self->compute != NULL ? self->compute->device_type : ZF_DEVICE_CPU,
                                   .device_id = self->compute != NULL ? self->compute->device_id : 0};
    zf_host_stderr("zf-host", "0.1", options->is_verbose ? ZF_LOG_INFO : ZF_LOG_WARN, &self->host);
    zf_stream_host_thread(&self->stream);
    if (self->compute != NULL)
        self->stream = (zf_stream_t){.struct_size = sizeof self->stream,
                                     .kind = ZF_STREAM_CUDA,
                                     .device_type = ZF_DEVICE_CUDA,
                                     .device_id = self->compute->device_id,
                                     .handle = (uint64_t)(uintptr_t)self->compute->stream};
    if (self->zf->create(&args, &self->instance, &error) < 0)
        return fail_with(err, "create", &error);
    return 0;
}

static void declare(host_param_t *p, zf_tensor_t *tensor, zf_param_decl_t *out) {
    describe_tensor(p, p->value, tensor);
    *out = (zf_param_decl_t){.struct_size = sizeof *out,
                             .name = p->name,
                             .tensor = tensor,
                             .group = (uint32_t)p->group,
                             .channels = ZF_CHANNELS_COLUMNS};
}

static int bind(plugin_optimizer_t *self, glue_error_t *err) {
    host_params_t *params = self->base.params;
    zf_error_t error = {.struct_size = sizeof error};
    zf_tensor_t *tensors = calloc(params->n, sizeof *tensors);
    zf_param_decl_t *decls = calloc(params->n, sizeof *decls);
    int st = 0;
    self->ids = calloc(params->n, sizeof *self->ids);
    self->read = calloc(params->n, sizeof *self->read);
    if (tensors == NULL || decls == NULL || self->ids == NULL || self->read == NULL) {
        st = glue_fail(err, "plugin: out of memory for %zu declarations", params->n);
    } else {
        for (size_t i = 0; i < params->n; i++)
            declare(&params->list[i], &tensors[i], &decls[i]);
        self->layout.struct_size = sizeof self->layout;
        if (self->zf->bind_params(self->instance,
                                  &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                    .decls = decls,
                                                    .n_decls = (uint32_t)params->n,
                                                    .decl_size = sizeof *decls},
                                  self->ids, &self->layout, &error) < 0)
            st = fail_with(err, "bind_params", &error);
    }
    free(decls);
    free(tensors);
    return st;
}

int host_plugin_create(host_params_t *params, const host_plugin_options_t *options, host_optimizer_t **out,
                       glue_error_t *err) {
    plugin_optimizer_t *self = calloc(1, sizeof *self);
    if (self == NULL)
        return glue_fail(err, "plugin: out of memory");
    self->base = (host_optimizer_t){.ops = &plugin_ops, .params = params};
    self->compute = options->compute;
    if (open_plugin(self, options, err) != 0 || create_instance(self, options, err) != 0 || bind(self, err) != 0) {
        plugin_destroy(&self->base);
        return -1;
    }
    *out = &self->base;
    return 0;
}

const char *host_plugin_version(const host_optimizer_t *optimizer) {
    return ((const plugin_optimizer_t *)optimizer)->description.version;
}
