/* SPDX-License-Identifier: Apache-2.0 */
/* exact_change.h - what a case declares is changed in mid-run: other memory for the same parameters, another set of
 * them, another configuration, blocks of another size.
 *
 * Model: bind_params comes again, on the instance that trains; or a checkpoint is loaded into an instance that differs
 * from the one that saved it. The oracle goes on by zo_carry or zo_load. Draws have numbers of their own
 * (run->changes), so that the other draws of a case do not depend on them. */
#pragma once

#include "exact_run.h"

/* How an instance differs from the one that saved what it loads. */
typedef struct zx_change {
    int continues;               /* the schedule goes on where it was */
    int is_partial;              /* parameters came, went, froze or thawed */
    uint32_t n_missing, n_extra; /* trainable here and not there; there and not here */
} zx_change_t;

/* Perhaps bind_params again, between two steps; is_mid_step: gradients may be on their way, so the set stays. */
void zx_run_rebind_point(zx_run_t *run, int is_mid_step);

/* Draws whether the save that is made now is loaded into something else. */
int zx_run_is_moving(zx_run_t *run);
/* The host is closed. Changes the case, and the oracle as loading a checkpoint does. */
void zx_run_move(zx_run_t *run, zx_change_t *out);
/* Other ranks load what the case's have saved: changes the oracle as a load does. */
void zx_run_resplit(zx_run_t *run, zx_change_t *out);
/* What the host held of parameters that are gone, or lies elsewhere now: may go once nothing reads it. */
void zx_run_forget(zx_run_t *run);
