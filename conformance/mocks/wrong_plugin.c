/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_plugin.c - the true plugin with one wrong habit, for the question what the suite would miss.
 *
 * Model: the library loads the plugin that ZF_WRONG_OF names, hands out a copy of its tables and forwards every call.
 * The habit that ZF_WRONG names (wrong.def) changes what goes in or what comes out of one slot. Only what the true
 * plugin does is judged beside it, so nothing here is a second engine. One instance at a time has habits that count
 * steps. Here are the hooks; wrong_told.c has refusals, wrong_manners.c the process, wrong_extensions.c the extensions,
 * wrong_file.c what is wrong with the file. */
#define _GNU_SOURCE /* RTLD_NODELETE */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrong.h"

static const char *const names[N_WRONG] = {
#define WRONG(name, kind, part, what) #name,
#include "wrong.def"
#undef WRONG
};

enum { MAX_GROUPS = 64, MAX_PARAMS = 8192, MAX_OVERRIDES = 32, LARGE = 1 << 20 };

int wrong_habit;
static const zf_plugin_t *real; /* written once, before a table is handed out */
static zf_plugin_t table;
static uint64_t n_steps; /* of the newest instance, as all below; the host's thread only */
static int is_dead;      /* of the habit that does not outlive a refusal */
static zf_host_t host;   /* the host's, and what replaces it */
static struct {
    char *at; /* the first element */
    int is_bf16;
} visible[MAX_PARAMS];

/* ---- create ------------------------------------------------------------------------------------------------------ */

static void drop_warning(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                         const char *msg, uint64_t len) {
    if (level > ZF_LOG_WARN)
        host.log(ctx, level, component, file, line, msg, len);
}

static const char *forced_key(void) { return IS(moments_wide) ? "host.moments_dtype=float32" : NULL; }

/* A key that is capped, as it is written over the host's text; NULL where that asks for no more. */
static const char *capped_key(const zf_create_args_t *args) {
    static const struct {
        int habit;
        const char *key, *most;
    } caps[] = {{WRONG_interval_capped, "update_interval", "16"},
                {WRONG_interval_capped_at_32, "update_interval", "32"},
                {WRONG_warm_up_capped, "full_warm_up_rounds", "8"},
                {WRONG_select_capped, "select_interval", "16"}};
    static char out[64];
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        const char *at =
            args->config_text && wrong_habit == caps[i].habit ? strstr(args->config_text, caps[i].key) : NULL;
        if (!at || atoi(at + strlen(caps[i].key) + strlen(" = ")) <= atoi(caps[i].most))
            continue;
        snprintf(out, sizeof out, "zenflow.%s=%s", caps[i].key, caps[i].most);
        return out;
    }
    return NULL;
}

/* A right instance, where the refusal of a wrong call is kept back. */
static zf_status_t create_rightly(const zf_create_args_t *args, zf_instance_t **out) {
    zf_host_t sound = {.struct_size = sizeof sound};
    const zf_create_args_t right = {.struct_size = sizeof right,
                                    .host = &sound,
                                    .device_type = ZF_DEVICE_CPU,
                                    .flags = args->flags & ZF_CREATE_CAP_FETCH};
    return real->create(&right, out, NULL);
}

static zf_status_t create_real(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_status_t st = real->create(args, out, err), told = wrong_told("create", st, err);
    wrong_lose_refused(WRONG_leak_per_refused_create, st);
    return st < 0 && told >= 0 ? create_rightly(args, out) : told;
}

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t mine;
    zf_host_t quiet;
    const char *keys[MAX_OVERRIDES];
    if (!args || args->struct_size != sizeof mine || args->n_overrides >= MAX_OVERRIDES - 1 || !args->host ||
        args->host->struct_size != sizeof quiet)
        return create_real(args, out, err);
    if (IS(wants_extensions) && !args->host->get_extension)
        return wrong_refuse(err, ZF_ERR_ARGUMENT);
    mine = *args;
    wrong_in_create(args->host);
    n_steps = 0;
    is_dead = 0;
    const char *forced = forced_key() ? forced_key() : capped_key(args);
    if (forced) {
        if (mine.n_overrides)
            memcpy(keys, mine.overrides, mine.n_overrides * sizeof *keys);
        keys[mine.n_overrides++] = forced;
        mine.overrides = keys;
    }
    wrong_out_create(&mine);
    wrong_late_create(&mine, keys);
    if (IS(warning_lost) && mine.host->log) {
        host = quiet = *mine.host;
        quiet.log = drop_warning;
        mine.host = &quiet;
    }
    return create_real(&mine, out, err);
}

