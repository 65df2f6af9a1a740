/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/part.c - a backend that has a part only: AdamW on float32, every gradient replayed. It is the CPU's, but
 * says that it lacks everything that may be lacking, and ends the process where it is asked for some of that. */
#include <stdio.h>
#include <stdlib.h>

#include "device/cpu/cpu.h"

static int is_lacking(zfi_kernel_t kernel) {
    return kernel == ZFI_KERNEL_UPDATE_ALL || kernel == ZFI_KERNEL_ROUND_MOMENTS || kernel == ZFI_KERNEL_SUM_PARTS ||
           kernel == ZFI_KERNEL_MOVE;
}

/* The tables, as this backend's kernels would read them. */
static int is_known(const zfi_data_t *data) {
    int is_known = data->moments == ZFI_MOMENTS_F32 && !data->counts_per_channel;
    for (uint32_t i = 0; i < data->n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &data->matrices[i];
        const zfi_data_param_t *param = &data->params[matrix->param];
        is_known &= param->rule == ZFI_RULE_ADAMW && !param->host_rule && !matrix->is_resident;
        is_known &= param->grad_dtype == ZFI_F32 && matrix->place.dtype == ZFI_F32;
    }
    return is_known;
}

static zf_status_t enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const zfi_op_t *op = &ops[i];
        if (op->kind != ZFI_OP_LAUNCH)
            continue;
        if (is_lacking(op->kernel) ||
            (op->kernel == ZFI_KERNEL_STATISTICS && !is_known(((const zfi_gradients_args_t *)op->args)->data))) {
            fprintf(stderr, "part.c: kernel %d was launched with what this backend lacks\n", (int)op->kernel);
            abort();
        }
    }
    return zfi_device_cpu.enqueue(device, stream, ops, n);
}

static zfi_device_ops_t part;

__attribute__((constructor)) static void make(void) {
    part = zfi_device_cpu;
    part.name = "part";
    part.lacks = ZFI_LACKS_HOST_RULES | ZFI_LACKS_RULES | ZFI_LACKS_HALVES | ZFI_LACKS_MOMENTS | ZFI_LACKS_MEAN |
                 ZFI_LACKS_RESIDENT | ZFI_LACKS_RANKS;
    part.enqueue = enqueue;
}

/* In place of plugin/device/backends.c. */
const zfi_device_ops_t *const zfi_backends[] = {&part};
const uint32_t zfi_n_backends = 1;
