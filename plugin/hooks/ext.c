/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/ext.c - the plugin's extensions: zf.stats/1, zf.config/1, zf.cpu/1, zf.inspect/0, zf.digest/0, and the
 * list of all (zf.state/1: hooks/state.c, zf.plan/0: hooks/dry_run.c, zf.shards/0: hooks/fetch.c). */
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/struct.h"
#include "base/tensor.h"
#include "config/config.h"
#include "device/cpu/cpu.h"
#include "hooks/changed.h"
#include "hooks/hooks.h"
#include "hooks/step_record.h"
#include "instance/instance.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/stats.h"

const char zfi_provided_extensions[] = ZF_EXT_STATS " " ZF_EXT_CONFIG " " ZF_EXT_CPU " " ZF_EXT_STATE " " ZF_EXT_INSPECT
                                                    " " ZF_EXT_DIGEST " " ZF_EXT_PLAN " " ZF_EXT_SHARDS;

/* [any-thread] An instance argument of an extension, without the hook's lock. */
static zf_status_t check_instance(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    if (inst && inst->magic == ZFI_INSTANCE_MAGIC)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, origin, "instance is %s", inst ? "not one of this plugin's" : "NULL");
}

/* ---- zf.stats/1 -------------------------------------------------------------------------------------------------- */

/* Any thread may ask, so the run, which a hook may be exchanging, is not read. */
void zfi_stats_fill(zf_instance_t *inst, zf_stats_t *out) {
    const zfi_counters_t *count = &inst->engine.count;
    const zfi_totals_t *totals = inst->engine.totals;
    uint64_t applied = __atomic_load_n(&totals->n_applied, __ATOMIC_RELAXED);
    uint64_t skipped = __atomic_load_n(&totals->n_skipped, __ATOMIC_RELAXED);
    zfi_meter_reading_t lateness;
    (void)zfi_meter_read(&inst->engine.meter, 0, UINT32_MAX, &lateness);
    *out = (zf_stats_t){
        .struct_size = sizeof *out,
        .n_workers = atomic_load(&inst->engine.n_workers),
        .steps = atomic_load(&count->steps),
        .steps_applied = applied,
        .steps_skipped = skipped,
        .window_closes = atomic_load(&count->window_closes),
        .closes_by_data = atomic_load(&count->closes_by_data),
        .reselects = atomic_load(&count->reselects),
        .channels_entered = atomic_load(&count->channels_entered),
        .channels_left = atomic_load(&count->channels_left),
        .down_grad_nbytes = atomic_load(&count->down_grad_nbytes),
        .down_record_nbytes = atomic_load(&count->down_record_nbytes),
        .up_publish_nbytes = atomic_load(&count->up_publish_nbytes),
        .up_enter_nbytes = atomic_load(&count->up_enter_nbytes),
        .lost_overlap_nbytes = atomic_load(&count->lost_overlap_nbytes),
        .host_planned_nbytes = atomic_load(&count->host_planned_nbytes),
        .host_measured_nbytes = atomic_load(&count->host_measured_nbytes),
        .device_planned_nbytes = atomic_load(&count->device_planned_nbytes),
        .device_measured_nbytes = atomic_load(&count->device_measured_nbytes),
        .slot_chunks_peak = atomic_load(&count->slots_peak),
        .slot_chunks_total = atomic_load(&count->slot_pieces),
        .stall_replay_ns = atomic_load(&count->stall_replay_ns),
        .stall_select_ns = atomic_load(&count->stall_select_ns),
        .stall_pool_ns = atomic_load(&count->stall_pool_ns),
        .host_wait_ns = atomic_load(&count->host_wait_ns),
        .replay_ns = atomic_load(&count->replay_ns),
        .replay_elems = atomic_load(&count->replay_elems),
        .overwritten_elems = __atomic_load_n(&totals->n_overwritten, __ATOMIC_RELAXED),
        .lateness_steps = lateness.n_steps,
        .lateness_sum = lateness.sum,
        .lateness = lateness.loss,
        .update_interval = inst->engine.config.update_interval,
        .publish_lag = inst->engine.config.publish_lag,
        .exchanges = atomic_load(&count->exchanges),
        .sent_nbytes = atomic_load(&count->sent_nbytes),
        .exchange_ns = atomic_load(&count->exchange_ns),
        .stall_ranks_ns = atomic_load(&count->stall_ranks_ns),
    };
}

static zf_status_t stats_read(zf_instance_t *inst, zf_stats_t *out, zf_error_t *err) {
    zf_stats_t stats;
    zf_status_t st = check_instance(inst, "stats", err);
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "stats", "out is NULL");
    if (!st)
        st = zfi_struct_check_out(out, "zf_stats_t", err);
    if (st)
        return st;
    zfi_stats_fill(inst, &stats);
    zfi_struct_write(out, &stats, sizeof stats);
    return ZF_OK;
}

