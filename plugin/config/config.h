/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/config.h - the INI configuration: one table of keys drives parsing, checks, defaults, printing and
 * documents.
 *
 * A text is taken whole or not at all; all problems are reported at once, each with file:line, key, value and the
 * allowed range. Trainer values (learning rate, betas, accumulation, clip) are no keys: they come with every step. */
#pragma once

#include <stdint.h>

#include "config/settings.h"
#include "kernels.h"
#include "zf/ext/config.h"
#include "zf/plugin.h"

/* [any-thread] Parses text (may be NULL: defaults; text_nbytes = 0: NUL-terminated) named `where` in messages, then
 * overrides "section.key=value" in order. Returns ZF_OK and fills *out, or ZF_ERR_CONFIG with err's message listing
 * every problem (as many as fit, then how many more), *out untouched. No locale, no file access, no globals. */
zf_status_t zfi_config_parse(const char *text, uint64_t text_nbytes, const char *where, const char *const *overrides,
                             uint32_t n_overrides, zfi_config_t *out, zf_error_t *err);

/* [any-thread] The same from a file; a missing, unreadable, oversized (> 1 MiB) or binary file is ZF_ERR_CONFIG. */
zf_status_t zfi_config_parse_file(const char *path, const char *const *overrides, uint32_t n_overrides,
                                  zfi_config_t *out, zf_error_t *err);

/* [any-thread] state_mib = all: the state of every channel lives on the device and is updated there at every step. No
 * channel is selected, no window, slot or publication is. */
static inline int zfi_config_defers_nothing(const zfi_config_t *config) {
    return config->state_mib == ZFI_STATE_MIB_ALL;
}
/* [any-thread] Channels are chosen, after a warm-up. mode = exact updates all of them at every step and chooses none.
 */
static inline int zfi_config_selects(const zfi_config_t *config) {
    return config->mode != ZFI_MODE_EXACT && !zfi_config_defers_nothing(config);
}
/* [any-thread] How moments are kept that do not lie in runs. */
static inline zfi_moments_t zfi_config_element_moments(const zfi_config_t *config) {
    return zfi_has_runs((zfi_moments_t)config->moments) ? ZFI_MOMENTS_F32 : (zfi_moments_t)config->moments;
}
/* [any-thread] SCHEDULE.md: W; 0 where no channel is chosen. */
static inline uint64_t zfi_config_warm_up(const zfi_config_t *config) {
    return zfi_config_selects(config) ? config->full_warm_up_rounds : 0;
}

/* [any-thread] Whether nothing is open, due or selected between two steps. */
int zfi_config_is_each_step_exact(const zfi_config_t *config);
/* [any-thread] Of a settled configuration. */
zfi_policy_t zfi_config_policy(const zfi_config_t *config);

/* [any-thread] Of the host and its ranks: what does not go together in this version is refused, and where parameters
 * are sharded values are published in the step. Once, after settle. */
typedef struct zfi_setting {
    int is_sharded;
    uint32_t n_ranks;
    uint32_t flags; /* ZF_CREATE_... */
} zfi_setting_t;
zf_status_t zfi_config_settle_ranks(zfi_config_t *config, const zfi_setting_t *setting, zf_error_t *err);

/* [any-thread] Steps between choices, also where select_interval = auto. */
uint32_t zfi_config_select_interval(const zfi_config_t *config);

/* [any-thread] What depends on the host: publish_lag = auto becomes 0. Once, after parsing. */
void zfi_config_settle(zfi_config_t *config, int can_fetch, int is_host_memory);

/* [any-thread] Steps that published weights look ahead; 0: none. Of a settled configuration. */
uint32_t zfi_config_predict(const zfi_config_t *config);

/* [any-thread] Key i has another value than its default and no effect: the setting that it needs, e.g. "[shard]
 * stage = 3". NULL: it has an effect, or its default. */
const char *zfi_config_idle(const zfi_config_t *config, uint32_t i);
/* [any-thread] What key i does in a settled configuration, as text: two configurations in which each key has the same
 * do the same. */
void zfi_config_effect(const zfi_config_t *config, uint32_t i, char *buf, uint64_t nbytes);

/* [any-thread] Keys of the table, and one value as INI text (what zf.config/1 offers). */
uint32_t zfi_config_n_keys(void);
zf_status_t zfi_config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err);
zf_status_t zfi_config_value(const zfi_config_t *config, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err);
