/* SPDX-License-Identifier: Apache-2.0 */
/* on_device.h - a rig (tests/plugin/rig.h) whose parameters and gradients are the device's. What the rig has of them
 * are copies. */
#pragma once

#include <check.h>
#include <cuda.h>

#include "rig.h"

static inline void need(CUresult rc) { ck_assert_int_eq(rc, CUDA_SUCCESS); }

static inline void enter_device(void) {
    CUcontext context;
    need(cuInit(0));
    need(cuDevicePrimaryCtxRetain(&context, 0));
    need(cuCtxSetCurrent(context));
}

/* Memory of its own for each: nothing that the plugin may still read is written again. */
static inline void move_to_device(const unsigned char *from, zf_tensor_t *tensor) {
    CUdeviceptr at;
    need(cuMemAlloc(&at, tensor->nbytes));
    need(cuMemcpyHtoD(at, from, tensor->nbytes));
    tensor->dl.data = (void *)(uintptr_t)at;
    tensor->dl.device_type = ZF_DEVICE_CUDA;
}

static inline void move_values_to_device(zt_rig_t *rig, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        move_to_device(rig->params[i].visible, &rig->params[i].tensor);
}

static inline void move_gradient_to_device(zt_rig_t *rig, uint32_t i, uint64_t seed) {
    zt_rig_fill_grad(rig, i, seed);
    move_to_device(rig->params[i].grad, &rig->params[i].grad_tensor);
}

static inline void read_values(zt_rig_t *rig, uint32_t n) {
    need(cuCtxSynchronize());
    for (uint32_t i = 0; i < n; i++)
        need(cuMemcpyDtoH(rig->params[i].visible, (CUdeviceptr)(uintptr_t)rig->params[i].tensor.dl.data,
                          rig->params[i].tensor.nbytes));
}
