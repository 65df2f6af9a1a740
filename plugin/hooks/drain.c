/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/drain.c - DRAIN, and the windows' end (contracts in drain.h). */
#include "hooks/drain.h"

#include "hooks/batch.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "step/program.h"

static zf_status_t drain(zf_instance_t *inst, zf_status_t (*rest)(zfi_run_t *run), zf_error_t *err) {
    if (inst->state == ZFI_STATE_RELEASED) /* it rests */
        return ZF_OK;
    zf_status_t st = zfi_batch_flush(inst);
    if (!st)
        st = rest(inst->run);
    if (!st)
        zfi_step_look(inst);
    return zfi_hook_failed(inst, st, "quiesce", "the device did not come to rest", err);
}

zf_status_t zfi_drain(zf_instance_t *inst, zf_error_t *err) { return drain(inst, zfi_program_rest, err); }

zf_status_t zfi_drain_but_unfetched(zf_instance_t *inst, zf_error_t *err) {
    return drain(inst, zfi_program_rest_but_unfetched, err);
}

zf_status_t zfi_drain_within(zf_instance_t *inst, uint64_t ns, zf_error_t *err) {
    zf_status_t st = zfi_batch_flush(inst);
    if (!st)
        st = zfi_program_ends_within(inst->run, ns);
    if (st == ZF_ERR_TIMEOUT && !zfi_is_poisoned(&inst->engine))
        return st;
    return zfi_hook_failed(inst, st, "quiesce", "the device did not come to rest", err);
}

zf_status_t zfi_close_windows(zf_instance_t *inst, zf_error_t *err) {
    zfi_reduce_event(inst->run, ZF_QUIESCE_FLUSH, NULL, 0);
    zf_status_t st = zfi_program_close_all(inst->run);
    if (!st)
        st = zfi_program_rest(inst->run);
    return zfi_hook_failed(inst, st, "quiesce", "the open windows could not be closed", err);
}