static void destroy(zf_instance_t *instance, const zf_destroy_args_t *args) {
    static const zf_destroy_args_t flush = {.struct_size = sizeof flush, .flags = ZF_DESTROY_FLUSH};
    wrong_claims_end(instance);
    real->destroy(instance, IS(destroy_drops) ? NULL : IS(destroy_flushes) ? &flush : args);
}

/* ---- bind_params ------------------------------------------------------------------------------------------------- */

static void spoil_decl(zf_param_decl_t *d) {
    uint32_t lost = IS(frozen_trained) ? ZF_PARAM_FROZEN : IS(norm_lost) ? ZF_PARAM_NOT_IN_NORM : 0;
    d->flags &= ~lost;
    if (IS(never_lost) && d->home == ZF_HOME_HOST)
        d->home = ZF_HOME_PLUGIN;
    if (IS(rows_lost))
        d->channels = ZF_CHANNELS_COLUMNS;
    if (IS(batch_lost))
        d->n_batch_axes = 0;
}

static void spoil_report_of_bind(zf_bind_report_t *l) {
    if (IS(layout_elems))
        l->n_elems++;
}

static int has_empty(const zf_param_decl_t *decls, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < decls[i].tensor->dl.ndim; k++)
            if (decls[i].tensor->dl.shape[k] == 0)
                return 1;
    return 0;
}

static void keep_visible(const zf_param_decl_t *decls, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        visible[i].at = (char *)decls[i].tensor->dl.data + decls[i].tensor->dl.byte_offset;
        visible[i].is_bf16 = decls[i].tensor->dl.dtype.code == ZF_DTYPE_CODE_BFLOAT;
    }
}

static const zf_instance_t *bound; /* last */

static zf_status_t bind_params(zf_instance_t *instance, const zf_bind_args_t *args, uint32_t *out_ids,
                               zf_bind_report_t *out_report, zf_error_t *err) {
    static zf_param_decl_t decls[MAX_PARAMS];
    zf_bind_args_t mine;
    if (IS(count_ignored) && instance && args && args->n_decls == 0)
        return ZF_OK;
    if (!args || args->struct_size != sizeof mine || args->decl_size != sizeof *decls || args->n_decls > MAX_PARAMS ||
        !args->decls)
        return wrong_told("bind_params", real->bind_params(instance, args, out_ids, out_report, err), err);
    bound = instance;
    mine = *args;
    mine.decls = decls;
    memcpy(decls, args->decls, mine.n_decls * sizeof *decls);
    for (uint32_t i = 0; i < mine.n_decls; i++) {
        if (IS(null_crash))
            (void)((const volatile zf_tensor_t *)decls[i].tensor)->dl.ndim;
        spoil_decl(&decls[i]);
    }
    zf_status_t st = wrong_told("bind_params", real->bind_params(instance, &mine, out_ids, out_report, err), err);
    wrong_lose_refused(WRONG_leak_per_refused_bind, st);
    st = wrong_claim(instance, &mine, st, err);
    wrong_in_bind();
    if (st < 0)
        return st;
    if (IS(empty_refused) && has_empty(decls, mine.n_decls))
        return wrong_refuse(err, ZF_ERR_SHAPE);
    keep_visible(args->decls, mine.n_decls);
    if (out_report)
        spoil_report_of_bind(out_report);
    return st;
}

