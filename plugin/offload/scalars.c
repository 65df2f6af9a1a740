/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/scalars.c - a step's scalars (contract in scalars.h). */
#include "offload/scalars.h"

zf_status_t zfi_scalars_input(zfi_run_t *run, uint64_t t) {
    const zfi_step_row_t *row = zfi_row(run, t);
    zfi_range_t range = {zfi_device_input_memory(run, t), row->input, run->dev.input_nbytes};
    zfi_op_t op = zfi_op_up(&range, 1);
    return zfi_enqueue(run->engine, run->engine->stream, &op, 1);
}

zf_status_t zfi_scalars_make(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    const zfi_step_row_t *row = zfi_row(run, t);
    uint32_t rank = engine->comm_ops->rank(engine->comm), n_ranks = engine->comm_ops->size(engine->comm);
    zfi_norm_part_args_t part = {run->dev.data, zfi_device_input(run, t), run->dev.parts + rank};
    zfi_scalars_args_t whole = {run->dev.parts, n_ranks,        row->unscale,
                                row->clip_norm, row->host_norm, zfi_device_scalars(run, t)};
    zfi_op_t first = zfi_op_launch(ZFI_KERNEL_NORM_PART, &part, sizeof part);
    zfi_op_t last[] = {zfi_op_launch(ZFI_KERNEL_SCALARS, &whole, sizeof whole),
                       zfi_op_signal(&engine->lines.finished, t)};
    zf_status_t st = zfi_scalars_input(run, t);
    if (!st)
        st = zfi_enqueue(engine, engine->stream, &first, 1);
    if (!st)
        st = engine->comm_ops->all_gather(engine->comm, engine->stream, run->dev.parts, sizeof *run->dev.parts);
    return st ? st : zfi_enqueue(engine, engine->stream, last, 2);
}

zf_status_t zfi_scalars_record(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    uint64_t nbytes = run->plan.n_sums * sizeof(double);
    zfi_range_t ranges[2] = {{&zfi_row(run, t)->scalars, zfi_device_scalars(run, t), sizeof(zfi_step_scalars_t)},
                             {run->sel.records[t % ZFI_RECORD_DEPTH], run->dev.head.sums[t & 1], nbytes}};
    zfi_op_t ops[4];
    uint32_t n = 0;
    ops[n++] = zfi_op_wait(&engine->lines.finished, t, NULL);
    if (t > ZFI_RECORD_DEPTH)
        ops[n++] = zfi_op_wait(&engine->lines.control, t - ZFI_RECORD_DEPTH, NULL);
    ops[n++] = zfi_op_down(ranges, nbytes ? 2 : 1);
    ops[n++] = zfi_op_signal(&engine->lines.down, t);
    atomic_fetch_add(&engine->count.down_record_nbytes, nbytes + sizeof(zfi_step_scalars_t));
    return zfi_enqueue(engine, engine->down_stream, ops, n);
}

zf_status_t zfi_scalars_report(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    zfi_step_row_t *row = zfi_row(run, t);
    zfi_report_args_t args = {run->dev.data, zfi_device_scalars(run, t), &row->reported, &row->n_skipped};
    zfi_op_t ops[3];
    uint32_t n = 0;
    if (row->waits_for_down)
        ops[n++] = zfi_op_wait(&engine->lines.down, t, &engine->count.stall_pool_ns);
    ops[n++] = zfi_op_launch(ZFI_KERNEL_REPORT, &args, sizeof args);
    ops[n++] = zfi_op_signal(&engine->lines.stepped, t);
    return zfi_enqueue(engine, engine->stream, ops, n);
}
