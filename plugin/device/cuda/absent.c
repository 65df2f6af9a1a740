/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/absent.c - the CUDA backend of a build without nvcc: its open says what is missing. */
#include "base/error.h"
#include "device/cuda/cuda.h"

static zf_status_t absent_open(int32_t device_id, const zfi_device_env_t *env, zfi_device_t **out, zf_error_t *err) {
    (void)device_id;
    (void)env;
    (void)out;
    return zfi_error(err, ZF_ERR_DEVICE, "create",
                     "device type %d (CUDA): this plugin was built without its CUDA backend: configure with "
                     "-DZF_CUDA=ON, or AUTO where nvcc (CUDA 12 or newer) is on the PATH",
                     ZF_DEVICE_CUDA);
}

static void absent_close(zfi_device_t *device) { (void)device; }
static void absent_stream_destroy(zfi_stream_t *stream) { (void)stream; }

const zfi_device_ops_t zfi_device_cuda = {
    .name = "cuda",
    .device_type = ZF_DEVICE_CUDA,
    .lacks = ZFI_LACKS_HOST_RULES,
    .is_parallel = 1,
    .has_own_memory = 1,
    .open = absent_open,
    .close = absent_close,
    .stream_destroy = absent_stream_destroy,
};
