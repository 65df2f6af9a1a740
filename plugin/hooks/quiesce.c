/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/quiesce.c - DRAIN and FLUSH (contracts in zf/plugin.h; rules in SCHEDULE.md, "Between steps"). */
#include "base/error.h"
#include "hooks/changed.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"

enum { AT_REST = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED };

/* ---- FLUSH ------------------------------------------------------------------------------------------------------- */

static zf_status_t flush(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_fetch_check_released(inst, "quiesce", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_overwritten_look(inst, "quiesce", err);
    return st ? st : zfi_close_windows(inst, err);
}

zf_status_t zfi_quiesce(zf_instance_t *inst, int32_t mode, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, AT_REST, "quiesce", err);
    if (st)
        return st;
    if (mode != ZF_QUIESCE_DRAIN && mode != ZF_QUIESCE_FLUSH)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "quiesce", "mode = %d; allowed: %d (DRAIN), %d (FLUSH)", mode,
                       ZF_QUIESCE_DRAIN, ZF_QUIESCE_FLUSH);
    else if (mode == ZF_QUIESCE_FLUSH)
        st = flush(inst, err);
    else
        st = zfi_drain(inst, err);
    if (!st)
        inst->state = ZFI_STATE_QUIESCED;
    zfi_hook_end(inst);
    return st;
}
