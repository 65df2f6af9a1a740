/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/matrices.h - rules of whole matrices: the host's thread gives every matrix that has a gradient to the
 * host's function, inside the step (zf/ext/draft/matrix.h).
 *
 * Such a parameter is one that sees edits (resident.h); its blocks are kept as one run, so that a whole matrix is one
 * array. The device takes its gradient's statistics and leaves its state alone: what a kernel does of other residents
 * is done here, once these are updated and the device rests. No other hook runs meanwhile, so gradients stay where they
 * are until the function has read them. Of several ranks one owns all of a matrix (plan/slice.h), and its values travel
 * as those of other residents do. */
#pragma once

#include "instance/run.h"

/* [hook] The updates of step t, whose other updates were enqueued: waits for them. ZF_ERR_POISONED. */
zf_status_t zfi_matrices_update(const zfi_state_t *state, uint64_t t);