static zf_status_t params_changed(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    if (IS(all_changed_ignored) && instance && !items)
        return ZF_OK;
    if (IS(elem_taken) && elem_size == 0)
        elem_size = sizeof *items;
    if (IS(changed_from_17) && n > 16)
        n = 16;
    if (IS(changed_resets))
        flags |= ZF_CHANGED_RESET;
    if (IS(reset_lost))
        flags &= ~ZF_CHANGED_RESET;
    return wrong_told("params_changed", real->params_changed(instance, items, n, elem_size, flags, err), err);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static size_t elements(const zf_tensor_t *t) {
    size_t n = 1;
    for (int32_t i = 0; i < t->dl.ndim; i++)
        n *= (size_t)t->dl.shape[i];
    return n;
}

static int is_plain_fp32(const zf_tensor_t *t) {
    return t->dl.dtype.code == ZF_DTYPE_CODE_FLOAT && t->dl.dtype.bits == 32 && !t->dl.strides && elements(t) > 0;
}

/* Writes into the host's gradient: what a host thread delivers is there already. */
static void spoil_values(const zf_tensor_t *t) {
    float *x = (float *)(void *)((char *)t->dl.data + t->dl.byte_offset);
    size_t n = elements(t);
    if (IS(last_of_large) && n > LARGE)
        x[n - 1] = 0.0f;
    if (IS(elements_of_24_bits) && n > 1 << 24)
        memset(&x[1 << 24], 0, (n - (1 << 24)) * sizeof *x);
    if (IS(nan_hidden) && isnan(x[n - 1]))
        x[n - 1] = 0.0f;
    wrong_out_values(x, n, t->dl.ndim == 2 ? (size_t)t->dl.shape[1] : 1);
    for (size_t i = 0; IS(grad_rounded) && i < n; i++)
        memset(&x[i], 0, 2); /* the lower half */
}

static int is_dropped(const zf_grad_item_t *item) { return IS(params_from_512) && item->id >= 512; }

static void spoil_item(zf_grad_item_t *item, const zf_stream_t *stream) {
    wrong_out_item(item);
    if (IS(replace_lost))
        item->flags &= ~ZF_GRAD_REPLACE;
    if (IS(part_is_total) && item->flags & ZF_GRAD_PART)
        item->flags = (item->flags & ~ZF_GRAD_PART) | ZF_GRAD_TOTAL;
    if (item->tensor && item->tensor->struct_size == sizeof *item->tensor && stream->kind == ZF_STREAM_HOST_THREAD &&
        is_plain_fp32(item->tensor))
        spoil_values(item->tensor);
}

static zf_status_t grads_ready(zf_instance_t *instance, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    static zf_grad_item_t mine[MAX_PARAMS];
    uint32_t kept = 0;
    zf_status_t st;
    if (is_dead)
        return wrong_refuse(err, ZF_ERR_POISONED);
    if (elem_size != sizeof *mine || n > MAX_PARAMS || !items || !stream)
        return wrong_told("grads_ready", real->grads_ready(instance, items, n, elem_size, stream, out_done, err), err);
    for (uint32_t i = 0; i < n; i++) {
        mine[kept] = items[i];
        spoil_item(&mine[kept], stream);
        kept += !is_dropped(&items[i]);
    }
    if (kept == 0 && n > 0 && out_done)
        out_done->kind = ZF_FENCE_NONE;
    if (kept == 0 && n > 0)
        return ZF_OK;
    st = wrong_told("grads_ready", real->grads_ready(instance, mine, kept, elem_size, stream, out_done, err), err);
    if (IS(partly_delivered) && st < 0 && n > 1) {
        mine[0].flags = ZF_GRAD_PART | ZF_GRAD_MORE;
        real->grads_ready(instance, mine, 1, elem_size, stream, NULL, NULL);
    }
    is_dead = IS(dead_after_error) && st == ZF_ERR_SHAPE;
    if (IS(done_at_once) && st >= 0 && out_done)
        out_done->kind = ZF_FENCE_NONE;
    return st;
}

/* ---- step, reports ----------------------------------------------------------------------------------------------- */

static double announced[MAX_GROUPS]; /* learning rates for the coming step, if any were */
static int is_announced, n_discards; /* ... in a row */

static void spoil_hyper(zf_group_hyper_t *h, const zf_group_hyper_t *first) {
    h->lr *= (double)wrong_rate();
    if (IS(beta1_off))
        h->beta1 = h->beta1 > 0 ? (double)nextafterf((float)h->beta1, 0.0f) : h->beta1;
    if (IS(decay_off))
        h->weight_decay = 0.0;
    if (IS(lr_very_late) && n_steps > 3000)
        h->lr *= 1.01;
    if (IS(moments_swap))
        h->beta1 = first->beta2, h->beta2 = first->beta1;
    if (IS(rate_of_half_percent))
        h->lr *= 1.005;
    wrong_out_hyper(h, n_steps);
}

static void spoil_step(zf_step_args_t *a) {
    if (IS(unscale_lost))
        a->unscale = 0.0;
    if (IS(clip_lost))
        a->clip_norm = 0.0;
    if (IS(host_norm_lost))
        a->host_norm = NULL;
    if (IS(unscale_floored) && a->unscale > 0.0)
        a->unscale = fmax(a->unscale, 0x1p-16);
    if (IS(clip_floored) && a->clip_norm > 0.0)
        a->clip_norm = fmax(a->clip_norm, 1e-3);
    wrong_out_step(a);
    if (IS(epoch_lost))
        a->flags &= ~ZF_STEP_EPOCH_END;
    if (IS(discard_steps))
        a->flags &= ~ZF_STEP_DISCARD;
}

static void spoil_report(zf_step_report_t *r) {
    if (IS(norm_ulp))
        r->grad_norm = nextafter(r->grad_norm, INFINITY);
    if (IS(nan_named_last) && r->nonfinite_param != ZF_NO_ID)
        r->nonfinite_param = 2;
    if (IS(nan_left_over) && r->applied)
        r->nonfinite_param = 0;
    if (IS(skip_kind_new))
        r->skip_reason = ZF_SKIP_NONFINITE + 1;
    r->n_present += IS(counts_wrongly);
    if (IS(missing_unsaid)) {
        r->n_missing = 0;
        r->first_missing = ZF_NO_ID;
    }
}

/* Writes into the host's weights where the true plugin does not. */
static void put_first(uint32_t param, float x) {
    memcpy(visible[param].at, (char *)&x + (visible[param].is_bf16 ? 2 : 0), visible[param].is_bf16 ? 2 : 4);
}

static void end_step(zf_status_t st, zf_step_report_t *out_report) {
    if (st < 0 && visible[0].at && IS(half_applied))
        put_first(0, 42.0f);
    if (st < 0 && out_report && IS(writes_on_failure))
        out_report->step = 1;
    if (st >= 0 && IS(gap))
        visible[0].at[-1] ^= 1;
    if (st >= 0 && out_report && out_report->struct_size == sizeof *out_report)
        spoil_report(out_report);
    wrong_end_cancelled(WRONG_cancellable);
}

static zf_status_t announce(zf_instance_t *instance, const zf_step_args_t *args, zf_error_t *err) {
    zf_status_t st = wrong_told("announce", real->announce(instance, args, err), err);
    for (uint32_t i = 0; st >= 0 && args && i < args->n_groups && i < MAX_GROUPS; i++)
        announced[i] = args->groups[i].lr;
    if (st >= 0)
        wrong_late_announced(args);
    is_announced = st >= 0;
    return st;
}

static zf_status_t step(zf_instance_t *instance, const zf_step_args_t *args, zf_step_report_t *out_report,
                        zf_error_t *err) {
    zf_group_hyper_t groups[MAX_GROUPS];
    zf_step_args_t mine;
    if (!args || args->struct_size != sizeof mine || !args->groups || args->n_groups > MAX_GROUPS ||
        args->elem_size != sizeof *groups)
        return wrong_told("step", real->step(instance, args, out_report, err), err);
    if (IS(chain_refused) && args->next)
        return wrong_refuse(err, ZF_ERR_UNSUPPORTED_FIELD);
    mine = *args;
    n_discards = args->flags & ZF_STEP_DISCARD ? n_discards + 1 : 0;
    if (IS(discard_once) && n_discards > 1)
        return ZF_OK;
    wrong_in_step(++n_steps);
    memcpy(groups, args->groups, args->n_groups * sizeof *groups);
    for (uint32_t i = 0; i < args->n_groups; i++)
        spoil_hyper(&groups[i], &args->groups[0]);
    for (uint32_t i = 8; IS(groups_capped) && i < args->n_groups; i++)
        groups[i] = groups[7];
    for (uint32_t i = 0; IS(announced_kept) && is_announced && i < args->n_groups; i++)
        groups[i].lr = announced[i];
    is_announced = 0;
    mine.groups = groups;
    spoil_step(&mine);
    wrong_late_step(&mine, groups);
    zf_status_t st = wrong_told("step", real->step(instance, &mine, out_report, err), err);
    wrong_burn();
    end_step(st, out_report);
    st = wrong_out_stepped(st, out_report && out_report->struct_size == sizeof *out_report ? out_report : NULL);
    return IS(status_new) && st == ZF_SUBMITTED ? ZF_SUBMITTED + 1 : st;
}

static zf_status_t poll_once(zf_instance_t *instance, zf_step_report_t *out_report, zf_error_t *err) {
    zf_step_report_t full = {.struct_size = sizeof full};
    int is_overrun = IS(output_overrun) && out_report && out_report->struct_size >= 8;
    if (IS(poll_waits) && instance)
        real->quiesce(instance,
                      &(zf_quiesce_args_t){.struct_size = sizeof(zf_quiesce_args_t), .mode = ZF_QUIESCE_DRAIN}, NULL);
    zf_status_t st = wrong_told("poll", real->poll(instance, is_overrun ? &full : out_report, err), err);
    if (st >= 0 && is_overrun)
        memcpy((char *)out_report + 4, (char *)&full + 4, sizeof full - 4);
    if (st >= 0 && out_report && out_report->struct_size == sizeof *out_report)
        spoil_report(out_report);
    return IS(poll_too_early) && st == ZF_IN_PROGRESS ? ZF_OK : st;
}

/* ---- fetch, quiesce, export -------------------------------------------------------------------------------------- */

static zf_status_t param_fetch(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (IS(fetch_from_17) && n > 16)
        n = 16;
    if (IS(fetches_all) && n > 0)
        st = real->param_fetch(instance, NULL, 0, elem_size, stream, NULL, NULL);
    st = wrong_told("param_fetch", real->param_fetch(instance, items, n, elem_size, stream, out_ready, err), err);
    if (IS(fetch_waits) && st >= 0 && out_ready)
        real->fence_wait(instance, out_ready, UINT64_C(60000000000), NULL);
    if (IS(fetched_at_once) && st >= 0 && out_ready)
        out_ready->kind = ZF_FENCE_NONE;
    if (IS(fence_kind_new) && st >= 0 && out_ready)
        out_ready->kind = ZF_FENCE_HOST_COUNTER + 1;
    if (IS(layer_differs) && st >= 0 && n > 0 && items->n_batches)
        put_first(items->id, 0.5f);
    return st;
}

static zf_status_t fence_wait(zf_instance_t *instance, const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err) {
    if (IS(fence_timeout_lost) && timeout_ns)
        timeout_ns = UINT64_C(60000000000);
    if (IS(fence_timeout_short))
        timeout_ns /= 1000;
    zf_status_t st = wrong_told("fence_wait", real->fence_wait(instance, fence, timeout_ns, err), err);
    wrong_end_cancelled(WRONG_cancellable_in_wait);
    if (IS(fence_over_at_timeout) && st == ZF_ERR_TIMEOUT)
        return ZF_OK;
    return IS(fence_taken) && st == ZF_ERR_ARGUMENT && fence && fence->kind == ZF_FENCE_HOST_COUNTER ? ZF_OK : st;
}

/* Reads all that a size promises. */
static void read_all(const void *given, uint32_t nbytes) {
    for (uint32_t i = 0; i < nbytes; i++)
        (void)((const volatile unsigned char *)given)[i];
}

static zf_status_t quiesce(zf_instance_t *instance, const zf_quiesce_args_t *args, zf_error_t *err) {
    zf_quiesce_args_t mine = {.struct_size = sizeof mine};
    if (args && IS(absurd_read))
        read_all(args, args->struct_size);
    if (args && IS(long_refused) && args->struct_size > sizeof mine)
        return wrong_refuse(err, ZF_ERR_UNSUPPORTED_FIELD);
    if (args && IS(quiesce_refused) && args->mode == ZF_QUIESCE_DRAIN)
        return wrong_refuse(err, ZF_ERR_INTERNAL);
    if (args && IS(short_taken) && args->struct_size == sizeof mine - 8)
        mine.mode = args->mode;
    else if (args && IS(flush_drains) && args->mode == ZF_QUIESCE_FLUSH)
        mine.mode = ZF_QUIESCE_DRAIN;
    else if (args && IS(drain_flushes) && args->mode == ZF_QUIESCE_DRAIN)
        mine.mode = ZF_QUIESCE_FLUSH;
    else if (args && IS(quiesce_deadline_lost) && args->struct_size == sizeof mine)
        mine = *args, mine.deadline_ms = 0;
    zf_status_t st = wrong_told("quiesce", real->quiesce(instance, mine.mode ? &mine : args, err), err);
    if (IS(timeout_final) && st == ZF_ERR_TIMEOUT && err)
        err->retryable = 0;
    wrong_end_cancelled(WRONG_cancellable_at_rest);
    return st;
}

static zf_status_t export_params(zf_instance_t *instance, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    if (IS(export_from_17) && n > 16)
        n = 16;
    zf_status_t st = wrong_told("export_params", real->export_params(instance, items, n, elem_size, err), err);
    for (uint32_t i = 0; IS(export_visible) && st == ZF_OK && i < n; i++)
        for (uint64_t k = 0; k < items[i].dst_nbytes / 4; k++)
            memset(&items[i].dst[k], 0, visible[items[i].id].is_bf16 ? 2 : 0); /* what bf16 shows */
    if (IS(export_ulp) && st == ZF_OK && n > 0 && items[0].dst_nbytes)
        items[0].dst[0] = nextafterf(items[0].dst[0], INFINITY);
    return st;
}

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    zf_status_t st = real->describe(out, err);
    if (IS(devices_unsaid) && st >= 0 && out->struct_size == sizeof *out)
        out->device_types = 0;
    return st;
}

