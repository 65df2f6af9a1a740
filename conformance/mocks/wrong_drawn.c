/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_drawn.c - habits that show where cases draw widely: whole matrices, memory that carries, calls in mid-step and
 * at the end, a second name, edits that are held (wrong.h). */
#include <stdlib.h>
#include <string.h>

#include "wrong.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/matrix.h"
#include "zf/ext/draft/plan.h"

enum { MOST = 2048 };

static zf_plugin_t below; /* as the other files have made it */
static uint8_t is_tied[MOST];
static const zf_tensor_t *carrying[MOST]; /* of the newest set, what carries */
static uint32_t n_bound;
static int has_gradients, rests;

/* ---- whole matrices ---------------------------------------------------------------------------------------------- */

static zf_matrix_rules_t rules; /* the host's */

static void spoil(zf_matrix_update_t *u, const zf_matrix_update_t *first) {
    if (IS(whole_batch_lost))
        u->batch = 0;
    if (IS(whole_count_stays))
        u->n = 1;
    if (IS(whole_scale_in_double))
        u->s *= 1.0 + 0x1p-40;
    if (IS(whole_of_first_group)) {
        u->lr = first->lr;
        u->eps = first->eps;
    }
    if (IS(whole_eps_usual))
        u->eps = 1e-8;
}

static int32_t update(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    zf_matrix_update_t *mine = calloc(n, sizeof *mine);
    for (uint32_t i = 0; i < n && elem_size >= sizeof *mine; i++) {
        memcpy(&mine[i], (const char *)updates + (size_t)i * elem_size, sizeof *mine);
        spoil(&mine[i], mine);
    }
    int32_t code = rules.update(ctx, mine, n, sizeof *mine);
    free(mine);
    return code;
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *ids, zf_bind_report_t *out,
                               zf_error_t *err) {
    static zf_matrix_rules_t my_rules;
    zf_bind_args_t mine;
    if (!args || args->struct_size != sizeof mine || !args->decls || args->decl_size != sizeof *args->decls)
        return below.bind_params(x, args, ids, out, err);
    mine = *args;
    const zf_matrix_rules_t *chained = mine.next;
    if (chained && chained->struct_size == sizeof rules && strcmp(chained->id, ZF_EXT_MATRIX) == 0 && chained->update) {
        rules = my_rules = *chained;
        my_rules.update = update;
        mine.next = &my_rules;
    }
    zf_status_t st = below.bind_params(x, &mine, ids, out, err);
    n_bound = st == ZF_OK ? args->n_decls : n_bound;
    for (uint32_t i = 0; st == ZF_OK && i < args->n_decls && i < MOST; i++) {
        is_tied[i] = (args->decls[i].flags & ZF_PARAM_TIED) != 0;
        carrying[i] = args->decls[i].flags & ZF_PARAM_CARRIES ? args->decls[i].tensor : NULL;
    }
    has_gradients = rests = 0;
    return st;
}

/* ---- gradients and steps ----------------------------------------------------------------------------------------- */

/* Parts by a second name count as nothing. */
static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    static const double zeros[2];
    static int64_t strides[ZF_MAX_NDIM];
    static zf_grad_item_t mine[MOST];
    static zf_tensor_t tensors[MOST];
    if (!x || !items || n > MOST || elem_size != sizeof *mine)
        return below.grads_ready(x, items, n, elem_size, stream, out, err);
    memcpy(mine, items, n * sizeof *mine);
    for (uint32_t i = 0; i < n && IS(parts_by_tied_name_lost); i++) {
        const zf_tensor_t *t = items[i].tensor;
        if (items[i].id >= MOST || !is_tied[items[i].id] || !(items[i].flags & ZF_GRAD_PART) || items[i].n_batches ||
            !t || t->struct_size != sizeof *t || t->nbytes == 0)
            continue;
        tensors[i] = *t;
        tensors[i].dl.data = (void *)(uintptr_t)zeros;
        tensors[i].dl.byte_offset = 0;
        tensors[i].dl.strides = strides;
        tensors[i].nbytes = sizeof *zeros;
        mine[i].tensor = &tensors[i];
    }
    zf_status_t st = below.grads_ready(x, mine, n, elem_size, stream, out, err);
    has_gradients |= st >= 0;
    return st;
}

