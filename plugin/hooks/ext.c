/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/ext.c - the plugin's extensions: zf.config/1, zf.cpu/1, zf.inspect/0, zf.digest/0, zf.matrix/0 and the
 * list of all (zf.stats/1: hooks/stats.c, zf.state/1: hooks/state.c, zf.plan/0: hooks/dry_run.c, zf.shards/0:
 * hooks/fetch.c, zf.residency/1: hooks/residency.c). */
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
#include "instance/instance.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/matrix.h"
#include "zf/ext/stats.h"

const char zfi_provided_extensions[] =
    ZF_EXT_STATS " " ZF_EXT_CONFIG " " ZF_EXT_CPU " " ZF_EXT_STATE " " ZF_EXT_INSPECT " " ZF_EXT_DIGEST " " ZF_EXT_PLAN
                 " " ZF_EXT_SHARDS " " ZF_EXT_RESIDENCY " " ZF_EXT_MATRIX;

/* ---- zf.config/1 ------------------------------------------------------------------------------------------------- */

static zf_status_t config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err) {
    zf_config_key_t key;
    zf_status_t st = zfi_struct_need_out(out, "zf_config_key_t", "config", err);
    if (!st)
        st = zfi_config_key(i, &key, err);
    if (!st)
        zfi_struct_write(out, &key, sizeof key);
    return st;
}

static zf_status_t config_value(zf_instance_t *inst, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = zfi_instance_check(inst, "config", err);
    return st ? st : zfi_config_value(&inst->engine.config, i, buf, nbytes, err);
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
    zf_status_t st = zfi_instance_check(inst, "digest", err);
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

static const zf_shards_ext_t shards_ext = {
    .struct_size = sizeof shards_ext, .place = zfi_shard_place, .param_release = zfi_param_release};

static const zf_matrix_ext_t matrix_ext = {.struct_size = sizeof matrix_ext};

const void *zfi_get_extension(const char *id) {
    static const struct {
        const char *id;
        const void *table;
    } all[] = {{ZF_EXT_STATS, &zfi_stats_ext}, {ZF_EXT_CONFIG, &config_ext},   {ZF_EXT_CPU, &zfi_cpu_ext},
               {ZF_EXT_STATE, &zfi_state_ext}, {ZF_EXT_INSPECT, &inspect_ext}, {ZF_EXT_DIGEST, &digest_ext},
               {ZF_EXT_PLAN, &zfi_plan_ext},   {ZF_EXT_SHARDS, &shards_ext},   {ZF_EXT_RESIDENCY, &zfi_residency_ext},
               {ZF_EXT_MATRIX, &matrix_ext}};
    for (size_t i = 0; id && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].id, id) == 0)
            return all[i].table;
    return NULL;
}
