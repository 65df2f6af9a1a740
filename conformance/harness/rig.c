/* SPDX-License-Identifier: Apache-2.0 */
/* rig.c - see rig.h. */
#define _GNU_SOURCE
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "zf/ext/draft/shards.h"

enum { NAME_NBYTES = 16 };

static const uint64_t timeout_ns = UINT64_C(60000000000);

void *rig_allocate(size_t nbytes) {
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "rig: no memory for %zu bytes\n", nbytes);
        exit(2);
    }
    (void)madvise(at, nbytes, MADV_HUGEPAGE);
    return at;
}

void rig_free(void *at, size_t nbytes) { munmap(at, nbytes); }

void rig_check(zf_status_t st, const zf_error_t *err) {
    if (st >= 0)
        return;
    fprintf(stderr, "rig: error %d (%s): %s\n", (int)st, err->origin, err->message);
    exit(2);
}

/* bfloat16 is the upper half of a float. */
static void write_value(const rig_t *rig, void *values, size_t i, float value) {
    const size_t size = rig->spec.dtype.bits / 8u;
    memcpy((char *)values + i * size, (const char *)&value + sizeof value - size, size);
}

static void fill(rig_t *rig) {
    const size_t n_elems = rig->nbytes / (rig->spec.dtype.bits / 8u);
    uint32_t state = 1;
    for (size_t i = 0; i < n_elems; i++) {
        state = state * 1664525u + 1013904223u;
        write_value(rig, rig->params, i, 0.02f);
        write_value(rig, rig->grads, i, ((float)(state >> 8) * 0x1p-23f - 1.0f) * 1e-2f);
    }
}

static void *array_of(size_t n, size_t size) {
    void *array = calloc(n, size);
    if (!array) {
        fprintf(stderr, "rig: no memory for %zu descriptors\n", n);
        exit(2);
    }
    return array;
}

static void make_tensors(rig_t *rig) {
    const rig_spec_t *spec = &rig->spec;
    size_t n_elems = 1;
    for (int32_t a = 0; a < spec->ndim; a++)
        n_elems *= (size_t)spec->shape[a];
    rig->tensor_nbytes = n_elems * (spec->dtype.bits / 8u);
    rig->nbytes = rig->tensor_nbytes * spec->n_tensors;
    rig->params = rig_allocate(rig->nbytes);
    rig->grads = rig_allocate(rig->nbytes);
    rig->param_tensors = array_of(spec->n_tensors, sizeof *rig->param_tensors);
    rig->grad_tensors = array_of(spec->n_tensors, sizeof *rig->grad_tensors);
    rig->items = array_of(spec->n_tensors, sizeof *rig->items);
    for (uint32_t i = 0; i < spec->n_tensors; i++) {
        const size_t at = i * rig->tensor_nbytes;
        zf_tensor_contiguous((char *)rig->params + at, spec->dtype, spec->ndim, rig->spec.shape,
                             &rig->param_tensors[i]);
        zf_tensor_contiguous((char *)rig->grads + at, spec->dtype, spec->ndim, rig->spec.shape, &rig->grad_tensors[i]);
        rig->items[i] = (zf_grad_item_t){.struct_size = sizeof rig->items[i],
                                         .id = i,
                                         .flags = ZF_GRAD_PART | ZF_GRAD_LAST,
                                         .tensor = &rig->grad_tensors[i]};
        if (spec->mode == RIG_ASYNC)
            rig->items[i].flags |= ZF_GRAD_ASYNC_READ;
    }
    fill(rig);
}

static const zf_collectives_ext_t *given; /* to the rig that was opened last */

static const void *get_extension(void *ctx, const char *id) {
    (void)ctx;
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? given : NULL;
}

