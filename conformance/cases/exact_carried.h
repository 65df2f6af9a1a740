/* SPDX-License-Identifier: Apache-2.0 */
/* exact_carried.h - memory that carries (ZF_PARAM_CARRIES): the host delivers gradients in it or beside it, writes and
 * reads values only while it is the host's, and leaves anything in it whenever it may.
 *
 * Model: each parameter's zx_away_t says whose the memory is, and what it has; of other memory it is always
 * ZX_IN_PLACE. A step, a fetch behind it, a load or another set brings the values. */
#pragma once

#include "exact_run.h"

/* All of it has what zo_visible says: behind a load, or another set. */
void zx_carried_brought(zx_case_t *c);
void zx_carried_fetched(zx_case_t *c, uint32_t param);
/* Before memory or instance go: what waits for a fetch is fetched (not by an instance that has gone), and what the
 * host has spoilt is written again. */
void zx_carried_restore(zx_run_t *run, int may_fetch);
/* Perhaps the host spoils one, or makes one good again. */
void zx_carried_point(zx_run_t *run);
