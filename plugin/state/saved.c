/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/saved.c - the arrays of a checkpoint: their lengths, their values, and those of a run (contract in
 * saved.h). */
#include "state/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "schedule/window.h"

static const struct {
    const char *name;
    size_t nbytes;
} arrays[ZFI_SAVED_ARRAYS] = {[ZFI_SAVED_W] = {"w", 4},
                              [ZFI_SAVED_M] = {"m", 4},
                              [ZFI_SAVED_V] = {"v", 4},
                              [ZFI_SAVED_N] = {"n", 4},
                              [ZFI_SAVED_SELECTED] = {"selected", 1},
                              [ZFI_SAVED_IMPORTANCE] = {"importance", 8}};

const char *zfi_saved_name(zfi_saved_array_t array) { return arrays[array].name; }
size_t zfi_saved_elem_nbytes(zfi_saved_array_t array) { return arrays[array].nbytes; }

void zfi_saved_free(zfi_saved_t *saved) {
    for (uint32_t i = 0; saved->params && i < saved->n_params; i++)
        free(saved->params[i].name);
    free(saved->params);
    free(saved->files);
    free(saved->rules);
    free(saved->last_choice);
    free(saved->note);
    memset(saved, 0, sizeof *saved);
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

void zfi_saved_measure(zfi_saved_param_t *param) {
    param->n_batch = param->rows = param->cols = 1;
    for (int i = 0; i < param->ndim; i++)
        if (i < param->n_batch_axes)
            param->n_batch *= (uint64_t)param->shape[i];
        else if (i == param->n_batch_axes)
            param->rows = (uint64_t)param->shape[i];
        else
            param->cols *= (uint64_t)param->shape[i];
    param->n_elems = param->n_batch * param->rows * param->cols;
}

/* Channels of all blocks. */
static uint64_t n_channels(const zfi_saved_param_t *param) {
    return param->n_batch * (param->channels_are_rows ? param->rows : param->n_blocks * param->cols);
}

uint64_t zfi_saved_length(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array) {
    if (zfi_saved_is_by_element(array))
        return param->n_elems;
    if (array == ZFI_SAVED_N && !saved->is_mean)
        return param->n_batch * param->n_blocks;
    return n_channels(param);
}

void zfi_saved_block(const zfi_saved_param_t *param, uint64_t i, zfi_matrix_t *out) {
    uint64_t batch = i / param->n_blocks, block = i % param->n_blocks;
    uint64_t first = block * param->rows / param->n_blocks, end = (block + 1) * param->rows / param->n_blocks;
    *out = (zfi_matrix_t){.param_offset = (batch * param->rows + first) * param->cols,
                          .rows = end - first,
                          .cols = param->cols,
                          .channels_are_rows = param->channels_are_rows,
                          .n_channels = (uint32_t)(param->channels_are_rows ? end - first : param->cols)};
}

void zfi_saved_range(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array, uint64_t i,
                     uint64_t *out_first, uint64_t *out_n) {
    zfi_matrix_t block;
    zfi_saved_block(param, i, &block);
    *out_first = param->channels_are_rows ? block.param_offset / block.cols : i * block.cols;
    *out_n = block.n_channels;
    if (zfi_saved_is_by_element(array)) {
        *out_first = block.param_offset;
        *out_n = block.rows * block.cols;
    } else if (array == ZFI_SAVED_N && !saved->is_mean) {
        *out_first = i;
        *out_n = 1;
    }
}

/* ---- values that no training leaves ------------------------------------------------------------------------------ */

static uint64_t find_float(zfi_saved_array_t array, int is_callback, const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (array != ZFI_SAVED_V ? isfinite(x[i]) : is_callback ? !isnan(x[i]) : x[i] >= 0)
            continue; /* a second moment may overflow; it then holds its weight still. A callback's need be no square */
        return i;
    }
    return n;
}

uint64_t zfi_saved_find_bad(zfi_saved_array_t array, const zfi_group_rule_t *rule, uint64_t most, const void *values,
                            uint64_t n) {
    const uint8_t *selected = values;
    const uint32_t *counts = values;
    const double *importance = values;
    uint64_t i = 0;
    if (zfi_saved_is_by_element(array))
        return find_float(array, rule->number == ZF_RULE_CALLBACK, values, n);
    if (array == ZFI_SAVED_N)
        while (i < n && counts[i] <= most)
            i++;
    else if (array == ZFI_SAVED_SELECTED)
        while (i < n && selected[i] <= 1)
            i++;
    else
        while (i < n && importance[i] >= 0)
            i++;
    return i;
}

