/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/fetch.c - param_fetch (contract in zf/plugin.h), and zf.shards/0.
 *
 * With publish_lag = 0 this is where a closed window's values become visible (step/publisher.h), of the matrices that
 * are asked for.
 * With [shard] stage = 3 it is where a parameter becomes whole, and release where its memory may be another's
 * (ranks/shards.h).
 * Visible writes are commands on the device stream. Work that the host enqueues on that stream comes after them by
 * itself; another stream is made to wait, our own for a host that computes on its own thread. That host gets the
 * sequence number of the newest write. */
#include "base/error.h"
#include "base/struct.h"
#include "device/device.h"
#include "hooks/hooks.h"
#include "hooks/named.h"
#include "hooks/stream.h"
#include "instance/instance.h"
#include "ranks/shards.h"
#include "step/program.h"
#include "step/publisher.h"

/* Shows what a closed window has published of the parameters becomes visible, where it waits for that. Neighbours
 * together: launches are by range, not by parameter. */
static zf_status_t publish(zf_instance_t *inst, const zfi_named_list_t *list, zf_error_t *err) {
    zfi_run_t *run = inst->run;
    zf_status_t st = list->n ? ZF_OK : run->publisher->fetch(&run->publishing, 0, run->plan.n_matrices);
    for (uint32_t i = 0; i < list->n && !st;) {
        zfi_named_t all = zfi_named_at(run->params, list, i), next;
        while (++i < list->n && (next = zfi_named_at(run->params, list, i)).first == all.end)
            all.end = next.end;
        st = run->publisher->fetch(&run->publishing, all.first, all.end);
    }
    return zfi_hook_failed(inst, st, "param_fetch", "the device did not take the merge", err);
}

static uint64_t newest_write(const zf_instance_t *inst, const zfi_named_list_t *list) {
    const zfi_run_t *run = inst->run;
    uint64_t newest = list->n ? 0 : run->writes.any;
    for (uint32_t i = 0; i < list->n; i++) {
        zfi_named_t named = zfi_named_at(run->params, list, i);
        uint64_t write = zfi_program_newest_write(run, named.first, named.end);
        newest = write > newest ? write : newest;
    }
    newest = newest > run->shards.newest ? newest : run->shards.newest;
    return newest > inst->engine.visible_floor ? newest : inst->engine.visible_floor;
}

/* Parameters that live as shards become whole. */
static zf_status_t gather(zf_instance_t *inst, const zfi_named_list_t *list, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why, .message = "the device did not take the gathering of parameters"};
    zfi_ids_t ids = zfi_named_ids(list);
    return zfi_hook_failed(inst, zfi_shards_fetch(&inst->run->ranks, &ids, &why), "param_fetch", why.message, err);
}

zf_status_t zfi_param_fetch(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                            const zf_stream_t *given, zf_fence_t *out_ready, zf_error_t *err) {
    zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_STREAM_ORDER};
    zfi_named_list_t list = {.items = items, .n = n, .elem_size = elem_size};
    zfi_stream_t *stream = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "param_fetch", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_ready, "zf_fence_t", err);
    if (!st)
        st = zfi_named_check(inst, &list, "param_fetch", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_fetch", &stream, &is_host_thread, err);
    if (!st)
        st = publish(inst, &list, err);
    if (!st && zfi_shards_params(&inst->engine))
        st = gather(inst, &list, err);
    if (!st && stream != inst->engine.stream)
        st = zfi_stream_follow(inst, stream, "param_fetch", err);
    if (!st && is_host_thread) /* of our own stream, whose fences tell when the instance has ended */
        inst->engine.ops->fence(
            stream, stream == inst->engine.stream ? newest_write(inst, &list) : inst->engine.ops->mark(stream), &fence);
    if (!st)
        zfi_struct_write(out_ready, &fence, sizeof fence);
    return zfi_hook_end(inst, st, err);
}

/* The memory may be another's behind what the host's stream has been given so far. */
static zf_status_t release(zf_instance_t *inst, const zfi_named_list_t *list, zfi_stream_t *stream, int is_host_thread,
                           zf_error_t *err) {
    zfi_engine_t *engine = &inst->engine;
    zfi_ids_t ids = zfi_named_ids(list);
    zf_status_t st = ZF_OK;
    if (!is_host_thread && stream != engine->stream)
        st = engine->ops->order(engine->device, stream, engine->stream);
    if (!st)
        zfi_shards_release(&inst->run->ranks, &ids);
    return zfi_hook_failed(inst, st, "param_release", "the device did not take the order of two streams", err);
}

zf_status_t zfi_param_release(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                              const zf_stream_t *given, zf_error_t *err) {
    zfi_named_list_t list = {.items = items, .n = n, .elem_size = elem_size};
    zfi_stream_t *stream = NULL;
    int is_host_thread = 0;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "param_release", err);
    if (st)
        return st;
    st = zfi_named_check(inst, &list, "param_release", err);
    if (!st)
        st = zfi_stream_resolve(inst, given, "param_release", &stream, &is_host_thread, err);
    if (!st && zfi_shards_params(&inst->engine))
        st = release(inst, &list, stream, is_host_thread, err);
    return zfi_hook_end(inst, st, err);
}

/* ---- sharded parameters ------------------------------------------------------------------------------------------ */

zf_status_t zfi_shard_place(zf_instance_t *inst, uint32_t id, zf_shard_place_t *out, zf_error_t *err) {
    zf_shard_place_t place = {.struct_size = sizeof place};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "place", err);
    if (st)
        return st;
    st = zfi_struct_need_out(out, "zf_shard_place_t", "place", err);
    if (!st && id >= inst->run->n_params)
        st = zfi_error(err, ZF_ERR_PARAM, "place", "unknown parameter id %u; %u are bound", id, inst->run->n_params);
    if (!st) {
        const zfi_param_t *param = &inst->run->params[id];
        place.is_sharded = param->is_sharded;
        place.data = zfi_shards_address(&inst->run->ranks, id);
        place.nbytes = param->n_elems * zfi_dtype_nbytes(param->dtype);
        if (!place.data && param->n_elems)
            st = zfi_error_of(
                err, ZF_ERR_STATE, id, "place",
                "\"%s\" is sharded and not fetched: it is in one place between param_fetch and param_release only",
                param->name);
    }
    if (!st)
        zfi_struct_write(out, &place, sizeof place);
    return zfi_hook_end(inst, st, err);
}

zf_status_t zfi_fetch_check_released(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    uint32_t held = zfi_shards_held(&inst->run->ranks);
    if (held == ZF_NO_ID)
        return ZF_OK;
    return zfi_error_of(err, ZF_ERR_STATE, held, origin,
                        "\"%s\" was fetched and not released ([shard] stage = 3): what is read there would be of "
                        "before this call; call param_release first",
                        inst->run->params[held].name);
}
