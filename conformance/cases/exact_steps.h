/* SPDX-License-Identifier: Apache-2.0 */
/* exact_steps.h - one case from create to destroy: all is done to the oracle and to the plugin, in the same order. */
#pragma once

#include "exact_run.h"

typedef struct zx_resume { /* law 3 */
    const char *plugin, *state_path;
    uint32_t save, threads; /* save 0 = from the beginning */
} zx_resume_t;

/* Runs the case to its end or to the first difference. Where the result is bad the instance is left as it is (closing a
 * broken plugin may hang) and memory is kept: the process should end. */
void zx_run_case(zx_case_t *c, zx_result_t *result, const zf_loader_t *loader, const zx_resume_t *resume);
