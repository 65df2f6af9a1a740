/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/mirror.c - page-locked copies of what ranks exchange (contract in mirror.h). */
#include "ranks/mirror.h"

#include "instance/memory.h"
#include "instance/residency.h"

zf_status_t zfi_mirror_map(zfi_ranks_t *ranks, zfi_mirror_t *mirror, const void *device, uint64_t nbytes,
                           zf_error_t *err) {
    return zfi_has_mirrors(ranks->engine) ? zfi_mirror_map_always(ranks, mirror, device, nbytes, err) : ZF_OK;
}

zf_status_t zfi_mirror_map_always(zfi_ranks_t *ranks, zfi_mirror_t *mirror, const void *device, uint64_t nbytes,
                                  zf_error_t *err) {
    zf_status_t st = zfi_memory_map_pinned(ranks, &mirror->arena, nbytes, "what ranks exchange", err);
    if (!st)
        mirror->device = device, mirror->nbytes = nbytes;
    return st;
}

void zfi_mirror_free(zfi_engine_t *engine, zfi_run_memory_t *mem, zfi_mirror_t *mirror) {
    zfi_engine_unpin(engine, &mirror->arena);
    mem->extra_host_nbytes -= mirror->arena.total_nbytes;
    zfi_arena_free(&mirror->arena);
    mirror->device = NULL;
}

/* NULL: it is not that one's. */
static void *find(const zfi_mirror_t *mirror, const void *device) {
    uint64_t offset = (uint64_t)((uintptr_t)device - (uintptr_t)mirror->device);
    return mirror->device && offset < mirror->nbytes ? mirror->arena.base + offset : NULL;
}

void *zfi_mirrored(const zfi_ranks_t *ranks, const void *device) {
    void *found = find(&ranks->mem->staging_mirror, device);
    if (!found)
        found = find(&ranks->mem->selected_mirror, device);
    for (uint32_t i = 0; i < ranks->reduction->n_buffers && !found; i++)
        found = find(&ranks->reduction->buffers[i].mirror, device);
    if (!found)
        found = find(&ranks->shards->parts.mirror, device);
    return found ? found : (void *)(uintptr_t)device;
}

void zfi_mirror_down(zfi_ranks_t *ranks, zfi_list_t *by, const void *device, uint64_t nbytes) {
    void *mirror = zfi_mirrored(ranks, device);
    if (mirror != device && nbytes)
        zfi_list_copy(by, ZFI_OP_DOWN, mirror, device, nbytes);
}

void zfi_mirror_up(zfi_ranks_t *ranks, void *device, uint64_t nbytes) {
    const void *mirror = zfi_mirrored(ranks, device);
    if (mirror != device && nbytes)
        zfi_list_copy(&ranks->engine->to_device, ZFI_OP_UP, device, mirror, nbytes);
}
