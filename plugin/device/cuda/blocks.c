/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/blocks.c - device memory of the backend, which may be released and come again (device.h).
 *
 * Model. Of a device that is opened as releasable a block is a range of reserved addresses, from take to give, with
 * memory mapped there in between (cuMemCreate, cuMemMap), in whole pieces of the driver's granularity. The handle is
 * let go as soon as it is mapped: its memory goes back when it is unmapped. Access has to be granted after each
 * mapping. Elsewhere a block is cuMemAlloc's.
 *
 * [context] all of it. Neither unmapping nor mapping is in the order of any stream: nothing touches the block. */
#include <inttypes.h>

#include "base/error.h"
#include "device/cuda/backend.h"

static uint64_t whole(const zfi_device_t *device, uint64_t nbytes) {
    return (nbytes + device->granularity - 1) / device->granularity * device->granularity;
}

CUresult zfi_cuda_blocks_begin(zfi_device_t *device) {
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->id}};
    int is_there = 0;
    CUresult rc = device->driver->cuDeviceGetAttribute(
        &is_there, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device->id);
    device->block_kind = prop;
    if (!rc && !is_there)
        rc = CUDA_ERROR_NOT_SUPPORTED;
    return rc ? rc
              : device->driver->cuMemGetAllocationGranularity(&device->granularity, &prop,
                                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

/* nbytes of memory at reserved addresses. */
static CUresult map(zfi_device_t *device, CUdeviceptr at, uint64_t nbytes) {
    const CUmemAccessDesc access = {.location = device->block_kind.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUresult rc = device->driver->cuMemCreate(&handle, nbytes, &device->block_kind, 0);
    if (rc)
        return rc;
    rc = device->driver->cuMemMap(at, nbytes, 0, handle, 0);
    (void)device->driver->cuMemRelease(handle);
    if (rc)
        return rc;
    rc = device->driver->cuMemSetAccess(at, nbytes, &access, 1);
    if (rc)
        (void)device->driver->cuMemUnmap(at, nbytes);
    return rc;
}

CUresult zfi_cuda_block_take(zfi_device_t *device, uint64_t nbytes, CUdeviceptr *out) {
    if (!device->granularity)
        return device->driver->cuMemAlloc(out, nbytes);
    nbytes = whole(device, nbytes);
    CUresult rc = device->driver->cuMemAddressReserve(out, nbytes, 0, 0, 0);
    if (rc)
        return rc;
    rc = map(device, *out, nbytes);
    if (rc) {
        (void)device->driver->cuMemAddressFree(*out, nbytes);
        *out = 0;
    }
    return rc;
}

/* What rests may still have signals to give; nothing that it waits for is yet to come (backend.h). */
static CUresult end_own_work(zfi_device_t *device) {
    CUresult rc = CUDA_SUCCESS;
    for (uint32_t i = 0; i < atomic_load(&device->n_streams) && !rc; i++) {
        const zfi_stream_t *stream = device->streams[i];
        if (stream && !stream->is_host)
            rc = device->driver->cuStreamSynchronize(stream->handle);
    }
    return rc;
}

void zfi_cuda_block_give(zfi_device_t *device, CUdeviceptr at, uint64_t nbytes) {
    if (!device->granularity) {
        (void)device->driver->cuMemFree(at);
        return;
    }
    nbytes = whole(device, nbytes);
    if (!device->is_released) {
        (void)end_own_work(device); /* cuMemFree waits for it, cuMemUnmap does not */
        (void)device->driver->cuMemUnmap(at, nbytes);
    }
    (void)device->driver->cuMemAddressFree(at, nbytes);
}

/* ---- release and resume ------------------------------------------------------------------------------------------ */

static CUdeviceptr address(const zfi_block_t *block) { return (CUdeviceptr)(uintptr_t)block->memory; }

zf_status_t zfi_cuda_release(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    zfi_cuda_enter(device);
    CUresult rc = end_own_work(device);
    if (!rc)
        rc = device->driver->cuMemUnmap(device->has_ended, whole(device, sizeof(uint64_t)));
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = device->driver->cuMemUnmap(address(&blocks[i]), whole(device, blocks[i].nbytes));
    zfi_cuda_leave(device);
    if (zfi_cuda_check(device, rc, "giving memory back")) /* some of it is gone */
        return zfi_error(err, ZF_ERR_DEVICE, "release", "CUDA device %d: memory cannot be given back (error %d)",
                         (int)device->id, (int)rc);
    device->is_released = 1;
    return ZF_OK;
}

static CUresult map_all(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n) {
    CUresult rc = map(device, device->has_ended, whole(device, sizeof(uint64_t)));
    uint32_t done = 0;
    if (rc)
        return rc;
    for (; done < n && !rc; done += !rc)
        rc = map(device, address(&blocks[done]), whole(device, blocks[done].nbytes));
    if (!rc)
        rc = zfi_cuda_fill(device, device->has_ended, 0, sizeof(uint64_t));
    if (!rc)
        return rc;
    while (done > 0) {
        done--;
        (void)device->driver->cuMemUnmap(address(&blocks[done]), whole(device, blocks[done].nbytes));
    }
    (void)device->driver->cuMemUnmap(device->has_ended, whole(device, sizeof(uint64_t)));
    return rc;
}

zf_status_t zfi_cuda_resume(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    size_t free_nbytes = 0, total_nbytes = 0;
    uint64_t nbytes = 0;
    char reason[192];
    for (uint32_t i = 0; i < n; i++)
        nbytes += whole(device, blocks[i].nbytes);
    zfi_cuda_enter(device);
    (void)device->driver->cuMemGetInfo(&free_nbytes, &total_nbytes);
    CUresult rc = map_all(device, blocks, n);
    zfi_cuda_leave(device);
    device->is_released = rc != CUDA_SUCCESS;
    if (!rc)
        return ZF_OK;
    return zfi_error(
        err, rc == CUDA_ERROR_OUT_OF_MEMORY ? ZF_ERR_MEMORY : ZF_ERR_DEVICE, "resume",
        "device memory that was released: need %" PRIu64
        " MiB, have %zu of %zu MiB: %s; all of it is released as before: free memory there, then resume again",
        nbytes >> 20, free_nbytes >> 20, total_nbytes >> 20,
        zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
}
