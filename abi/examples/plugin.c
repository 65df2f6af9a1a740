/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - a whole plugin: AdamW of contiguous float32 arrays, at once, on the thread that calls. It shows the frame
 * alone: zf-conform abi says what a plugin that others use must refuse.
 *     cc -shared -fPIC plugin.c $(pkg-config --cflags zfplugin) -Wl,-z,nodelete -lm -o plugin.so && ./first ./plugin.so
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf/plugin.h"

typedef struct param {
    float *w, *m, *v, *g; /* [n]: the host's array, and ours */
    uint64_t n, n_updates;
    uint32_t group, has_grad;
} param_t;

struct zf_instance {
    zf_step_report_t report; /* of the newest step */
    uint32_t n, n_groups;
    param_t params[64];
};

/* An output is written up to the smaller of both sizes, behind its struct_size. */
static void put(void *out, const void *from, uint32_t nbytes) {
    uint32_t room = out ? *(uint32_t *)out : 0;
    if (room > 4)
        memcpy((char *)out + 4, (const char *)from + 4, (room < nbytes ? room : nbytes) - 4);
}

static zf_status_t fail(zf_error_t *err, zf_status_t status, const char *message) {
    zf_error_t error = {.status = status, .origin = "example"};
    snprintf(error.message, sizeof error.message, "%s", message);
    put(err, &error, sizeof error);
    return status;
}

static float *data_of(const zf_tensor_t *t) { return (void *)((char *)t->dl.data + t->dl.byte_offset); }

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    if (!args || args->struct_size < sizeof *args || args->device_type != ZF_DEVICE_CPU)
        return fail(err, ZF_ERR_ARGUMENT, "need arguments of this ABI, for the processor");
    *out = calloc(1, sizeof **out);
    return *out ? ZF_OK : fail(err, ZF_ERR_MEMORY, "no memory");
}

static void destroy(zf_instance_t *x, const zf_destroy_args_t *args) {
    for (uint32_t i = 0; x && i < x->n; i++)
        free(x->params[i].m);
    free(x);
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *out_ids, zf_layout_t *out_layout,
                               zf_error_t *err) {
    const zf_param_decl_t *decls = args->decls;
    uint32_t n = args->n_decls;
    if (x->n || n < 1 || n > 64 || args->decl_size != sizeof *decls || args->n_groups)
        return fail(err, ZF_ERR_PARAM, "need 1 to 64 declarations of this ABI, once");
    for (; x->n < n; x->n++) {
        const zf_tensor_t *tensor = decls[x->n].tensor;
        uint64_t n_elems = tensor->nbytes / 4;
        float *state = calloc(3 * n_elems + 1, sizeof *state);
        if (!state || tensor->dl.dtype.code != ZF_DTYPE_CODE_FLOAT || tensor->dl.dtype.bits != 32 || tensor->dl.strides)
            return free(state), fail(err, ZF_ERR_PARAM, "need contiguous float32 tensors, and memory");
        x->params[x->n] =
            (param_t){data_of(tensor), state, state + n_elems, state + 2 * n_elems, n_elems, 0, decls[x->n].group, 0};
        x->n_groups = x->n_groups > decls[x->n].group ? x->n_groups : decls[x->n].group + 1, out_ids[x->n] = x->n;
    }
    return ZF_OK;
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    const zf_fence_t over = {.kind = ZF_FENCE_NONE}; /* they are copied: the host may write there when this returns */
    for (uint32_t i = 0; i < n; i++)                 /* all items or none */
        if (elem_size != sizeof *items || items[i].id >= x->n || stream->kind != ZF_STREAM_HOST_THREAD)
            return fail(err, ZF_ERR_PARAM, "need items of this ABI, ids of bind_params, the host's thread");
    for (uint32_t i = 0; i < n; i++) {
        memcpy(x->params[items[i].id].g, data_of(items[i].tensor), 4 * x->params[items[i].id].n);
        x->params[items[i].id].has_grad = 1;
    }
    put(out_done, &over, sizeof over);
    return ZF_OK;
}

