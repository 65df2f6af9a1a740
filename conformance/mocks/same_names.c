/* SPDX-License-Identifier: Apache-2.0 */
/* same_names.c - a library with names that plugins are likely to use inside. Loaded with RTLD_GLOBAL beside a plugin,
 * it must never be called from there: a plugin binds its own names itself (hidden visibility, version script). Only a
 * name that a plugin exports or imports can meet one here, and rule "exports" allows the entry alone. */

#define WRONG(name)                                                                                                    \
    int name(void);                                                                                                    \
    int name(void) { __builtin_trap(); }

float wrong_helper(void); /* of the plugin that breaks this rule */
float wrong_helper(void) { return 2.0f; }

WRONG(zf_plugin_negotiate)
WRONG(zfi_error)
WRONG(zfi_step)
WRONG(zfk_table)
WRONG(create)
WRONG(step)
WRONG(worker_main)
WRONG(log_message)
