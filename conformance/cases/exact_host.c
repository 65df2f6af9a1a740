/* SPDX-License-Identifier: Apache-2.0 */
/* exact_host.c - life of the instance, steps, looking at parameters. Deliveries are in exact_deliver.c. */
#include "exact_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact_device.h"
#include "shard.h"
#include "shard_fetch.h"
#include "zf/ext/config.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/residency.h"

/* ---- create, bind, destroy --------------------------------------------------------------------------------------- */

static void set_or_not(const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (value)
        setenv(name, text, 1);
    else
        unsetenv(name);
}

/* How small blocks are cut, what a MiB of state is, and what stays whole (SCHEDULE.md, "Parameters, ...", "Resident
 * blocks"). */
static void set_sizes(const zx_case_t *c) {
    set_or_not("ZF_TEST_BLOCK_ELEMS", c->config.block_elems);
    set_or_not("ZF_TEST_STATE_BYTES", c->config.resident_nbytes == ZO_ALL_RESIDENT ? 0 : c->config.resident_nbytes);
    set_or_not("ZF_TEST_WHOLE_BYTES", c->ranks ? c->ranks->whole_bytes : 0);
}

static int can_release(const zx_host_t *h) {
    return h->c->is_releasing && zf_loader_plugin(h->loader)->get_extension(ZF_EXT_RESIDENCY) != NULL;
}

static zf_create_args_t create_args(const zx_host_t *h) {
    return (zf_create_args_t){.struct_size = sizeof(zf_create_args_t),
                              .flags = (h->shards        ? ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS
                                        : h->c->mode % 2 ? ZF_CREATE_CAP_FETCH
                                                         : 0) |
                                       (can_release(h) ? ZF_CREATE_CAP_RELEASE : 0),
                              .host = &h->table,
                              .config_text = h->c->config_text,
                              .config_text_nbytes = strlen(h->c->config_text),
                              .device_type = zx_device_type(),
                              .norm_group = h->c->ranks && h->c->ranks->is_grouped ? ZS_GROUP_ALL : 0};
}

static int create(zx_host_t *h) {
    zf_create_args_t args = create_args(h);
    set_sizes(h->c);
    return !h->is_dry && zx_is_call_bad(h, "create", h->zf->create(&args, &h->instance, &h->err)) ? -1 : 0;
}

/* All zero says: as the parameter's. */
static zf_dtype_t grad_dtype(zx_host_t *h, const zx_param_t *p) {
    if (p->decl.grad_dtype == p->decl.dtype && zx_chance(&h->buffer_rng, 30))
        return (zf_dtype_t){0};
    return zx_dtype(p->decl.grad_dtype);
}

/* Bytes as bind_params said them, and as they are mapped: within 1 %. */
static int is_near(zx_host_t *h, const char *name, uint64_t said, uint64_t mapped) {
    zx_where_t where = {.law = h->c->law, .what = name, .element = UINT64_MAX};
    if (100 * mapped <= 101 * said && 101 * mapped >= 100 * said)
        return 1;
    zx_fails(h->result, &where, "%llu bytes, bind_params says %llu", (unsigned long long)mapped,
             (unsigned long long)said);
    return 0;
}

/* By the plugin's own count. */
static int is_as_planned(zx_host_t *h, const char *name, uint64_t said) {
    uint64_t mapped = said; /* where nobody counts */
    if (!h->is_dry)
        (void)zf_counter_value(h->zf, h->instance, name, &mapped, NULL);
    return is_near(h, name, said, mapped);
}

/* By the driver's. What can be released is given in whole MiB. What several ranks gather is not page-locked, but words
 * of NCCL's communicators are: a page for each lane of each. */
static int is_as_given(zx_host_t *h, const zx_given_t *before, const zf_bind_report_t *said) {
    const uint64_t words_nbytes = h->c->ranks && zs_is_by_nccl(h->c->ranks) ? 4 * 2 * 4096 : 0;
    zx_given_t now;
    if (h->is_dry || can_release(h) || !zx_device_given(&now))
        return 1;
    now.host -= before->host;
    if (h->c->ranks && h->c->ranks->size > 1 && now.host < said->host_nbytes + words_nbytes)
        now.host = said->host_nbytes;
    return is_near(h, "device memory given", said->device_nbytes, now.device - before->device) &&
           is_near(h, "page-locked memory given", said->host_nbytes, now.host);
}

