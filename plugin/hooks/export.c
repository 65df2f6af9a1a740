/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/export.c - reading the host's state: export_params and zf.inspect/0 (contracts in zf/plugin.h,
 * inspect.h).
 *
 * The instance is drained; the work runs on the control stream, whose thread has the IEEE floating-point mode. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/crc32.h"
#include "base/error.h"
#include "base/struct.h"
#include "hooks/changed.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "instance/instance.h"
#include "ranks/gathering.h"
#include "replay/state_arrays.h"
#include "schedule/select.h"
#include "state/rehearse.h"
#include "state/together.h"

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

typedef struct export_work {
    zfi_run_t *run;
    zfi_rehearsal_t *rehearsal;
    float **dst; /* [n_params] caller memory, or NULL: not asked for */
    zf_status_t status;
} export_work_t;

/* Masters that this rank owns, as FLUSH would leave them. */
static void run_export(void *raw) {
    export_work_t *work = *(export_work_t **)raw;
    const zfi_plan_t *plan = &work->run->plan;
    zfi_fp_mode_ieee();
    for (uint32_t i = 0; i < plan->n_matrices && !work->status; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        float *dst = work->dst[matrix->param];
        if (dst && matrix->own.n)
            work->status = zfi_rehearsal_read(work->rehearsal, ZFI_STATE_W, i, matrix->own.first, matrix->own.n,
                                              dst + matrix->param_offset + matrix->own.first);
    }
}

static zf_status_t check_export(zf_instance_t *inst, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                float **dst, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        zf_export_item_t item;
        st = ZFI_READ_ITEM_CHAINED(&item, items, i, elem_size, zf_export_item_t, err);
        if (st)
            return st;
        if (item.id >= inst->run->n_params)
            return zfi_error(err, ZF_ERR_PARAM, "export_params", "unknown parameter id %u; %u are bound", item.id,
                             inst->run->n_params);
        const zfi_param_t *param = &inst->run->params[inst->run->params[item.id].owner];
        if (!param->has_state && param->n_elems)
            return zfi_error_of(err, ZF_ERR_PARAM, item.id, "export_params",
                                "\"%s\" is frozen: it has no master weights", param->name);
        if (item.dst_nbytes != param->n_elems * sizeof(float) || (!item.dst && param->n_elems))
            return zfi_error_of(err, ZF_ERR_SHAPE, item.id, "export_params",
                                "\"%s\": dst has %" PRIu64 " bytes%s, need exactly %" PRIu64, param->name,
                                item.dst_nbytes, item.dst ? "" : " and is NULL",
                                param->n_elems * (uint64_t)sizeof(float));
        if (param->n_elems && dst[param->id])
            return zfi_error_of(err, ZF_ERR_ARGUMENT, item.id, "export_params", "\"%s\" is asked for twice",
                                param->name);
        if (param->n_elems)
            dst[param->id] = item.dst;
    }
    return st;
}

/* Runs fn(&work) on the control thread and waits for it. The instance is drained, so fn waits for nothing and ends by
 * itself; it writes into the caller's memory, so no deadline may end this wait before. */
static zf_status_t run_on_control(zf_instance_t *inst, void (*fn)(void *args), void *work) {
    return zfi_serial_call(inst->engine.control, fn, &work, sizeof work);
}

/* ---- of several ranks, each of which has a part of the masters --------------------------------------------------- */

/* Every rank asks for the same parameters, and none failed before (st, err). */
static zf_status_t compare_wanted(const export_work_t *work, zfi_together_t *together, zf_status_t st,
                                  zf_error_t *err) {
    uint32_t own = 0, *all;
    for (uint32_t i = 0; i < work->run->n_params && !st; i++)
        own = zfi_crc32(own, work->dst[i] ? "1" : "0", 1);
    st = zfi_together_tell(together, ZFI_AMONG_OWN, st, &own, sizeof own, (void **)&all, err);
    for (uint32_t r = 1; r < together->n_ranks && !st; r++)
        if (all[r] != all[0])
            st = zfi_error_by(err, ZF_ERR_RANKS, r, "export_params",
                              "rank %" PRIu32 " and rank 0 ask for other parameters: no rank has all of the masters, "
                              "so every rank must make the same call",
                              r);
    zfi_together_drop(together, all);
    return st;
}

