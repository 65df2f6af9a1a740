/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/drain.c - DRAIN (contract in drain.h). */
#include "hooks/drain.h"

#include "hooks/batch.h"
#include "offload/program.h"

zf_status_t zfi_drain(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_batch_flush(inst);
    if (!st)
        st = zfi_program_rest(inst->run);
    return zfi_hook_failed(inst, st, "quiesce", "the device did not come to rest", err);
}