/* state_mib = auto has what is free beside the plugin's own plan and a quarter of the device's memory, in whole MiB. */
static int leave_room(zx_host_t *h, const zf_bind_args_t *to_bind) {
    const zf_plan_ext_t *ext = h->zf->get_extension(ZF_EXT_PLAN);
    zf_create_args_t to_create = create_args(h);
    zf_plan_args_t args = {.struct_size = sizeof args,
                           .n_ranks = h->c->ranks ? h->c->ranks->size : 1,
                           .rank = h->c->ranks ? h->c->ranks->rank : 0,
                           .create = &to_create,
                           .bind = to_bind};
    zf_plan_t plan = {.struct_size = sizeof plan};
    uint64_t left = h->c->room_nbytes;
    zx_count_drawn(h->result, ZX_AUTO, (uint64_t)h->c->is_some);
    if (h->c->is_some) {
        if (zx_is_call_bad(h, "plan", ext ? ext->plan(&args, &plan, &h->err) : ZF_ERR_INTERNAL))
            return -1;
        left += plan.device_nbytes + plan.staging_nbytes + plan.sums_nbytes + (1 << 19); /* half a MiB does not count */
    }
    zx_device_fill(left);
    return 0;
}

static zf_status_t try_to_bind(zx_host_t *h, zf_bind_report_t *out_report) {
    zf_param_decl_t decls[ZX_MAX_PARAMS];
    uint32_t ids[ZX_MAX_PARAMS];
    zf_group_decl_t groups[ZX_MAX_GROUPS];
    zf_bind_args_t args = zx_bind_args(h->c, groups);
    args.decls = decls;
    args.n_decls = h->c->n_params;
    for (uint32_t i = 0; i < h->c->n_params; i++) {
        const zx_param_t *p = &h->c->params[i];
        if (h->is_on_gpu)
            zx_device_adopt(p->array);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof *decls,
                                     .flags = p->flags | (p->decl.is_carried ? ZF_PARAM_CARRIES : 0),
                                     .name = p->name,
                                     .tensor = &p->array->tensor,
                                     .grad_dtype = grad_dtype(h, p),
                                     .group = p->decl.group,
                                     .n_batch_axes = (int32_t)p->decl.n_batch_axes,
                                     .channels = p->decl.channels_are_rows ? ZF_CHANNELS_ROWS : ZF_CHANNELS_COLUMNS,
                                     .tied_to = p->tied_to,
                                     .home = p->home};
        if (h->c->ranks)
            zs_declare(h->c->ranks, i, &decls[i]);
    }
    if (h->is_on_gpu) /* bind_params has no stream: the parameters are complete before it */
        zx_device_sync();
    for (uint32_t i = 0; i < h->c->n_params; i++)
        ids[i] = i;
    if (h->is_on_gpu && !h->is_dry && out_report && leave_room(h, &args))
        return ZF_ERR_INTERNAL;
    zf_status_t st = h->is_dry ? ZF_OK : h->zf->bind_params(h->instance, &args, ids, out_report, &h->err);
    for (uint32_t i = 0; i < h->c->n_params && st == ZF_OK; i++)
        h->c->params[i].id = ids[i];
    return st;
}

static int bind(zx_host_t *h, zf_bind_report_t *out_report) {
    if (zx_is_call_bad(h, "bind_params", try_to_bind(h, out_report)))
        return -1;
    zs_fetch_bound(h);
    return 0;
}

void zx_host_refuse_bind(zx_host_t *h, uint32_t param) {
    zf_status_t st = h->is_dry ? ZF_ERR_STATE : try_to_bind(h, NULL);
    zx_where_t where = {
        .law = 2, .what = "bind_params", .param = h->c->params[param].name, .step = h->step, .element = UINT64_MAX};
    if (st != ZF_ERR_STATE || (!h->is_dry && !strstr(h->err.message, h->c->params[param].name)))
        zx_fails(h->result, &where, "status %d for other memory while its own carries a gradient: %.200s", st,
                 h->err.message);
}