enum { TOGETHER_NBYTES = 4 << 20 };

/* Parameters [first, end) of what is exported. */
typedef struct part {
    const export_work_t *work;
    uint32_t first, end;
} part_t;

static void walk_part(zfi_gathering_t *gathering, uint32_t rank) {
    const part_t *part = gathering->arg;
    for (uint32_t i = part->first; i < part->end; i++) {
        const zfi_param_t *param = &gathering->ranks->params[i];
        for (uint32_t m = 0; m < param->n_matrices && part->work->dst[i]; m++) {
            const zfi_matrix_t *matrix = &gathering->ranks->plan->matrices[param->first_matrix + m];
            zfi_slice_t slice = zfi_gathering_slice(gathering, matrix, rank);
            zfi_gathering_pass(gathering, part->work->dst[i] + matrix->param_offset + slice.first,
                               slice.n * sizeof(float));
        }
    }
}

/* The next parameters, together as large as an exchange should be. */
static void take_part(part_t *part) {
    uint64_t nbytes = 0;
    part->first = part->end;
    while (part->end < part->work->run->n_params && nbytes < TOGETHER_NBYTES) {
        uint32_t id = part->end++;
        nbytes += part->work->dst[id] ? part->work->run->params[id].n_elems * sizeof(float) : 0;
    }
}

static zf_status_t join_wanted(const export_work_t *work, zf_error_t *err) {
    part_t part = {.work = work};
    zfi_gathering_t gathering = {.ranks = &work->run->ranks, .walk = walk_part, .arg = &part};
    zf_status_t st = ZF_OK;
    while (part.end < work->run->n_params && !st) {
        take_part(&part);
        st = zfi_gathering_at_rest(&gathering);
    }
    return st ? zfi_error(err, st, "export_params", "the ranks' masters could not be joined") : ZF_OK;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static zf_status_t open_work(zfi_run_t *run, export_work_t *work, zf_error_t *err) {
    work->rehearsal = zfi_rehearsal_new(&run->state, &run->replays);
    work->dst = calloc(run->n_params, sizeof *work->dst);
    if (work->dst && work->rehearsal)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_MEMORY, "export_params", "no memory for one chunk of each cohort");
}

static zf_status_t export_rest(zf_instance_t *inst, export_work_t *work, zf_error_t *err) {
    zf_status_t st = run_on_control(inst, run_export, work);
    if (!st)
        st = work->status;
    if (st == ZF_ERR_POISONED)
        return zfi_poisoned(&inst->engine, err);
    if (st == ZF_ERR_NONFINITE)
        zfi_error(err, st, "export_params",
                  "the open windows would make a weight Inf or NaN; nothing was changed: lower the learning rate, or "
                  "load sound weights and call params_changed");
    return st;
}

/* The instance rests, or st says why not. */
static zf_status_t export_together(zf_instance_t *inst, export_work_t *work, zf_status_t st, zf_error_t *err) {
    zfi_together_t together;
    zfi_together_open(&inst->engine, 0, 0, &together);
    st = compare_wanted(work, &together, st, err);
    if (!st) {
        st = export_rest(inst, work, err);
        st = zfi_together_meet(&together, st, err);
    }
    if (!st)
        st = join_wanted(work, err);
    return st;
}

