/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/idle.c - keys that were changed although another key leaves them without effect (contract in
 * config.h). They are no error: a file may keep the settings of several modes. */
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"

typedef struct need {
    const char *key, *need; /* a key of [zenflow], and the setting without which it has no effect */
    int is_met;
} need_t;

const char *zfi_config_idle(const zfi_config_t *config, uint32_t i) {
    const need_t needs[] = {
        {"energy", "topk_ratio = auto", zfi_config_is_topk_auto(config)},
        {"max_topk_ratio", "topk_ratio = auto", zfi_config_is_topk_auto(config)},
        {"reselect_below", "select_strategy = auto", config->select_strategy == ZFI_SELECT_AUTO},
        {"select_interval", "select_strategy = step or auto", config->select_strategy != ZFI_SELECT_EPOCH},
        {"min_update_interval", "update_interval = auto", config->is_interval_auto},
        {"max_update_interval", "update_interval = auto or fit", config->is_interval_auto || config->is_interval_fit},
        {"max_stall", "update_interval = fit", config->is_interval_fit},
        {"auto_ratio", "update_interval = auto", config->is_interval_auto},
        {"accumulate_on", "deferred = moments", config->deferred == ZFI_DEFERRED_MOMENTS},
        {"deferred_lr_scale", "deferred = mean", config->deferred == ZFI_DEFERRED_MEAN},
    };
    const zfi_key_t *key = zfi_key_at(i);
    char value[64];
    for (size_t k = 0; k < sizeof needs / sizeof *needs; k++) {
        if (strcmp(key->name, needs[k].key) != 0 || needs[k].is_met)
            continue;
        zfi_key_print(key, config, value, sizeof value);
        return strcmp(value, key->deflt) != 0 ? needs[k].need : NULL;
    }
    return NULL;
}