static zf_status_t step(zf_instance_t *x, const zf_step_args_t *args, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.step(x, args, out, err);
    has_gradients = rests = 0;
    if (IS(missing_of_skipped_lost) && st >= 0 && out && out->struct_size == sizeof *out && !out->applied) {
        out->n_missing = 0;
        out->first_missing = ZF_NO_ID;
    }
    return st;
}

static zf_status_t poll_writing(zf_instance_t *x, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.poll(x, out, err);
    if (st == ZF_ERR_OVERWRITTEN && out && out->struct_size == sizeof *out)
        out->step = 0;
    return st;
}

/* ---- rest and end ------------------------------------------------------------------------------------------------ */

/* The masters of fp32 memory that carries, where values lie, or gradients. */
static void show_carried(zf_instance_t *x) {
    for (uint32_t i = 0; i < n_bound && i < MOST; i++)
        if (carrying[i] && carrying[i]->dl.dtype.bits == 32 && carrying[i]->nbytes) {
            const zf_export_item_t item = {
                .struct_size = sizeof item,
                .id = i,
                .dst = (float *)(void *)((char *)carrying[i]->dl.data + carrying[i]->dl.byte_offset),
                .dst_nbytes = carrying[i]->nbytes};
            below.export_params(x, &item, 1, sizeof item, NULL);
        }
}

static zf_status_t quiesce(zf_instance_t *x, const zf_quiesce_args_t *args, zf_error_t *err) {
    zf_quiesce_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return below.quiesce(x, args, err);
    mine = *args;
    if (IS(flush_in_time_drains) && mine.deadline_ms)
        mine.mode = ZF_QUIESCE_DRAIN;
    zf_status_t st = below.quiesce(x, &mine, err);
    rests |= st == ZF_OK;
    if (IS(carried_shown_by_flush) && st == ZF_OK && mine.mode == ZF_QUIESCE_FLUSH)
        show_carried(x);
    return st;
}

static void destroy(zf_instance_t *x, const zf_destroy_args_t *args) {
    zf_destroy_args_t mine = {.struct_size = sizeof mine};
    int is_plain = args && args->struct_size == sizeof mine;
    if (is_plain)
        mine.flags = (IS(end_from_rest_drains) && rests) || (IS(end_in_step_drains) && has_gradients)
                         ? args->flags & ~ZF_DESTROY_FLUSH
                         : args->flags;
    below.destroy(x, is_plain ? &mine : args);
}

/* ---- extensions -------------------------------------------------------------------------------------------------- */

static const zf_digest_ext_t *digest;
static const zf_plan_ext_t *plan_ext;

static zf_status_t written(zf_instance_t *x, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                           zf_error_t *err) {
    return digest->written(x, flags == ZF_WRITTEN_HOLD ? ZF_WRITTEN_LOOK : flags, ids, n, out, err);
}

static zf_status_t plan(const zf_plan_args_t *args, zf_plan_t *out, zf_error_t *err) {
    zf_status_t st = plan_ext->plan(args, out, err);
    if (st == ZF_OK && out->struct_size == sizeof *out && out->n_matrices > 512)
        out->host_nbytes -= out->host_nbytes / 64;
    return st;
}

const void *wrong_break_table_drawn(const char *id, const void *table) {
    static zf_digest_ext_t my_digest;
    static zf_plan_ext_t my_plan;
    if (table && IS(held_never) && strcmp(id, ZF_EXT_DIGEST) == 0) {
        my_digest = *(digest = table);
        my_digest.written = written;
        return &my_digest;
    }
    if (table && IS(plan_of_512) && strcmp(id, ZF_EXT_PLAN) == 0) {
        my_plan = *(plan_ext = table);
        my_plan.plan = plan;
        return &my_plan;
    }
    return table;
}

void wrong_break_drawn(zf_plugin_t *table) {
    below = *table;
    table->bind_params = bind_params;
    table->grads_ready = grads_ready;
    table->step = step;
    table->quiesce = quiesce;
    table->destroy = destroy;
    if (IS(refused_poll_writes))
        table->poll = poll_writing;
}