/* Loshchilov and Hutter, arXiv 1711.05101, algorithm 2. */
static void update(param_t *p, const zf_group_hyper_t *h) {
    double t = (double)++p->n_updates, c1 = 1 - pow(h->beta1, t), c2 = 1 - pow(h->beta2, t);
    for (uint64_t i = 0; i < p->n; i++) {
        p->m[i] = (float)(h->beta1 * p->m[i] + (1 - h->beta1) * p->g[i]);
        p->v[i] = (float)(h->beta2 * p->v[i] + (1 - h->beta2) * p->g[i] * p->g[i]);
        p->w[i] -= (float)(h->lr * (h->weight_decay * p->w[i] + p->m[i] / c1 / (sqrt(p->v[i] / c2) + h->eps)));
    }
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *args, zf_step_report_t *out_report, zf_error_t *err) {
    zf_step_report_t report = {.has_report = 1, .applied = 1, .nonfinite_param = ZF_NO_ID, .clip_factor = 1};
    report.first_missing = ZF_NO_ID, report.step = report.submitted_step = x->report.step + 1;
    if (x->n_groups > args->n_groups || args->elem_size != sizeof *args->groups)
        return fail(err, ZF_ERR_ARGUMENT, "need the hyper-parameters of every group, of this ABI");
    for (param_t *p = x->params; p < x->params + x->n; p++) {
        if (p->has_grad)
            update(p, &args->groups[p->group]);
        report.n_present += p->has_grad, p->has_grad = 0;
    }
    x->report = report, put(out_report, &report, sizeof report);
    return args->flags & ZF_STEP_WAIT ? ZF_OK : ZF_SUBMITTED;
}

/* What is updated at once has nothing to wait for. */
static zf_status_t fetch(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                         const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err) {
    return grads_ready(x, NULL, 0, 0, stream, out_ready, err);
}
static zf_status_t release(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                           const zf_stream_t *stream, zf_error_t *err) {
    return ZF_OK;
}
static zf_status_t changed(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                           uint32_t flags, zf_error_t *err) {
    return ZF_OK;
}
static zf_status_t announce(zf_instance_t *x, const zf_step_args_t *args, zf_error_t *err) { return ZF_OK; }
static zf_status_t quiesce(zf_instance_t *x, const zf_quiesce_args_t *args, zf_error_t *err) { return ZF_OK; }
static zf_status_t export_params(zf_instance_t *x, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    for (uint32_t i = 0; i < n; i++)
        memcpy(items[i].dst, x->params[items[i].id].w, items[i].dst_nbytes);
    return ZF_OK;
}
static zf_status_t poll(zf_instance_t *x, zf_step_report_t *out, zf_error_t *err) {
    return put(out, &x->report, sizeof x->report), ZF_OK;
}
static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    return put(out, &(zf_description_t){0, ZF_ABI_0_4, "example", "1", "", "", "", ""}, sizeof *out), ZF_OK;
}
static const void *get_extension(const char *id) { return NULL; }

int32_t zf_plugin_negotiate(zf_bootstrap_t *boot) {
    static const zf_plugin_t table = {sizeof table, ZF_ABI_0_4,    describe,    create,       destroy, bind_params,
                                      changed,      announce,      grads_ready, step,         fetch,   release,
                                      quiesce,      export_params, poll,        get_extension};
    for (uint32_t i = 0; boot && boot->magic == ZF_BOOTSTRAP_MAGIC && i < boot->n_abis; i++)
        if (boot->abis[i] == ZF_ABI_0_4)
            return boot->chosen_abi = ZF_ABI_0_4, boot->plugin = &table, ZF_OK;
    return fail(boot ? boot->error : NULL, ZF_ERR_ABI, "this plugin serves 0.4");
}