static void make_instance(rig_t *rig) {
    zf_error_t err = {.struct_size = sizeof err};
    rig->create = (zf_create_args_t){.struct_size = sizeof rig->create,
                                     .flags = (rig->spec.cannot_fetch ? 0u : ZF_CREATE_CAP_FETCH) |
                                              (rig->spec.goes_by_shards ? ZF_CREATE_CAP_SHARDS : 0u),
                                     .host = &rig->host,
                                     .config_text = rig->spec.config,
                                     .config_text_nbytes = rig->spec.config ? strlen(rig->spec.config) : 0,
                                     .device_type = ZF_DEVICE_CPU};
    zf_host_stderr("zf-conform", "1", ZF_LOG_WARN, &rig->host);
    rig->host.get_extension = get_extension;
    given = rig->spec.ranks;
    zf_stream_host_thread(&rig->stream);
    if (rig->spec.mode == RIG_QUEUE)
        rig_check(rig->cpu->queue_create(&rig->queue, &rig->stream, &err), &err);
    rig_check(rig->zf->create(&rig->create, &rig->instance, &err), &err);
}

static void bind_tensors(rig_t *rig) {
    const uint32_t n_tensors = rig->spec.n_tensors, n = n_tensors + rig->spec.n_tied;
    zf_param_decl_t *decls = array_of(n, sizeof *decls);
    char(*names)[NAME_NBYTES] = array_of(n, sizeof *names);
    const zf_group_decl_t group = {sizeof group, ZF_RULE_CALLBACK, rig->spec.rule};
    const zf_bind_args_t bind = {.struct_size = sizeof bind,
                                 .decls = decls,
                                 .n_decls = n,
                                 .decl_size = sizeof *decls,
                                 .groups = rig->spec.groups ? rig->spec.groups
                                           : rig->spec.rule ? &group
                                                            : NULL,
                                 .n_groups = rig->spec.groups ? rig->spec.n_groups : rig->spec.rule != NULL,
                                 .group_size = sizeof group};
    zf_error_t err = {.struct_size = sizeof err};

    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "t%u", (unsigned)i);
        decls[i].struct_size = sizeof decls[i];
        decls[i].name = names[i];
        decls[i].tensor = &rig->param_tensors[i % n_tensors];
        decls[i].flags = i < n_tensors ? rig->spec.flags : ZF_PARAM_TIED;
        decls[i].home = rig->spec.home;
        decls[i].tied_to = i % n_tensors;
        decls[i].group = rig->spec.groups ? i % n_tensors % rig->spec.n_groups : 0;
    }
    uint32_t *ids = array_of(n, sizeof *ids);
    const zf_plan_ext_t *ext = rig->zf->get_extension(ZF_EXT_PLAN);
    const zf_plan_args_t plan = {.struct_size = sizeof plan, .create = &rig->create, .bind = &bind};
    rig->plan.struct_size = sizeof rig->plan;
    rig->bound.struct_size = sizeof rig->bound;
    if (rig->spec.is_planned && ext)
        rig_check(ext->plan(&plan, &rig->plan, &err), &err);
    rig_check(rig->zf->bind_params(rig->instance, &bind, ids, &rig->bound, &err), &err);
    for (uint32_t i = 0; i < n_tensors; i++)
        rig->items[i].id = ids[i];
    free(ids);
    free(names);
    free(decls);
}