/* Whether the plugin knows a configuration key, by zf.config/1. */
static int has_key(const zf_plugin_t *zf, const char *name) {
    const zf_config_ext_t *config = zf->get_extension(ZF_EXT_CONFIG);
    zf_config_key_t key = {.struct_size = sizeof key};
    for (uint32_t i = 0; config && i < config->n_keys(); i++)
        if (config->key(i, &key, NULL) == ZF_OK && strcmp(key.key, name) == 0)
            return 1;
    return 0;
}

#if defined(__x86_64__)
enum { FLUSH = 0x8040 }; /* FTZ, DAZ */

static unsigned flush_denormals(int is_on) {
    unsigned was = __builtin_ia32_stmxcsr();
    if (is_on)
        __builtin_ia32_ldmxcsr(was | FLUSH);
    return was;
}

static void set_mode(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#else
static unsigned flush_denormals(int is_on) { return (unsigned)is_on & 0; }
static void set_mode(unsigned mode) { (void)mode; }
#endif

/* The threads of a host that flushes denormals begin with that mode, and so do those that a plugin starts here. */
static int make_threads(zx_host_t *h) {
    zf_bind_report_t layout = {.struct_size = sizeof layout};
    zx_given_t given = {0};
    unsigned was = flush_denormals(h->c->is_flushing);
    int st = 0;
    zx_count_drawn(h->result, ZX_FLUSHING, (uint64_t)h->c->is_flushing);
    if (h->is_async && !h->is_on_gpu) {
        h->stream = (zf_stream_t){.struct_size = sizeof h->stream};
        st = zx_is_call_bad(h, "queue_create", h->cpu->queue_create(&h->queue, &h->stream, &h->err));
    }
    st = st || create(h) || (zx_device_given(&given), bind(h, &layout)) ||
         !is_as_planned(h, "host_measured_nbytes", layout.host_nbytes) ||
         !is_as_planned(h, "device_measured_nbytes", layout.device_nbytes) || !is_as_given(h, &given, &layout);
    set_mode(was);
    return st ? -1 : 0;
}

int zx_host_open(zx_host_t *h, zx_case_t *c, zx_result_t *result, const zf_loader_t *loader, int is_dry) {
    memset(h, 0, sizeof *h);
    h->err.struct_size = sizeof h->err;
    h->is_dry = is_dry;
    h->c = c;
    h->result = result;
    h->loader = loader;
    h->buffer_rng = zx_rng(c->seed, 99, c->index);
    h->zf = zf_loader_plugin(loader);
    h->cpu = h->zf->get_extension(ZF_EXT_CPU);
    h->inspect = h->zf->get_extension(ZF_EXT_INSPECT);
    h->digest = h->zf->get_extension(ZF_EXT_DIGEST);
    h->finds_edits = has_key(h->zf, "on_overwrite");
    if (!is_dry && c->ranks && zs_shards_params(c->ranks))
        h->shards = h->zf->get_extension(ZF_EXT_SHARDS);
    zf_host_stderr("zf-conform", "1", 0, &h->table);
    if (c->ranks)
        h->table.get_extension = zs_ranks_extension;
    zf_stream_host_thread(&h->stream);
    h->is_async = c->mode >= ZX_QUEUE;
    h->is_on_gpu = zx_device_is_gpu();
    if (h->is_on_gpu)
        zx_device_stream(&h->stream);
    h->is_quiet = 1;
    return make_threads(h);
}

void zx_host_bind_again(zx_host_t *h, int is_other) {
    if (bind(h, NULL))
        return;
    h->is_quiet = 1;
    if (!is_other)
        return;
    zx_host_settle(h, 1); /* it came to rest */
    zx_host_sync(h);
    zx_buffers_free(h);
}

void zx_host_close(zx_host_t *h, uint32_t flags) {
    const zf_destroy_args_t args = {.struct_size = sizeof args, .flags = flags};
    if (!h->is_dry)
        h->zf->destroy(h->instance, flags ? &args : NULL);
    h->instance = NULL;
    zx_host_settle(h, 1);
    zx_host_sync(h);
    if (h->queue)
        h->cpu->queue_destroy(h->queue);
    zx_buffers_free(h);
}

/* ---- step -------------------------------------------------------------------------------------------------------- */

static void set_norm(void *arg) {
    double *pair = arg; /* [0] what the plugin reads, [1] the value */
    pair[0] = pair[1];
}

static void scribble_norm(void *arg) { *(double *)arg = -1e30; }

static void scribble_and_free_norm(void *arg) {
    scribble_norm(arg);
    free(arg);
}

/* What the device reads lies in memory that it reaches. */
static double *make_norm(const zx_host_t *h) {
    return h->is_on_gpu ? zx_device_lend(2 * sizeof(double)) : zx_alloc(2 * sizeof(double));
}

static void fill_hyper(const zx_host_t *h, const zo_hyper_t *groups, zf_group_hyper_t *out) {
    for (uint32_t i = 0; i < h->c->n_groups; i++)
        out[i] = (zf_group_hyper_t){.struct_size = sizeof *out,
                                    .lr = groups[i].lr,
                                    .beta1 = groups[i].beta1,
                                    .beta2 = groups[i].beta2,
                                    .eps = groups[i].eps,
                                    .weight_decay = groups[i].weight_decay};
}

void zx_host_announce(zx_host_t *h, const zo_hyper_t *groups) {
    zf_group_hyper_t hyper[ZX_MAX_GROUPS];
    const zf_step_args_t args = {.struct_size = sizeof args,
                                 .groups = hyper,
                                 .n_groups = h->c->n_groups,
                                 .elem_size = sizeof *hyper,
                                 .unscale = h->c->unscale,
                                 .clip_norm = h->c->clip_norm,
                                 .stream = &h->stream};
    fill_hyper(h, groups, hyper);
    if (!h->is_dry)
        zx_is_call_bad(h, "announce", h->zf->announce(h->instance, &args, &h->err));
}

/* DISCARD gives memory that carries back, with whatever is in it. */
static void take_back(zx_host_t *h, int is_discard) {
    for (uint32_t i = 0; i < h->c->n_params; i++) {
        zx_param_t *p = &h->c->params[i];
        int was_spoilt = p->away == ZX_SPOILT || p->away == ZX_SPOILT_UNFETCHED;
        if (is_discard && p->away == ZX_LENT)
            p->away = ZX_SPOILT;
        else if (!is_discard && p->decl.is_carried && h->c->mode % 2)
            p->away = was_spoilt ? ZX_SPOILT_UNFETCHED : ZX_UNFETCHED;
        else if (!is_discard && p->away == ZX_LENT)
            p->away = ZX_IN_PLACE;
    }
}

zf_status_t zx_host_step(zx_host_t *h, const zo_hyper_t *groups, uint32_t flags, const double *host_norm,
                         zf_step_report_t *out) {
    zf_group_hyper_t hyper[ZX_MAX_GROUPS];
    double *norm = host_norm ? make_norm(h) : NULL;
    zf_step_args_t args = {.struct_size = sizeof args,
                           .flags = flags,
                           .groups = hyper,
                           .n_groups = h->c->n_groups,
                           .elem_size = sizeof *hyper,
                           .unscale = h->unscale,
                           .clip_norm = h->clip_norm,
                           .host_norm = norm,
                           .stream = &h->stream};
    zs_fault_t wrong;
    fill_hyper(h, groups, hyper);
    if (h->c->ranks) {
        zs_count_step(h->c->ranks, h->c);
        wrong = zs_misbehave(h->c->ranks, h->step, hyper, &args.flags);
        if (wrong == ZS_FLUSH)
            zx_host_quiesce(h, ZF_QUIESCE_FLUSH);
        if (wrong == ZS_FETCH)
            h->fetches = zx_rng(h->c->seed, 84, h->c->index);
    }
    if (norm) {
        norm[0] = -1e30;
        norm[1] = *host_norm;
        zx_launch(h, set_norm, norm);
    }
    *out = (zf_step_report_t){.struct_size = sizeof *out};
    zf_status_t st = h->is_dry ? ZF_OK : h->zf->step(h->instance, &args, out, &h->err);
    h->is_quiet = (flags & ZF_STEP_WAIT) != 0;
    memset(hyper, 0xFF, sizeof hyper); /* borrowed for the call only */
    if (norm)
        zx_launch(h, h->is_on_gpu ? scribble_norm : scribble_and_free_norm, norm);
    zx_is_call_bad(h, "step", st);
    take_back(h, (flags & ZF_STEP_DISCARD) != 0);
    return st;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

typedef struct zx_look {
    zx_host_t *h;
    int law;
    uint64_t step;
    unsigned char *images[ZX_MAX_PARAMS]; /* NULL = left out */
} zx_look_t;

static void compare_image(const zx_look_t *look, uint32_t i) {
    const zx_param_t *p = &look->h->c->params[i];
    zx_where_t where = {.law = look->law, .what = "visible", .param = p->name, .step = look->step};
    uint32_t expected, found;
    if (memcmp(p->array->mem, look->images[i], p->array->mem_nbytes) != 0) {
        where.element = zx_array_first_difference(p->array, look->images[i], &expected, &found);
        if (where.element == UINT64_MAX)
            zx_fails(look->h->result, &where, "bytes beside its elements were overwritten");
        else
            zx_differs(look->h->result, &where, expected, found, p->decl.dtype == ZO_F32 ? 8 : 4);
    }
    zx_count(look->h->result, look->law, p->array->n_elems);
}

static void look_now(void *arg) {
    zx_look_t *look = arg;
    for (uint32_t i = 0; i < look->h->c->n_params; i++)
        if (look->images[i]) {
            compare_image(look, i);
            free(look->images[i]);
        }
    free(look);
}

void zx_host_fetch(zx_host_t *h, const zf_param_item_t *items, uint32_t n) {
    if (h->shards)
        zs_fetch_some(h, items, n);
    else
        zx_host_fetch_items(h, items, n);
}

void zx_host_look(zx_host_t *h, const void *const *expected, int law) {
    zf_param_item_t items[ZX_MAX_PARAMS];
    uint32_t n = 0;
    uint8_t is_looked_at[ZX_MAX_PARAMS] = {0};
    int is_released = zx_chance(&h->c->rng, 30);
    zx_look_t *look = zx_alloc(sizeof *look);
    *look = (zx_look_t){.h = h, .law = law, .step = h->step};
    for (uint32_t i = 0; i < h->c->n_params; i++)
        if (expected[i]) {
            look->images[i] = zx_array_image(h->c->params[i].array, expected[i]);
            items[n++] = zx_host_item(h, i);
            is_looked_at[i] = 1;
        }
    if (h->shards)
        zs_fetch_look(h, is_looked_at);
    zs_look_for_errors(h);
    for (uint32_t i = 0; i < h->c->n_params && h->is_on_gpu; i++)
        if (look->images[i] && !(h->shards && h->is_sharded[i]))
            zx_device_pull(h->c->params[i].array);
    zx_launch(h, look_now, look);
    if (n > 0 && h->c->mode % 2 && is_released)
        zx_host_release_items(h, items, n);
}

/* ---- control calls ----------------------------------------------------------------------------------------------- */

void zx_host_overwrite(zx_host_t *h, uint32_t param, const zo_range_t *range, const void *values, int is_reset) {
    zf_param_item_t item = zx_host_item(h, param);
    item.first_batch = range->first_batch;
    item.n_batches = range->n_batches;
    zx_host_sync(h);
    if (h->shards && h->is_sharded[param]) {
        zs_fetch_overwrite(h, param, values, is_reset);
        return;
    }
    zx_host_write(h, h->c->params[param].array, values);
    zx_host_changed(h, &item, 1, is_reset ? ZF_CHANGED_RESET : 0);
}

int zx_host_can_look_unfetched(const zx_host_t *h) { return h->is_async || h->is_quiet; }
