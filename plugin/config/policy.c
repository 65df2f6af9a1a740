/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/policy.c - what a configuration stands for once the host and its ranks are known (contract in
 * config.h). */
#include "base/error.h"
#include "config/config.h"
#include "zf/ext/draft/shards.h"

void zfi_config_settle(zfi_config_t *config, int can_fetch, int is_host_memory) {
    config->can_fetch = can_fetch;
    config->sees_edits = is_host_memory && config->mode == ZFI_MODE_EXACT;
    if (config->publish_lag == ZFI_PUBLISH_LAG_AUTO)
        config->publish_lag = 0;
}

uint32_t zfi_config_predict(const zfi_config_t *config) {
    uint32_t late = config->update_interval - 1 + config->publish_lag;
    if (zfi_config_defers_nothing(config) || config->predict == ZFI_PREDICT_OFF)
        return 0;
    return late < ZFI_PREDICT_MOST ? late : ZFI_PREDICT_MOST;
}

int zfi_config_is_each_step_exact(const zfi_config_t *config) {
    return config->update_interval == 1 && config->publish_lag == 0 && !zfi_config_selects(config);
}

zfi_policy_t zfi_config_policy(const zfi_config_t *config) {
    zfi_policy_t out = {zfi_config_defers_nothing(config), zfi_config_selects(config), ZFI_PUBLISHED_AT_STEP,
                        config->update_interval, config->publish_lag};
    if (config->publish_lag)
        out.published = ZFI_PUBLISHED_NEXT_STEP;
    else if (config->can_fetch)
        out.published = ZFI_PUBLISHED_AT_FETCH;
    return out;
}

zf_status_t zfi_config_settle_ranks(zfi_config_t *config, const zfi_setting_t *setting, zf_error_t *err) {
    if (!setting->is_sharded || config->stage <= 2)
        return ZF_OK;
    if (config->mode == ZFI_MODE_MEAN)
        return zfi_error(err, ZF_ERR_CONFIG, "create",
                         "[shard] stage = 3 on %u ranks needs [zenflow] mode = exact or windows in this version; mean "
                         "is at stages 0 to 2",
                         setting->n_ranks);
    if (~setting->flags & (ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS))
        return zfi_error(err, ZF_ERR_CONFIG, "create",
                         "[shard] stage = 3 on %u ranks: this host reads parameters in its own memory, where no rank "
                         "has all of them then; use stage = 2, or a host that fetches and releases by %s "
                         "(ZF_CREATE_CAP_FETCH, ZF_CREATE_CAP_SHARDS)",
                         setting->n_ranks, ZF_EXT_SHARDS);
    config->can_fetch = 0; /* values are published in the step, then gathered */
    return ZF_OK;
}