void rig_open(rig_t *rig, const zf_loader_t *loader, const rig_spec_t *spec) {
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    *rig = (rig_t){.loader = loader, .zf = zf, .cpu = zf->get_extension(ZF_EXT_CPU), .spec = *spec};
    rig->hyper = (zf_group_hyper_t){
        .struct_size = sizeof rig->hyper, .lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    if (!rig->cpu && spec->mode == RIG_QUEUE) {
        fprintf(stderr, "rig: the plugin has no " ZF_EXT_CPU "\n");
        exit(2);
    }
    make_tensors(rig);
    make_instance(rig);
    bind_tensors(rig);
}

void rig_close(rig_t *rig) {
    rig->zf->destroy(rig->instance, NULL);
    if (rig->queue)
        rig->cpu->queue_destroy(rig->queue);
    free(rig->param_tensors);
    free(rig->grad_tensors);
    free(rig->items);
    rig_free(rig->params, rig->nbytes);
    rig_free(rig->grads, rig->nbytes);
}

void rig_touch(rig_t *rig) {
    volatile unsigned char *grads = rig->grads;
    for (size_t at = 0; at < rig->nbytes; at += 64)
        grads[at] = grads[at];
}

void rig_deliver(rig_t *rig, uint32_t first, uint32_t n, uint32_t per_call, zf_fence_t *out_done) {
    zf_error_t err = {.struct_size = sizeof err};
    const uint32_t end = first + n;
    for (; first < end; first += per_call) {
        const uint32_t n_now = end - first < per_call ? end - first : per_call;
        rig_check(rig->zf->grads_ready(rig->instance, rig->items + first, n_now, sizeof *rig->items, &rig->stream,
                                       out_done, &err),
                  &err);
    }
}

void rig_wait(const rig_t *rig, const zf_fence_t *fence) {
    zf_error_t err = {.struct_size = sizeof err};
    rig_check(rig->zf->fence_wait(rig->instance, fence, timeout_ns, &err), &err);
}

static void list_items(uint32_t first, uint32_t n, zf_param_item_t out[RIG_MAX_FETCHED]) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = (zf_param_item_t){.struct_size = sizeof *out, .id = first + i};
}

void rig_release(const rig_t *rig, uint32_t first, uint32_t n) {
    const zf_shards_ext_t *shards = rig->zf->get_extension(ZF_EXT_SHARDS);
    zf_error_t err = {.struct_size = sizeof err};
    zf_param_item_t items[RIG_MAX_FETCHED];
    list_items(first, n, items);
    rig_check(shards->param_release(rig->instance, items, n, sizeof *items, &rig->stream, &err), &err);
}

void rig_fetch(const rig_t *rig, uint32_t first, uint32_t n) {
    zf_fence_t ready = {.struct_size = sizeof ready};
    zf_error_t err = {.struct_size = sizeof err};
    zf_param_item_t items[RIG_MAX_FETCHED];
    list_items(first, n, items);
    rig_check(rig->zf->param_fetch(rig->instance, n ? items : NULL, n, sizeof *items, &rig->stream, &ready, &err),
              &err);
    rig_wait(rig, &ready);
}

void rig_step(rig_t *rig, uint32_t flags) {
    const zf_step_args_t args = {.struct_size = sizeof args,
                                 .flags = flags,
                                 .groups = rig->hypers ? rig->hypers : &rig->hyper,
                                 .n_groups = rig->hypers ? rig->spec.n_groups : 1,
                                 .elem_size = sizeof rig->hyper,
                                 .clip_norm = rig->spec.does_not_clip ? 0.0 : 1.0,
                                 .stream = &rig->stream};
    zf_error_t err = {.struct_size = sizeof err};
    rig_check(rig->zf->step(rig->instance, &args, NULL, &err), &err);
}

void rig_quiesce(rig_t *rig, int32_t mode) {
    zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = mode};
    zf_error_t err = {.struct_size = sizeof err};
    rig_check(rig->zf->quiesce(rig->instance, &args, &err), &err);
}

double rig_poll_ns(const rig_t *rig) {
    enum { N_POLLS = 10000 };
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_error_t err = {.struct_size = sizeof err};
    const uint64_t begin = zc_now_ns();

    for (int i = 0; i < N_POLLS; i++)
        rig_check(rig->zf->poll(rig->instance, &report, &err), &err);
    return (double)(zc_now_ns() - begin) / N_POLLS;
}

uint64_t rig_counter(const rig_t *rig, const char *name) {
    zf_error_t err = {.struct_size = sizeof err};
    uint64_t value = 0;
    rig_check(zf_counter_value(rig->zf, rig->instance, name, &value, &err), &err);
    return value;
}
