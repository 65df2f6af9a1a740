/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_told.c - refusals that are kept from the host, and spoiled records of those that are not (wrong.h). */
#include <string.h>

#include "wrong.h"

/* Refusals of these slots with this status, whose message has this word, are taken back. NULL: of any. */
static const struct {
    int habit;
    const char *slots;
    zf_status_t status;
    const char *word;
} kept_back[] = {
    {WRONG_null_taken, "quiesce", ZF_ERR_ARGUMENT, NULL},
    {WRONG_tail_taken, NULL, ZF_ERR_UNSUPPORTED_FIELD, "is not zero: a member"},
    {WRONG_busy_ignored, NULL, ZF_ERR_BUSY, NULL},
    {WRONG_fork_taken, NULL, ZF_ERR_FORKED, NULL},
    {WRONG_state_ignored, "poll", ZF_ERR_STATE, NULL},
    {WRONG_ids_ignored, "params_changed param_fetch export_params", ZF_ERR_PARAM, NULL},
    {WRONG_flags_ignored, NULL, ZF_ERR_UNSUPPORTED_FIELD, "flags"},
    {WRONG_reserved_taken, NULL, ZF_ERR_UNSUPPORTED_FIELD, "reserved0"},
    {WRONG_chain_ignored, NULL, ZF_ERR_UNSUPPORTED_FIELD, "next"},
    {WRONG_handle_taken, NULL, ZF_ERR_ARGUMENT, "is not a queue"},
    {WRONG_strides_ignored, "bind_params", ZF_ERR_SHAPE, "overlap"},
    {WRONG_announced_late, "announce", ZF_ERR_STATE, NULL},
    {WRONG_config_ignored, "create", ZF_ERR_CONFIG, "has no key"},
    {WRONG_capture_taken, NULL, ZF_ERR_CAPTURE, NULL},
    {WRONG_names_ignored, "bind_params", ZF_ERR_PARAM, "same name"},
    {WRONG_numbers_ignored, "step", ZF_ERR_ARGUMENT, "beta1"},
    {WRONG_nan_bound, "bind_params", ZF_ERR_NONFINITE, NULL},
    {WRONG_nan_changed, "params_changed", ZF_ERR_NONFINITE, NULL},
    {WRONG_own_gradient, "grads_ready", ZF_ERR_PARAM, NULL},
    {WRONG_ranges_ignored, NULL, ZF_ERR_SHAPE, "matrices"},
    {WRONG_open_range_taken, "params_changed", ZF_ERR_STATE, "open window"},
    {WRONG_memory_twice, "bind_params", ZF_ERR_PARAM, "another live instance"},
};

static int is_kept_back(const char *slot, zf_status_t st, const zf_error_t *err) {
    for (size_t i = 0; i < sizeof kept_back / sizeof kept_back[0]; i++)
        if (wrong_habit == kept_back[i].habit && st == kept_back[i].status &&
            (!kept_back[i].slots || strstr(kept_back[i].slots, slot)) &&
            (!kept_back[i].word || (err && strstr(err->message, kept_back[i].word))))
            return 1;
    return 0;
}

static void spoil_record(zf_error_t *err) {
    if (IS(size_forgotten) && err->struct_size == 0)
        memset(err, 0, sizeof *err);
    if (err->struct_size != sizeof *err)
        return;
    if (IS(scope_wrong))
        err->scope = ZF_SCOPE_INSTANCE;
    if (IS(retryable_wrong))
        err->retryable = 1;
    if (IS(native_of_nothing))
        err->native_code = 2;
    if (IS(silent))
        err->message[0] = '\0';
    if (IS(wrong_status))
        err->status = -99;
    wrong_out_error(err);
    wrong_late_error(err);
    if (IS(blames_nobody))
        err->param = ZF_NO_ID;
}

zf_status_t wrong_told(const char *slot, zf_status_t st, zf_error_t *err) {
    if (st >= 0)
        return st;
    if (is_kept_back(slot, st, err))
        return ZF_OK;
    if (err)
        spoil_record(err);
    return st;
}

zf_status_t wrong_refuse(zf_error_t *err, zf_status_t st) {
    if (err && err->struct_size == sizeof *err) {
        err->status = st;
        err->scope = ZF_SCOPE_CALL;
        err->param = err->rank = ZF_NO_ID;
        strcpy(err->origin, "wrong");
        strcpy(err->message, "this plugin refuses what is right");
    }
    return st;
}
