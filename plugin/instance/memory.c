/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory.c - the memory of a run (contract in memory.h). */
#include "instance/memory.h"
#include "instance/residency.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "instance/layout.h"

/* Bytes mapped now. */
static uint64_t mapped_host_nbytes(const zfi_run_memory_t *mem) {
    return mem->host_arena.total_nbytes + mem->extra_host_nbytes;
}

static uint64_t mapped_device_nbytes(const zfi_ranks_t *ranks) {
    return ranks->mem->device_arena.total_nbytes + ranks->mem->extra_device_nbytes + ranks->dev->columns_nbytes;
}

/* Bytes that this run may map, of which own_nbytes are promised to it already; *out_source says where the limit comes
 * from. */
static uint64_t find_room(const zfi_run_memory_t *mem, uint64_t own_nbytes, char *out_source, size_t source_nbytes) {
    zfi_room_t room;
    if (mem->limit_mib) {
        snprintf(out_source, source_nbytes, "[host] memory_limit_mib");
        return mem->limit_mib << 20;
    }
    zfi_room_read(&room);
    if (mem->node.n_ranks > 1)
        snprintf(out_source, source_nbytes,
                 "one of %" PRIu32 " ranks on this machine, as LOCAL_WORLD_SIZE or the launcher's says",
                 mem->node.n_ranks);
    else
        snprintf(out_source, source_nbytes,
                 room.is_of_cgroup ? "left by the limit of this process's cgroup" : "available to this process");
    return zfi_room_share(&room, zfi_arena_all_promised() - own_nbytes, mem->node.n_ranks);
}

/* Bytes of the host's memory and of the device's, which is the host's on some. */
typedef struct need {
    uint64_t host, device;
} need_t;

/* promised_nbytes: of the arenas that are about to be mapped. */
static zf_status_t check_room(const zfi_ranks_t *ranks, need_t need, uint64_t promised_nbytes, zf_error_t *err) {
    char source[96];
    const zfi_layout_t *layout = &ranks->mem->layout;
    uint64_t have = find_room(ranks->mem, promised_nbytes, source, sizeof source);
    uint64_t images = zfi_residency_images_nbytes(ranks->engine, need.device);
    zfi_device_info_t info;
    ranks->engine->ops->info(ranks->engine->device, &info);
    uint64_t all = need.host + (info.is_host_memory ? need.device : 0) + images;
    if (all <= have)
        return ZF_OK;
    return zfi_error(
        err, ZF_ERR_MEMORY, "bind_params",
        "host memory: need %" PRIu64 " MiB, have %" PRIu64 " MiB (%s): state %" PRIu64 ", slots %" PRIu64
        ", publish %" PRIu64 ", device side %" PRIu64 ", what ranks exchange %" PRIu64
        " MiB; lower [zenflow] update_interval, deliver bf16 gradients, %sor use a machine with more memory",
        all >> 20, have >> 20, source, layout->host_state_nbytes >> 20, layout->host_slots_nbytes >> 20,
        layout->host_publish_nbytes >> 20, (need.device + images) >> 20,
        (zfi_memory_mirrors_nbytes(ranks) + ranks->mem->room_nbytes) >> 20,
        zfi_has_mirrors(ranks->engine) ? "exchange on the device ([shard] transport = nccl), " : "");
}

void zfi_memory_planned(const zfi_ranks_t *ranks, zf_bind_report_t *out) {
    const zfi_layout_t *layout = &ranks->mem->layout;
    *out = (zf_bind_report_t){.struct_size = sizeof *out, .n_elems = layout->n_elems};
    out->device_nbytes = layout->device_nbytes + (ranks->buckets->n ? zfi_memory_staging_nbytes(ranks) : 0);
    out->host_nbytes = layout->host_nbytes + zfi_memory_mirrors_nbytes(ranks) + ranks->mem->room_nbytes +
                       zfi_residency_images_nbytes(ranks->engine, out->device_nbytes);
}

