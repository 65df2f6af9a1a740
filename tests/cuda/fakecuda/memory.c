/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/memory.c - device memory that the host cannot touch, and host memory that the device can.
 *
 * Model. A device address lies in a window of this process that no access is allowed to: a host that dereferences it
 * faults. The bytes themselves lie elsewhere (a zone knows where). Addresses are not given out twice, so that what was
 * freed stays wrong to use. Registered host memory keeps its address on the device. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 512, PAGE = 4096 };
static const uint64_t window_nbytes = 1ull << 38;

static uint64_t window, next_free;
static fc_zone_t *zones; /* by address */
static uint32_t n_zones, zones_size;
static fc_lock_t lock;

int fc_memory_start(void) {
    void *p = mmap(NULL, window_nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    window = next_free = (uint64_t)(uintptr_t)p;
    n_zones = 0;
    return p != MAP_FAILED;
}

int fc_is_in_window(uint64_t a) { return a - window < window_nbytes; }

uint64_t fc_window_range(uint64_t nbytes) {
    uint64_t size = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + (fc_config.adjoins ? 0 : PAGE);
    return __atomic_fetch_add(&next_free, size, __ATOMIC_RELAXED);
}

/* ---- zones ------------------------------------------------------------------------------------------------------- */

/* Index of the first zone that ends behind a; with the lock. */
static uint32_t place_of(uint64_t a) {
    uint32_t low = 0, high = n_zones;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (zones[middle].hi <= a)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int fc_zone_of(uint64_t a, fc_zone_t *out) {
    fc_lock(&lock);
    uint32_t i = place_of(a);
    int is_there = i < n_zones && zones[i].lo <= a;
    if (is_there)
        *out = zones[i];
    fc_unlock(&lock);
    return is_there;
}

/* 0: it would overlap with another. */
static int try_add_zone(const fc_zone_t *zone) {
    fc_lock(&lock);
    uint32_t i = place_of(zone->lo);
    int is_free = i == n_zones || zones[i].lo >= zone->hi;
    if (is_free) {
        if (n_zones == zones_size) {
            zones_size = zones_size ? 2 * zones_size : 64;
            zones = realloc(zones, zones_size * sizeof *zones);
            if (zones == NULL)
                abort();
        }
        memmove(zones + i + 1, zones + i, (n_zones - i) * sizeof *zones);
        zones[i] = *zone;
        n_zones++;
    }
    fc_unlock(&lock);
    return is_free;
}

void fc_add_zone(const fc_zone_t *zone) {
    if (!try_add_zone(zone))
        fc_finding("two zones at %#llx", (unsigned long long)zone->lo);
}

void fc_remove_zone(uint64_t lo) {
    fc_lock(&lock);
    uint32_t i = place_of(lo);
    if (i < n_zones && zones[i].lo == lo)
        memmove(zones + i, zones + i + 1, (--n_zones - i) * sizeof *zones);
    fc_unlock(&lock);
}

int fc_find_for_kernel(uint64_t a, emu_range_t *out) {
    fc_zone_t z;
    if (!fc_zone_of(a, &z) || z.is_for_copies)
        return 0;
    *out = (emu_range_t){z.lo, z.hi, z.bytes};
    return 1;
}

unsigned char *fc_bytes_for_copy(uint64_t a, uint64_t n, int *out_is_pageable) {
    fc_zone_t z, next;
    *out_is_pageable = 0;
    if (fc_zone_of(a, &z)) {
        if (a + n <= z.hi)
            return z.bytes + (a - z.lo);
        /* a range that is registered only in part is like one that is not; over two registrations no copy goes */
        if (z.kind != FC_HOST_REGISTERED || fc_zone_of(z.hi, &next))
            return NULL;
    } else if (fc_is_in_window(a) || a < PAGE)
        return NULL;
    *out_is_pageable = 1;
    return (unsigned char *)(uintptr_t)a;
}

unsigned char *fakecuda_device_bytes(uint64_t a, uint64_t n) {
    fc_zone_t z;
    return fc_zone_of(a, &z) && z.kind == FC_DEVICE_MEMORY && a + n <= z.hi ? z.bytes + (a - z.lo) : NULL;
}

void fakecuda_plugin_nbytes(uint64_t *out_device, uint64_t *out_host) {
    *out_device = *out_host = 0;
    fc_lock(&lock);
    for (uint32_t i = 0; i < n_zones; i++)
        if (zones[i].is_plugin)
            *(zones[i].kind == FC_DEVICE_MEMORY ? out_device : out_host) += zones[i].hi - zones[i].lo;
    fc_unlock(&lock);
}

/* ---- device memory ----------------------------------------------------------------------------------------------- */

static void *new_bytes(uint64_t nbytes) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memset(p, (int)(fc_random() % 255 + 1), nbytes);
    return p;
}

unsigned char *fc_take_device_bytes(uint64_t nbytes, int is_plugin) {
    fc_context_t *c = fc_current();
    void *bytes = c->used_nbytes + nbytes > fc_config.device_nbytes ? NULL : new_bytes(nbytes);
    if (bytes == NULL)
        return NULL;
    __atomic_add_fetch(&c->used_nbytes, nbytes, __ATOMIC_RELAXED);
    fc_count(c, is_plugin, 1);
    return bytes;
}

void fc_give_device_bytes(unsigned char *bytes, uint64_t nbytes, int is_plugin) {
    munmap(bytes, nbytes);
    __atomic_sub_fetch(&fc_primary.used_nbytes, nbytes, __ATOMIC_RELAXED);
    fc_count(&fc_primary, is_plugin, -1);
}

FC_API cuMemAlloc(CUdeviceptr *out, size_t nbytes) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    if (nbytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    st = fc_unless_captured();
    if (st)
        return st;
    st = fc_drain(FC_CALL_ALLOC);
    if (st)
        return st;
    int is_plugin = fc_is_plugin(__builtin_return_address(0));
    unsigned char *bytes = fc_take_device_bytes(nbytes, is_plugin);
    if (bytes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = fc_window_range(nbytes);
    fc_add_zone(&(fc_zone_t){*out, *out + nbytes, bytes, FC_DEVICE_MEMORY, is_plugin, 0, 0});
    return CUDA_SUCCESS;
}

/* Like the driver's it waits for everything that is enqueued. */
FC_API cuMemFree(CUdeviceptr at) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    fc_zone_t z;
    if (st || at == 0)
        return st;
    if (!fc_zone_of(at, &z) || z.kind != FC_DEVICE_MEMORY || z.is_mapped || z.lo != at)
        return CUDA_ERROR_INVALID_VALUE;
    st = fc_unless_captured();
    if (st)
        return st;
    fc_hold(FC_CALL_FREE);
    st = fc_synchronise_context(&fc_primary);
    fc_let_go(FC_CALL_FREE);
    fc_remove_zone(z.lo);
    fc_give_device_bytes(z.bytes, z.hi - z.lo, z.is_plugin);
    return st;
}

FC_API cuMemGetAddressRange(CUdeviceptr *base, size_t *nbytes, CUdeviceptr at) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    fc_zone_t z;
    if (st)
        return st;
    if (!fc_zone_of(at, &z) || z.kind != FC_DEVICE_MEMORY)
        return CUDA_ERROR_NOT_FOUND;
    *base = z.lo;
    *nbytes = z.hi - z.lo;
    return CUDA_SUCCESS;
}