zf_status_t zfi_export_params(zf_instance_t *inst, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                              zf_error_t *err) {
    export_work_t work = {0};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING | ZFI_IN_RELEASED, "export_params", err);
    if (st)
        return st;
    work.run = inst->run;
    st = ZFI_CHECK_ARRAY(items, n, 1, elem_size, zf_export_item_t, "items", err);
    if (!st)
        st = open_work(inst->run, &work, err);
    if (!st)
        st = check_export(inst, items, n, elem_size, work.dst, err);
    st = zfi_reduce_meet(inst, st, "export_params", err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_overwritten_look(inst, "export_params", err);
    if (zfi_is_sharded(&inst->engine))
        st = export_together(inst, &work, st, err);
    else if (!st)
        st = export_rest(inst, &work, err);
    free(work.dst);
    zfi_rehearsal_free(work.rehearsal);
    return zfi_hook_end(inst, st, err);
}

/* ---- inspect ----------------------------------------------------------------------------------------------------- */

typedef struct inspect_work {
    zfi_run_t *run;
    uint32_t id;
    zf_inspect_out_t *out;
    zf_status_t status;
} inspect_work_t;

static void inspect_element(const zfi_run_t *run, uint32_t number, uint64_t linear, uint64_t at,
                            zf_inspect_out_t *out) {
    const zfi_matrix_t *matrix = &run->plan.matrices[number];
    uint64_t channel = matrix->channels_are_rows ? linear / matrix->cols : linear % matrix->cols;
    if (out->n && zfi_state_find(matrix, linear) != ZFI_NOT_OWNED)
        out->n[at] = run->hs.n[zfi_count_at(matrix, channel)];
    if (out->selected)
        out->selected[at] = matrix->k ? run->sel.mask[matrix->channel_base + channel] : 0;
    if (out->importance && zfi_select_counts(&run->sel, number))
        out->importance[at] = matrix->is_choosable ? run->sel.importance[matrix->sum_base + channel] : 0.0;
}

static zf_status_t inspect_arrays(zfi_run_t *run, uint32_t number, uint64_t at, zf_inspect_out_t *out) {
    float *const to[] = {out->w, out->m, out->v};
    const zfi_matrix_t *matrix = &run->plan.matrices[number];
    zf_status_t st = ZF_OK;
    for (int i = 0; i < 3 && !st; i++)
        if (to[i] && matrix->own.n)
            st = zfi_state_get(&run->state, (zfi_array_t)i, number, matrix->own.first, matrix->own.n,
                               to[i] + at + matrix->own.first);
    return st;
}

static void run_inspect(void *raw) {
    inspect_work_t *work = *(inspect_work_t **)raw;
    const zfi_param_t *param = &work->run->params[work->id];
    uint64_t at = 0;
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices && !work->status; i++) {
        const zfi_matrix_t *matrix = &work->run->plan.matrices[i];
        work->status = inspect_arrays(work->run, i, at, work->out);
        for (uint64_t linear = 0; linear < matrix->rows * matrix->cols; linear++)
            inspect_element(work->run, i, linear, at++, work->out);
    }
}

zf_status_t zfi_inspect(zf_instance_t *inst, uint32_t id, zf_inspect_out_t *given, zf_error_t *err) {
    zf_inspect_out_t out;
    inspect_work_t work = {.id = id, .out = &out};
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING | ZFI_IN_RELEASED, "inspect", err);
    if (st)
        return st;
    st = ZFI_READ(&out, given, zf_inspect_out_t, err);
    if (!st && id >= inst->run->n_params)
        st = zfi_error(err, ZF_ERR_PARAM, "inspect", "unknown parameter id %u; %u are bound", id, inst->run->n_params);
    if (!st && (!inst->run->params[id].has_state || out.n_elems != inst->run->params[id].n_elems))
        st = zfi_error_of(err, ZF_ERR_SHAPE, id, "inspect",
                          "\"%s\" has %" PRIu64 " elements with state, n_elems = %" PRIu64, inst->run->params[id].name,
                          inst->run->params[id].has_state ? inst->run->params[id].n_elems : 0, out.n_elems);
    if (!st)
        st = zfi_drain(inst, err);
    work.run = inst->run;
    if (!st)
        st = run_on_control(inst, run_inspect, &work);
    if (!st)
        st = zfi_hook_failed(inst, work.status, "inspect", "the device did not give its state", err);
    return zfi_hook_end(inst, st, err);
}
