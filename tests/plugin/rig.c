/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/rig.c - a small host (contract in rig.h). */
#define _GNU_SOURCE
#include "rig.h"

#include "instance/instance.h"
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t zt_hash(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* In [-1, 1), a multiple of 2^-23. */
static float small_number(uint64_t x) { return (float)((double)(zt_hash(x) >> 40) / 8388608.0 - 1.0); }

const zf_plugin_t *zt_table(void) {
    static const uint32_t abis[] = {ZF_ABI_0_16};
    zf_bootstrap_t bootstrap = {
        .struct_size = sizeof bootstrap, .magic = ZF_BOOTSTRAP_MAGIC, .abis = abis, .n_abis = 1};
    ck_assert_int_eq(zf_plugin_negotiate(&bootstrap), ZF_OK);
    return bootstrap.plugin;
}

void zt_tensor(zf_tensor_t *out, void *data, const int64_t *sizes, int ndim, int is_bf16) {
    uint64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= (uint64_t)sizes[i];
    *out = (zf_tensor_t){.struct_size = sizeof *out, .nbytes = n * (is_bf16 ? 2u : 4u)};
    out->dl.data = data;
    out->dl.device_type = ZF_DEVICE_CPU;
    out->dl.ndim = ndim;
    out->dl.dtype = is_bf16 ? (zf_dtype_t){ZF_DTYPE_CODE_BFLOAT, 16, 1} : (zf_dtype_t){ZF_DTYPE_CODE_FLOAT, 32, 1};
    out->dl.shape = sizes;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

zo_dtype_t zt_dtype(const zt_param_t *param) { return param->shape.is_bf16 ? ZO_BF16 : ZO_F32; }

float zt_visible(const zt_param_t *param, size_t i) { return zo_widen(param->visible, zt_dtype(param), i); }

float zt_rounded(const zt_param_t *param, float value) {
    uint32_t bits;
    zo_narrow(&bits, zt_dtype(param), 0, value);
    return zo_widen(&bits, zt_dtype(param), 0);
}

static void start_param(zt_param_t *param, uint32_t i, const zt_shape_t *shape) {
    int ndim = shape->cols ? 2 : 1;
    param->shape = *shape;
    param->sizes[0] = shape->rows;
    param->sizes[1] = shape->cols;
    param->n_elems = (size_t)shape->rows * (size_t)(shape->cols ? shape->cols : 1);
    param->elem_nbytes = shape->is_bf16 ? 2 : 4;
    snprintf(param->name, sizeof param->name, "layer.%u.weight", i);
    param->visible = malloc(param->n_elems * param->elem_nbytes + 1);
    param->grad = malloc(param->n_elems * param->elem_nbytes + 1);
    param->grad_values = calloc(param->n_elems + 1, sizeof(float));
    float *w = malloc((param->n_elems + 1) * sizeof(float));
    ck_assert(param->visible && param->grad && param->grad_values && w);
    for (size_t e = 0; e < param->n_elems; e++) {
        zo_narrow(param->visible, zt_dtype(param), e, small_number((uint64_t)i << 32 | e));
        w[e] = zt_visible(param, e);
    }
    zt_serial_start(&param->serial, w, param->n_elems);
    free(w);
    zt_tensor(&param->tensor, param->visible, param->sizes, ndim, shape->is_bf16);
    zt_tensor(&param->grad_tensor, param->grad, param->sizes, ndim, shape->is_bf16);
}

static void declare(zt_rig_t *rig, uint32_t i) {
    const zt_param_t *param = &rig->params[i];
    rig->decls[i] = (zf_param_decl_t){
        .struct_size = sizeof rig->decls[i],
        .flags = param->shape.flags,
        .name = param->name,
        .tensor = &param->tensor,
        .group = param->shape.group,
        .channels = param->shape.channels,
        .home = param->shape.home,
    };
}

void zt_rig_start(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n) {
    ck_assert_uint_le(n, ZT_MAX_PARAMS);
    *rig = (zt_rig_t){.zf = zt_table(), .n_params = n, .unscale = 0.5};
    rig->cpu = rig->zf->get_extension(ZF_EXT_CPU);
    rig->stats = rig->zf->get_extension(ZF_EXT_STATS);
    rig->host = (zf_host_t){.struct_size = sizeof rig->host, .name = "rig", .version = "1"};
    rig->stream =
        (zf_stream_t){.struct_size = sizeof rig->stream, .kind = ZF_STREAM_HOST_THREAD, .device_type = ZF_DEVICE_CPU};
    rig->err.struct_size = sizeof rig->err;
    rig->params = calloc(n, sizeof *rig->params);
    rig->decls = calloc(n, sizeof *rig->decls);
    ck_assert(rig->params && rig->decls);
    for (uint32_t i = 0; i < n; i++) {
        start_param(&rig->params[i], i, &shapes[i]);
        declare(rig, i);
    }
    zt_rig_use_rule(rig, ZF_RULE_ADAMW, NULL);
    for (uint32_t i = 0; i < ZT_MAX_GROUPS; i++)
        rig->groups[i] = (zf_group_hyper_t){.struct_size = sizeof rig->groups[i],
                                            .lr = 1e-3 * (1 + i),
                                            .beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .eps = 1e-8,
                                            .weight_decay = 0.01 * i};
}

void zt_rig_end(zt_rig_t *rig) {
    rig->zf->destroy(rig->inst, NULL);
    rig->cpu->queue_destroy(rig->queue);
    for (uint32_t i = 0; i < rig->n_params; i++) {
        free(rig->params[i].visible);
        free(rig->params[i].grad);
        free(rig->params[i].grad_values);
        zt_serial_end(&rig->params[i].serial);
    }
    free(rig->params);
    free(rig->decls);
}

void zt_rig_use_rule(zt_rig_t *rig, uint32_t rule, const zf_rule_callback_t *callback) {
    for (uint32_t i = 0; i < ZT_MAX_GROUPS; i++)
        rig->rules[i] = (zf_group_decl_t){sizeof rig->rules[i], rule, callback};
}

/* ---- instance ---------------------------------------------------------------------------------------------------- */

void zt_rig_use_queue(zt_rig_t *rig) { ZT_OK(rig, rig->cpu->queue_create(&rig->queue, &rig->stream, &rig->err)); }

zf_status_t zt_rig_try_create(zt_rig_t *rig, const char *config, uint32_t flags) {
    zf_create_args_t args = {.struct_size = sizeof args,
                             .flags = flags,
                             .host = &rig->host,
                             .config_text = config,
                             .config_text_nbytes = config ? strlen(config) : 0,
                             .device_type = rig->stream.device_type,
                             .norm_group = rig->norm_group};
    return rig->zf->create(&args, &rig->inst, &rig->err);
}

void zt_rig_create(zt_rig_t *rig, const char *config, uint32_t flags) {
    ZT_OK(rig, zt_rig_try_create(rig, config, flags));
}

zf_bind_args_t zt_rig_bind_args(const zt_rig_t *rig) {
    return (zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                            .decls = rig->decls,
                            .n_decls = rig->n_params,
                            .decl_size = sizeof *rig->decls,
                            .groups = rig->rules,
                            .n_groups = ZT_MAX_GROUPS,
                            .group_size = sizeof *rig->rules,
                            .next = rig->bind_next};
}

zf_plan_t zt_rig_plan(const zt_rig_t *rig, const char *config, uint32_t flags, uint32_t rank, uint32_t n_ranks) {
    const zf_plan_ext_t *ext = rig->zf->get_extension(ZF_EXT_PLAN);
    zf_create_args_t create = {.struct_size = sizeof create,
                               .flags = flags,
                               .host = &rig->host,
                               .config_text = config,
                               .norm_group = rig->norm_group,
                               .device_type = ZF_DEVICE_CPU};
    zf_bind_args_t bind = zt_rig_bind_args(rig);
    zf_plan_args_t args = {
        .struct_size = sizeof args, .n_ranks = n_ranks, .rank = rank, .create = &create, .bind = &bind};
    zf_plan_t out = {.struct_size = sizeof out};
    zf_error_t err = {.struct_size = sizeof err};
    ck_assert_msg(ext->plan(&args, &out, &err) >= 0, "%s: %s", config, err.message);
    return out;
}

zf_status_t zt_rig_try_bind(zt_rig_t *rig) {
    uint32_t *ids = calloc(rig->n_params, sizeof *ids);
    zf_bind_args_t args = zt_rig_bind_args(rig);
    ck_assert(ids != NULL);
    rig->layout.struct_size = sizeof rig->layout;
    zf_status_t st = rig->zf->bind_params(rig->inst, &args, ids, &rig->layout, &rig->err);
    for (uint32_t i = 0; i < rig->n_params && !st; i++)
        rig->params[i].id = ids[i];
    free(ids);
    return st;
}

void zt_rig_bind(zt_rig_t *rig) { ZT_OK(rig, zt_rig_try_bind(rig)); }

void zt_rig_open(zt_rig_t *rig, const char *config, uint32_t flags) {
    zt_rig_create(rig, config, flags);
    zt_rig_bind(rig);
}

void zt_rig_make(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n, const char *config, uint32_t flags) {
    zt_rig_start(rig, shapes, n);
    if (flags & ZT_ON_QUEUE)
        zt_rig_use_queue(rig);
    zt_rig_open(rig, config, flags & ~(uint32_t)ZT_ON_QUEUE);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

void zt_rig_fill_grad(zt_rig_t *rig, uint32_t number, uint64_t step) {
    zt_param_t *param = &rig->params[number];
    for (size_t i = 0; i < param->n_elems; i++) {
        float value = small_number(zt_hash((uint64_t)number << 40 | step << 20) + i);
        zo_narrow(param->grad, zt_dtype(param), i, value);
        param->grad_values[i] = zt_rounded(param, value);
    }
}

zf_status_t zt_rig_deliver(zt_rig_t *rig, uint32_t param, uint32_t flags, zf_fence_t *fence) {
    return zt_rig_deliver_range(rig, param, 0, 0, flags, fence);
}

zf_status_t zt_rig_deliver_range(zt_rig_t *rig, uint32_t param, uint32_t first, uint32_t n, uint32_t flags,
                                 zf_fence_t *fence) {
    zf_grad_item_t item = {.struct_size = sizeof item,
                           .id = rig->params[param].id,
                           .flags = flags ? flags : ZF_GRAD_TOTAL | ZF_GRAD_LAST,
                           .tensor = &rig->params[param].grad_tensor,
                           .first_batch = first,
                           .n_batches = n};
    if (fence)
        fence->struct_size = sizeof *fence;
    return rig->zf->grads_ready(rig->inst, &item, 1, sizeof item, &rig->stream, fence, &rig->err);
}

zf_step_args_t zt_rig_step_args(zt_rig_t *rig, uint32_t flags) {
    return (zf_step_args_t){.struct_size = sizeof(zf_step_args_t),
                            .flags = flags,
                            .groups = rig->groups,
                            .n_groups = ZT_MAX_GROUPS,
                            .elem_size = sizeof rig->groups[0],
                            .unscale = rig->unscale,
                            .stream = &rig->stream};
}

zf_status_t zt_rig_announce(zt_rig_t *rig) {
    zf_step_args_t args = zt_rig_step_args(rig, 0);
    return rig->zf->announce(rig->inst, &args, &rig->err);
}

zf_status_t zt_rig_submit(zt_rig_t *rig, uint32_t flags, zf_step_report_t *report) {
    zf_step_args_t args = zt_rig_step_args(rig, flags);
    if (report)
        report->struct_size = sizeof *report;
    zf_status_t st = rig->zf->step(rig->inst, &args, report, &rig->err);
    if (st >= 0 && !(flags & ZF_STEP_DISCARD))
        rig->step++;
    return st;
}

void zt_rig_wait(zt_rig_t *rig, const zf_fence_t *fence) {
    ZT_OK(rig, rig->zf->fence_wait(rig->inst, fence, 60000000000u, &rig->err));
}

zf_status_t zt_rig_deliver_all(zt_rig_t *rig, zf_fence_t *fence) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < rig->n_params && st >= 0; i++) {
        if (rig->params[i].shape.flags & ZF_PARAM_FROZEN)
            continue;
        zt_rig_fill_grad(rig, i, rig->step + 1);
        st = zt_rig_deliver(rig, i, 0, fence); /* in order: the last covers them all */
    }
    return st;
}

zf_status_t zt_rig_try_step(zt_rig_t *rig) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st = zt_rig_deliver_all(rig, rig->queue ? &fence : NULL);
    if (st >= 0)
        st = zt_rig_submit(rig, 0, NULL);
    if (st < 0)
        return st;
    for (uint32_t i = 0; i < rig->n_params; i++)
        if (!(rig->params[i].shape.flags & ZF_PARAM_FROZEN))
            zt_serial_update(&rig->params[i].serial, &rig->groups[rig->params[i].shape.group],
                             rig->params[i].grad_values, (float)rig->unscale);
    if (!rig->queue)
        return st;
    return rig->zf->fence_wait(rig->inst, &fence, 60000000000u, &rig->err) < 0 ? ZF_ERR_POISONED
                                                                               : st; /* grad may be filled again */
}

