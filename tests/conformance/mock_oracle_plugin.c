/* SPDX-License-Identifier: Apache-2.0 */
/* mock_oracle_plugin.c - a plugin that is the oracle behind the ABI: `zf-conform exact` must pass on it, and must fail
 * when it is told to break a rule. It proves the checker; nothing else uses it.
 *
 * Model: hooks put their work on the caller's stream, in order; control calls wait for the last stream first. So it is
 * synchronous in stream order and needs no worker. ZF_MOCK_BREAK in the environment names one planted break:
 *   hole_as_zero   a parameter without a gradient is stepped with zeros      (laws 1, 2, 6)
 *   late_visible   visible values come one step late                          (1, 2, 5)
 *   torn           half of a parameter's values come later in the stream      (5, queue only)
 *   reads_late     gradients are read at the step, not before the done fence  (2)
 *   drain_flushes  DRAIN closes windows                                       (2)
 *   fetches_all    a fetch of some parameters shows all                       (2, 5)
 *   fetches_nothing  values are there with the next step only                 (2, 5)
 *   layers_all     a fetch of some matrices of a parameter shows all of them   (2, 5)
 *   gap            a byte beside a parameter's elements is written            (2)
 *   norm           the reported norm is off by one bit                        (2)
 *   crash, hang    in the third step */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock_queue.h"
#include "oracle/oracle.h"
#include "zf/ext/draft/inspect.h"
#include "zf/plugin.h"

enum { MAX_PARAMS = 64, MAX_GROUPS = 16 };

typedef struct view { /* of a borrowed tensor */
    uint32_t ndim;
    int64_t shape[ZF_MAX_NDIM], strides[ZF_MAX_NDIM];
    unsigned char *data;
    uint64_t size, n_elems; /* bytes of an element; elements */
} view_t;

typedef struct group {
    zf_rule_callback_t callback;
    uint32_t group;
} group_t;

struct zf_instance {
    zo_config_t config;
    group_t groups[ZO_MAX_GROUPS];
    zo_t *oracle;
    uint32_t n_params;
    view_t views[MAX_PARAMS];
    uint32_t owners[MAX_PARAMS]; /* of tied ones */
    zo_decl_t decls[MAX_PARAMS]; /* but for the visible values */
    uint32_t flags[MAX_PARAMS];
    char names[MAX_PARAMS][64];
    uint8_t is_delivered[MAX_PARAMS];
    view_t late[MAX_PARAMS]; /* reads_late */
    zf_stream_t stream;      /* of the last hook */
    zf_step_report_t report; /* newest finished; written in stream order */
    uint64_t n_submitted;
    const char *broken;
};

static int is_broken(const zf_instance_t *x, const char *name) { return strcmp(x->broken, name) == 0; }

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static view_t view_of(const zf_tensor_t *t) {
    view_t v = {.ndim = (uint32_t)t->dl.ndim,
                .data = (unsigned char *)t->dl.data + t->dl.byte_offset,
                .size = t->dl.dtype.bits / 8,
                .n_elems = 1};
    int64_t stride = 1;

    for (uint32_t i = v.ndim; i > 0; i--) {
        v.shape[i - 1] = t->dl.shape[i - 1];
        v.strides[i - 1] = t->dl.strides ? t->dl.strides[i - 1] : stride;
        stride *= v.shape[i - 1];
        v.n_elems *= (uint64_t)v.shape[i - 1];
    }
    return v;
}

static unsigned char *element(const view_t *v, uint64_t linear) {
    uint64_t offset = 0;

    for (uint32_t i = v->ndim; i > 0; i--) {
        offset += linear % (uint64_t)v->shape[i - 1] * (uint64_t)v->strides[i - 1];
        linear /= (uint64_t)v->shape[i - 1];
    }
    return v->data + offset * v->size;
}

static void *gather(const view_t *v) {
    unsigned char *out = calloc(v->n_elems + 1, v->size);

    for (uint64_t i = 0; i < v->n_elems; i++)
        memcpy(out + i * v->size, element(v, i), v->size);
    return out;
}

static void scatter(const view_t *v, const void *elems, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; i++)
        memcpy(element(v, i), (const unsigned char *)elems + i * v->size, v->size);
}

