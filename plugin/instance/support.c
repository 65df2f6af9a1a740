/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/support.c - (contract in support.h). */
#include "instance/support.h"

#include "base/error.h"

zf_status_t zfi_support_config(const zfi_engine_t *engine, const zfi_config_t *config, zf_error_t *err) {
    const struct need {
        uint32_t feature;
        int is_needed;
        const char *what, *instead;
    } needs[] = {
        {ZFI_LACKS_MEAN, config->mode == ZFI_MODE_MEAN, "[zenflow] mode = mean", "use exact or windows"},
        {ZFI_LACKS_MOMENTS, zfi_config_element_moments(config) != ZFI_MOMENTS_F32, "[host] moments_dtype",
         "use float32"},
        {ZFI_LACKS_RESIDENT, config->state_mib != 0, "[device] state_mib", "use 0"},
        {ZFI_LACKS_RANKS, zfi_has_peers(engine), "training with other ranks", "create the instance without them"}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].is_needed && (engine->ops->lacks & needs[i].feature))
            return zfi_error(err, ZF_ERR_DEVICE, "bind_params", "%s is not in this backend (\"%s\"): %s", needs[i].what,
                             engine->ops->name, needs[i].instead);
    return ZF_OK;
}

/* Whether the device ever updates the parameter: its selected channels, or all of them. */
static int is_on_device(const zfi_config_t *config, const zfi_param_t *param) {
    return param->home == ZF_HOME_RESIDENT || config->state_mib == ZFI_STATE_MIB_ALL ||
           (param->home != ZF_HOME_HOST && (config->topk_ratio != 0 || config->state_mib != 0));
}

/* A rule of whole matrices is no backend's. */
static zf_status_t check_matrices(const zfi_engine_t *engine, const zfi_config_t *config, const zfi_param_t *param,
                                  zf_error_t *err) {
    const struct {
        int is_missing;
        const char *what;
    } needs[] = {
        {!config->sees_edits, "[zenflow] mode = exact, and parameters in host memory (device type CPU)"},
        {zfi_has_peers(engine) && config->stage > 2, "[shard] stage = 0, 1 or 2"},
        {param->group_index[1] != 0, "no reduce_group2"},
        {param->home == ZF_HOME_HOST, "another home than 2 (host)"},
        {!param->is_contiguous, "a contiguous tensor"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].is_missing)
            return zfi_error_of(
                err, ZF_ERR_PARAM, param->id, "bind_params",
                "parameter \"%s\": the rule \"%s\" of group %u takes whole matrices (%s), which needs %s", param->name,
                param->rule->name, param->group, ZF_EXT_MATRIX, needs[i].what);
    return ZF_OK;
}

/* Its memory carries gradients, too. */
static zf_status_t check_carried(const zfi_engine_t *engine, const zfi_config_t *config, const zfi_param_t *param,
                                 zf_error_t *err) {
    const struct {
        int is_missing;
        const char *what;
    } needs[] = {
        {!config->sees_edits, "[zenflow] mode = exact, and memory of the host (device type CPU)"},
        {zfi_has_peers(engine), "one rank"},
        {!param->is_contiguous, "a contiguous tensor"},
        {zfi_dtype_nbytes(param->dtype) != zfi_dtype_nbytes(param->grad_dtype), "gradients as wide as its values"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].is_missing)
            return zfi_error_of(err, ZF_ERR_PARAM, param->id, "bind_params",
                                "parameter \"%s\": ZF_PARAM_CARRIES, memory that carries gradients too, needs %s",
                                param->name, needs[i].what);
    return ZF_OK;
}

zf_status_t zfi_support_param(const zfi_engine_t *engine, const zfi_config_t *config, const zfi_param_t *param,
                              zf_error_t *err) {
    const uint32_t lacks = engine->ops->lacks, rule = param->rule->number;
    const char *name = engine->ops->name;
    const int is_single = param->dtype == ZFI_F32 && param->grad_dtype == ZFI_F32;
    if ((lacks & ZFI_LACKS_HOST_RULES) && rule == ZF_RULE_CALLBACK && is_on_device(config, param))
        return zfi_error_of(err, ZF_ERR_DEVICE, param->id, "bind_params",
                            "parameter \"%s\": a rule of the host's (group %u, \"%s\") does not run on this backend "
                            "(\"%s\"); declare home = 2 (host), with [device] state_mib below all, so that the host's "
                            "threads make every update",
                            param->name, param->group, param->rule->name, name);
    if ((lacks & ZFI_LACKS_RULES) && rule != ZF_RULE_ADAMW)
        return zfi_error_of(err, ZF_ERR_DEVICE, param->id, "bind_params",
                            "parameter \"%s\": the rule \"%s\" of group %u is not in this backend (\"%s\"): use AdamW",
                            param->name, param->rule->name, param->group, name);
    if ((lacks & ZFI_LACKS_HALVES) && !is_single)
        return zfi_error_of(err, ZF_ERR_DEVICE, param->id, "bind_params",
                            "parameter \"%s\" is %s with gradients in %s: this backend (\"%s\") has float32 alone",
                            param->name, zfi_dtype_name(param->dtype), zfi_dtype_name(param->grad_dtype), name);
    if ((lacks & ZFI_LACKS_RESIDENT) && param->home == ZF_HOME_RESIDENT)
        return zfi_error_of(err, ZF_ERR_DEVICE, param->id, "bind_params",
                            "parameter \"%s\": home = resident is not in this backend (\"%s\"): leave it out",
                            param->name, name);
    zf_status_t st = param->carries ? check_carried(engine, config, param, err) : ZF_OK;
    return !st && param->rule->matrices.update ? check_matrices(engine, config, param, err) : st;
}