void zt_rig_finish_step(zt_rig_t *rig) {
    zf_step_report_t report = {.struct_size = sizeof report};
    for (; report.step < rig->step; usleep(500))
        ZT_OK(rig, rig->zf->poll(rig->inst, &report, &rig->err));
}

zf_status_t zt_quiesce(zt_rig_t *rig, int32_t mode) {
    zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = mode};
    return rig->zf->quiesce(rig->inst, &args, &rig->err);
}

zf_status_t zt_changed(zt_rig_t *rig, uint32_t id, uint32_t flags) {
    zf_param_item_t item = {.struct_size = sizeof item, .id = id};
    return rig->zf->params_changed(rig->inst, &item, 1, sizeof item, flags, &rig->err);
}

zf_status_t zt_fetch(zt_rig_t *rig, uint32_t id, zf_fence_t *fence) {
    zf_param_item_t item = {.struct_size = sizeof item, .id = id};
    return rig->zf->param_fetch(rig->inst, &item, 1, sizeof item, &rig->stream, fence, &rig->err);
}

void zt_rig_step(zt_rig_t *rig) { ZT_OK(rig, zt_rig_try_step(rig)); }

void zt_rig_steps(zt_rig_t *rig, int n) {
    while (n-- > 0)
        zt_rig_step(rig);
}