/* ---- create, bind, destroy --------------------------------------------------------------------------------------- */

static const char *setting(const char *text, const char *key) {
    const char *at = strstr(text, key);

    return at ? strchr(at, '=') + 2 : "";
}

static zo_strategy_t strategy_of(const char *value) {
    return *value == 'e' ? ZO_SELECT_EPOCH : (*value == 'a' ? ZO_SELECT_AUTO : ZO_SELECT_STEP);
}

static zo_moments_t moments_of(const char *name) {
    if (strncmp(name, "bfloat16", 8) != 0)
        return ZO_MOMENTS_F32;
    return strncmp(name, "bfloat16_", 9) == 0 ? ZO_MOMENTS_STOCHASTIC : ZO_MOMENTS_BF16;
}

static int is_interval_auto(const char *text) { return strncmp(setting(text, "\nupdate_interval"), "auto", 4) == 0; }

/* S, or the longest window. */
static uint32_t interval_of(const char *text) {
    return is_interval_auto(text) ? 16 : (uint32_t)atoi(setting(text, "\nupdate_interval"));
}

static int lag_of(const char *text) { return strstr(text, "publish_lag = 1") != NULL; }

static uint64_t resident_of(const char *mib, const char *nbytes) {
    if (strncmp(mib, "all", 3) == 0)
        return ZO_ALL_RESIDENT;
    return *mib == '0' || !nbytes ? 0 : strtoull(nbytes, NULL, 10);
}

static zo_config_t parse(const char *text, int can_fetch) {
    return (zo_config_t){.topk_ratio = atof(setting(text, "\ntopk_ratio")),
                         .strategy = strategy_of(setting(text, "\nselect_strategy")),
                         .select_interval = (uint32_t)atoi(setting(text, "\nselect_interval")),
                         .update_interval = interval_of(text),
                         .is_interval_auto = is_interval_auto(text),
                         .warm_up = (uint32_t)atoi(setting(text, "\nfull_warm_up_rounds")),
                         .publish_lag = lag_of(text),
                         .can_fetch = can_fetch,
                         .resident_nbytes = resident_of(setting(text, "\nstate_mib ="), getenv("ZF_TEST_STATE_BYTES")),
                         .has_homes = 1,
                         .is_mean = strncmp(setting(text, "\nmode ="), "mean", 4) == 0,
                         .predicts = strstr(text, "\npredict = off") == NULL,
                         .moments = moments_of(setting(text, "\nmoments_dtype"))};
}

/* The host's rule, one element at a time. */
static void call_back(void *ctx, float *w, float *m, float *v, float g, const zo_hyper_t *h, uint64_t n) {
    const group_t *own = ctx;
    const zf_rule_callback_t *callback = &own->callback;
    zf_rule_update_t update = {.struct_size = sizeof update,
                               .group = own->group,
                               .n = n,
                               .n_elems = 1,
                               .w = w,
                               .m = callback->n_moments > 0 ? m : NULL,
                               .v = callback->n_moments > 1 ? v : NULL,
                               .g = &g,
                               .lr = h->lr,
                               .beta1 = h->beta1,
                               .beta2 = h->beta2,
                               .eps = h->eps,
                               .weight_decay = h->weight_decay};

    (void)callback->update(callback->ctx, &update);
}

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out_instance, zf_error_t *err) {
    const char *blocks = getenv("ZF_TEST_BLOCK_ELEMS");
    zf_instance_t *x = calloc(1, sizeof *x);

    (void)err;
    if (!x)
        return ZF_ERR_MEMORY;
    x->config = parse(args->config_text, (args->flags & ZF_CREATE_CAP_FETCH) != 0);
    x->config.block_elems = blocks ? strtoull(blocks, NULL, 10) : 0;
    x->broken = getenv("ZF_MOCK_BREAK") ? getenv("ZF_MOCK_BREAK") : "";
    x->stream = (zf_stream_t){.struct_size = sizeof x->stream, .kind = ZF_STREAM_HOST_THREAD};
    *out_instance = x;
    return ZF_OK;
}

static void destroy(zf_instance_t *x, const zf_destroy_args_t *args) {
    (void)args;
    if (!x)
        return;
    mock_sync(&x->stream);
    zo_destroy(x->oracle);
    free(x);
}