/* Device memory for what was counted. */
static zf_status_t map_device(zfi_engine_t *engine, zfi_arena_t *arena, const char *what, zf_error_t *err) {
    void *memory;
    zf_status_t st = zfi_device_take(engine, zfi_arena_mapped_nbytes(arena), what, &memory, err);
    if (!st)
        zfi_arena_adopt(arena, memory);
    return st;
}

static void free_device(zfi_engine_t *engine, zfi_arena_t *arena) {
    zfi_device_give(engine, arena->base, arena->total_nbytes);
    arena->base = NULL;
    zfi_arena_free(arena); /* what was promised and not mapped */
}

/* What bind maps, and with room for early replays what is mapped later, and where the host sets neither a limit nor a
 * budget a quarter of what there is. */
static need_t count_need(const zfi_run_t *run) {
    const zfi_layout_t *layout = &run->mem.layout;
    need_t need = {layout->host_nbytes + zfi_memory_mirrors_nbytes(&run->ranks) + run->mem.room_nbytes,
                   layout->device_nbytes};
    if (run->buckets.n || run->hs.n_spares)
        need.device += zfi_memory_staging_nbytes(&run->ranks);
    if (run->hs.n_spares)
        need.device += zfi_memory_sums_nbytes(&run->ranks);
    if (run->hs.n_spares && !run->mem.limit_mib && run->engine->config.early_mib == ZFI_EARLY_MIB_AUTO)
        need.host += layout->host_nbytes / 3;
    return need;
}

/* Whether the device's memory is the host's; of a plan there is no device to ask. */
static int is_of_host(const zfi_engine_t *engine) {
    zfi_device_info_t info = {.is_host_memory = engine->device_type == ZF_DEVICE_CPU};
    if (engine->device)
        engine->ops->info(engine->device, &info);
    return info.is_host_memory;
}

void zfi_memory_plan(zfi_run_t *run) {
    uint64_t limit_nbytes = run->mem.limit_mib << 20;
    run->hs.n_spares = zfi_layout_most_spares(run->engine, &run->plan, run->n_moments);
    for (;; run->hs.n_spares /= 2) {
        zfi_arena_t host = {0}, device = {0};
        zfi_layout_count(run, &host, &device);
        need_t need = count_need(run);
        need.host += zfi_residency_images_nbytes(run->engine, need.device);
        need.host += is_of_host(run->engine) ? need.device : 0;
        if (!run->hs.n_spares || !limit_nbytes || need.host <= limit_nbytes)
            return;
    }
}

uint64_t zfi_memory_left(zfi_run_t *run) {
    zfi_device_info_t info;
    run->engine->ops->info(run->engine->device, &info);
    if (info.is_host_memory || info.free_nbytes == UINT64_MAX)
        return 0;
    zfi_memory_plan(run);
    uint64_t need = run->mem.layout.device_nbytes + zfi_memory_staging_nbytes(&run->ranks) +
                    zfi_memory_sums_nbytes(&run->ranks) + info.total_nbytes / 4;
    return info.free_nbytes > need ? (info.free_nbytes - need) >> 20 << 20 : 0;
}

int zfi_memory_has_room_beside(const zfi_ranks_t *ranks) {
    char source[96];
    uint64_t host = mapped_host_nbytes(ranks->mem), device = mapped_device_nbytes(ranks);
    uint64_t have = find_room(ranks->mem, 0, source, sizeof source);
    zfi_device_info_t info;
    ranks->engine->ops->info(ranks->engine->device, &info);
    if (info.is_host_memory)
        host += device + (ranks->plan->n_resident_elems - ranks->plan->n_resident_masters) * sizeof(float);
    else if (device > info.free_nbytes)
        return 0;
    return host <= (ranks->mem->limit_mib ? have / 2 : have);
}

/* Counts, and promises what was counted if there is room for it and for what ranks exchange, which is mapped later. */
static zf_status_t promise(zfi_run_t *run, zfi_arena_t *host, zfi_arena_t *device, zf_error_t *err) {
    *host = *device = (zfi_arena_t){0};
    zfi_layout_count(run, host, device);
    zfi_arena_promise(host);
    zfi_arena_promise(device);
    zf_status_t st = check_room(&run->ranks, count_need(run), host->promised_nbytes + device->promised_nbytes, err);
    if (st) {
        zfi_arena_free(host);
        zfi_arena_free(device);
    }
    return st;
}

