/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/export.c - reading the host's state: export_params and zf.inspect/0 (contracts in zf/plugin.h,
 * inspect.h). The instance is drained. */
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
#include "schedule/select.h"
#include "state/together.h"
#include "state/values.h"

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

typedef struct export_work {
    zfi_run_t *run;
    zfi_reader_t reader;
    float **dst; /* [n_params] caller memory, or NULL: not asked for */
} export_work_t;

/* Masters that this rank owns, as FLUSH would leave them. */
static zf_status_t read_own(const export_work_t *work, zf_error_t *err) {
    const zfi_plan_t *plan = &work->run->plan;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < plan->n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        float *dst = work->dst[matrix->param];
        if (dst && matrix->own.n)
            st = zfi_reader_get(&work->reader, ZFI_SAVED_W, i, matrix->own.first, matrix->own.n,
                                dst + matrix->param_offset + matrix->own.first, err);
    }
    return st;
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

static zf_status_t export_rest(export_work_t *work, zf_error_t *err) {
    zf_status_t st = zfi_reader_open(work->run, 1, "export_params", &work->reader, err);
    return st ? st : read_own(work, err);
}

/* The instance rests, or st says why not. */
static zf_status_t export_together(zf_instance_t *inst, export_work_t *work, zf_status_t st, zf_error_t *err) {
    zfi_together_t together;
    zfi_together_open(&inst->engine, 0, 0, &together);
    st = compare_wanted(work, &together, st, err);
    if (!st) {
        st = export_rest(work, err);
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
    work.dst = calloc(inst->run->n_params, sizeof *work.dst);
    if (!st && !work.dst)
        st = zfi_error(err, ZF_ERR_MEMORY, "export_params", "no memory for a list of %u parameters",
                       inst->run->n_params);
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
        st = export_rest(&work, err);
    free(work.dst);
    zfi_reader_close(&work.reader);
    return zfi_hook_end(inst, st, err);
}

/* ---- inspect ----------------------------------------------------------------------------------------------------- */

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

static zf_status_t inspect_arrays(const zfi_reader_t *reader, uint32_t number, uint64_t at, zf_inspect_out_t *out,
                                  zf_error_t *err) {
    float *const to[] = {out->w, out->m, out->v};
    const zfi_slice_t *own = &reader->state->plan->matrices[number].own;
    zf_status_t st = ZF_OK;
    for (int i = 0; i < ZFI_STATE_ARRAYS && !st; i++)
        if (to[i] && own->n)
            st = zfi_reader_get(reader, (zfi_saved_array_t)i, number, own->first, own->n, to[i] + at + own->first, err);
    return st;
}

static zf_status_t inspect_param(const zfi_run_t *run, uint32_t id, zf_inspect_out_t *out, zf_error_t *err) {
    const zfi_param_t *param = &run->params[id];
    zfi_reader_t reader;
    zf_status_t st = zfi_reader_open(run, 0, "inspect", &reader, err);
    uint64_t at = 0;
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &run->plan.matrices[i];
        st = inspect_arrays(&reader, i, at, out, err);
        for (uint64_t linear = 0; linear < matrix->rows * matrix->cols; linear++)
            inspect_element(run, i, linear, at++, out);
    }
    zfi_reader_close(&reader);
    return st;
}

zf_status_t zfi_inspect(zf_instance_t *inst, uint32_t id, zf_inspect_out_t *given, zf_error_t *err) {
    zf_inspect_out_t out;
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
    if (!st)
        st = inspect_param(inst->run, id, &out, err);
    return zfi_hook_end(inst, st, err);
}