static zo_dtype_t dtype_of(zf_dtype_t d) {
    if (d.code == ZF_DTYPE_CODE_BFLOAT)
        return ZO_BF16;
    return d.bits == 16 ? ZO_F16 : ZO_F32;
}

static zo_decl_t decl_of(const zf_param_decl_t *p) {
    view_t view = view_of(p->tensor);
    zo_decl_t d = {.ndim = view.ndim,
                   .n_batch_axes = (uint32_t)p->n_batch_axes,
                   .channels_are_rows = p->channels == ZF_CHANNELS_ROWS,
                   .is_stateless = (p->flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED)) != 0,
                   .is_always_selected = p->home == ZF_HOME_RESIDENT,
                   .is_never_selected = p->home == ZF_HOME_HOST,
                   .is_not_in_norm = (p->flags & ZF_PARAM_NOT_IN_NORM) != 0,
                   .dtype = dtype_of(p->tensor->dl.dtype),
                   .grad_dtype = dtype_of(p->grad_dtype.bits ? p->grad_dtype : p->tensor->dl.dtype),
                   .group = p->group};

    memcpy(d.shape, view.shape, sizeof d.shape);
    return d;
}

static int is_same_decl(const zf_instance_t *x, uint32_t i, const zf_param_decl_t *p, const zo_decl_t *d) {
    const zo_decl_t *was = &x->decls[i];

    return strcmp(x->names[i], p->name) == 0 && x->flags[i] == p->flags && was->ndim == d->ndim &&
           memcmp(was->shape, d->shape, d->ndim * sizeof *d->shape) == 0 && was->n_batch_axes == d->n_batch_axes &&
           was->channels_are_rows == d->channels_are_rows && was->dtype == d->dtype &&
           was->grad_dtype == d->grad_dtype && was->group == d->group &&
           was->is_always_selected == d->is_always_selected && was->is_never_selected == d->is_never_selected &&
           x->owners[i] == (p->flags & ZF_PARAM_TIED ? p->tied_to : i);
}

/* The present parameter of this name and shape, if both are trained. */
static uint32_t origin_of(const zf_instance_t *x, const char *name, const zo_decl_t *d) {
    for (uint32_t i = 0; i < x->n_params; i++)
        if (strcmp(x->names[i], name) == 0 && zo_is_trainable(x->oracle, i) && !d->is_stateless &&
            x->decls[i].ndim == d->ndim && memcmp(x->decls[i].shape, d->shape, d->ndim * sizeof *d->shape) == 0)
            return i;
    return ZO_NO_ID;
}

static void rest(zf_instance_t *x);
static void show(zf_instance_t *x, const zf_stream_t *stream);

static void keep_decls(zf_instance_t *x, const zf_param_decl_t *decls, const zo_decl_t *d, uint32_t n) {
    x->n_params = n;
    for (uint32_t i = 0; i < n; i++) {
        x->views[i] = view_of(decls[i].tensor);
        x->owners[i] = decls[i].flags & ZF_PARAM_TIED ? decls[i].tied_to : i;
        x->decls[i] = d[i];
        x->decls[i].visible = NULL;
        x->flags[i] = decls[i].flags;
        snprintf(x->names[i], sizeof x->names[i], "%s", decls[i].name);
    }
}

