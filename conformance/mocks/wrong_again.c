/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_again.c - a second round of wrong_sentences.c, written when the first was caught (wrong.h). */
#include <math.h>
#include <string.h>

#include "wrong.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/state.h"

enum { MAX_ITEMS = 2048 };

static zf_plugin_t below; /* as the other files have made it */

/* ---- the host's rule, the log -------------------------------------------------------------------------------------
 */

static zf_rule_callback_t rules[64];

static int32_t update(void *ctx, const zf_rule_update_t *given) {
    const zf_rule_callback_t *rule = ctx;
    zf_rule_update_t mine = *given;
    if (IS(rule_group_zero))
        mine.group = 0;
    if (IS(elements_off))
        mine.first++;
    if (IS(first_of_1024))
        mine.first %= 1024;
    int32_t code = rule->update(rule->ctx, &mine);
    return IS(rule_failure_lost) ? 0 : code;
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *ids, zf_bind_report_t *out,
                               zf_error_t *err) {
    static zf_rule_callback_t callbacks[64];
    static zf_group_decl_t groups[64];
    zf_bind_args_t mine;
    if (!args || args->struct_size != sizeof mine || !args->groups || args->n_groups > 64 ||
        args->group_size != sizeof *groups)
        return below.bind_params(x, args, ids, out, err);
    mine = *args;
    mine.groups = groups;
    memcpy(groups, args->groups, args->n_groups * sizeof *groups);
    for (uint32_t i = 0; i < args->n_groups; i++) {
        if (groups[i].rule != ZF_RULE_CALLBACK || !groups[i].callback || !groups[i].callback->update)
            continue;
        callbacks[i] = rules[i] = *groups[i].callback;
        callbacks[i].ctx = &rules[i];
        callbacks[i].update = update;
        groups[i].callback = &callbacks[i];
    }
    return below.bind_params(x, &mine, ids, out, err);
}

static zf_host_t talker;

static void log_loudly(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                       uint64_t len) {
    talker.log(ctx, level == ZF_LOG_WARN ? ZF_LOG_ERROR : level, component, file, line, msg, len);
}

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t mine;
    zf_host_t host;
    if (!args || args->struct_size != sizeof mine || !args->host || args->host->struct_size != sizeof host ||
        !args->host->log)
        return below.create(args, out, err);
    mine = *args;
    host = talker = *mine.host;
    host.log = log_loudly;
    mine.host = &host;
    return below.create(&mine, out, err);
}

/* ---- gradients ----------------------------------------------------------------------------------------------------
 */

static zf_grad_item_t pending[MAX_ITEMS]; /* the newest delivery since the last step */
static uint32_t n_pending;
static zf_stream_t thread_stream;
static uint8_t n_given[MAX_ITEMS];

static int is_too_many(const zf_grad_item_t *item, uint32_t n_before) {
    return (IS(first_total_counts) && item->flags & ZF_GRAD_TOTAL && n_before) ||
           (IS(parts_from_17) && item->flags & ZF_GRAD_PART && n_before >= 16);
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    static zf_grad_item_t mine[MAX_ITEMS];
    static zf_tensor_t tensors[MAX_ITEMS];
    uint32_t kept = 0;
    if (!items || !stream || n > MAX_ITEMS || elem_size != sizeof *mine)
        return below.grads_ready(x, items, n, elem_size, stream, out, err);
    for (uint32_t i = 0; i < n; i++) {
        mine[kept] = items[i];
        if (IS(gradient_strides_lost) && items[i].tensor && items[i].tensor->struct_size == sizeof *tensors) {
            tensors[kept] = *items[i].tensor;
            tensors[kept].dl.strides = NULL;
            mine[kept].tensor = &tensors[kept];
        }
        if (items[i].id < MAX_ITEMS && is_too_many(&items[i], n_given[items[i].id]++))
            continue;
        kept++;
    }
    if (kept == 0 && n > 0) {
        if (out)
            out->kind = ZF_FENCE_NONE;
        return ZF_OK;
    }
    zf_status_t st = below.grads_ready(x, mine, kept, elem_size, stream, out, err);
    if (st >= 0 && stream->kind == ZF_STREAM_HOST_THREAD) {
        memcpy(pending, items, n * sizeof *items);
        n_pending = n;
        thread_stream = *stream;
    }
    return st;
}

static void drop_gradients(zf_instance_t *x) {
    static zf_group_hyper_t any[64];
    zf_step_args_t drop = {.struct_size = sizeof drop, .flags = ZF_STEP_DISCARD, .groups = any, .n_groups = 64};
    for (int i = 0; i < 64; i++)
        any[i] = (zf_group_hyper_t){.struct_size = sizeof *any, .eps = 1e-8};
    drop.elem_size = sizeof *any;
    drop.stream = &thread_stream;
    if (n_pending)
        below.step(x, &drop, NULL, NULL);
    n_pending = 0;
}

