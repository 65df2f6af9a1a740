/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/device.c - the CUDA backend: the device, its memory, and the table (model in backend.h).
 *
 * The host's primary context is retained while a device is open, and pushed and popped around every use. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "device/cuda/backend.h"

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which headers of CUDA 12.0 lack; a driver that does not know it leaves 0. */
#define MPS_ENABLED ((CUdevice_attribute)133)

/* ---- errors, context, words -------------------------------------------------------------------------------------- */

zf_status_t zfi_cuda_check(zfi_device_t *device, CUresult rc, const char *what) {
    char reason[192], text[256];
    if (rc == CUDA_SUCCESS)
        return ZF_OK;
    if (!atomic_exchange(&device->has_failed, 1)) {
        snprintf(text, sizeof text, "CUDA device: %s failed: %s", what,
                 zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
        device->env.failed(device->env.ctx, text);
    }
    return ZF_ERR_DEVICE;
}

/* A thread of the host may capture a graph while another one, or the monitor, is here. Queries would spoil its capture,
 * so a thread says while it is here that it has no part in captures. It may be here more than once. */
static _Thread_local struct {
    int n;
    CUstreamCaptureMode outside;
} entered;

void zfi_cuda_enter(zfi_device_t *device) {
    (void)device->driver->cuCtxPushCurrent(device->context);
    if (entered.n++ > 0)
        return;
    entered.outside = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)device->driver->cuThreadExchangeStreamCaptureMode(&entered.outside);
}

void zfi_cuda_leave(zfi_device_t *device) {
    CUcontext context;
    if (--entered.n == 0)
        (void)device->driver->cuThreadExchangeStreamCaptureMode(&entered.outside);
    (void)device->driver->cuCtxPopCurrent(&context);
}

zfi_word_t *zfi_cuda_word(zfi_device_t *device, CUdeviceptr *out_at) {
    uint64_t offset = (uint64_t)device->n_words++ * ZFI_CUDA_WORD_NBYTES;
    *out_at = device->words_at + offset;
    return (zfi_word_t *)(void *)(device->words + offset);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static zf_status_t refuse(const zfi_device_t *device, CUresult rc, const char *what, zf_error_t *err) {
    char reason[192];
    return zfi_error(err, ZF_ERR_DEVICE, "create", "CUDA device %d: %s failed: %s", (int)device->id, what,
                     zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
}

static zf_status_t find_device(zfi_device_t *device, int32_t device_id, zf_error_t *err) {
    int n = 0;
    CUresult rc = device->driver->cuDeviceGetCount(&n);
    device->id = device_id;
    if (rc)
        return refuse(device, rc, "counting devices", err);
    if (device_id < 0 || device_id >= n)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "device id %d: the CUDA driver shows %d device%s", device_id, n,
                         n == 1 ? "" : "s");
    rc = device->driver->cuDeviceGet(&device->id, device_id);
    return rc ? refuse(device, rc, "opening it", err) : ZF_OK;
}

/* What the driver's queues take is scaled by CUDA_SCALE_LAUNCH_QUEUES (0.25x, 0.5x, 2x, 4x). For tests:
 * ZF_CUDA_IN_FLIGHT in the environment is the most that is in flight in one stream, at least 16. */
static void read_most_in_flight(zfi_device_t *device) {
    const char *forced = getenv("ZF_CUDA_IN_FLIGHT"), *scale = getenv("CUDA_SCALE_LAUNCH_QUEUES");
    double scaled = scale && atof(scale) > 0 && atof(scale) < 1 ? atof(scale) : 1;
    device->most_in_flight =
        forced && atoi(forced) >= 16 ? (uint32_t)atoi(forced) : (uint32_t)(scaled * ZFI_CUDA_IN_FLIGHT);
}

static int is_few(const char *name) {
    const char *n = getenv(name);
    return n && atoi(n) >= 1 && atoi(n) < ZFI_CUDA_QUEUES;
}

/* Streams share hardware queues, or every launch waits until it has run and keeps others from the driver meanwhile. */
static int has_few_queues(void) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    return is_few("CUDA_DEVICE_MAX_CONNECTIONS") || is_few("CUDA_DEVICE_MAX_COPY_CONNECTIONS") ||
           (blocking && atoi(blocking) != 0);
}