static void take_groups(zf_instance_t *x, const zf_bind_args_t *args) {
    for (uint32_t i = 0; i < args->n_groups && i < ZO_MAX_GROUPS; i++) {
        x->config.groups[i] = (zo_group_t){.rule = (zo_rule_t)args->groups[i].rule};
        if (!args->groups[i].callback)
            continue;
        x->groups[i] = (group_t){*args->groups[i].callback, i};
        x->config.groups[i].element = call_back;
        x->config.groups[i].n_moments = args->groups[i].callback->n_moments;
        x->config.groups[i].element_ctx = &x->groups[i];
    }
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *out_ids, zf_layout_t *out_layout,
                               zf_error_t *err) {
    const zf_param_decl_t *decls = args->decls;
    uint32_t n = args->n_decls;
    zo_decl_t d[MAX_PARAMS] = {0};
    void *visible[MAX_PARAMS];
    uint32_t origins[MAX_PARAMS];
    int is_same = x->oracle && n == x->n_params;

    (void)out_layout;
    (void)err;
    if (n > MAX_PARAMS || args->decl_size != sizeof *decls)
        return ZF_ERR_ARGUMENT;
    take_groups(x, args);
    if (x->oracle)
        rest(x);
    for (uint32_t i = 0; i < n; i++) {
        view_t view = view_of(decls[i].tensor);

        d[i] = decl_of(&decls[i]);
        d[i].visible = visible[i] = gather(&view);
        origins[i] = x->oracle ? origin_of(x, decls[i].name, &d[i]) : ZO_NO_ID;
        is_same = is_same && is_same_decl(x, i, &decls[i], &d[i]);
        out_ids[i] = i;
    }
    if (!x->oracle)
        x->oracle = zo_create(&x->config, d, n);
    else if (!is_same)
        x->oracle = zo_carry(x->oracle, &x->config, d, n, origins);
    keep_decls(x, decls, d, n);
    show(x, &x->stream);
    mock_sync(&x->stream);
    for (uint32_t i = 0; i < n; i++)
        free(visible[i]);
    return ZF_OK;
}

/* ---- grads_ready ------------------------------------------------------------------------------------------------- */

typedef struct delivery {
    zf_instance_t *x;
    uint32_t id, flags;
    view_t view;
} delivery_t;

static void deliver_now(void *arg) {
    delivery_t *d = arg;
    void *grad = gather(&d->view);

    d->x->is_delivered[d->id] = 1;
    d->x->late[d->id] = d->view;
    zo_deliver(d->x->oracle, d->id, grad, (d->flags & ZF_GRAD_PART) != 0, (d->flags & ZF_GRAD_REPLACE) != 0);
    free(grad);
    free(d);
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    (void)elem_size;
    (void)err;
    x->stream = *stream;
    for (uint32_t i = 0; i < n; i++) {
        delivery_t *d;

        /* Ranges of one tensor stand together in one call, and the first one's tensor holds them all. */
        if (i > 0 && items[i].n_batches && items[i - 1].n_batches && items[i].id == items[i - 1].id &&
            !(items[i].flags & ZF_GRAD_REPLACE))
            continue;
        d = malloc(sizeof *d);

        *d = (delivery_t){.x = x, .id = items[i].id, .flags = items[i].flags, .view = view_of(items[i].tensor)};
        mock_launch(stream, deliver_now, d);
    }
    if (out_done)
        *out_done = (zf_fence_t){.struct_size = sizeof *out_done,
                                 .kind = stream->kind == ZF_STREAM_CPU_QUEUE ? ZF_FENCE_STREAM_ORDER : ZF_FENCE_NONE};
    return ZF_OK;
}

/* ---- step -------------------------------------------------------------------------------------------------------- */

typedef struct submission {
    zf_instance_t *x;
    zf_step_args_t args;
    zf_stream_t stream;
    zo_hyper_t groups[MAX_GROUPS];
    uint64_t number;
} submission_t;

static void show_range(zf_instance_t *x, int is_second_half) {
    for (uint32_t i = 0; i < x->n_params; i++) {
        uint64_t n = x->views[i].n_elems, half = is_broken(x, "torn") ? n / 2 : n;

        if (!zo_is_trainable(x->oracle, i))
            continue; /* frozen, tied, zero-size */
        scatter(&x->views[i], zo_visible(x->oracle, i), is_second_half ? half : 0, is_second_half ? n : half);
        if (is_broken(x, "gap"))
            element(&x->views[i], 0)[-1] = 0;
    }
}

static void show_second_half(void *arg) { show_range(arg, 1); }

static void show(zf_instance_t *x, const zf_stream_t *stream) {
    show_range(x, 0);
    if (is_broken(x, "torn"))
        mock_launch(stream, show_second_half, x);
}

static void break_gradients(zf_instance_t *x) {
    for (uint32_t i = 0; i < x->n_params; i++) {
        uint64_t n = x->views[i].n_elems;
        void *grad = NULL;

        if (is_broken(x, "reads_late") && x->is_delivered[i])
            grad = gather(&x->late[i]);
        if (is_broken(x, "hole_as_zero") && !x->is_delivered[i] && zo_is_trainable(x->oracle, i))
            grad = calloc(n, sizeof(float));
        if (grad)
            zo_deliver(x->oracle, i, grad, 0, 0);
        free(grad);
        x->is_delivered[i] = 0;
    }
}

