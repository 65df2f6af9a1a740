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

/* Keys of windows, selection and worker threads, where nothing is deferred. */
int zfi_config_has_effect(const zfi_config_t *config, uint32_t i) {
    const zfi_key_t *key = zfi_key_at(i);
    if (!zfi_config_defers_nothing(config) || strcmp(key->name, "deferred") == 0)
        return 1;
    return strcmp(key->section, "zenflow") != 0 && strcmp(key->name, "threads") != 0 &&
           strcmp(key->name, "affinity") != 0 && strcmp(key->name, "lateness") != 0;
}

/* Its value is not the default. Where publish_lag was not given it has become a number. */
static int is_changed(const zfi_config_t *config, const zfi_key_t *key) {
    char value[64];
    if (strcmp(key->name, "publish_lag") == 0)
        return config->is_publish_lag_given;
    zfi_key_print(key, config, value, sizeof value);
    return strcmp(value, key->deflt) != 0;
}

const char *zfi_config_idle(const zfi_config_t *config, uint32_t i) {
    const need_t needs[] = {
        {"select_interval", "select_strategy = step or auto", config->select_strategy != ZFI_SELECT_EPOCH},
        {"resident_bytes", "[shard] stage = 3", config->stage == 3},
        {"first_step", "[trace] file", *config->trace_file != '\0'},
        {"steps", "[trace] file", *config->trace_file != '\0'},
        {"interval_s", "[stats] prometheus", *config->stats_file != '\0'},
    };
    const zfi_key_t *key = zfi_key_at(i);
    if (!zfi_config_has_effect(config, i))
        return is_changed(config, key) ? "deferred = replay or mean" : NULL;
    for (size_t k = 0; k < sizeof needs / sizeof *needs; k++) {
        if (strcmp(key->name, needs[k].key) != 0 || needs[k].is_met)
            continue;
        return is_changed(config, key) ? needs[k].need : NULL;
    }
    return NULL;
}