/* ZF_CUDA_MEMOPS in the environment: 0 takes the way of devices without 64-bit memory operations, for tests; wait lets
 * the host's streams wait by them (backend.h). */
static zf_status_t read_attributes(zfi_device_t *device, zf_error_t *err) {
    const char *forced = getenv("ZF_CUDA_MEMOPS");
    int same_address = 0, is_shared = 0;
    const struct attribute {
        CUdevice_attribute which;
        int *to;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, &device->has_memops},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, &same_address},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->n_processors},
        {CU_DEVICE_ATTRIBUTE_INTEGRATED, &device->is_integrated},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CUresult rc = device->driver->cuDeviceGetAttribute(wanted[i].to, wanted[i].which, device->id);
        if (rc)
            return refuse(device, rc, "reading its attributes", err);
    }
    if (forced && strcmp(forced, "0") == 0)
        device->has_memops = 0;
    device->has_few_queues = has_few_queues();
    (void)device->driver->cuDeviceGetAttribute(&is_shared, MPS_ENABLED, device->id);
    device->streams_wait =
        forced && strcmp(forced, "wait") == 0 && device->has_memops && !device->has_few_queues && !is_shared;
    if (!same_address)
        return zfi_error(err, ZF_ERR_DEVICE, "create",
                         "CUDA device %d reaches page-locked memory only at addresses of its own; kernels of this "
                         "plugin need the host's",
                         (int)device->id);
    return ZF_OK;
}

/* The pages that lie whole in it. */
static void advise_pages(void *memory, size_t nbytes, int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory;
    uintptr_t first = (at + page - 1) / page * page, end = (at + nbytes) / page * page;
    if (first < end)
        (void)madvise((void *)first, end - first, advice);
}

uint64_t zfi_cuda_in_one_piece(const void *memory, uint64_t nbytes) {
    uint64_t left = ZFI_CUDA_PIECE_NBYTES - (uintptr_t)memory % ZFI_CUDA_PIECE_NBYTES;
    return nbytes < left ? nbytes : left;
}

static void unlock_pages(const zfi_cuda_driver_t *driver, void *memory, size_t nbytes) {
    unsigned char *at = memory, *end = at + nbytes;
    for (; at < end; at += zfi_cuda_in_one_piece(at, (uint64_t)(end - at)))
        (void)driver->cuMemHostUnregister(at); /* what could not be registered is refused, and that is all */
    advise_pages(memory, nbytes, MADV_DOFORK);
}

/* Page-locked memory, in pieces. A child of fork does not get it: it would be given a copy of every page at once, or,
 * before Linux 5.10, the parent would go on with the copy while the device keeps the page. */
