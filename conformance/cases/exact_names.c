/* SPDX-License-Identifier: Apache-2.0 */
/* exact_names.c - what messages call the modes, rules and data types of a case. */
#include "exact_case.h"

const char *zx_mode_name(zx_mode_t mode) {
    static const char *const names[ZX_N_MODES] = {"host thread", "host thread + FETCH", "cpu queue",
                                                  "cpu queue + FETCH"};
    return names[mode];
}

const char *zx_rule_name(zo_rule_t rule) {
    static const char *const names[ZO_N_RULES] = {"AdamW", "Adam", "SGD", "Nesterov", "Lion", "callback"};
    return names[rule];
}

const char *zx_dtype_name(zo_dtype_t dtype) {
    static const char *const names[ZO_N_DTYPES] = {"f32", "bf16", "f16"};
    return names[dtype];
}