static zf_status_t params_changed(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    zf_status_t st = below.params_changed(x, items, n, elem_size, flags, err);
    if (st == ZF_OK)
        drop_gradients(x);
    return st;
}

static zf_status_t export_params(zf_instance_t *x, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    static zf_export_item_t mine[MAX_ITEMS];
    if (elem_size != sizeof *mine || n > MAX_ITEMS || !items)
        return below.export_params(x, items, n, elem_size, err);
    memcpy(mine, items, n * sizeof *mine);
    for (uint32_t i = 0; i + 1 < n; i++)
        if (mine[i].id > mine[i + 1].id && mine[i].dst_nbytes == mine[i + 1].dst_nbytes) {
            float *kept = mine[i].dst;
            mine[i].dst = mine[i + 1].dst, mine[i + 1].dst = kept;
        }
    return below.export_params(x, mine, n, elem_size, err);
}

/* ---- steps --------------------------------------------------------------------------------------------------------
 */

static zf_step_report_t former, newest;

static void spoil_report(const zf_step_args_t *args, zf_step_report_t *r) {
    if (IS(factor_of_skipped_is_one) && r->has_report && !r->applied)
        r->clip_factor = 1.0;
    if (IS(first_blamed_for_norm) && args && args->host_norm && r->skip_reason && r->nonfinite_param == ZF_NO_ID)
        r->nonfinite_param = 0;
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *args, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.step(x, args, out, err);
    if (st < 0)
        return st;
    n_pending = 0;
    memset(n_given, 0, sizeof n_given);
    if (out && out->struct_size == sizeof *out)
        spoil_report(args, out);
    return st;
}

static zf_status_t poll_once(zf_instance_t *x, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.poll(x, out, err);
    if (st < 0 || !out || out->struct_size != sizeof *out)
        return st;
    if (IS(report_before_any))
        out->has_report = 1;
    spoil_report(NULL, out);
    if (out->step != newest.step)
        former = newest, newest = *out;
    if (IS(poll_one_behind) && former.has_report)
        *out = former;
    return st;
}

void wrong_break_again(zf_plugin_t *table) {
    below = *table;
    if (IS(warnings_as_errors))
        table->create = create;
    if (IS(rule_group_zero) || IS(rule_failure_lost) || IS(elements_off) || IS(first_of_1024))
        table->bind_params = bind_params;
    table->grads_ready = grads_ready;
    if (IS(change_drops_gradients))
        table->params_changed = params_changed;
    if (IS(export_by_id))
        table->export_params = export_params;
    table->step = step;
    table->poll = table->poll ? poll_once : NULL;
}

/* ---- zf.state/1, zf.digest/0 --------------------------------------------------------------------------------------
 */

static const zf_state_ext_t *state;
static const zf_digest_ext_t *digest;

static zf_status_t load(zf_instance_t *x, const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_state_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return state->load(x, args, out, err);
    mine = *args;
    if (IS(continue_lost))
        mine.flags &= ~ZF_STATE_CONTINUE;
    zf_status_t st = state->load(x, &mine, out, err);
    if (IS(loaded_without_moments) && st == ZF_OK)
        below.params_changed(x, NULL, 0, 0, ZF_CHANGED_RESET, NULL);
    if (IS(load_keeps_gradients) && st == ZF_OK && n_pending)
        below.grads_ready(x, pending, n_pending, sizeof *pending, &thread_stream, NULL, NULL);
    return st;
}

static zf_status_t digests(zf_instance_t *x, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                           zf_error_t *err) {
    zf_status_t st = digest->digest(x, tensors, n, out, err);
    for (uint32_t i = 0; IS(digests_reversed) && st == ZF_OK && i < n / 2; i++) {
        uint64_t kept = out[i];
        out[i] = out[n - 1 - i], out[n - 1 - i] = kept;
    }
    return st;
}

static zf_status_t written(zf_instance_t *x, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                           zf_error_t *err) {
    zf_status_t st = digest->written(x, flags, ids, n, out, err);
    if (IS(written_never) && st == ZF_OK && n)
        memset(out, 0, n);
    return st;
}

static zf_status_t adopt(zf_instance_t *x, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    (void)x, (void)ids, (void)n, (void)err;
    return ZF_OK;
}

const void *wrong_break_table_again(const char *id, const void *table) {
    static zf_state_ext_t mine;
    static zf_digest_ext_t own;
    if (table && strcmp(id, ZF_EXT_STATE) == 0) {
        mine = *(state = table);
        mine.load = load;
        return &mine;
    }
    if (!table || strcmp(id, ZF_EXT_DIGEST) != 0)
        return table;
    own = *(digest = table);
    own.digest = digests, own.written = written;
    if (IS(adopts_nothing))
        own.adopt = adopt;
    return &own;
}