void zt_rig_sync(zt_rig_t *rig) {
    if (rig->queue)
        ZT_OK(rig, rig->cpu->queue_sync(rig->queue, 60000000000u, &rig->err));
}

static _Atomic int is_closed; /* the gate */

void zt_gate_pass(void *unused) {
    (void)unused;
    while (atomic_load(&is_closed))
        usleep(500);
}

void zt_gate_close(void) { atomic_store(&is_closed, 1); }

void zt_gate_open(void) { atomic_store(&is_closed, 0); }

void zt_rig_block(zt_rig_t *rig) {
    zt_gate_close();
    ZT_OK(rig, rig->cpu->queue_launch(rig->queue, zt_gate_pass, NULL, &rig->err));
}

uint64_t zt_rig_counter(const zt_rig_t *rig, const char *name) {
    zf_counter_t counter = {.struct_size = sizeof counter};
    for (uint32_t i = 0; rig->stats->counter(rig->inst, i, &counter, NULL) == ZF_OK; i++)
        if (strcmp(counter.name, name) == 0)
            return counter.value;
    ck_abort_msg("there is no counter \"%s\"", name);
}

const struct zfi_layout *zt_rig_parts(const zt_rig_t *rig) { return &rig->inst->run->mem.layout; }

static void note_line(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                      uint64_t length) {
    zt_log_t *log = ctx;
    (void)component, (void)file, (void)line;
    if (level != ZF_LOG_WARN || (log->words && !memmem(msg, length, log->words, strlen(log->words))))
        return;
    log->n++;
    snprintf(log->text + strlen(log->text), sizeof log->text - strlen(log->text), "%.*s\n", (int)length, msg);
}

