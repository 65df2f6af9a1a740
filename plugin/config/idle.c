/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/idle.c - keys that were changed although another key leaves them without effect (contract in
 * config.h). They are no error: a file may keep the settings of several modes. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"

#define OF_WINDOWS "[zenflow] mode = windows or mean"

typedef struct need {
    const char *key, *need; /* a key of [zenflow], and the setting without which it has no effect */
    int is_met;
} need_t;

/* Keys of windows, selection and worker threads, where nothing is deferred. */
static int has_effect(const zfi_config_t *config, uint32_t i) {
    const zfi_key_t *key = zfi_key_at(i);
    if (!zfi_config_defers_nothing(config))
        return 1;
    if (strcmp(key->name, "on_overwrite") == 0)
        return 1;
    return strcmp(key->section, "zenflow") != 0 && strcmp(key->name, "threads") != 0;
}

/* Its value is not the default. Where publish_lag was not given it has become a number. */
static int is_changed(const zfi_config_t *config, const zfi_key_t *key) {
    char value[64];
    if (strcmp(key->name, "publish_lag") == 0)
        return config->is_publish_lag_given;
    zfi_key_print(key, config, value, sizeof value);
    if (strcmp(key->name, "update_interval") == 0 && config->mode != ZFI_MODE_EXACT)
        return strcmp(value, "2") != 0;
    if (strcmp(key->name, "mode") == 0) /* windows may follow from another key, which is named then */
        return config->mode == ZFI_MODE_MEAN;
    return strcmp(value, key->default_value) != 0;
}

/* The setting without which the key has no effect, where it is not met; else NULL. */
static const char *unmet_need(const zfi_config_t *config, const zfi_key_t *key) {
    int selects = zfi_config_selects(config);
    const need_t needs[] = {
        {"topk_ratio", OF_WINDOWS, selects},
        {"select_strategy", OF_WINDOWS, selects},
        {"select_interval", OF_WINDOWS, selects},
        {"full_warm_up_rounds", OF_WINDOWS, selects},
        {"predict", OF_WINDOWS, selects},
        {"select_interval", "select_strategy = step or auto", config->select_strategy != ZFI_SELECT_EPOCH},
    };
    for (size_t k = 0; k < sizeof needs / sizeof *needs; k++)
        if (strcmp(key->name, needs[k].key) == 0 && !needs[k].is_met)
            return needs[k].need;
    return NULL;
}

const char *zfi_config_idle(const zfi_config_t *config, uint32_t i) {
    const zfi_key_t *key = zfi_key_at(i);
    const char *need = has_effect(config, i) ? unmet_need(config, key) : "[device] state_mib below all";
    return need && is_changed(config, key) ? need : NULL;
}

static int is_read(const zfi_config_t *config, uint32_t i) {
    return has_effect(config, i) && !unmet_need(config, zfi_key_at(i));
}

void zfi_config_effect(const zfi_config_t *config, uint32_t i, char *buf, uint64_t nbytes) {
    const zfi_key_t *key = zfi_key_at(i);
    int is_pinned = !config->is_interval_auto;
    if (!is_read(config, i))
        snprintf(buf, nbytes, "without effect");
    else if (strcmp(key->name, "mode") == 0)
        snprintf(buf, nbytes, "%s", config->deferred == ZFI_DEFERRED_MEAN ? "mean" : "replay");
    else if (strcmp(key->name, "state_mib") == 0 && !zfi_config_defers_nothing(config))
        snprintf(buf, nbytes, "by block"); /* which of them, a load compares */
    else if (strcmp(key->name, "predict") == 0 && is_pinned)
        snprintf(buf, nbytes, "%u", (unsigned)zfi_config_predict(config));
    else if (strcmp(key->name, "select_interval") == 0 && is_pinned)
        snprintf(buf, nbytes, "%u", (unsigned)zfi_config_select_interval(config));
    else
        zfi_key_print(key, config, buf, nbytes);
}
