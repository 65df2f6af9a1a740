/* SPDX-License-Identifier: Apache-2.0 */
/* same_names.c - a library with names that plugins are likely to use inside. Loaded with RTLD_GLOBAL beside a plugin,
 * it must never be called from there: a plugin binds its own names itself (hidden visibility, version script). */
#include <stdint.h>

#define WRONG(name)                                                                                                    \
    int name(void);                                                                                                    \
    int name(void) { __builtin_trap(); }

float wrong_helper(void); /* of the plugin that breaks this rule */
float wrong_helper(void) { return 2.0f; }

WRONG(zf_plugin_negotiate)
WRONG(zfi_error)
WRONG(zfi_error_scoped)
WRONG(zfi_error_copy)
WRONG(zfi_config_parse)
WRONG(zfi_config_parse_file)
WRONG(zfi_config_n_keys)
WRONG(zfi_config_key)
WRONG(zfi_config_value)
WRONG(zfi_key_at)
WRONG(zfi_key_set)
WRONG(zfi_struct_read)
WRONG(zfi_struct_check)
WRONG(zfi_struct_write)
WRONG(zfi_array_check)
WRONG(zfi_tensor_check)
WRONG(zfi_params_build)
WRONG(zfi_params_free)
WRONG(zfi_plan_build)
WRONG(zfi_instance_create)
WRONG(zfi_instance_destroy)
WRONG(zfi_step)
WRONG(zfi_log)
WRONG(zfi_kernels)
WRONG(zfk_table)
WRONG(zf_describe)
WRONG(zf_create)
WRONG(create)
WRONG(destroy)
WRONG(bind_params)
WRONG(grads_ready)
WRONG(step)
WRONG(quiesce)
WRONG(poll_report)
WRONG(worker_main)
WRONG(log_message)
