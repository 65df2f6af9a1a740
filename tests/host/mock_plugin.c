/* SPDX-License-Identifier: Apache-2.0 */
/* mock_plugin.c - a plugin of the simplest kind: the host's own AdamW behind the ABI, in the same arithmetic.
 *
 * It exists to prove plugin_opt.c without the engine: training through it must equal training with adamw.c bit for bit.
 * New values become visible only when param_fetch names the parameter (or at FLUSH), so that a host which forgets to
 * fetch trains on stale weights and is found out. Struct sizes and flags are checked as the ABI's rules ask. */
#include <stdlib.h>
#include <string.h>

#include "host/adamw.h"
#include "zf/plugin.h"

struct zf_instance {
    host_params_t params;
    host_optimizer_t *adamw;
    zf_tensor_t *tensors;   /* [params.n] the host's, as bound */
    uint8_t *has_new_value; /* [params.n] not yet copied to the host */
    uint64_t counter;
    uint64_t n_steps;
};

static zf_status_t refuse(zf_error_t *err, zf_status_t status, const char *message) {
    if (err != NULL) {
        err->status = status;
        (void)strncpy(err->message, message, sizeof err->message - 1);
    }
    return status;
}

static zf_status_t mock_describe(zf_description_t *out, zf_error_t *err) {
    (void)err;
    out->name = "mock";
    out->version = "mock";
    out->build = out->required_extensions = out->optional_extensions = out->provided_extensions = "";
    return ZF_OK;
}

static zf_status_t mock_create(const zf_create_args_t *args, zf_instance_t **out_instance, zf_error_t *err) {
    if (args->struct_size != sizeof *args || args->host == NULL || (args->flags & ZF_CREATE_CAP_FETCH) == 0)
        return refuse(err, ZF_ERR_ARGUMENT, "the mock wants a host with the FETCH capability");
    if (args->n_overrides > 0 && strcmp(args->overrides[0], "mock.refuse=1") == 0)
        return refuse(err, ZF_ERR_CONFIG, "the mock was told to refuse");
    *out_instance = calloc(1, sizeof **out_instance);
    return *out_instance != NULL ? ZF_OK : ZF_ERR_MEMORY;
}

static void mock_destroy(zf_instance_t *self, const zf_destroy_args_t *args) {
    (void)args;
    if (self == NULL)
        return;
    if (self->adamw != NULL)
        self->adamw->ops->destroy(self->adamw);
    host_params_free(&self->params);
    free(self->tensors);
    free(self->has_new_value);
    free(self);
}

static zf_status_t add_param(zf_instance_t *self, const zf_param_decl_t *decl) {
    const zf_dl_tensor_t *t = &decl->tensor->dl;
    size_t columns = t->ndim == 2 ? (size_t)t->shape[1] : 0;
    host_param_t *p = host_params_add(&self->params, decl->name, (size_t)t->shape[0], columns, 0);

    if (p == NULL || decl->tensor->nbytes != p->n_elems * host_dtype_nbytes(p->dtype) || decl->group >= HOST_N_GROUPS)
        return ZF_ERR_SHAPE;
    p->group = (host_group_t)decl->group;
    memcpy(p->value, t->data, decl->tensor->nbytes);
    return ZF_OK;
}

static zf_status_t mock_bind(zf_instance_t *self, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                             uint32_t *out_ids, zf_layout_t *out_layout, zf_error_t *err) {
    int is_narrow = decls[0].tensor->dl.dtype.bits == 16;

    if (elem_size != sizeof *decls || out_layout->struct_size != sizeof *out_layout)
        return refuse(err, ZF_ERR_ABI, "wrong struct size");
    if (host_params_init(&self->params, n, is_narrow ? HOST_BFLOAT16 : HOST_FLOAT32, NULL) != 0)
        return refuse(err, ZF_ERR_MEMORY, "out of memory");
    self->tensors = calloc(n, sizeof *self->tensors);
    self->has_new_value = calloc(n, sizeof *self->has_new_value);
    for (uint32_t i = 0; i < n; i++) {
        if (self->tensors == NULL || self->has_new_value == NULL || add_param(self, &decls[i]) != ZF_OK)
            return refuse(err, ZF_ERR_SHAPE, decls[i].name);
        self->tensors[i] = *decls[i].tensor;
        out_ids[i] = i;
    }
    out_layout->n_elems = host_params_n_elems(&self->params);
    return host_adamw_create(&self->params, &self->adamw, NULL) == 0 ? ZF_OK : ZF_ERR_MEMORY;
}

static zf_status_t mock_params_changed(zf_instance_t *self, const zf_param_item_t *items, uint32_t n,
                                       uint32_t elem_size, uint32_t flags, zf_error_t *err) {
    (void)self, (void)items, (void)n, (void)elem_size, (void)flags;
    return refuse(err, ZF_ERR_STATE, "not in the mock");
}

