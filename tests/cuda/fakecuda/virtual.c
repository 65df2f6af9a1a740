/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/virtual.c - virtual memory management: addresses, memory and access apart.
 *
 * Model, after the driver's pages (cuMemAddressReserve ... cuMemUnmap). Addresses are reserved in whole pieces of the
 * granularity, and no two reservations ever have the same. A handle is memory of one size, with garbage in it; it lives
 * until it is released and nothing is mapped to it, in either order. A mapping takes a whole handle and starts without
 * access: until cuMemSetAccess, and after cuMemUnmap, nobody reaches its addresses. Only whole mappings are unmapped.
 * None of this is in the order of a stream: whoever unmaps while a stream of libzfplugin still has work is found. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>

enum { MOST = 4096 };
static const uint64_t granularity = 2u << 20;

typedef struct handle {
    uint64_t nbytes; /* 0: free */
    int is_released, n_mappings, is_plugin;
    unsigned char *bytes;
} handle_t;

typedef struct range {
    uint64_t lo, nbytes; /* nbytes 0: free */
    uint64_t mapped_lo;  /* one mapping at most is modelled */
    handle_t *handle;    /* mapped there */
    int has_access, is_plugin;
} range_t;

static handle_t handles[MOST];
static range_t ranges[MOST];
static fc_lock_t lock;

static CUresult enter(const char *function) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    return st ? st : fc_unless_captured();
}

