/* SPDX-License-Identifier: Apache-2.0 */
/* versions_plugin.c - a plugin that versions.py compiles from the headers of several minors, with the size rules of the
 * shipped one (plugin/base/struct.c). One float32 parameter, gradient descent with momentum, at once. With ZF_APPENDED
 * (the later minor) every struct is 8 bytes longer than in the oldest that is served. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"
#include "zf/plugin.h"

#ifdef ZF_APPENDED
enum { APPENDED_NBYTES = 8 };
#else
enum { APPENDED_NBYTES = 0 };
#endif

#define FIRST(type) ((uint32_t)sizeof(type) - APPENDED_NBYTES)
#define READ(out, given) zfi_struct_read(&(out), given, FIRST(out), sizeof(out), #given, err)

enum { MAX_ELEMS = 1024 };

struct zf_instance {
    float *w;
    uint32_t n;
    float m[MAX_ELEMS], g[MAX_ELEMS];
};

static zf_status_t create(const zf_create_args_t *given, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t args;
    zf_host_t host;
    zf_status_t st = READ(args, given);
    if (!st)
        st = READ(host, args.host);
    if (!st && !(*out = calloc(1, sizeof **out)))
        st = zfi_error(err, ZF_ERR_MEMORY, "create", "no memory");
    return st;
}

static void destroy(zf_instance_t *x, const zf_destroy_args_t *args) {
    (void)args;
    free(x);
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *given, uint32_t *out_ids,
                               zf_bind_report_t *out_report, zf_error_t *err) {
    zf_bind_args_t args;
    zf_param_decl_t decl;
    zf_tensor_t tensor;
    zf_status_t st = READ(args, given);
    (void)out_report;
    if (!st)
        st = zfi_array_check(args.decls, args.n_decls, 1, args.decl_size, FIRST(decl), "decls", err);
    if (!st)
        st = zfi_struct_read_item(&decl, args.decls, 0, args.decl_size, FIRST(decl), sizeof decl, "decl", err);
    if (!st)
        st = READ(tensor, decl.tensor);
    if (st || tensor.nbytes > sizeof x->m)
        return st ? st : zfi_error(err, ZF_ERR_SHAPE, "bind_params", "more than %d elements", MAX_ELEMS);
    x->w = tensor.dl.data;
    x->n = (uint32_t)(tensor.nbytes / sizeof *x->w);
    out_ids[0] = 0;
    return ZF_OK;
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *given, zf_fence_t *out_done, zf_error_t *err) {
    zf_grad_item_t item;
    zf_tensor_t tensor;
    zf_stream_t stream;
    zf_fence_t fence = {.kind = ZF_FENCE_NONE};
    zf_status_t st = zfi_array_check(items, n, 1, elem_size, FIRST(item), "items", err);
    if (!st)
        st = zfi_struct_read_item(&item, items, 0, elem_size, FIRST(item), sizeof item, "item", err);
    if (!st)
        st = READ(tensor, item.tensor);
    if (!st)
        st = READ(stream, given);
    if (st)
        return st;
    memcpy(x->g, tensor.dl.data, x->n * sizeof *x->g);
    zfi_struct_write(out_done, &fence, sizeof fence);
    return ZF_OK;
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *given, zf_step_report_t *out_report, zf_error_t *err) {
    zf_step_args_t args;
    zf_group_hyper_t hyper;
    zf_step_report_t report = {.has_report = 1, .applied = 1};
    zf_status_t st = READ(args, given);
    if (!st)
        st = zfi_array_check(args.groups, args.n_groups, 1, args.elem_size, FIRST(hyper), "groups", err);
    if (!st)
        st = zfi_struct_read_item(&hyper, args.groups, 0, args.elem_size, FIRST(hyper), sizeof hyper, "group", err);
    if (st)
        return st;
    for (uint32_t i = 0; i < x->n; i++) {
        x->m[i] = (float)hyper.beta1 * x->m[i] + x->g[i];
        x->w[i] -= (float)hyper.lr * x->m[i];
    }
    zfi_struct_write(out_report, &report, sizeof report);
    return ZF_OK;
}

/* What changes nothing here, or is not called by the host of this test. */
static zf_status_t nothing(void) { return ZF_OK; }

/* The ABI for a host that serves this one: the smaller minor of one major, in major 0 the same; 0 = none. */
static uint32_t common(uint32_t theirs) {
    uint32_t mine = ZF_ABI_0_16;
    if (theirs == mine)
        return mine;
    if (ZF_ABI_MAJOR(theirs) != ZF_ABI_MAJOR(mine) || ZF_ABI_MAJOR(mine) == 0)
        return 0;
    return theirs < mine ? theirs : mine;
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *boot) {
    static zf_plugin_t table = {
        .struct_size = sizeof table,
        .create = create,
        .destroy = destroy,
        .bind_params = bind_params,
        .grads_ready = grads_ready,
        .step = step,
        .describe = (void *)nothing,
        .params_changed = (void *)nothing,
        .announce = (void *)nothing,
        .param_fetch = (void *)nothing,
        .fence_wait = (void *)nothing,
        .quiesce = (void *)nothing,
        .export_params = (void *)nothing,
        .poll = (void *)nothing,
        .get_extension = (void *)nothing,
    };
    for (uint32_t i = 0; i < boot->n_abis; i++)
        if (common(boot->abis[i])) {
            table.abi = boot->chosen_abi = common(boot->abis[i]);
            boot->plugin = &table;
            printf("ABI %u.%u\n", ZF_ABI_MAJOR(table.abi), ZF_ABI_MINOR(table.abi));
            return ZF_OK;
        }
    return zfi_error(boot->error, ZF_ERR_ABI, "negotiate", "the host serves another ABI than %u.%u",
                     ZF_ABI_MAJOR(ZF_ABI_0_16), ZF_ABI_MINOR(ZF_ABI_0_16));
}
