/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/quiesce.c - DRAIN and FLUSH (contracts in zf/plugin.h; rules in SCHEDULE.md, "Between steps"). */
#include "base/error.h"
#include "base/struct.h"
#include "hooks/changed.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"

/* ---- FLUSH ------------------------------------------------------------------------------------------------------- */

static zf_status_t flush(zf_instance_t *inst, zf_status_t st, zf_error_t *err) {
    if (!st)
        st = zfi_fetch_check_released(inst, "quiesce", err);
    st = zfi_reduce_meet_all(inst, st, "quiesce", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_reduce_agree(inst, zfi_overwritten_look(inst, "quiesce", err), err);
    return st ? st : zfi_close_windows(inst, err);
}

/* ---- the hook ---------------------------------------------------------------------------------------------------- */

static zf_status_t check_args(const zf_instance_t *inst, const zf_quiesce_args_t *args, zf_error_t *err) {
    if (args->mode != ZF_QUIESCE_DRAIN && args->mode != ZF_QUIESCE_FLUSH)
        return zfi_error(err, ZF_ERR_ARGUMENT, "quiesce", "mode = %d; allowed: %d (DRAIN), %d (FLUSH)", args->mode,
                         ZF_QUIESCE_DRAIN, ZF_QUIESCE_FLUSH);
    if (args->flags)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "quiesce", "unknown flags 0x%x; need 0", args->flags);
    if (args->deadline_ms && args->mode == ZF_QUIESCE_FLUSH && zfi_n_ranks(&inst->engine) > 1)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "quiesce",
                         "deadline_ms = %u with FLUSH on %u ranks, some of which might give up and others not; need 0",
                         args->deadline_ms, zfi_n_ranks(&inst->engine));
    return ZF_OK;
}

/* All work in flight ends within args->deadline_ms, or nothing has happened. */
static zf_status_t come_to_rest(zf_instance_t *inst, const zf_quiesce_args_t *args, zf_error_t *err) {
    if (!args->deadline_ms)
        return ZF_OK;
    zf_status_t st = zfi_drain_within(inst, (uint64_t)args->deadline_ms * 1000000u, err);
    if (st != ZF_ERR_TIMEOUT || zfi_is_poisoned(&inst->engine)) /* poisoned: said already */
        return st;
    return zfi_error(err, ZF_ERR_TIMEOUT, "quiesce",
                     "what is in flight has not ended within deadline_ms = %u: nothing was lost and no window was "
                     "closed; go on, or call again",
                     args->deadline_ms);
}

zf_status_t zfi_quiesce(zf_instance_t *inst, const zf_quiesce_args_t *given, zf_error_t *err) {
    zf_quiesce_args_t args = {0};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "quiesce", err);
    if (st)
        return st;
    st = ZFI_READ_CHAINED(&args, given, zf_quiesce_args_t, err);
    if (!st)
        st = check_args(inst, &args, err);
    if (!st)
        st = come_to_rest(inst, &args, err);
    if (args.mode == ZF_QUIESCE_FLUSH)
        st = flush(inst, st, err);
    else if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        inst->state = ZFI_STATE_QUIESCED;
    return zfi_hook_end(inst, st, err);
}