static void misbehave(const zf_instance_t *x, uint64_t number) {
    if (number == 3 && is_broken(x, "crash"))
        abort();
    while (number == 3 && is_broken(x, "hang"))
        sleep(1);
}

static void fill_report(zf_instance_t *x, const zo_report_t *r, uint64_t number) {
    x->report.has_report = 1;
    x->report.step = number;
    x->report.applied = r->is_applied;
    x->report.skip_reason = r->is_applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE;
    x->report.nonfinite_param = r->nonfinite_param;
    x->report.n_present = r->n_present;
    x->report.grad_norm = is_broken(x, "norm") ? nextafter(r->norm, INFINITY) : r->norm;
    x->report.clip_factor = r->clip_factor;
}

static void step_now(void *arg) {
    submission_t *s = arg;
    zf_instance_t *x = s->x;
    zo_step_t args = {.groups = s->groups,
                      .unscale = s->args.unscale == 0.0 ? 1.0 : s->args.unscale,
                      .clip_norm = s->args.clip_norm,
                      .host_norm = s->args.host_norm,
                      .is_epoch_end = (s->args.flags & ZF_STEP_EPOCH_END) != 0};
    zo_report_t r;

    misbehave(x, s->number);
    break_gradients(x);
    if (s->args.flags & ZF_STEP_DISCARD) {
        zo_discard(x->oracle, args.is_epoch_end);
    } else {
        if (is_broken(x, "late_visible"))
            show(x, &s->stream);
        zo_step(x->oracle, &args, &r);
        if (!is_broken(x, "late_visible"))
            show(x, &s->stream);
        fill_report(x, &r, s->number);
    }
    free(s);
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *args, zf_step_report_t *out_report, zf_error_t *err) {
    submission_t *s = calloc(1, sizeof *s);
    int is_wait = (args->flags & ZF_STEP_WAIT) != 0;

    (void)err;
    x->stream = *args->stream;
    x->n_submitted += (args->flags & ZF_STEP_DISCARD) == 0;
    *s = (submission_t){.x = x, .args = *args, .stream = *args->stream, .number = x->n_submitted};
    for (uint32_t i = 0; i < args->n_groups && i < MAX_GROUPS; i++)
        s->groups[i] = (zo_hyper_t){.lr = args->groups[i].lr,
                                    .beta1 = args->groups[i].beta1,
                                    .beta2 = args->groups[i].beta2,
                                    .eps = args->groups[i].eps,
                                    .weight_decay = args->groups[i].weight_decay};
    mock_launch(args->stream, step_now, s);
    if (is_wait)
        mock_sync(args->stream);
    if (out_report) {
        uint32_t size = out_report->struct_size;

        *out_report = (zf_step_report_t){0};
        if (is_wait || args->stream->kind == ZF_STREAM_HOST_THREAD)
            *out_report = x->report;
        out_report->struct_size = size;
        out_report->submitted_step = x->n_submitted;
    }
    return !is_wait ? ZF_SUBMITTED : (x->report.applied ? ZF_OK : ZF_SKIPPED);
}

/* ---- reading and control ----------------------------------------------------------------------------------------- */

typedef struct fetching {
    zf_instance_t *x;
    uint32_t n;
    zf_param_item_t items[]; /* [n] */
} fetching_t;

static void fetch_now(void *arg) {
    fetching_t *f = arg;

    for (uint32_t i = 0; i < f->n; i++)
        zo_fetch(f->x->oracle, &(zo_range_t){f->x->owners[f->items[i].id], f->items[i].first_batch,
                                             is_broken(f->x, "layers_all") ? 0 : f->items[i].n_batches});
    if (!is_broken(f->x, "fetches_nothing"))
        show_range(f->x, 0);
    free(f);
}

