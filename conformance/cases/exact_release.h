/* SPDX-License-Identifier: Apache-2.0 */
/* exact_release.h - zf.residency/1: the plugin's device memory goes and comes back between calls, also in the middle of
 * a step, and nothing else changes. What is allowed meanwhile is done at times: export, inspect, save, destroy. */
#ifndef ZF_CONFORMANCE_EXACT_RELEASE_H
#define ZF_CONFORMANCE_EXACT_RELEASE_H

#include "exact_run.h"

/* Perhaps released; then 1, and zx_run_resume() comes before any other call. chance: in percent, of the cases that
 * release at all. */
int zx_run_release(zx_run_t *run, uint32_t chance);
void zx_run_resume(zx_run_t *run);
/* Perhaps both. */
void zx_run_release_point(zx_run_t *run);

#endif