/* ---- of a run ---------------------------------------------------------------------------------------------------- */

int zfi_saved_has_choice(const zfi_plan_t *plan, const zfi_param_t *param) {
    for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++)
        if (plan->matrices[m].is_choosable)
            return 1;
    return 0;
}

/* Whether a parameter has an array now. */
static int has_array(const zfi_state_t *state, const zfi_param_t *param, zfi_saved_array_t array) {
    const zfi_clock_t *clock = state->windows->clock;
    switch (array) {
    case ZFI_SAVED_W:
    case ZFI_SAVED_N:
        return 1;
    case ZFI_SAVED_M:
        return param->rule->n_moments > 0;
    case ZFI_SAVED_V:
        return param->rule->n_moments > 1;
    case ZFI_SAVED_SELECTED:
        return !zfi_is_warm_up(clock, clock->t + 1) && zfi_saved_has_choice(state->plan, param);
    default:
        return zfi_saved_has_choice(state->plan, param);
    }
}

static int describe(const zfi_state_t *state, const zfi_saved_t *saved, const zfi_param_t *from,
                    zfi_saved_param_t *out) {
    *out = (zfi_saved_param_t){.name = strdup(from->name),
                               .id = from->id,
                               .dtype = from->dtype,
                               .ndim = from->ndim,
                               .n_batch_axes = from->n_batch_axes,
                               .channels_are_rows = from->channels_are_rows,
                               .group = from->group,
                               .n_blocks = (uint32_t)(from->n_matrices / from->n_batch)};
    memcpy(out->shape, from->shape, sizeof out->shape);
    zfi_saved_measure(out);
    for (int a = 0; a < ZFI_SAVED_ARRAYS; a++)
        if (has_array(state, from, (zfi_saved_array_t)a))
            out->tensors[a].nbytes = zfi_saved_length(saved, out, (zfi_saved_array_t)a) * arrays[a].nbytes;
    return out->name ? 0 : -1;
}

zf_status_t zfi_saved_of(const zfi_state_t *state, zfi_part_t part, const char *note, zfi_saved_t *out,
                         zf_error_t *err) {
    const zfi_clock_t *clock = state->windows->clock;
    const zfi_engine_t *engine = state->engine;
    uint32_t n_params = state->side->n_params;
    int is_whole;
    *out = (zfi_saved_t){.note = strdup(note ? note : ""),
                         .part = part,
                         .step = clock->t,
                         .n_submitted = clock->t + clock->steps_before,
                         .n_applied = engine->totals->n_applied,
                         .n_skipped = engine->totals->n_skipped,
                         .epoch_end = clock->epoch_end,
                         .n_cohorts = state->plan->n_cohorts,
                         .is_mean = state->dev->head.counts_per_channel,
                         .n_groups = state->ranks->n_groups};
    out->last_choice = malloc((out->n_cohorts + 1) * sizeof *out->last_choice);
    out->rules = calloc(out->n_groups + 1, sizeof *out->rules);
    out->params = calloc(n_params + 1, sizeof *out->params);
    is_whole = out->note && out->last_choice && out->rules && out->params;
    if (is_whole) {
        memcpy(out->last_choice, clock->last_choice, out->n_cohorts * sizeof *out->last_choice);
        out->note_nbytes = (uint32_t)strlen(out->note);
    }
    for (uint32_t i = 0; i < out->n_groups && is_whole; i++)
        out->rules[i] = *engine->rules.of[i];
    for (uint32_t i = 0; i < n_params && is_whole; i++)
        if (state->side->params[i].has_state)
            is_whole = !describe(state, out, &state->side->params[i], &out->params[out->n_params++]);
    if (is_whole)
        return ZF_OK;
    zfi_saved_free(out);
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of %u parameters", n_params);
}

int zfi_saved_is_cut_alike(const zfi_saved_param_t *saved, const zfi_param_t *here) {
    return saved->n_batch == here->n_batch && saved->rows == here->rows && saved->cols == here->cols &&
           saved->channels_are_rows == here->channels_are_rows &&
           (uint64_t)saved->n_blocks * saved->n_batch == here->n_matrices;
}
