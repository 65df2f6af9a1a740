/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/rules.h - the update rules of the optimizer groups: reading the host's table, and which parameter has
 * which rule.
 *
 * A group has a rule from the first bind_params on that declares it, and keeps it. So a rule's record is never changed,
 * and the holder of a parameter may read its rule without a lock. */
#pragma once

#include "instance/engine.h"
#include "plan/params.h"

/* [control] The rules of all groups as this bind_params leaves them, given to the parameters. Refused by name: another
 * rule for a group that has one, a parameter whose group the table lacks, a rule that the device cannot run. On success
 * *out awaits zfi_rules_keep or zfi_rules_drop. */
zf_status_t zfi_rules_take(zfi_engine_t *engine, const zfi_config_t *config, const zf_bind_args_t *args,
                           zfi_param_t *params, zfi_rules_t *out, zf_error_t *err);
/* [control] The binding succeeded: they are the engine's. */
void zfi_rules_keep(zfi_engine_t *engine, zfi_rules_t *rules);
/* [control] It did not: what it has brought is freed. No parameter with these rules is left. */
void zfi_rules_drop(const zfi_engine_t *engine, zfi_rules_t *rules);
/* [control] At the engine's end. */
void zfi_rules_free(zfi_engine_t *engine);

/* [control] "AdamW, Lion", cut to nbytes. */
void zfi_rules_text(const zfi_rules_t *rules, char *out, size_t nbytes);