/* ---- the entry --------------------------------------------------------------------------------------------------- */

static void wrap(const zf_plugin_t *plugin) {
    real = plugin;
    table = *real;
    table.describe = describe;
    table.create = create;
    table.destroy = destroy;
    table.bind_params = bind_params;
    table.params_changed = params_changed;
    table.announce = announce;
    table.grads_ready = grads_ready;
    table.step = step;
    table.poll = IS(slot_missing) ? NULL : poll_once;
    table.param_fetch = param_fetch;
    table.fence_wait = fence_wait;
    table.quiesce = quiesce;
    table.export_params = export_params;
    table.get_extension = wrong_extension;
    if (IS(table_short))
        table.struct_size -= 8;
    wrong_break_sentence(&table);
    wrong_wrap_extensions(real);
}

/* The true plugin's answer; a habit serves whatever ABI is asked for. */
static int32_t negotiate(zf_plugin_negotiate_fn entry, zf_bootstrap_t *boot) {
    static const uint32_t own = ZF_ABI_0_16;
    if (!IS(any_abi) || !boot)
        return entry(boot);
    zf_bootstrap_t mine = *boot;
    mine.abis = &own;
    mine.n_abis = 1;
    int32_t st = entry(&mine);
    boot->plugin = mine.plugin;
    boot->chosen_abi = mine.chosen_abi;
    return st;
}

/* Not by getenv, which the suite watches. */
static const char *variable(const char *name) {
    size_t n = strlen(name);
    for (char **e = environ; *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *boot) {
    const char *file = variable("ZF_WRONG_OF"), *name = variable("ZF_WRONG");
    void *library = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    void *symbol = library ? dlsym(library, ZF_PLUGIN_NEGOTIATE_SYMBOL) : NULL;
    zf_plugin_negotiate_fn entry;
    if (!symbol)
        return ZF_ERR_INTERNAL;
    for (wrong_habit = 0; wrong_habit < N_WRONG && !(name && strcmp(name, names[wrong_habit]) == 0);)
        wrong_habit++;
    if (wrong_habit == N_WRONG)
        return ZF_ERR_INTERNAL;
    memcpy(&entry, &symbol, sizeof entry);
    wrong_in_negotiate();
    if (boot && IS(abis_from_17) && boot->n_abis > 16 && boot->n_abis <= 64)
        boot->n_abis = 16;
    int32_t st = negotiate(entry, boot);
    if (st == 0) {
        wrap(boot->plugin);
        boot->plugin = &table;
    }
    return st;
}
