/* SPDX-License-Identifier: Apache-2.0 */
/* exact_damage.h - laws 3 and 4: a load that must be refused, in mid-run; training then goes on with the same bits.
 *
 * Model: at one step the run is saved beside its other checkpoints and the save is damaged. At later steps it is
 * loaded, with windows open and replays in flight. What a load does to the oracle when it is refused: the instance
 * comes to rest. Damage: a byte changed, a file cut short or gone. Or nothing is wrong with it, but it is another
 * model's, with other parameters and another shape. */
#pragma once

#include "exact_run.h"

/* Perhaps one of the two. */
void zx_run_damage_point(zx_run_t *run);
/* Removes what the saves of a case left. */
void zx_damage_remove(const char *state_path);
