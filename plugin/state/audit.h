/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/audit.h - what an audited step leaves: digests of the training state, by parameter, as lines of text.
 *
 * A digest is the sum of zfi_digest_element(bits, index) over the elements, index counted in the parameter, row-major
 * (kernels/digest.h). So parts of several ranks add up to the whole, and neither the cut into matrices nor the order of
 * anything counts. What lies in bfloat16 is taken as its 16 bits, and an array that the rule has not is 0.
 *
 * State at step t. visible: what the model reads once the instance rests after step t (SCHEDULE.md, points 4 to 7 and
 * "Publishing at fetch"). w, m, v: as the closes up to t left them; open windows and the device's copies of selected
 * channels are not in it. Resident blocks: as step t left them. All of that follows from the schedule alone.
 *
 * What is whole on a rank is digested whole: visible values but at stage 3, and at stage 0 everything. Of the rest a
 * rank digests what it owns. The format is described in docs/tools.md.
 *
 * Cost: one read of what is digested, and of what the host's threads cannot reach one copy. */
#pragma once

#include "base/lines.h"
#include "base/member.h"
#include "instance/run.h"

enum { ZFI_AUDIT_VISIBLE, ZFI_AUDIT_W, ZFI_AUDIT_M, ZFI_AUDIT_V, ZFI_AUDIT_ARRAYS };

/* One instance's file, and room for what the bound parameters need there. */
typedef struct zfi_audit {
    zfi_lines_t lines;
    const char *path;
    uint64_t every;
    int has_warned;
    uint64_t (*sums)[ZFI_AUDIT_ARRAYS]; /* [n_params]; NULL: nothing is audited */
    char *header;                       /* NULL: it was written */
    char *text;                         /* room for a record */
} zfi_audit_t;

/* [control] Makes the room for a run, and the line that says what its records are of. process: this instance among all
 * that train the model. 0: no memory, and none is held. */
int zfi_audit_describe(zfi_audit_t *audit, const zfi_state_t *state, const zfi_config_t *config, zfi_member_t process);
void zfi_audit_forget(zfi_audit_t *audit);

/* [control] The digests of a drained run into audit->sums, and the line of the step as text; *out_nbytes of it. */
zf_status_t zfi_audit_take(zfi_audit_t *audit, const zfi_state_t *state, uint64_t step, size_t *out_nbytes);
