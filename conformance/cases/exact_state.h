/* SPDX-License-Identifier: Apache-2.0 */
/* exact_state.h - laws 3 and 4: a run that is saved and goes on elsewhere: in a new process, in a new instance of the
 * same one, or in the instance that saved it. Law 4, with one rank: always in a new process, which computes with
 * another instruction set and another number of workers.
 *
 * Model: a case is a function of its seed, so a new process makes the same case and runs it up to the save with a
 * plugin that does nothing (`dry`), which brings oracle and random numbers to the same place; then it loads and goes
 * on. */
#pragma once

#include "exact_run.h"

/* Laws whose runs are saved and loaded: of a plugin that can. */
static inline int zx_law_saves(int law) { return law == 3 || law == 4; }

/* Perhaps a save, and then the run goes on from it. May end the run (is_over): a new process has run the rest of it. */
void zx_run_save_point(zx_run_t *run);

/* Several ranks: the save that shard.h tells of, or the load that this run came for. */
void zx_run_move_point(zx_run_t *run);
