/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_sentences.c - habits that each break one sentence of the headers, written from their text alone, with no look
 * at the suite (wrong.h). A habit puts its own function in place of one or two slots of the wrong plugin's table. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "wrong.h"

enum { MAX_ITEMS = 2048 };

static zf_plugin_t below; /* as the other files have made it */
static uint32_t n_missed; /* of the newest instance, as the next */
static uint64_t n_all;    /* steps and DISCARDs */
static zf_stream_t thread_stream = {
    .struct_size = sizeof(zf_stream_t), .kind = ZF_STREAM_HOST_THREAD, .device_type = 1};

/* ---- create ------------------------------------------------------------------------------------------------------ */

static pthread_t creator;

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t mine;
    zf_host_t host;
    if (!args || args->struct_size != sizeof mine || !args->host || args->host->struct_size != sizeof host)
        return below.create(args, out, err);
    mine = *args;
    n_all = n_missed = 0;
    creator = pthread_self();
    if (IS(text_up_to_its_end) && mine.config_text)
        mine.config_text_nbytes = 0;
    if (IS(overrides_of_text_only) && mine.config_path)
        mine.n_overrides = 0;
    return below.create(&mine, out, err);
}

static void destroy(zf_instance_t *x, const zf_destroy_args_t *args) {
    static const zf_destroy_args_t flush = {.struct_size = sizeof flush, .flags = ZF_DESTROY_FLUSH};
    below.destroy(x, args ? &flush : NULL);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static const zf_instance_t *bound;

/* 1: mine is args with declarations of a copy. */
static int spoil_groups(const zf_bind_args_t *args, zf_bind_args_t *mine) {
    static zf_param_decl_t decls[MAX_ITEMS];
    if (!IS(group_lost_in_many) || !args || args->struct_size != sizeof *mine || args->n_decls <= 100 ||
        args->n_decls > MAX_ITEMS || args->decl_size != sizeof *decls)
        return 0;
    *mine = *args;
    memcpy(decls, args->decls, args->n_decls * sizeof *decls);
    for (uint32_t i = 0; i < args->n_decls; i++)
        decls[i].group = 0;
    mine->decls = decls;
    return 1;
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *ids, zf_bind_report_t *out,
                               zf_error_t *err) {
    zf_bind_args_t mine;
    zf_status_t st = below.bind_params(x, spoil_groups(args, &mine) ? &mine : args, ids, out, err);
    if (IS(moved_forgets) && st == ZF_OK && bound == x)
        below.params_changed(x, NULL, 0, 0, ZF_CHANGED_RESET, NULL);
    bound = st == ZF_OK ? x : bound;
    return st;
}

static zf_status_t params_changed(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    return below.params_changed(x, n ? items : NULL, n, elem_size, flags, err);
}

static zf_status_t export_params(zf_instance_t *x, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    if (IS(export_flushes) && x)
        below.quiesce(x, &flush, NULL);
    return below.export_params(x, items, n, elem_size, err);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static int has_gradients;

static void spoil(zf_grad_item_t *item, zf_tensor_t *tensor) {
    if (IS(reads_late) && !(item->flags & ZF_GRAD_LENT))
        item->flags |= ZF_GRAD_ASYNC_READ;
    if (IS(gradient_offset_lost) && item->tensor && item->tensor->struct_size == sizeof *tensor) {
        *tensor = *item->tensor;
        tensor->dl.byte_offset = 0;
        item->tensor = tensor;
    }
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    static zf_grad_item_t mine[MAX_ITEMS];
    static zf_tensor_t tensors[MAX_ITEMS];
    if (IS(of_one_thread) && !pthread_equal(creator, pthread_self()))
        return wrong_refuse(err, ZF_ERR_STATE);
    if (!items || n > MAX_ITEMS || elem_size != sizeof *mine)
        return below.grads_ready(x, items, n, elem_size, stream, out, err);
    memcpy(mine, items, n * sizeof *mine);
    for (uint32_t i = 0; i < n; i++)
        spoil(&mine[i], &tensors[i]);
    zf_status_t st = below.grads_ready(x, mine, n, elem_size, stream, out, err);
    has_gradients |= st >= 0;
    return st;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void spoil_step(zf_step_args_t *a, zf_group_hyper_t *groups) {
    if (IS(epoch_of_discard_lost) && a->flags & ZF_STEP_DISCARD)
        a->flags &= ~ZF_STEP_EPOCH_END;
    for (uint32_t i = 0; IS(rate_of_zero_raised) && a->groups && i < a->n_groups && i < 64; i++) {
        groups[i] = a->groups[i];
        if (groups[i].lr == 0.0)
            groups[i].lr = 1e-9;
        a->groups = groups;
    }
}

static void spoil_report(zf_step_report_t *r) {
    if (IS(bad_norm_as_zero) && !(r->grad_norm - r->grad_norm == 0.0))
        r->grad_norm = 0.0;
    if (IS(discards_counted))
        r->submitted_step = n_all;
    if (IS(missing_for_ever)) {
        n_missed += r->n_missing;
        r->n_missing = n_missed;
    }
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *args, zf_step_report_t *out, zf_error_t *err) {
    zf_step_args_t mine;
    zf_group_hyper_t groups[64];
    if (!args || args->struct_size != sizeof mine || args->elem_size != sizeof *groups)
        return below.step(x, args, out, err);
    if (IS(of_one_thread) && !pthread_equal(creator, pthread_self()))
        return wrong_refuse(err, ZF_ERR_STATE);
    mine = *args;
    spoil_step(&mine, groups);
    zf_status_t st = below.step(x, &mine, out, err);
    if (st < 0)
        return st;
    n_all++;
    has_gradients = 0;
    if (out && out->struct_size == sizeof *out)
        spoil_report(out);
    return st;
}

static zf_status_t poll_never(zf_instance_t *x, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.poll(x, out, err);
    return st == ZF_OK ? ZF_IN_PROGRESS : st;
}

/* ---- rest -------------------------------------------------------------------------------------------------------- */

static zf_status_t quiesce(zf_instance_t *x, const zf_quiesce_args_t *args, zf_error_t *err) {
    static const zf_group_hyper_t any[64] = {{.struct_size = sizeof *any}};
    const zf_step_args_t drop = {.struct_size = sizeof drop,
                                 .flags = ZF_STEP_DISCARD,
                                 .groups = any,
                                 .n_groups = 1,
                                 .elem_size = sizeof *any,
                                 .stream = &thread_stream};
    zf_quiesce_args_t mine;
    if (IS(deadline_of_zero_is_short) && args && args->struct_size == sizeof mine && !args->deadline_ms) {
        mine = *args;
        mine.deadline_ms = 1;
        return below.quiesce(x, &mine, err);
    }
    zf_status_t st = below.quiesce(x, args, err);
    if (IS(rest_discards) && st == ZF_OK && has_gradients)
        below.step(x, &drop, NULL, NULL);
    return st;
}

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    zf_status_t st = below.describe(out, err);
    if (st == ZF_OK && out->struct_size == sizeof *out)
        out->abi = ZF_ABI_NUMBER(0, 1);
    return st;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

void wrong_break_sentence(zf_plugin_t *table) {
    below = *table;
    thread_stream.device_type = ZF_DEVICE_CPU;
    table->create = create;
    if (IS(destroy_takes_any_args))
        table->destroy = destroy;
    if (IS(moved_forgets) || IS(group_lost_in_many))
        table->bind_params = bind_params;
    if (IS(empty_list_is_all))
        table->params_changed = params_changed;
    if (IS(export_flushes))
        table->export_params = export_params;
    if (IS(reads_late) || IS(gradient_offset_lost) || IS(of_one_thread) || IS(rest_discards))
        table->grads_ready = grads_ready;
    table->step = step;
    if (IS(poll_never_done))
        table->poll = poll_never;
    if (IS(rest_discards) || IS(deadline_of_zero_is_short))
        table->quiesce = quiesce;
    if (IS(describes_old_abi))
        table->describe = describe;
    wrong_break_again(table);
    wrong_break_third(table);
    wrong_break_lists(table);
    wrong_break_drawn(table);
}
