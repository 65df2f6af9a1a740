/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/changed.c - params_changed (contract in zf/plugin.h; rules in SCHEDULE.md, "Between steps"), and what is
 * done about weights that the host wrote without it. */
#include "hooks/changed.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "hooks/batch.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/named.h"
#include "hooks/reduce.h"
#include "ranks/gathering.h"
#include "ranks/shards.h"
#include "replay/state_arrays.h"
#include "schedule/window.h"
#include "step/exchange.h"
#include "step/guard.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/released.h"
#include "zf/ext/draft/digest.h"

/* ---- params_changed ---------------------------------------------------------------------------------------------- */

/* Moments and counts of a matrix begin again. */
static zf_status_t reset_matrix(const zfi_state_t *state, uint32_t number) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    memset(state->host->n + matrix->count_base, 0, matrix->n_counts * sizeof *state->host->n);
    return zfi_state_clear_moments(state, number);
}

/* The steps whose gradients may lie in an open window. */
static uint64_t first_kept_step(const zfi_clock_t *clock) {
    uint64_t interval = clock->pace.interval;
    return clock->t > interval ? clock->t - interval + 1 : 1;
}

/* Everything is idle. Slots of the coming step (t + 1) stay: their row is not cleared. Of a part of a parameter no
 * window holds gradients. */
static zf_status_t take_over(zfi_run_t *run, const zfi_named_t *named, uint32_t flags) {
    zfi_shards_take(&run->ranks, named->owner);
    zf_status_t st = zfi_exchange_take_edits(&run->state, named->first, named->end);
    for (uint64_t t = first_kept_step(&run->clock); t <= run->clock.t && !named->is_part; t++)
        zfi_row(&run->rows, t)->present[named->owner] = 0;
    zfi_publish_drop(&run->publishing, named->first, named->end - named->first);
    for (uint32_t i = named->first; i < named->end && (flags & ZF_CHANGED_RESET) && !st; i++)
        st = reset_matrix(&run->state, i);
    if (!st)
        st = zfi_exchange_reload_selected(&run->state, named->first, named->end);
    if (!st)
        zfi_guard_accept_matrices(&run->side, named->owner, named->first, named->end);
    return st;
}

/* Which steps a window holds is kept by parameter: a part of one could not be dropped from it. */
static zf_status_t check_closed(const zfi_windows_t *windows, const zfi_named_t *named, const char *name,
                                zf_error_t *err) {
    for (uint32_t i = named->first; i < named->end; i++)
        for (uint64_t t = first_kept_step(windows->clock); t <= windows->clock->t; t++)
            if (zfi_window_has_slot(windows, i, t))
                return zfi_error_of(
                    err, ZF_ERR_STATE, named->id, "params_changed",
                    "\"%s\": some of its matrices were named, and gradients of step %" PRIu64
                    " wait for them in an open window: call quiesce(FLUSH) before you write, or name the whole",
                    name, t);
    return ZF_OK;
}

/* A step that found the host's values in one matrix passed over all of the parameter. */
static zf_status_t check_passed_over(zf_instance_t *inst, const zfi_named_t *named, const char *name, zf_error_t *err) {
    if (inst->engine.config.on_overwrite != ZFI_OVERWRITE_ERROR || inst->state == ZFI_STATE_RELEASED)
        return ZF_OK;
    zf_status_t st = zfi_synchronise(&inst->engine, 1);
    if (st)
        return zfi_hook_failed(inst, st, "params_changed", "the device did not come to rest", err);
    if (!inst->run->dev.overwritten[named->owner])
        return ZF_OK;
    return zfi_error_of(err, ZF_ERR_STATE, named->id, "params_changed",
                        "\"%s\": some of its matrices were named, but what was written unannounced was found before, "
                        "and nothing of it was updated since: name the whole",
                        name);
}

static zf_status_t check_changed(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, uint32_t flags,
                                 zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (flags & ~ZF_CHANGED_RESET)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "params_changed", "unknown flags 0x%x", flags);
    st = zfi_named_check(inst, list, "params_changed", err);
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_named_t named = zfi_named_at(inst->run->params, list, i);
        const zfi_param_t *param = &inst->run->params[named.id];
        if (!zfi_shards_address(&inst->run->ranks, named.id) && param->is_sharded)
            return zfi_error_of(err, ZF_ERR_STATE, named.id, "params_changed",
                                "\"%s\" is sharded and not fetched: fetch it, write where zf.shards/0 says, on every "
                                "rank the same, and call this before param_release",
                                param->name);
        if (named.is_part)
            st = check_closed(&inst->run->windows, &named, param->name, err);
        if (named.is_part && !st)
            st = check_passed_over(inst, &named, param->name, err);
    }
    return st;
}

