/* SPDX-License-Identifier: Apache-2.0 */
/* none.c - device.h in a build without nvcc. */
#include "device.h"

int host_cuda_open(const host_cuda_options_t *options, host_compute_t **out, glue_error_t *err) {
    (void)options;
    *out = NULL;
    return glue_fail(err, "cuda: this zf-host was built without nvcc and has no kernels for a device; configure with "
                          "-DZF_CUDA=ON (package cuda-toolkit, or cuda-nvcc)");
}
