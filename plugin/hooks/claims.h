/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/claims.h - which memory the live instances of this process train, so that no two of them train the same.
 *
 * The one list that instances share. It cannot be avoided: of two instances that write the same weights neither can see
 * the other, and both would report their steps as applied. */
#pragma once

#include "plan/params.h"

typedef struct zfi_claims zfi_claims_t;

/* [control] Claims the memory of every parameter with state for `owner` (alive: its page that a fork wipes).
 * ZF_ERR_PARAM names the parameter and that of another owner which has it. What the same owner claimed before does not
 * count. Views that are not contiguous may interleave: of them the first element counts. */
zf_status_t zfi_claims_take(const void *owner, const unsigned char *alive, const zfi_param_t *params, uint32_t n,
                            zfi_claims_t **out, zf_error_t *err);

/* [control] Gives them back. NULL is legal. */
void zfi_claims_drop(zfi_claims_t *claims);