/* Number i of a list; 0: nothing is to be taken over, as of what is tied and taken with its owner. */
static int find_listed(const zfi_param_t *params, const zfi_named_list_t *list, uint32_t i, zfi_named_t *out) {
    *out = zfi_named_at(params, list, i);
    return (list->n || out->owner == i) && params[out->owner].has_state;
}

static zf_status_t take_over_listed(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, uint32_t flags) {
    zf_status_t st = ZF_OK;
    zfi_named_t named;
    for (uint32_t i = 0; i < n && !st; i++)
        if (find_listed(inst->run->params, list, i, &named)) {
            zfi_reduce_changed(inst->run, named.owner, named.first, named.end, flags);
            st = take_over(inst->run, &named, flags);
        }
    return st;
}

/* Takes over those of a list that are foreign, as far as this rank owns them; then each rank shows all of them, which
 * is compared. */
static zf_status_t adopt_listed(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, uint32_t flags) {
    const zfi_param_t *params = inst->run->params;
    const zfi_device_side_t *side = &inst->run->side;
    zf_status_t st = ZF_OK;
    zfi_named_t named;
    for (uint32_t i = 0; i < n && !st; i++) {
        if (find_listed(params, list, i, &named) && side->dev->overwritten[named.owner])
            st = take_over(inst->run, &named, flags);
    }
    if (!st)
        st = zfi_publish_share_all(&inst->run->ranks, inst->run->clock.t);
    if (!st)
        st = zfi_synchronise(&inst->engine, 0);
    for (uint32_t i = 0; i < n && !st; i++)
        if (find_listed(params, list, i, &named) && !params[named.owner].is_sharded)
            zfi_reduce_changed(inst->run, named.owner, named.first, named.end, flags);
    return st;
}

/* The host's writes are over, so reads and writes at rest go through our own stream: the host's queue may be held up,
 * and these waits have no deadline. Returns the stream to set again. */
static zfi_stream_t *leave_hosts_stream(zfi_engine_t *engine) {
    zfi_stream_t *hosts = engine->stream;
    engine->stream = engine->own_stream;
    return hosts;
}

typedef zf_status_t (*take_fn)(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, uint32_t flags);

static zf_status_t take_over_all(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, uint32_t flags,
                                 take_fn take) {
    zf_status_t st = zfi_gathering_counts(&inst->run->ranks, inst->run->hs.n);
    zfi_stream_t *hosts = leave_hosts_stream(&inst->engine);
    if (!st)
        st = take(inst, list, n, flags);
    if (!st)
        st = zfi_synchronise(&inst->engine, 0);
    inst->engine.stream = hosts;
    return st;
}

/* The next update of what is not finite would end the instance, with all of its state. Comes to rest; nothing else has
 * changed, and what waits to be fetched has not overwritten what the host wrote. */
static zf_status_t check_finite(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, const char *origin,
                                zf_error_t *err) {
    zf_status_t st = zfi_drain_but_unfetched(inst, err);
    zfi_stream_t *hosts = leave_hosts_stream(&inst->engine);
    zfi_named_t named;
    for (uint32_t i = 0; i < n && !st; i++)
        if (find_listed(inst->run->params, list, i, &named))
            st = zfi_exchange_check_edits(&inst->run->state, named.first, named.end, origin, err);
    inst->engine.stream = hosts;
    if (st != ZF_ERR_NONFINITE)
        st = zfi_hook_failed(inst, st, origin, "the device did not look at the parameters", err);
    return zfi_reduce_agree(inst, st, err);
}

/* What waits to be fetched of them would overwrite what the host has written: drops it, and shows the rest. Where
 * nothing waits, all rests since check_finite, and the host's queue is not waited for once more. */
static zf_status_t drop_unfetched(zf_instance_t *inst, const zfi_named_list_t *list, uint32_t n, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!inst->run->clock.n_due)
        return ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_named_t named = zfi_named_at(inst->run->params, list, i);
        st = inst->run->publisher->drop(&inst->run->publishing, named.first, named.end);
    }
    for (uint32_t i = 0; i < n && !st; i++) { /* the others of a parameter, before it counts as written */
        zfi_named_t named = zfi_named_at(inst->run->params, list, i);
        const zfi_param_t *param = &inst->run->params[named.owner];
        if (named.is_part)
            st = inst->run->publisher->fetch(&inst->run->publishing, param->first_matrix,
                                             param->first_matrix + param->n_matrices);
    }
    st = zfi_hook_failed(inst, st, "params_changed", "the device did not take the change", err);
    return st ? st : zfi_drain(inst, err);
}