static CUresult lock_pages(const zfi_cuda_driver_t *driver, void *memory, size_t nbytes) {
    unsigned char *at = memory, *end = at + nbytes;
    CUresult rc = CUDA_SUCCESS;
    while (at < end && !rc) {
        uint64_t piece = zfi_cuda_in_one_piece(at, (uint64_t)(end - at));
        rc = driver->cuMemHostRegister(at, piece, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
        at += rc ? 0 : piece;
    }
    if (rc)
        unlock_pages(driver, memory, (size_t)(at - (unsigned char *)memory));
    else
        advise_pages(memory, nbytes, MADV_DONTFORK);
    return rc;
}

static zf_status_t map_words(zfi_device_t *device, zf_error_t *err) {
    size_t nbytes = (size_t)ZFI_CUDA_WORDS * ZFI_CUDA_WORD_NBYTES;
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUresult rc;
    if (memory == MAP_FAILED)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for the CUDA backend's words");
    device->words = memory;
    rc = lock_pages(device->driver, memory, nbytes);
    if (rc)
        return refuse(device, rc, "page-locking memory", err);
    device->is_pinned = 1;
    rc = device->driver->cuMemHostGetDevicePointer(&device->words_at, memory, 0);
    return rc ? refuse(device, rc, "mapping page-locked memory", err) : ZF_OK;
}

static zf_status_t enter_context(zfi_device_t *device, zf_error_t *err) {
    CUresult rc = device->driver->cuDevicePrimaryCtxRetain(&device->context, device->id);
    if (rc)
        return refuse(device, rc, "retaining its context", err);
    device->has_context = 1;
    zfi_cuda_enter(device);
    return ZF_OK;
}

CUresult zfi_cuda_fill(zfi_device_t *device, CUdeviceptr at, unsigned char byte, uint64_t nbytes) {
    CUresult rc = device->driver->cuMemsetD8Async(at, byte, nbytes, device->control);
    return rc ? rc : device->driver->cuStreamSynchronize(device->control);
}

/* [context] The driver loads a kernel when it is first launched, and may wait for all streams then; one of them may
 * wait for that very kernel. So each is launched once here, while has_ended keeps it from doing anything. */
static CUresult warm_up(zfi_device_t *device) {
    CUresult rc = zfi_cuda_fill(device, device->has_ended, 0xFF, sizeof(uint64_t));
    if (!rc)
        rc = zfi_cuda_kernels_warm_up(device, device->control);
    return rc ? rc : zfi_cuda_fill(device, device->has_ended, 0, sizeof(uint64_t));
}

/* [context] */
static zf_status_t prepare(zfi_device_t *device, zf_error_t *err) {
    CUresult rc = device->driver->cuCtxGetStreamPriorityRange(&device->lowest_priority, &device->highest_priority);
    zf_status_t st = rc ? refuse(device, rc, "reading the priorities of streams", err) : map_words(device, err);
    if (!st)
        st = zfi_cuda_kernels_load(device, err);
    if (st)
        return st;
    if (device->env.is_releasable)
        rc = zfi_cuda_blocks_begin(device);
    if (rc)
        return refuse(device, rc, "virtual memory management, for ZF_CREATE_CAP_RELEASE,", err);
    rc = device->driver->cuStreamCreateWithPriority(&device->control, CU_STREAM_NON_BLOCKING, device->lowest_priority);
    if (!rc)
        rc = zfi_cuda_block_take(device, sizeof(uint64_t), &device->has_ended);
    if (!rc)
        rc = warm_up(device);
    if (!rc && zfi_cuda_events_open(device))
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    return rc ? refuse(device, rc, "preparing it", err) : ZF_OK;
}

static void cuda_close(zfi_device_t *device);

static zf_status_t cuda_open(int32_t device_id, const zfi_device_env_t *env, zfi_device_t **out, zf_error_t *err) {
    zfi_device_t *device = calloc(1, sizeof *device);
    if (!device)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a device handle");
    device->env = *env;
    read_most_in_flight(device);
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->poll_lock, NULL);
    zfi_timeline_init(&device->news, "cuda news");
    zf_status_t st = zfi_cuda_driver(&device->driver, err);
    if (!st)
        st = find_device(device, device_id, err);
    if (!st)
        st = read_attributes(device, err);
    if (!st)
        st = enter_context(device, err);
    if (!st) {
        st = prepare(device, err);
        zfi_cuda_leave(device);
    }
    if (!st)
        st = zfi_cuda_monitor_start(device, err);
    if (st) {
        cuda_close(device);
        return st;
    }
    *out = device;
    return ZF_OK;
}

static void free_memory(zfi_device_t *device) {
    zfi_cuda_enter(device);
    zfi_cuda_lines_close(device);
    zfi_cuda_events_close(device);
    zfi_cuda_kernels_free(device);
    if (device->has_ended)
        zfi_cuda_block_give(device, device->has_ended, sizeof(uint64_t));
    if (device->control)
        device->driver->cuStreamDestroy(device->control);
    if (device->is_pinned)
        device->driver->cuMemHostUnregister(device->words);
    zfi_cuda_leave(device);
    device->driver->cuDevicePrimaryCtxRelease(device->id);
}

