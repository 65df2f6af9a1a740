/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/scalars.c - a step's scalars (contract in scalars.h). */
#include "step/scalars.h"

#include "instance/memory.h"
#include "ranks/ranks.h"

/* Sends the step's row up. */
static void send_input(const zfi_device_side_t *side, const zfi_step_row_t *row) {
    zfi_list_copy(&side->engine->to_device, ZFI_OP_UP, zfi_device_input_memory(side->dev, row->t), row->input,
                  side->dev->input_nbytes);
}

/* Each rank has made its part: the device waits for those of all. Where each keeps a part of the state, the last
 * bucket's selected channels follow, which are not waited for yet. */
static void exchange_parts(zfi_ranks_t *ranks, uint64_t t) {
    zfi_engine_t *engine = ranks->engine;
    uint64_t number;
    zf_status_t st = zfi_ranks_norm(ranks, t, &number);
    if (!st && zfi_ranks_selects(ranks, t))
        st = zfi_ranks_select(ranks, t);
    zfi_ranks_await_norm(ranks, number);
    if (st)
        zfi_list_fail(&engine->to_device, st);
}

void zfi_scalars_make(const zfi_device_side_t *side, zfi_ranks_t *ranks, const zfi_step_row_t *row) {
    zfi_engine_t *engine = side->engine;
    zfi_list_t *device = &engine->to_device;
    uint64_t t = row->t;
    int has_parts = zfi_has_norm_parts(engine);
    zfi_member_t place = has_parts ? zfi_norm_member(engine) : (zfi_member_t){0, 1};
    zfi_norm_part_t *parts = has_parts ? zfi_norm_parts(ranks) : side->dev->part;
    zfi_norm_part_args_t part = {side->dev->data, zfi_device_input(side->dev, t), parts + place.rank};
    zfi_scalars_args_t whole = {parts,          place.n_ranks,  row->unscale,
                                row->clip_norm, row->host_norm, zfi_device_scalars(side->dev, t)};
    send_input(side, row);
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_NORM_PART, &part, sizeof part));
    if (has_parts)
        exchange_parts(ranks, t);
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_SCALARS, &whole, sizeof whole));
    zfi_list_add(device, zfi_op_signal(&engine->lines.finished, t));
}

/* A part is written where an older one was counted. */
static void send_record(const zfi_device_side_t *side, const zfi_selection_t *sel, uint64_t t) {
    zfi_engine_t *engine = side->engine;
    const zfi_plan_t *plan = side->plan;
    uint64_t number = zfi_first_record_part(plan, t);
    for (uint64_t at = 0; at < plan->n_sums; at += plan->record_sums, number++) {
        uint64_t left = plan->n_sums - at, n = left < plan->record_sums ? left : plan->record_sums;
        if (number >= ZFI_RECORD_DEPTH)
            zfi_list_add(&engine->to_down, zfi_op_wait(&engine->lines.counted, number + 1 - ZFI_RECORD_DEPTH, NULL));
        zfi_list_copy(&engine->to_down, ZFI_OP_DOWN, zfi_record_part(plan, sel, number),
                      side->dev->head.sums[t & 1] + at, n * sizeof(double));
        zfi_list_add(&engine->to_down, zfi_op_signal(&engine->lines.recorded, number + 1));
    }
    atomic_fetch_add(&engine->count.down_record_nbytes, plan->n_sums * sizeof(double) + sizeof(zfi_step_scalars_t));
}

void zfi_scalars_down(const zfi_device_side_t *side, const zfi_selection_t *sel, zfi_step_row_t *row) {
    zfi_engine_t *engine = side->engine;
    uint64_t t = row->t;
    zfi_list_t *down = &engine->to_down;
    zfi_list_add(down, zfi_op_wait(&engine->lines.finished, t, NULL));
    if (t > ZFI_RECORD_DEPTH)
        zfi_list_add(down, zfi_op_wait(&engine->lines.control, t - ZFI_RECORD_DEPTH, NULL));
    zfi_list_copy(down, ZFI_OP_DOWN, &row->scalars, zfi_device_scalars(side->dev, t), sizeof(zfi_step_scalars_t));
    zfi_list_add(down, zfi_op_signal(&engine->lines.down, t));
    if (side->plan->n_record_parts <= 1)
        send_record(side, sel, t);
}

void zfi_scalars_record(const zfi_device_side_t *side, const zfi_selection_t *sel, uint64_t t) {
    if (side->plan->n_record_parts > 1)
        send_record(side, sel, t);
}

void zfi_scalars_report(const zfi_device_side_t *side, zfi_step_row_t *row) {
    zfi_engine_t *engine = side->engine;
    zfi_list_t *device = &engine->to_device;
    uint64_t t = row->t;
    zfi_report_args_t args = {side->dev->data, zfi_device_scalars(side->dev, t), &row->reported};
    if (row->waits_for_down)
        zfi_list_add(device, zfi_op_wait(&engine->lines.down, t, &engine->count.stall_pool_ns));
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_REPORT, &args, sizeof args));
    zfi_list_add(device, zfi_op_signal(&engine->lines.stepped, t));
}