zf_status_t zfi_params_changed(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               uint32_t flags, zf_error_t *err) {
    zfi_named_list_t list = {.items = items, .n = n, .elem_size = elem_size};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "params_changed", err);
    if (st)
        return st;
    uint32_t n_named = items && !n ? 0 : zfi_named_n(inst->run->n_params, &list);
    st = check_changed(inst, &list, n_named, flags, err);
    st = zfi_reduce_meet_all(inst, st, "params_changed", err);
    if (!st)
        st = check_finite(inst, &list, n_named, "params_changed", err);
    if (!st)
        st = drop_unfetched(inst, &list, n_named, err);
    if (!st)
        st = zfi_hook_failed(inst, take_over_all(inst, &list, n_named, flags, take_over_listed), "params_changed",
                             "the device did not take the changed parameters", err);
    return zfi_hook_end(inst, st, err);
}

/* ---- found ------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_overwritten_report(zf_instance_t *inst, const char *origin, zf_error_t *err) {
    const zfi_run_t *run = inst->run;
    uint64_t n = zfi_guard_n_foreign(run->engine);
    if (n == 0 || inst->engine.config.on_overwrite != ZFI_OVERWRITE_ERROR)
        return ZF_OK;
    uint32_t id = zfi_guard_next_foreign(run->dev.overwritten, run->n_params, 0);
    zfi_error_scoped(
        err, ZF_ERR_OVERWRITTEN, ZF_SCOPE_PARAM, 0, origin,
        "the host changed \"%s\" (id %u)%s without params_changed: its fp32 master would still hold the old weights. "
        "Nothing of it was overwritten; call params_changed for every parameter you wrote, then go on",
        run->params[id].name, id, n > 1 ? " and others" : "");
    return zfi_error_about(err, ZF_ERR_OVERWRITTEN, id);
}

static zf_status_t look(zf_instance_t *inst) {
    if (inst->state == ZFI_STATE_RELEASED)
        return zfi_released_check(&inst->run->state);
    zf_status_t st = zfi_batch_flush(inst);
    zfi_guard_check(&inst->run->side);
    return st ? st : zfi_synchronise(&inst->engine, 1);
}

zf_status_t zfi_overwritten_look(zf_instance_t *inst, const char *origin, zf_error_t *err) {
    if (!zfi_guard_checks(&inst->run->dev))
        return ZF_OK;
    zf_status_t st = look(inst);
    st = zfi_hook_failed(inst, st, origin, "the device did not look at the parameters", err);
    return st ? st : zfi_overwritten_report(inst, origin, err);
}

/* ---- asked for --------------------------------------------------------------------------------------------------- */

/* Parameters that were asked about: ids == NULL stands for all. */
typedef struct asked {
    zfi_run_t *run;
    const uint32_t *ids;
    uint32_t n;
} asked_t;

static const zfi_param_t *param_at(const asked_t *asked, uint32_t i) {
    return &asked->run->params[asked->ids ? asked->ids[i] : i];
}

/* The host writes a parameter that lives as shards in a copy, which nobody compares with anything. One that is not
 * fetched has none. */
static zf_status_t refuse_sharded(const asked_t *asked, int only_fetched, const char *origin, zf_error_t *err) {
    for (uint32_t i = 0; i < asked->n; i++) {
        const zfi_param_t *param = param_at(asked, i);
        if (param->is_sharded && (!only_fetched || zfi_shards_address(&asked->run->ranks, param->id)))
            return zfi_error_of(err, ZF_ERR_STATE, param->id, origin,
                                "\"%s\" is sharded: what is written where it is fetched is not compared. Call "
                                "quiesce(FLUSH), fetch it, write, and call params_changed before param_release",
                                param->name);
    }
    return ZF_OK;
}

static zf_status_t check_asked(const zf_instance_t *inst, uint32_t flags, const uint32_t *ids, uint32_t n,
                               const uint8_t *out, zf_error_t *err) {
    if (flags > ZF_WRITTEN_ACCEPT)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "written", "unknown flags 0x%x", flags);
    if (!out || (n && !ids))
        return zfi_error(err, ZF_ERR_ARGUMENT, "written", "%s is NULL with n = %u", out ? "ids" : "out", n);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= inst->run->n_params)
            return zfi_error(err, ZF_ERR_PARAM, "written", "unknown parameter id %u; %u are bound", ids[i],
                             inst->run->n_params);
    if (!zfi_guard_is_on(&inst->run->dev))
        return zfi_error(err, ZF_ERR_STATE, "written", "nothing is kept to compare with: [zenflow] on_overwrite = off");
    return ZF_OK;
}

static uint32_t owner_at(const asked_t *asked, uint32_t i) { return param_at(asked, i)->owner; }