static void cuda_close(zfi_device_t *device) {
    if (!device)
        return;
    zfi_cuda_streams_close(device);
    zfi_cuda_monitor_stop(device);
    if (device->has_context)
        free_memory(device);
    if (device->words)
        munmap(device->words, (size_t)ZFI_CUDA_WORDS * ZFI_CUDA_WORD_NBYTES);
    zfi_timeline_free(&device->news);
    pthread_mutex_destroy(&device->poll_lock);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static void cuda_info(const zfi_device_t *device, zfi_device_info_t *out) {
    size_t free_nbytes = 0, total_nbytes = 0;
    CUcontext context;
    (void)device->driver->cuCtxPushCurrent(device->context);
    (void)device->driver->cuMemGetInfo(&free_nbytes, &total_nbytes);
    (void)device->driver->cuCtxPopCurrent(&context);
    *out = (zfi_device_info_t){.free_nbytes = free_nbytes,
                               .total_nbytes = total_nbytes,
                               .is_host_memory = device->is_integrated,
                               .has_few_queues = device->has_few_queues,
                               .image = zfi_cuda_kernels_image(device)};
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static zf_status_t cuda_alloc(zfi_device_t *device, uint64_t nbytes, const char *what, void **out, zf_error_t *err) {
    CUdeviceptr memory = 0;
    zfi_device_info_t info;
    char reason[192];
    zfi_cuda_enter(device);
    CUresult rc = zfi_cuda_block_take(device, nbytes ? nbytes : 1, &memory);
    if (!rc)
        rc = zfi_cuda_fill(device, memory, 0, nbytes ? nbytes : 1);
    if (rc && memory)
        zfi_cuda_block_give(device, memory, nbytes ? nbytes : 1);
    zfi_cuda_leave(device);
    *out = (void *)(uintptr_t)memory;
    if (!rc)
        return ZF_OK;
    cuda_info(device, &info);
    return zfi_error(err, rc == CUDA_ERROR_OUT_OF_MEMORY ? ZF_ERR_MEMORY : ZF_ERR_DEVICE, "bind_params",
                     "device memory for %s: need %" PRIu64 " MiB, have %" PRIu64 " of %" PRIu64 " MiB: %s", what,
                     nbytes >> 20, info.free_nbytes >> 20, info.total_nbytes >> 20,
                     zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
}

static void cuda_free(zfi_device_t *device, void *memory, uint64_t nbytes) {
    if (!memory)
        return;
    zfi_cuda_enter(device);
    zfi_cuda_block_give(device, (CUdeviceptr)(uintptr_t)memory, nbytes ? nbytes : 1);
    zfi_cuda_leave(device);
}

/* Kernels read and write parts of this memory (kernels/launch.h says which), so there is no doing without. */
static zf_status_t cuda_pin(zfi_device_t *device, void *memory, uint64_t nbytes, int *out_is_pageable,
                            zf_error_t *err) {
    char reason[192];
    CUresult rc;
    zfi_cuda_enter(device);
    rc = lock_pages(device->driver, memory, nbytes);
    zfi_cuda_leave(device);
    *out_is_pageable = 0;
    if (!rc) {
        atomic_fetch_add(&device->pinned_nbytes, nbytes);
        return ZF_OK;
    }
    return zfi_error(err, ZF_ERR_MEMORY, "bind_params",
                     "%" PRIu64 " MiB of host memory cannot be page-locked for CUDA device %d where %" PRIu64
                     " MiB are: %s; a container may need --ulimit memlock=-1, WSL2 more memory (.wslconfig); "
                     "[host] early_mib = 0 and a smaller moments_dtype need less",
                     nbytes >> 20, (int)device->id, atomic_load(&device->pinned_nbytes) >> 20,
                     zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
}

static void cuda_unpin(zfi_device_t *device, void *memory, uint64_t nbytes) {
    zfi_cuda_enter(device);
    unlock_pages(device->driver, memory, nbytes);
    zfi_cuda_leave(device);
    atomic_fetch_sub(&device->pinned_nbytes, nbytes);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const zfi_device_ops_t zfi_device_cuda = {
    .name = "cuda",
    .device_type = ZF_DEVICE_CUDA,
    .lacks = ZFI_LACKS_HOST_RULES,
    .has_own_memory = 1,
    .is_parallel = 1,
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .release = zfi_cuda_release,
    .resume = zfi_cuda_resume,
    .stream_create = zfi_cuda_stream_create,
    .stream_destroy = zfi_cuda_stream_destroy,
    .stream_resolve = zfi_cuda_stream_resolve,
    .mark = zfi_cuda_mark,
    .synchronise = zfi_cuda_synchronise,
    .fence = zfi_cuda_fence,
    .host_busy_ns = zfi_cuda_host_busy_ns,
    .order = zfi_cuda_order,
    .lend = zfi_cuda_lend,
    .take_back = zfi_cuda_take_back,
    .enqueue = zfi_cuda_enqueue,
};
