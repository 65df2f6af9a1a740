/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/layout.h - every array of a run, in its two arenas: the same functions count and hand them out. */
#pragma once

#include "instance/run.h"

/* [control] The most spares that early replays of this plan have a use for; run->hs.n_spares, or less. */
uint32_t zfi_layout_most_spares(zfi_engine_t *engine, const zfi_plan_t *plan, uint32_t n_moments);

/* [control] Counts both arenas, which are empty, and fills run->mem.layout. */
void zfi_layout_count(zfi_run_t *run, zfi_arena_t *host, zfi_arena_t *device);

/* [control] Hands out the arenas of run->mem, which are mapped. */
void zfi_layout_place(zfi_run_t *run);