/* Tells of memory that takes seconds to map, page-lock and fill. */
static void say_long(const zfi_engine_t *engine, uint64_t nbytes) {
    if (nbytes >= ZFI_LONG_BIND_NBYTES)
        zfi_log(engine, ZF_LOG_INFO, "bind_params", "taking %" PRIu64 " MiB of host memory%s, which takes seconds",
                nbytes >> 20, engine->ops->has_own_memory ? ", page-locked" : "");
}

zf_status_t zfi_memory_bind(zfi_run_t *run, zf_error_t *err) {
    zfi_arena_t host = {0}, device = {0};
    uint64_t base = 0;
    run->hs.n_spares = zfi_layout_most_spares(run->engine, &run->plan, run->n_moments);
    zf_status_t st = promise(run, &host, &device, run->hs.n_spares ? NULL : err);
    while (st && run->hs.n_spares) { /* fewer, down to none */
        run->hs.n_spares /= 2;
        st = promise(run, &host, &device, run->hs.n_spares ? NULL : err);
    }
    if (!st) {
        say_long(run->engine, host.promised_nbytes + (is_of_host(run->engine) ? device.promised_nbytes : 0));
        st = zfi_arena_map(&host, "the host's optimizer state", err);
    }
    if (!st)
        st = map_device(run->engine, &device, "the device's side", err);
    if (!st)
        st = zfi_engine_pin(run->engine, &host, &run->mem.is_pageable, err);
    if (st) {
        zfi_arena_free(&host);
        free_device(run->engine, &device);
        return st;
    }
    run->mem.host_arena = host;
    run->mem.device_arena = device;
    zfi_layout_place(run);
    for (uint32_t i = 0; i < run->n_params; i++) {
        run->mem.param_base[i] = base;
        base = zfi_memory_after(base, &run->params[i]);
    }
    return ZF_OK;
}

/* Frees what a transport reads and writes. */
static void free_exchanged(zfi_run_t *run) {
    free_device(run->engine, &run->mem.staging_arena);
    for (uint32_t i = 0; i < run->reduction.n_buffers; i++)
        free_device(run->engine, &run->reduction.buffers[i].arena);
    for (uint32_t i = 0; i < run->shards.n_buffers; i++)
        free_device(run->engine, &run->shards.buffers[i].arena);
    free_device(run->engine, &run->shards.parts.arena);
}

void zfi_memory_free(zfi_run_t *run) {
    zfi_arena_free(&run->dev.apart);
    zfi_engine_unpin(run->engine, &run->mem.host_arena);
    zfi_arena_free(&run->mem.host_arena);
    free_device(run->engine, &run->mem.device_arena);
    if (!run->engine->comm_ops->holds_memory(run->engine->comm)) /* a transport that was given up may write there */
        free_exchanged(run);
    free_device(run->engine, &run->mem.sum_arena);
    free_device(run->engine, &run->shards.arena);
    zfi_device_give(run->engine, run->dev.columns, run->dev.columns_nbytes);
}

/* More of the host's memory, page-locked, or of the device's. */
static zf_status_t map_more(zfi_ranks_t *ranks, zfi_arena_t *arena, uint64_t nbytes, const char *what, int is_host,
                            zf_error_t *err) {
    zfi_run_memory_t *mem = ranks->mem;
    uint64_t has_limit = mem->limit_mib != 0, more, *extra, *asked;
    int is_pageable;
    zfi_arena_take(arena, nbytes, 1);
    zfi_arena_promise(arena);
    more = zfi_arena_mapped_nbytes(arena);
    need_t need = {has_limit * mapped_host_nbytes(mem), has_limit * mapped_device_nbytes(ranks)};
    *(is_host ? &need.host : &need.device) += more;
    zf_status_t st = check_room(ranks, need, arena->promised_nbytes, err);
    if (!st)
        st = is_host ? zfi_arena_map(arena, what, err) : map_device(ranks->engine, arena, what, err);
    if (!st && is_host)
        st = zfi_engine_pin(ranks->engine, arena, &is_pageable, err);
    if (st) {
        zfi_arena_free(arena);
        return st;
    }
    extra = is_host ? &mem->extra_host_nbytes : &mem->extra_device_nbytes;
    asked = is_host ? &mem->asked_host_nbytes : &mem->asked_device_nbytes;
    *extra += more;
    *asked += mem->is_bound ? more : 0;
    zfi_memory_report(ranks);
    return ZF_OK;
}