FC_API cuMemGetInfo(size_t *free_nbytes, size_t *total) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    *total = fc_config.device_nbytes;
    *free_nbytes = fc_config.device_nbytes - __atomic_load_n(&fc_current()->used_nbytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* ---- page-locked host memory ------------------------------------------------------------------------------------- */

FC_API cuMemHostAlloc(void **out, size_t nbytes, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    if (nbytes == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    st = fc_drain(FC_CALL_PIN);
    if (st)
        return st;
    void *p = new_bytes(nbytes);
    if (p == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t at = (uint64_t)(uintptr_t)p;
    fc_add_zone(&(fc_zone_t){at, at + nbytes, p, FC_HOST_ALLOC, 0, 0, 0});
    fc_count(fc_current(), 0, 1);
    *out = p;
    return CUDA_SUCCESS;
}

FC_API cuMemFreeHost(void *p) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    fc_zone_t z;
    if (st)
        return st;
    if (!fc_zone_of((uint64_t)(uintptr_t)p, &z) || z.kind != FC_HOST_ALLOC || z.bytes != p)
        return CUDA_ERROR_INVALID_VALUE;
    fc_hold(FC_CALL_FREE);
    st = fc_synchronise_context(fc_current());
    fc_let_go(FC_CALL_FREE);
    fc_remove_zone(z.lo);
    munmap(p, z.hi - z.lo);
    fc_count(fc_current(), 0, -1);
    return st;
}

/* Registering memory that is not mapped is an error of the caller's. */
static int is_mapped(uint64_t a, uint64_t nbytes) {
    enum { AT_ONCE = 1 << 16 };
    unsigned char pages[AT_ONCE];
    for (uint64_t at = a / PAGE * PAGE; at < a + nbytes; at += (uint64_t)AT_ONCE * PAGE) {
        uint64_t left = a + nbytes - at, most = (uint64_t)AT_ONCE * PAGE;
        if (mincore((void *)(uintptr_t)at, left < most ? left : most, pages) != 0)
            return 0;
    }
    return 1;
}

/* Whether so many bytes more may be page-locked; if so they count. */
static int may_pin(int64_t nbytes) {
    static int64_t n_pinned;
    int64_t most = (int64_t)fc_config.most_pinned, now = __atomic_add_fetch(&n_pinned, nbytes, __ATOMIC_RELAXED);
    if (!most || now <= most)
        return 1;
    __atomic_sub_fetch(&n_pinned, nbytes, __ATOMIC_RELAXED);
    return 0;
}

FC_API cuMemHostRegister(void *p, size_t nbytes, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    uint64_t a = (uint64_t)(uintptr_t)p;
    if (st)
        return st;
    if (nbytes == 0 || flags > 15 || fc_is_in_window(a) || !is_mapped(a, nbytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (nbytes >= fc_config.most_registered)
        return CUDA_ERROR_OUT_OF_MEMORY;
    st = fc_drain(FC_CALL_PIN);
    if (st)
        return st;
    int is_plugin = fc_is_plugin(__builtin_return_address(0));
    if (!try_add_zone(
            &(fc_zone_t){a, a + nbytes, p, FC_HOST_REGISTERED, is_plugin, !(flags & CU_MEMHOSTREGISTER_DEVICEMAP), 0}))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!may_pin((int64_t)nbytes)) {
        fc_remove_zone(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fc_count(fc_current(), is_plugin, 1);
    return CUDA_SUCCESS;
}

FC_API cuMemHostUnregister(void *p) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    uint64_t a = (uint64_t)(uintptr_t)p;
    fc_zone_t z;
    if (st)
        return st;
    if (!fc_zone_of(a, &z) || z.kind != FC_HOST_REGISTERED || z.lo != a)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    st = fc_drain(FC_CALL_PIN);
    fc_remove_zone(a);
    may_pin((int64_t)z.lo - (int64_t)z.hi);
    fc_count(fc_current(), z.is_plugin, -1);
    return st;
}

FC_API cuMemHostGetDevicePointer(CUdeviceptr *out, void *p, unsigned int flags) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    uint64_t a = (uint64_t)(uintptr_t)p;
    fc_zone_t z;
    if (st)
        return st;
    if (flags != 0 || !fc_zone_of(a, &z) || z.is_for_copies ||
        (z.kind != FC_HOST_ALLOC && z.kind != FC_HOST_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *out = a;
    return CUDA_SUCCESS;
}