static zf_status_t mock_grads_ready(zf_instance_t *self, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                                    const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    if (elem_size != sizeof *items || stream->kind != ZF_STREAM_HOST_THREAD)
        return refuse(err, ZF_ERR_ARGUMENT, "wrong struct size or stream");
    for (uint32_t i = 0; i < n; i++) {
        host_param_t *p = &self->params.list[items[i].id];
        unsigned kind = items[i].flags & (ZF_GRAD_PART | ZF_GRAD_TOTAL);
        unsigned more = items[i].flags & (ZF_GRAD_MORE | ZF_GRAD_LAST);

        if ((kind != ZF_GRAD_PART && kind != ZF_GRAD_TOTAL) || (more != ZF_GRAD_MORE && more != ZF_GRAD_LAST))
            return refuse(err, ZF_ERR_ARGUMENT, "wrong flags");
        memcpy(p->grad, items[i].tensor->dl.data, items[i].tensor->nbytes);
        (void)self->adamw->ops->grads_ready(self->adamw, items[i].id,
                                            kind == ZF_GRAD_PART ? HOST_GRAD_PART : HOST_GRAD_TOTAL, NULL);
    }
    if (out_done != NULL)
        out_done->kind = ZF_FENCE_NONE;
    return ZF_OK;
}

static zf_status_t mock_step(zf_instance_t *self, const zf_step_args_t *args, zf_step_report_t *out_report,
                             zf_error_t *err) {
    host_step_args_t step = {.clip_norm = args->clip_norm};

    if (args->struct_size != sizeof *args || args->elem_size != sizeof *args->groups || args->n_groups != HOST_N_GROUPS)
        return refuse(err, ZF_ERR_ARGUMENT, "wrong struct size or number of groups");
    for (uint32_t i = 0; i < args->n_groups; i++) {
        const zf_group_hyper_t *g = &args->groups[i];

        step.groups[i] = (host_hyper_t){g->lr, g->beta1, g->beta2, g->eps, g->weight_decay};
    }
    (void)self->adamw->ops->step(self->adamw, &step, NULL);
    memset(self->has_new_value, 1, self->params.n);
    self->n_steps++;
    out_report->submitted_step = self->n_steps;
    return ZF_SUBMITTED;
}

static void publish(zf_instance_t *self, uint32_t id) {
    if (self->has_new_value[id])
        memcpy(self->tensors[id].dl.data, self->params.list[id].value, self->tensors[id].nbytes);
    self->has_new_value[id] = 0;
}

static zf_status_t mock_param_fetch(zf_instance_t *self, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                    const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err) {
    if (n == 0 || elem_size != sizeof *items || stream->kind != ZF_STREAM_HOST_THREAD)
        return refuse(err, ZF_ERR_ARGUMENT, "the mock wants items and the host's thread");
    for (uint32_t i = 0; i < n; i++)
        publish(self, items[i].id);
    *out_ready = (zf_fence_t){.struct_size = sizeof *out_ready,
                              .kind = ZF_FENCE_HOST_COUNTER,
                              .counter = &self->counter,
                              .value = self->counter};
    return ZF_OK;
}

static zf_status_t mock_param_release(zf_instance_t *self, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                      const zf_stream_t *stream, zf_error_t *err) {
    (void)self, (void)items, (void)n, (void)elem_size, (void)stream, (void)err;
    return ZF_OK;
}

static zf_status_t mock_quiesce(zf_instance_t *self, const zf_quiesce_args_t *args, zf_error_t *err) {
    (void)err;
    for (uint32_t i = 0; args->mode == ZF_QUIESCE_FLUSH && i < self->params.n; i++)
        publish(self, i);
    return ZF_OK;
}

static zf_status_t mock_export(zf_instance_t *self, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                               zf_error_t *err) {
    (void)self, (void)items, (void)n, (void)elem_size;
    return refuse(err, ZF_ERR_STATE, "not in the mock");
}

static zf_status_t mock_poll(zf_instance_t *self, zf_step_report_t *out_report, zf_error_t *err) {
    (void)err;
    out_report->submitted_step = self->n_steps;
    return ZF_IN_PROGRESS;
}

static const void *mock_get_extension(const char *id) {
    (void)id;
    return NULL;
}

static const zf_plugin_t mock_plugin = {.struct_size = sizeof(zf_plugin_t),
                                        .abi = ZF_ABI_0_2,
                                        .describe = mock_describe,
                                        .create = mock_create,
                                        .destroy = mock_destroy,
                                        .bind_params = mock_bind,
                                        .params_changed = mock_params_changed,
                                        .grads_ready = mock_grads_ready,
                                        .step = mock_step,
                                        .param_fetch = mock_param_fetch,
                                        .param_release = mock_param_release,
                                        .quiesce = mock_quiesce,
                                        .export_params = mock_export,
                                        .poll = mock_poll,
                                        .get_extension = mock_get_extension};

int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap) {
    bootstrap->chosen_abi = ZF_ABI_0_2;
    bootstrap->plugin = &mock_plugin;
    return ZF_OK;
}
