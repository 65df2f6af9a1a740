/* SPDX-License-Identifier: Apache-2.0 */
/* none.c - device.h in a build without nvcc. */
#include "device.h"

int host_cuda_open(int device, int is_bf16, host_compute_t **out, glue_error_t *err) {
    (void)device, (void)is_bf16;
    *out = NULL;
    return glue_fail(err, "cuda: this zf-host was built without nvcc and has no kernels for a device; configure with "
                          "-DZF_CUDA=ON (package cuda-toolkit, or cuda-nvcc)");
}