static zf_status_t param_fetch(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err) {
    int is_all = n == 0 || is_broken(x, "fetches_all");
    uint32_t n_all = is_all ? x->n_params : n;
    fetching_t *f = calloc(1, sizeof *f + n_all * sizeof *items);

    (void)err, (void)elem_size;
    f->x = x;
    f->n = n_all;
    for (uint32_t i = 0; i < f->n; i++)
        f->items[i] = is_all ? (zf_param_item_t){.id = i} : items[i];
    mock_launch(stream, fetch_now, f);
    if (out_ready)
        *out_ready = (zf_fence_t){.struct_size = sizeof *out_ready,
                                  .kind = stream->kind == ZF_STREAM_CPU_QUEUE ? ZF_FENCE_STREAM_ORDER : ZF_FENCE_NONE};
    return ZF_OK;
}

static zf_status_t param_release(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                 const zf_stream_t *stream, zf_error_t *err) {
    (void)x;
    (void)items;
    (void)n;
    (void)elem_size;
    (void)stream;
    (void)err;
    return ZF_OK;
}

static zf_status_t params_changed(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    (void)err, (void)elem_size;
    mock_sync(&x->stream);
    for (uint32_t i = 0; i < n; i++) {
        void *values = gather(&x->views[items[i].id]);

        zo_params_changed(
            x->oracle,
            &(zo_range_t){items[i].id, items[i].first_batch, is_broken(x, "layers_all") ? 0 : items[i].n_batches},
            values, (flags & ZF_CHANGED_RESET) != 0);
        free(values);
    }
    show(x, &x->stream);
    mock_sync(&x->stream);
    return ZF_OK;
}

/* Waits for the queue; values that were not fetched are shown. */
static void rest(zf_instance_t *x) {
    mock_sync(&x->stream);
    zo_rest(x->oracle);
    show(x, &x->stream);
    mock_sync(&x->stream);
}

static zf_status_t quiesce(zf_instance_t *x, const zf_quiesce_args_t *args, zf_error_t *err) {
    (void)err;
    rest(x);
    if (args->mode == ZF_QUIESCE_FLUSH || is_broken(x, "drain_flushes")) {
        zo_flush(x->oracle);
        show(x, &x->stream);
        mock_sync(&x->stream);
    }
    return ZF_OK;
}

static zf_status_t export_params(zf_instance_t *x, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    (void)elem_size;
    (void)err;
    rest(x);
    for (uint32_t i = 0; i < n; i++)
        zo_export(x->oracle, items[i].id, items[i].dst);
    return ZF_OK;
}

static zf_status_t poll_report(zf_instance_t *x, zf_step_report_t *out_report, zf_error_t *err) {
    (void)err;
    mock_sync(&x->stream);
    *out_report = x->report;
    return ZF_OK;
}

static zf_status_t inspect_read(zf_instance_t *x, uint32_t id, zf_inspect_out_t *out, zf_error_t *err) {
    zo_state_t state = {
        .w = out->w, .m = out->m, .v = out->v, .n = out->n, .selected = out->selected, .importance = out->importance};

    (void)err;
    rest(x);
    zo_read(x->oracle, id, &state);
    return ZF_OK;
}

static const zf_inspect_ext_t inspect = {.struct_size = sizeof inspect, .read = inspect_read};

static const void *get_extension(const char *id) {
    if (strcmp(id, ZF_EXT_CPU) == 0)
        return &mock_cpu;
    return strcmp(id, ZF_EXT_INSPECT) == 0 ? &inspect : NULL;
}

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    (void)err;
    out->abi = ZF_ABI_0_4;
    out->name = "oracle";
    out->version = "0";
    out->build = "";
    out->required_extensions = out->optional_extensions = "";
    out->provided_extensions = ZF_EXT_CPU " " ZF_EXT_INSPECT;
    return ZF_OK;
}

static const zf_plugin_t plugin = {.struct_size = sizeof plugin,
                                   .abi = ZF_ABI_0_4,
                                   .describe = describe,
                                   .create = create,
                                   .destroy = destroy,
                                   .bind_params = bind_params,
                                   .params_changed = params_changed,
                                   .grads_ready = grads_ready,
                                   .step = step,
                                   .param_fetch = param_fetch,
                                   .param_release = param_release,
                                   .quiesce = quiesce,
                                   .export_params = export_params,
                                   .poll = poll_report,
                                   .get_extension = get_extension};

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap) {
    bootstrap->chosen_abi = ZF_ABI_0_4;
    bootstrap->plugin = &plugin;
    return ZF_OK;
}
