/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/context.c - devices, which are one under several numbers, primary contexts, the stack of contexts
 * of each thread. */
#include "fake.h"

#include <unistd.h>

enum { MAX_DEPTH = 32, LEAST = 0, GREATEST = -5 /* priorities of streams */ };

fc_context_t fc_primary;
static int initialised_pid;
static __thread fc_context_t *stack[MAX_DEPTH];
static __thread int depth;
fc_lock_t fc_global_lock;

/* A forked child has no driver. */
int fc_is_initialised(void) { return initialised_pid != 0 && initialised_pid == (int)getpid(); }

fc_context_t *fc_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

void fc_fail_context(fc_context_t *c, CUresult error) {
    int none = 0;
    __atomic_compare_exchange_n(&c->sticky, &none, (int)error, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int fc_priority(int wanted) { return wanted > LEAST ? LEAST : wanted < GREATEST ? GREATEST : wanted; }

FC_API cuInit(unsigned int flags) {
    fc_lock(&fc_global_lock);
    if (!fc_is_initialised())
        fc_config_read();
    CUresult st = flags != 0 ? CUDA_ERROR_INVALID_VALUE : fc_enter(__func__, FC_NEEDS_NOTHING);
    if (!st && !fc_is_initialised()) {
        emu_traffic_count(fc_config.traffic != 0);
        st = fc_memory_start() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        fc_primary = (fc_context_t){.number = 1};
        initialised_pid = st == CUDA_SUCCESS ? (int)getpid() : 0;
        fc_tear_down_at_exit();
    }
    fc_unlock(&fc_global_lock);
    return st;
}

FC_API cuDriverGetVersion(int *version) {
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    fc_config_read();
    *version = (int)fc_config.driver_version;
    return CUDA_SUCCESS;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static CUresult enter_device(const char *function, CUdevice d) {
    CUresult st = fc_enter(function, FC_NEEDS_INIT);
    return st ? st : d >= 0 && (uint64_t)d < fc_config.n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FC_API cuDeviceGetCount(int *count) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (!st)
        *count = (int)fc_config.n_devices;
    return st;
}

FC_API cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult st = enter_device(__func__, ordinal);
    if (!st)
        *device = ordinal;
    return st;
}

FC_API cuDeviceGetName(char *name, int len, CUdevice dev) {
    CUresult st = enter_device(__func__, dev);
    if (!st)
        snprintf(name, (size_t)len, "%s", fc_config.name ? fc_config.name : "Test double");
    return st;
}

FC_API cuDeviceTotalMem(size_t *bytes, CUdevice dev) {
    CUresult st = enter_device(__func__, dev);
    if (!st)
        *bytes = fc_config.device_nbytes;
    return st;
}

static int attribute(CUdevice_attribute attrib) {
    switch ((int)attrib) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return (int)fc_config.compute / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return (int)fc_config.compute % 10;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return (int)fc_config.n_multiprocessors;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        return fc_config.has_memops != 0;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return fc_config.has_virtual_memory != 0;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        return fc_config.is_integrated != 0;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        return fc_config.has_host_pointer != 0;
    default: /* nobody asks */
        return 0;
    }
}

FC_API cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    CUresult st = enter_device(__func__, dev);
    if (!st)
        *pi = attribute(attrib);
    return st;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

FC_API cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    CUresult st = enter_device(__func__, dev);
    if (st)
        return st;
    fc_context_t *c = &fc_primary;
    fc_lock(&fc_global_lock);
    c->n_retained++;
    fc_unlock(&fc_global_lock);
    fc_count(NULL, fc_is_plugin(__builtin_return_address(0)), 1);
    if (c->legacy == NULL)
        st = fc_stream_new(c, CU_STREAM_DEFAULT, 0, &c->legacy);
    *pctx = c;
    return st;
}

/* With the last release the context is destroyed; what still lives then was forgotten. */
FC_API cuDevicePrimaryCtxRelease(CUdevice dev) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (st)
        return st;
    fc_context_t *c = &fc_primary;
    if ((uint64_t)dev >= fc_config.n_devices || c->n_retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    fc_lock(&fc_global_lock);
    int is_last = --c->n_retained == 0;
    fc_unlock(&fc_global_lock);
    fc_count(NULL, fc_is_plugin(__builtin_return_address(0)), -1);
    if (is_last) {
        if (!c->sticky && c->n_objects) /* after an error nothing can be freed any more */
            fc_finding("leaks: %lld memory, streams, events and modules", (long long)c->n_objects);
        fc_destroy_streams_of(c);
        *c = (fc_context_t){.number = c->number + 1};
    }
    return CUDA_SUCCESS;
}

FC_API cuCtxPushCurrent(CUcontext ctx) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (st)
        return st;
    if (ctx == NULL || depth == MAX_DEPTH || ctx->n_retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

FC_API cuCtxPopCurrent(CUcontext *pctx) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (st)
        return st;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (pctx)
        *pctx = stack[depth];
    return CUDA_SUCCESS;
}

FC_API cuCtxGetCurrent(CUcontext *pctx) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (!st)
        *pctx = fc_current();
    return st;
}

FC_API cuCtxSetCurrent(CUcontext ctx) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    if (st)
        return st;
    if (depth > 0)
        depth--;
    if (ctx)
        stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

FC_API cuCtxSynchronize(void) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    return st ? st : fc_synchronise_context(fc_current());
}

FC_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    if (least)
        *least = LEAST;
    if (greatest)
        *greatest = GREATEST;
    return CUDA_SUCCESS;
}
