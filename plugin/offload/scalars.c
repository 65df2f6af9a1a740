/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/scalars.c - a step's scalars (contract in scalars.h). */
#include "offload/scalars.h"

void zfi_scalars_input(zfi_run_t *run, uint64_t t) {
    zfi_list_copy(&run->engine->to_device, ZFI_OP_UP, zfi_device_input_memory(run, t), zfi_row(run, t)->input,
                  run->dev.input_nbytes);
}

void zfi_scalars_make(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    zfi_list_t *device = &engine->to_device;
    const zfi_step_row_t *row = zfi_row(run, t);
    zfi_norm_part_args_t part = {run->dev.data, zfi_device_input(run, t), run->dev.part};
    zfi_scalars_args_t whole = {
        run->dev.part, 1, row->unscale, row->clip_norm, row->host_norm, zfi_device_scalars(run, t)};
    zfi_scalars_input(run, t);
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_NORM_PART, &part, sizeof part));
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_SCALARS, &whole, sizeof whole));
    zfi_list_add(device, zfi_op_signal(&engine->lines.finished, t));
}

void zfi_scalars_record(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    zfi_list_t *down = &engine->to_down;
    uint64_t nbytes = run->plan.n_sums * sizeof(double);
    zfi_list_add(down, zfi_op_wait(&engine->lines.finished, t, NULL));
    if (t > ZFI_RECORD_DEPTH)
        zfi_list_add(down, zfi_op_wait(&engine->lines.control, t - ZFI_RECORD_DEPTH, NULL));
    zfi_list_copy(down, ZFI_OP_DOWN, &zfi_row(run, t)->scalars, zfi_device_scalars(run, t), sizeof(zfi_step_scalars_t));
    if (nbytes)
        zfi_list_copy(down, ZFI_OP_DOWN, run->sel.records[t % ZFI_RECORD_DEPTH], run->dev.head.sums[t & 1], nbytes);
    zfi_list_add(down, zfi_op_signal(&engine->lines.down, t));
    atomic_fetch_add(&engine->count.down_record_nbytes, nbytes + sizeof(zfi_step_scalars_t));
}

void zfi_scalars_report(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    zfi_list_t *device = &engine->to_device;
    zfi_step_row_t *row = zfi_row(run, t);
    zfi_report_args_t args = {run->dev.data, zfi_device_scalars(run, t), &row->reported, &row->n_skipped};
    if (row->waits_for_down)
        zfi_list_add(device, zfi_op_wait(&engine->lines.down, t, &engine->count.stall_pool_ns));
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_REPORT, &args, sizeof args));
    zfi_list_add(device, zfi_op_signal(&engine->lines.stepped, t));
}
