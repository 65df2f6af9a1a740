/* SPDX-License-Identifier: Apache-2.0 */
/* exact_wide_calls.h - what hosts do that the other cases do not: announcements that do not come true, lists of several
 * parameters, calls twice in a row; in wide cases (exact_case.h). */
#pragma once

#include "exact_run.h"

/* Before a step's first gradient: perhaps other arguments are announced than it will have, and perhaps its loss scale
 * is another one than that of the step before. */
void zx_wide_announce(zx_run_t *run);
/* Whether a call that was made is made once more. */
int zx_wide_again(zx_run_t *run);
/* The host writes several parameters and says so in one list, in any order; on both sides. 0: it does not here. */
int zx_wide_change(zx_run_t *run);