static zf_status_t stats_lateness(zf_instance_t *inst, uint64_t step, uint32_t group, zf_lateness_t *out,
                                  zf_error_t *err) {
    zfi_meter_reading_t reading;
    zf_lateness_t lateness = {.struct_size = sizeof lateness, .group = group};
    uint32_t n_groups;
    int is_complete;
    zf_status_t st = check_instance(inst, "lateness", err);
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "lateness", "out is NULL");
    if (!st)
        st = zfi_struct_check_out(out, "zf_lateness_t", err);
    if (st)
        return st;
    n_groups = zfi_meter_n_groups(&inst->engine.meter);
    if (n_groups && group >= n_groups)
        return zfi_error(err, ZF_ERR_ARGUMENT, "lateness", "group = %u; there are %u", group, n_groups);
    is_complete = n_groups && zfi_meter_read(&inst->engine.meter, step, group, &reading);
    if (n_groups) {
        lateness.step = reading.step;
        lateness.loss = reading.loss;
        lateness.sum = reading.sum;
        lateness.n_steps = reading.n_steps;
    }
    zfi_struct_write(out, &lateness, sizeof lateness);
    return n_groups == 0 ? ZF_DISABLED : is_complete ? ZF_OK : ZF_IN_PROGRESS;
}

static zf_status_t stats_step_record(zf_instance_t *inst, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    zf_step_record_t record;
    zf_status_t st = check_instance(inst, "step_record", err);
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "step_record", "out is NULL");
    if (!st)
        st = zfi_struct_check_out(out, "zf_step_record_t", err);
    if (st)
        return st;
    st = zfi_step_record_read(inst, step, &record);
    zfi_struct_write(out, &record, sizeof record);
    return st;
}

static const zf_stats_ext_t stats_ext = {
    .struct_size = sizeof stats_ext, .read = stats_read, .lateness = stats_lateness, .step_record = stats_step_record};

/* ---- zf.config/1 ------------------------------------------------------------------------------------------------- */

static zf_status_t config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err) {
    zf_config_key_t key = {.struct_size = sizeof key};
    zf_status_t st = out ? zfi_struct_check_out(out, "zf_config_key_t", err)
                         : zfi_error(err, ZF_ERR_ARGUMENT, "config", "out is NULL");
    if (!st)
        st = zfi_config_key(i, &key, err);
    if (!st)
        zfi_struct_write(out, &key, sizeof key);
    return st;
}

static zf_status_t config_value(zf_instance_t *inst, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = check_instance(inst, "config", err);
    if (!st && (!buf || !nbytes))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "config", "buf is NULL or empty");
    if (st)
        return st;
    return zfi_config_value(&inst->engine.config, i, buf, nbytes, err);
}

static zf_status_t config_check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n_overrides,
                                zf_error_t *err) {
    zfi_config_t config;
    if (n_overrides && !overrides)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "overrides is NULL with n_overrides = %u", n_overrides);
    return zfi_config_parse(text, nbytes, "config_text", overrides, n_overrides, &config, err);
}

static const zf_config_ext_t config_ext = {.struct_size = sizeof config_ext,
                                           .n_keys = zfi_config_n_keys,
                                           .key = config_key,
                                           .value = config_value,
                                           .check = config_check};

/* ---- zf.inspect/0 ------------------------------------------------------------------------------------------------ */

static const zf_inspect_ext_t inspect_ext = {.struct_size = sizeof inspect_ext, .read = zfi_inspect};

/* ---- zf.digest/0 ------------------------------------------------------------------------------------------------- */

static zf_status_t digest_check(const zf_instance_t *inst, const zf_tensor_t *const *tensors, uint32_t n,
                                const uint64_t *out, zf_error_t *err) {
    zfi_view_t view;
    zf_status_t st = check_instance(inst, "digest", err);
    if (!st && n && (!tensors || !out))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "digest", "%s is NULL with n = %u", tensors ? "out" : "tensors", n);
    for (uint32_t i = 0; i < n && !st; i++) {
        char name[24];
        snprintf(name, sizeof name, "tensors[%u]", i);
        st = zfi_tensor_check_bytes(tensors[i], "contents", name, ZF_DEVICE_CPU, &view, err);
    }
    return st;
}

/* Checks all, then digests each: so the views need no memory. */
static zf_status_t digest(zf_instance_t *inst, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                          zf_error_t *err) {
    zfi_view_t view;
    zf_status_t st = digest_check(inst, tensors, n, out, err);
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_tensor_check_bytes(tensors[i], "contents", "", ZF_DEVICE_CPU, &view, NULL);
        out[i] = zfi_digest(&view);
    }
    return st;
}

static const zf_digest_ext_t digest_ext = {
    .struct_size = sizeof digest_ext, .digest = digest, .written = zfi_written, .adopt = zfi_adopt};

static const zf_shards_ext_t shards_ext = {.struct_size = sizeof shards_ext, .place = zfi_shard_place};

const void *zfi_get_extension(const char *id) {
    static const struct {
        const char *id;
        const void *table;
    } all[] = {{ZF_EXT_STATS, &stats_ext},     {ZF_EXT_CONFIG, &config_ext},   {ZF_EXT_CPU, &zfi_cpu_ext},
               {ZF_EXT_STATE, &zfi_state_ext}, {ZF_EXT_INSPECT, &inspect_ext}, {ZF_EXT_DIGEST, &digest_ext},
               {ZF_EXT_PLAN, &zfi_plan_ext},   {ZF_EXT_SHARDS, &shards_ext}};
    for (size_t i = 0; id && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].id, id) == 0)
            return all[i].table;
    return NULL;
}
