/* SPDX-License-Identifier: Apache-2.0 */
/* exact_names.c - what messages call the modes, rules and data types of a case. */
#include <stdio.h>

#include "exact_case.h"

const char *zx_mode_name(zx_mode_t mode) {
    static const char *const names[ZX_N_MODES] = {"host thread", "host thread + FETCH", "cpu queue",
                                                  "cpu queue + FETCH"};
    return names[mode];
}

const char *zx_rules_text(const zx_case_t *c, char out[64]) {
    static const char *const names[ZO_N_RULES] = {"AdamW", "Adam", "SGD", "Nesterov", "Lion", "callback"};
    size_t n = 0;
    for (uint32_t i = 0; i < c->n_groups && n < 64; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%s", i ? ", " : "", names[c->config.groups[i].rule]);
    return out;
}

const char *zx_dtype_name(zo_dtype_t dtype) {
    static const char *const names[ZO_N_DTYPES] = {"f32", "bf16", "f16"};
    return names[dtype];
}