zf_status_t zfi_memory_map_more(zfi_ranks_t *ranks, zfi_arena_t *arena, uint64_t nbytes, const char *what,
                                zf_error_t *err) {
    return map_more(ranks, arena, nbytes, what, 0, err);
}

zf_status_t zfi_memory_map_pinned(zfi_ranks_t *ranks, zfi_arena_t *arena, uint64_t nbytes, const char *what,
                                  zf_error_t *err) {
    return nbytes ? map_more(ranks, arena, nbytes, what, 1, err) : ZF_OK;
}

zf_status_t zfi_memory_need_staging(zfi_ranks_t *ranks, zf_error_t *err) {
    if (ranks->mem->staging_arena.base)
        return ZF_OK;
    return zfi_memory_map_more(ranks, &ranks->mem->staging_arena, zfi_memory_gradients_nbytes(ranks),
                               "gradient staging", err);
}

/* Bytes that may still be mapped for the device. */
static uint64_t device_left(const zfi_ranks_t *ranks) {
    char source[96];
    zfi_device_info_t info;
    ranks->engine->ops->info(ranks->engine->device, &info);
    if (!info.is_host_memory)
        return info.free_nbytes;
    uint64_t have = find_room(ranks->mem, 0, source, sizeof source), mapped = 0;
    if (ranks->mem->limit_mib)
        mapped = mapped_host_nbytes(ranks->mem) + mapped_device_nbytes(ranks);
    return have > mapped ? have - mapped : 0;
}

zf_status_t zfi_memory_need_sums(zfi_ranks_t *ranks, zf_error_t *err) {
    uint64_t nbytes = zfi_memory_per_element_nbytes(ranks);
    if (ranks->mem->sum_arena.base)
        return ZF_OK;
    zf_status_t st = zfi_memory_map_more(ranks, &ranks->mem->sum_arena, nbytes, "sums of micro-batch parts", err);
    if (st != ZF_ERR_MEMORY)
        return st;
    return zfi_error(err, st, "grads_ready",
                     "sums of a step's gradient that comes in parts: need %" PRIu64 " MiB on the device, 4 bytes per "
                     "parameter on every rank, have %" PRIu64 " MiB; accumulate micro-batches in the trainer and "
                     "deliver their sum once, with LAST",
                     nbytes >> 20, device_left(ranks) >> 20);
}

void zfi_memory_bound(const zfi_ranks_t *ranks) {
    ranks->mem->is_bound = 1;
    zfi_memory_report(ranks);
}

void zfi_memory_report(const zfi_ranks_t *ranks) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_run_memory_t *mem = ranks->mem;
    zfi_counters_t *count = &engine->count;
    uint64_t mapped = mapped_device_nbytes(ranks);
    zf_bind_report_t planned;
    zfi_memory_planned(ranks, &planned);
    atomic_store(&count->host_planned_nbytes, planned.host_nbytes + mem->asked_host_nbytes +
                                                  zfi_residency_images_nbytes(engine, mem->asked_device_nbytes));
    atomic_store(&count->host_measured_nbytes, mapped_host_nbytes(mem) + zfi_residency_images_nbytes(engine, mapped));
    atomic_store(&count->device_planned_nbytes, planned.device_nbytes + mem->asked_device_nbytes);
    atomic_store(&count->device_measured_nbytes, engine->residency.released ? 0 : mapped);
    atomic_store(&count->slot_pieces, mem->layout.n_pieces);
}