void zt_rig_listen(zt_rig_t *rig, zt_log_t *log, const char *words) {
    *log = (zt_log_t){.words = words};
    rig->host.ctx = log;
    rig->host.log = note_line;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static void check_values(const zt_param_t *param, const float *have, const char *what) {
    for (size_t i = 0; i < param->n_elems; i++)
        if (memcmp(&have[i], &param->serial.w[i], sizeof *have))
            ck_abort_msg("%s of %s: element %zu is %a, serial AdamW has %a after %u updates", what, param->name, i,
                         (double)have[i], (double)param->serial.w[i], param->serial.n_updates);
}

static void check_visible(const zt_param_t *param) {
    for (size_t i = 0; i < param->n_elems; i++) {
        float want = zt_rounded(param, param->serial.w[i]);
        if (zt_visible(param, i) != want)
            ck_abort_msg("visible %s: element %zu is %a, need %a", param->name, i, (double)zt_visible(param, i),
                         (double)want);
    }
}

size_t zt_nbytes(const zt_param_t *param) { return param->n_elems * param->elem_nbytes; }

int zt_shows(const zt_param_t *param, const void *values) {
    return memcmp(param->visible, values, zt_nbytes(param)) == 0;
}

zf_status_t zt_try_export(zt_rig_t *rig, uint32_t number, float *out) {
    const zt_param_t *param = &rig->params[number];
    zf_export_item_t item = {
        .struct_size = sizeof item, .id = param->id, .dst = out, .dst_nbytes = param->n_elems * sizeof *out};
    return rig->zf->export_params(rig->inst, &item, 1, sizeof item, &rig->err);
}

void zt_rig_check_export(zt_rig_t *rig) {
    for (uint32_t i = 0; i < rig->n_params; i++) {
        const zt_param_t *param = &rig->params[i];
        if ((param->shape.flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED)) || !param->n_elems)
            continue;
        float *out = calloc(param->n_elems, sizeof *out);
        ZT_OK(rig, zt_try_export(rig, i, out));
        check_values(param, out, "export");
        free(out);
    }
}

void zt_contains(const char *text, const char *words) {
    ck_assert_msg(strstr(text, words) != NULL, "\"%s\" is not in \"%s\"", words, text);
}

void zt_refused(const zf_error_t *err, zf_status_t st, zf_status_t want, const char *words) {
    ck_assert_msg(st == want, "%d, need %d: %s", st, want, err->message);
    zt_contains(err->message, words);
}

void zt_rig_check_visible(const zt_rig_t *rig) {
    for (uint32_t i = 0; i < rig->n_params; i++)
        if (!(rig->params[i].shape.flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED)))
            check_visible(&rig->params[i]);
}

void zt_rig_check_flushed(zt_rig_t *rig) {
    zt_rig_check_export(rig);
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_FLUSH));
    zt_rig_check_export(rig);
    zt_rig_check_visible(rig);
}

void zt_rig_end_flushed(zt_rig_t *rig) {
    zt_rig_check_flushed(rig);
    zt_rig_end(rig);
}