/* In ranges: neighbours in the list that are neighbours in their numbers. */
static void each_range(const asked_t *asked, void (*act)(const zfi_device_side_t *side, uint32_t first, uint32_t end)) {
    for (uint32_t at = 0; at < asked->n;) {
        uint32_t first = owner_at(asked, at), end = first + 1;
        for (at++; at < asked->n && owner_at(asked, at) == end; at++)
            end++;
        act(&asked->run->side, first, end);
    }
}

static zf_status_t answer_released(const asked_t *asked, uint8_t *out) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < asked->n; i++) {
        const zfi_param_t *param = &asked->run->params[owner_at(asked, i)];
        int differs = 0;
        if (!zfi_guard_checks(&asked->run->dev))
            zfi_released_forget(&asked->run->state, param->id); /* a question ends what HOLD began */
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices && !differs && !st; m++)
            st = zfi_released_differs(&asked->run->state, m, &differs);
        out[i] = (uint8_t)(differs || asked->run->dev.overwritten[param->id]);
    }
    return st;
}

/* Done when it returns. */
static zf_status_t look_at(zf_instance_t *inst, const asked_t *asked) {
    zf_status_t st = zfi_batch_flush(inst);
    if (st)
        return st;
    each_range(asked, zfi_guard_look);
    return zfi_synchronise(&inst->engine, 1);
}

/* What is accepted is read before this returns: the host may write there next. */
static zf_status_t answer(zf_instance_t *inst, uint32_t flags, const asked_t *asked, uint8_t *out) {
    if (inst->state == ZFI_STATE_RELEASED)
        return answer_released(asked, out);
    zf_status_t st = look_at(inst, asked);
    if (st)
        return st;
    for (uint32_t i = 0; i < asked->n; i++)
        out[i] = asked->run->dev.overwritten[owner_at(asked, i)];
    if (flags == ZF_WRITTEN_HOLD || (zfi_guard_checks(&inst->run->dev) && flags != ZF_WRITTEN_ACCEPT))
        return ZF_OK;
    each_range(asked, flags == ZF_WRITTEN_ACCEPT ? zfi_guard_accept : zfi_guard_forget);
    return flags == ZF_WRITTEN_ACCEPT ? zfi_synchronise(&inst->engine, 1) : zfi_send(&inst->engine);
}

zf_status_t zfi_written(zf_instance_t *inst, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                        zf_error_t *err) {
    unsigned released = flags == ZF_WRITTEN_LOOK ? ZFI_IN_RELEASED : 0;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING | released, "written", err);
    if (st)
        return st;
    asked_t asked = (asked_t){inst->run, ids, ids ? n : inst->run->n_params};
    st = check_asked(inst, flags, ids, n, out, err);
    if (!st)
        st = refuse_sharded(&asked, 1, "written", err);
    if (!st)
        st = zfi_hook_failed(inst, answer(inst, flags, &asked, out), "written",
                             "the device did not look at the parameters", err);
    return zfi_hook_end(inst, st, err);
}

/* ---- taken over by element --------------------------------------------------------------------------------------- */

static zf_status_t check_adopted(const zf_instance_t *inst, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    uint8_t unused;
    zf_status_t st = check_asked(inst, ZF_WRITTEN_HOLD, ids, n, &unused, err);
    if (!st && zfi_guard_checks(&inst->run->dev))
        st = zfi_error(err, ZF_ERR_STATE, "adopt", "steps pass over what is found: need [zenflow] on_overwrite = ask");
    return st ? st : zfi_fetch_check_released(inst, "adopt", err);
}

/* What was written is held over the FLUSH, then taken over where it differs from what was there. */
static zf_status_t adopt(zf_instance_t *inst, const asked_t *asked, zf_status_t st, zf_error_t *err) {
    zfi_named_list_t list = {.ids = asked->ids, .n = asked->ids ? asked->n : 0};
    st = zfi_reduce_meet_all(inst, st, "adopt", err);
    if (!st)
        st = check_finite(inst, &list, asked->n, "adopt", err);
    if (!st)
        st = zfi_hook_failed(inst, look_at(inst, asked), "adopt", "the device did not look at the parameters", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_close_windows(inst, err);
    if (st)
        return st;
    return zfi_hook_failed(inst, take_over_all(inst, &list, asked->n, 0, adopt_listed), "adopt",
                           "the device did not take the changed parameters", err);
}

zf_status_t zfi_adopt(zf_instance_t *inst, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "adopt", err);
    if (st)
        return st;
    asked_t asked = (asked_t){inst->run, ids, ids ? n : inst->run->n_params};
    st = check_adopted(inst, ids, n, err);
    if (!st)
        st = refuse_sharded(&asked, 0, "adopt", err);
    if (asked.n) {
        st = adopt(inst, &asked, st, err);
        inst->state = st ? inst->state : ZFI_STATE_QUIESCED;
    }
    return zfi_hook_end(inst, st, err);
}