static CUresult wrong(const char *what, uint64_t at) {
    fc_finding("%s: %#llx", what, (unsigned long long)at);
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* [lock] The reservation that holds [at, at + nbytes); NULL: none. */
static range_t *range_of(uint64_t at, uint64_t nbytes) {
    for (int i = 0; i < MOST; i++)
        if (ranges[i].nbytes && at >= ranges[i].lo && at + nbytes <= ranges[i].lo + ranges[i].nbytes)
            return &ranges[i];
    return NULL;
}

FC_API cuMemAddressReserve(CUdeviceptr *out, size_t nbytes, size_t alignment, CUdeviceptr hint,
                           unsigned long long flags) {
    CUresult st = enter(__func__);
    (void)hint;
    if (st)
        return st;
    if (nbytes == 0 || nbytes % granularity || (alignment & (alignment - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t at = fc_window_range(nbytes + granularity) / granularity * granularity + granularity;
    fc_lock(&lock);
    int i = 0;
    while (i < MOST && ranges[i].nbytes)
        i++;
    if (i == MOST)
        abort();
    ranges[i] = (range_t){.lo = at, .nbytes = nbytes, .is_plugin = fc_is_plugin(__builtin_return_address(0))};
    fc_count(NULL, ranges[i].is_plugin, 1);
    fc_unlock(&lock);
    *out = at;
    return CUDA_SUCCESS;
}

FC_API cuMemAddressFree(CUdeviceptr at, size_t nbytes) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    fc_lock(&lock);
    range_t *range = range_of(at, nbytes);
    int is_right = range && range->lo == at && range->nbytes == nbytes && !range->handle;
    if (is_right) {
        fc_count(NULL, range->is_plugin, -1);
        range->nbytes = 0;
    }
    fc_unlock(&lock);
    return is_right ? CUDA_SUCCESS : wrong("cuMemAddressFree of what is mapped, or not reserved so", at);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

FC_API cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                     CUmemAllocationGranularity_flags option) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    (void)option;
    if (st)
        return st;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = granularity;
    return CUDA_SUCCESS;
}

FC_API cuMemCreate(CUmemGenericAllocationHandle *out, size_t nbytes, const CUmemAllocationProp *prop,
                   unsigned long long flags) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    if (nbytes == 0 || nbytes % granularity || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int i = 0, is_plugin = fc_is_plugin(__builtin_return_address(0));
    unsigned char *bytes = fc_take_device_bytes(nbytes, is_plugin);
    if (bytes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fc_lock(&lock);
    while (i < MOST && handles[i].nbytes)
        i++;
    if (i == MOST)
        abort();
    handles[i] = (handle_t){.nbytes = nbytes, .is_plugin = is_plugin, .bytes = bytes};
    fc_unlock(&lock);
    *out = (CUmemGenericAllocationHandle)i + 1;
    return CUDA_SUCCESS;
}

/* [lock] */
static handle_t *handle_of(CUmemGenericAllocationHandle number) {
    handle_t *handle = number >= 1 && number <= MOST ? &handles[number - 1] : NULL;
    return handle && handle->nbytes && !handle->is_released ? handle : NULL;
}

/* [lock] Nobody can come to it any more. */
static void end_if_unused(handle_t *handle) {
    if (!handle->is_released || handle->n_mappings)
        return;
    fc_give_device_bytes(handle->bytes, handle->nbytes, handle->is_plugin);
    handle->nbytes = 0;
}

FC_API cuMemRelease(CUmemGenericAllocationHandle number) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    fc_lock(&lock);
    handle_t *handle = handle_of(number);
    if (handle) {
        handle->is_released = 1;
        end_if_unused(handle);
    }
    fc_unlock(&lock);
    return handle ? CUDA_SUCCESS : wrong("cuMemRelease of what is no handle, or was released", number);
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

FC_API cuMemMap(CUdeviceptr at, size_t nbytes, size_t offset, CUmemGenericAllocationHandle number,
                unsigned long long flags) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    fc_lock(&lock);
    range_t *range = range_of(at, nbytes);
    handle_t *handle = handle_of(number);
    int is_right = range && handle && !range->handle && nbytes == handle->nbytes && offset == 0 && flags == 0 &&
                   at % granularity == 0;
    if (is_right) {
        range->handle = handle;
        range->mapped_lo = at;
        range->has_access = 0;
        handle->n_mappings++;
    }
    fc_unlock(&lock);
    return is_right ? CUDA_SUCCESS : wrong("cuMemMap where something is mapped, or of another size", at);
}

FC_API cuMemSetAccess(CUdeviceptr at, size_t nbytes, const CUmemAccessDesc *desc, size_t n) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    if (n != 1 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    fc_lock(&lock);
    range_t *range = range_of(at, nbytes);
    handle_t *handle = range ? range->handle : NULL;
    int is_right = handle && range->mapped_lo == at && handle->nbytes == nbytes && desc->location.id == 0;
    if (is_right && !range->has_access) {
        range->has_access = 1;
        fc_add_zone(&(fc_zone_t){.lo = at,
                                 .hi = at + nbytes,
                                 .bytes = handle->bytes,
                                 .kind = FC_DEVICE_MEMORY,
                                 .is_plugin = handle->is_plugin,
                                 .is_mapped = 1});
    }
    fc_unlock(&lock);
    return is_right ? CUDA_SUCCESS : wrong("cuMemSetAccess where nothing is mapped", at);
}

FC_API cuMemUnmap(CUdeviceptr at, size_t nbytes) {
    CUresult st = enter(__func__);
    if (st)
        return st;
    if (fc_is_plugin(__builtin_return_address(0)) && fc_has_plugin_work(fc_current()))
        fc_finding("cuMemUnmap while a stream of libzfplugin has work: unmapping is in no stream's order");
    fc_lock(&lock);
    range_t *range = range_of(at, nbytes);
    handle_t *handle = range ? range->handle : NULL;
    int is_right = handle && range->mapped_lo == at && handle->nbytes == nbytes;
    if (is_right) {
        if (range->has_access)
            fc_remove_zone(at);
        range->handle = NULL;
        handle->n_mappings--;
        end_if_unused(handle);
    }
    fc_unlock(&lock);
    return is_right ? CUDA_SUCCESS : wrong("cuMemUnmap of what is not mapped so", at);
}
