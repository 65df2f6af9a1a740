/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/check.c - a checkpoint checked by itself: every byte against its checksum, every value against what
 * training can leave, and the clocks against each other (contract in state.h). After this, a load can fail on the way
 * only for want of memory or because reading fails. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "plan/rule.h"
#include "schedule/interval.h"
#include "schedule/window.h"
#include "state/header.h"
#include "state/state.h"

static zf_status_t bad(zf_error_t *err, const char *where, const char *what) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s: %s; the checkpoint was changed or is damaged", where, what);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_state_stream(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_tensor_t *tensor,
                             const char *name, zfi_block_fn fn, void *arg, zf_error_t *err) {
    const char *file = saved->files[tensor->file].name;
    unsigned char *block = malloc(tensor->nbytes < ZFI_STATE_BLOCK ? tensor->nbytes + 1 : ZFI_STATE_BLOCK);
    uint32_t crc = 0;
    zf_status_t st = block ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a block of a checkpoint");
    for (uint64_t at = 0; at < tensor->nbytes && !st; at += ZFI_STATE_BLOCK) {
        uint64_t n = tensor->nbytes - at < ZFI_STATE_BLOCK ? tensor->nbytes - at : ZFI_STATE_BLOCK;
        st = zfi_store_read(store, file, tensor->offset + at, block, n, err);
        if (!st)
            crc = zfi_crc32(crc, block, n);
        if (!st && fn)
            st = fn(arg, at, block, n, err);
    }
    free(block);
    if (!st && tensor->lacks_crc)
        st = zfi_error(
            err, ZF_ERR_CHECKPOINT, "state",
            "tensor \"%s\" has no checksum in the index, which is for loads with ZF_STATE_OWN, of w, m and v", name);
    else if (!st && crc != tensor->crc)
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                       "%s: tensor \"%s\" (bytes %" PRIu64 " to %" PRIu64
                       ") is damaged: checksum %08x, need %08x; load another checkpoint",
                       file, name, tensor->offset, tensor->offset + tensor->nbytes, crc, tensor->crc);
    return st;
}

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_window(const zfi_saved_t *saved, uint32_t cohort, zf_error_t *err) {
    const zfi_config_t *config = &saved->config;
    zfi_clock_t clock = {
        .t = saved->clocks[ZFI_CLOCK_T][0], .base = saved->clocks[ZFI_CLOCK_BASE][0], .pace = zfi_pace_of(config)};
    uint64_t first = saved->clocks[ZFI_CLOCK_WINDOW_FIRST][cohort];
    uint64_t choice = saved->clocks[ZFI_CLOCK_LAST_CHOICE][cohort], warm_up = zfi_config_warm_up(&saved->config);
    if (!zfi_interval_can_be_open(&clock, cohort, first))
        return bad(err, "clocks", "window_first is not where its configuration puts it");
    for (uint64_t i = 1; i <= 2; i++) {
        uint64_t ready = saved->clocks[i == 1 ? ZFI_CLOCK_READY_1 : ZFI_CLOCK_READY_2][cohort];
        if (ready > 1 || (ready && (!config->is_interval_auto || !zfi_interval_has_record(first, clock.t + i))))
            return bad(err, "clocks", "ready_1 or ready_2 is a decision that nothing can have been decided from");
    }
    if (clock.t < warm_up ? choice != 0 : choice < warm_up || choice > clock.t)
        return bad(err, "clocks", "last_choice is not in the run's past");
    return ZF_OK;
}

/* Counts of updates have 32 bits. A run that has used three quarters of them cannot be gone on with for long, and none
 * comes near: at a thousand steps per second that takes five weeks. */
static zf_status_t check_totals(const zfi_saved_t *saved, zf_error_t *err) {
    static const uint64_t most = (uint64_t)3 << 30;
    uint64_t total = saved->clocks[ZFI_CLOCK_T][0] + saved->clocks[ZFI_CLOCK_STEPS_BEFORE][0];
    if (total > most)
        return bad(err, "clocks", "step and steps_before say that it was trained for more than 3221225472 steps");
    if (saved->clocks[ZFI_CLOCK_N_APPLIED][0] > total || saved->clocks[ZFI_CLOCK_N_SKIPPED][0] > total)
        return bad(err, "clocks", "more steps_applied or steps_skipped than there were steps");
    return ZF_OK;
}

zf_status_t zfi_state_check_index(const zfi_saved_t *saved, zf_error_t *err) {
    uint64_t t = saved->clocks[ZFI_CLOCK_T][0], base = saved->clocks[ZFI_CLOCK_BASE][0], newest = 0, first = t;
    uint64_t warm_up = zfi_config_warm_up(&saved->config), waiting = saved->clocks[ZFI_CLOCK_WAITING_CHOICE][0];
    zf_status_t st = check_totals(saved, err);
    if (st || saved->is_compact)
        return st;
    if (saved->shape.is_mean != (saved->config.deferred == ZFI_DEFERRED_MEAN) ||
        saved->n_cohorts != saved->config.update_interval)
        return bad(err, "config", "it does not go with the number of cohorts or the kind of counts");
    if (base < warm_up || (base > warm_up && base > t))
        return bad(err, "clocks", "clock_base is not in the run's past");
    if (saved->clocks[ZFI_CLOCK_EPOCH_END][0] > t + 1)
        return bad(err, "clocks", "epoch_end is not in the run's past");
    for (uint32_t c = 0; c < saved->n_cohorts && !st; c++) {
        st = check_window(saved, c, err);
        if (saved->clocks[ZFI_CLOCK_LAST_CHOICE][c] > newest)
            newest = saved->clocks[ZFI_CLOCK_LAST_CHOICE][c];
        if (saved->clocks[ZFI_CLOCK_WINDOW_FIRST][c] < first)
            first = saved->clocks[ZFI_CLOCK_WINDOW_FIRST][c];
    }
    if (!st && waiting != (t && newest == t ? t : 0))
        st = bad(err, "clocks", "waiting_choice is not the newest choice");
    if (!st && t && (saved->first_step != first || saved->n_steps != t + 1 - first))
        st = bad(err, "first_step", "the steps that are listed are not those of the open windows");
    if (!st && !t && saved->n_steps)
        st = bad(err, "n_steps", "steps before the first");
    return st;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static zf_status_t keep_block(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err) {
    (void)err;
    memcpy((unsigned char *)arg + at, block, nbytes);
    return ZF_OK;
}

static zf_status_t read_step_values(zfi_store_t *store, zfi_saved_t *saved, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (int i = 0; i < ZFI_N_STATE_STEPS && saved->n_steps && !st; i++) {
        const zfi_state_steps_t *row = &zfi_state_steps[i];
        uint64_t nbytes = saved->steps[i].nbytes / saved->n_steps;
        saved->step_values[i] = malloc(saved->steps[i].nbytes + 1);
        if (!saved->step_values[i])
            return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for %" PRIu64 " steps", saved->n_steps);
        st = zfi_state_stream(store, saved, &saved->steps[i], row->name, keep_block, saved->step_values[i], err);
        for (uint64_t s = 0; s < saved->n_steps && !st; s++)
            if (row->is_bad(&saved->shape, (unsigned char *)saved->step_values[i] + s * nbytes))
                st = bad(err, row->name, "values that no step can have");
    }
    return st;
}

static int is_applied(const zfi_saved_t *saved, uint64_t step) {
    const double *scalars = saved->step_values[ZFI_STEPS_SCALARS];
    return scalars[(step - saved->first_step) * ZFI_N_STEP_SCALARS + ZFI_SCALAR_APPLIED] != 0;
}

static int is_present(const zfi_saved_t *saved, uint64_t step, uint32_t param) {
    const uint8_t *present = saved->step_values[ZFI_STEPS_PRESENT];
    return present[(step - saved->first_step) * saved->n_params + param];
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A matrix's number in the tensor's list, which rises; n_matrices where it is not there. */
static uint32_t find_part(const zfi_saved_tensor_t *tensor, uint32_t matrix) {
    uint32_t first = 0, end = tensor->n_matrices;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (tensor->matrices[middle] < matrix)
            first = middle + 1;
        else
            end = middle;
    }
    return first < tensor->n_matrices && tensor->matrices[first] == matrix ? first : tensor->n_matrices;
}

static int holds_matrix(const zfi_saved_tensor_t *tensor, uint32_t matrix) {
    return tensor && find_part(tensor, matrix) < tensor->n_matrices;
}

/* Which arrays a matrix of an exact checkpoint must have, and which it must not. */
static zf_status_t check_matrix(const zfi_saved_t *saved, uint32_t p, uint32_t m, zf_error_t *err) {
    const zfi_saved_param_t *param = &saved->params[p];
    const zfi_matrix_t *matrix = &param->matrices[m];
    uint64_t t = saved->clocks[ZFI_CLOCK_T][0], first = saved->clocks[ZFI_CLOCK_WINDOW_FIRST][matrix->cohort];
    int has_choice = t >= zfi_config_warm_up(&saved->config);
    if (holds_matrix(zfi_saved_find(param, "selected", 0), m) != (has_choice && matrix->k > 0) ||
        holds_matrix(zfi_saved_find(param, "importance", 0), m) != matrix->is_choosable)
        return bad(err, param->param.name,
                   "the selection or its importance is missing, or there before the first choice");
    if (holds_matrix(zfi_saved_find(param, "interval", 0), m) !=
        (saved->config.is_interval_auto && has_choice && zfi_interval_measures(matrix)))
        return bad(err, param->param.name, "the sums that close windows are missing, or there without use");
    if (holds_matrix(zfi_saved_find(param, "publish", 0), m) &&
        (first != t + 1 || t <= zfi_config_warm_up(&saved->config) || saved->policy.lag == 0 || matrix->is_resident))
        return bad(err, param->param.name, "values are to be published where no window has closed");
    for (uint64_t s = saved->first_step; s < saved->first_step + saved->n_steps; s++)
        if (holds_matrix(zfi_saved_find(param, "slot", s), m) !=
            (!matrix->is_resident && s >= first && is_present(saved, s, p)))
            return bad(err, param->param.name, "a slot is missing, or there for a step without a gradient");
    return ZF_OK;
}

/* No channel was updated more often than there were steps; one that is not selected has those of its open window still
 * before it. The mean counts by channel; else a matrix's count is that of what waits. */
static zf_status_t check_counts(zfi_value_check_t *check, const uint32_t *values, uint64_t n, zf_error_t *err) {
    const zfi_saved_t *saved = check->saved;
    uint64_t t = saved->clocks[ZFI_CLOCK_T][0], total = t + saved->clocks[ZFI_CLOCK_STEPS_BEFORE][0];
    for (uint64_t i = 0; i < n; i++) {
        const zfi_matrix_t *matrix = &check->param->matrices[check->tensor->matrices[check->at]];
        int is_late = !saved->is_compact && !matrix->is_resident &&
                      (!saved->shape.is_mean || (check->late && check->late[check->n_counted]));
        uint64_t first = is_late ? saved->clocks[ZFI_CLOCK_WINDOW_FIRST][matrix->cohort] : t + 1;
        if (values[i] > total - (t + 1 - first))
            return bad(err, check->param->param.name, "more updates than there were steps");
        check->n_counted++;
        if (++check->in_matrix < (saved->shape.is_mean ? matrix->n_channels : 1))
            continue;
        check->in_matrix = 0;
        check->at++;
    }
    return ZF_OK;
}

/* A matrix has as many selected channels as its choice takes, and channels enter only right after a choice. */
static zf_status_t count_selected(zfi_value_check_t *check, const uint8_t *values, uint64_t n, zf_error_t *err) {
    for (uint64_t i = 0; i < n; i++) {
        const zfi_matrix_t *matrix = &check->param->matrices[check->tensor->matrices[check->at]];
        check->n_selected += values[i] != ZFI_CHANNEL_DEFERRED;
        if (values[i] == ZFI_CHANNEL_ENTERING &&
            check->saved->clocks[ZFI_CLOCK_LAST_CHOICE][matrix->cohort] != check->saved->clocks[ZFI_CLOCK_T][0])
            return bad(err, check->param->param.name, "channels enter without a choice");
        if (++check->in_matrix < matrix->n_channels)
            continue;
        if (check->n_selected != matrix->k)
            return bad(err, check->param->param.name, "not as many selected channels as a choice takes");
        check->n_selected = check->in_matrix = 0;
        check->at++;
    }
    return ZF_OK;
}

/* A window that opens with the next step and a choice just made have gathered nothing. */
static zf_status_t check_interval(zfi_value_check_t *check, const double *values, uint64_t n, zf_error_t *err) {
    uint64_t t = check->saved->clocks[ZFI_CLOCK_T][0];
    for (uint64_t i = 0; i < n; i++) {
        uint32_t cohort = check->param->matrices[check->tensor->matrices[check->at]].cohort;
        int is_new = check->in_matrix == 0 ? check->saved->clocks[ZFI_CLOCK_WINDOW_FIRST][cohort] == t + 1
                                           : check->saved->clocks[ZFI_CLOCK_LAST_CHOICE][cohort] == t;
        if (is_new && values[i] != 0.0)
            return bad(err, check->param->param.name, "sums of steps that are still to come");
        check->at += check->in_matrix == 1;
        check->in_matrix = !check->in_matrix;
    }
    return ZF_OK;
}

zf_status_t zfi_state_check_block(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err) {
    zfi_value_check_t *check = arg;
    const zfi_state_array_t *array = check->tensor->array;
    zfi_state_dtype_t dtype = zfi_state_array_dtype(array, &check->param->param);
    uint64_t n = nbytes / zfi_state_dtype_nbytes(dtype), i;
    int applied = (array->flags & ZFI_ARRAY_PER_STEP) && is_applied(check->saved, check->tensor->step);
    i = zfi_state_find_bad(array, &check->param->param, block, n, applied);
    if (i < n)
        return zfi_error(
            err, ZF_ERR_CHECKPOINT, "state",
            "%s of \"%s\": value %" PRIu64
            " is one that no training leaves (Inf, NaN, negative or out of range); load another checkpoint",
            array->name, check->param->param.name, at / zfi_state_dtype_nbytes(dtype) + i);
    if (strcmp(array->name, "n") == 0)
        return check_counts(check, block, n, err);
    if (strcmp(array->name, "interval") == 0)
        return check_interval(check, block, n, err);
    return strcmp(array->name, "selected") == 0 ? count_selected(check, block, n, err) : ZF_OK;
}

/* ---- matrices of a tensor ---------------------------------------------------------------------------------------- */

static uint64_t part_nbytes(const zfi_saved_t *saved, const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor,
                            uint32_t i) {
    return tensor->array->length(&saved->shape, &param->matrices[tensor->matrices[i]]) *
           zfi_saved_elem_nbytes(param, tensor);
}

typedef struct tensor_check {
    zfi_value_check_t values;
    zfi_saved_tensor_t *tensor;
    uint32_t part;      /* being summed ... */
    uint64_t part_done; /* ... bytes of it */
} tensor_check_t;

static void sum_parts(tensor_check_t *check, const unsigned char *from, uint64_t nbytes) {
    while (nbytes) {
        uint64_t all = part_nbytes(check->values.saved, check->values.param, check->tensor, check->part);
        uint64_t n = all - check->part_done < nbytes ? all - check->part_done : nbytes;
        uint32_t *crc = &check->tensor->parts[check->part].crc;
        *crc = zfi_crc32(*crc, from, n);
        from += n;
        nbytes -= n;
        check->part_done += n;
        if (check->part_done == all) {
            check->part_done = 0;
            check->part++;
        }
    }
}

static zf_status_t check_and_sum(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err) {
    tensor_check_t *check = arg;
    if (check->tensor->n_matrices > 1)
        sum_parts(check, block, nbytes);
    return zfi_state_check_block(&check->values, at, block, nbytes, err);
}

/* Which channels of the matrices of a tensor are not selected, one after another: late[.] = 1. */
static zf_status_t find_late(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                             const zfi_saved_tensor_t *tensor, uint8_t **late, zf_error_t *err) {
    const zfi_saved_tensor_t *selected = zfi_saved_find(param, "selected", 0);
    uint8_t *states = malloc(selected ? selected->nbytes + 1 : 1), *from = states;
    uint64_t n_channels = 0, at = 0;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < tensor->n_matrices; i++)
        n_channels += param->matrices[tensor->matrices[i]].n_channels;
    *late = malloc(n_channels + 1);
    if (!states || !*late)
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for which channels of \"%s\" are selected",
                       param->param.name);
    if (!st && selected)
        st = zfi_state_stream(store, saved, selected, param->param.name, keep_block, states, err);
    for (uint32_t i = 0, next = 0; i < tensor->n_matrices && !st; i++) {
        uint32_t m = tensor->matrices[i];
        int has_choice = selected && next < selected->n_matrices && selected->matrices[next] == m;
        next += (uint32_t)has_choice;
        for (uint32_t c = 0; c < param->matrices[m].n_channels; c++)
            (*late)[at++] = !has_choice || *from++ == ZFI_CHANNEL_DEFERRED;
    }
    free(states);
    return st;
}

static int make_parts(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_tensor_t *tensor) {
    uint64_t from = 0;
    if (!tensor->parts)
        tensor->parts = calloc(tensor->n_matrices, sizeof *tensor->parts);
    if (!tensor->parts)
        return -1;
    for (uint32_t i = 0; i < tensor->n_matrices; i++) {
        tensor->parts[i].from = from;
        from += part_nbytes(saved, param, tensor, i);
    }
    return 0;
}

static zf_status_t check_tensor(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                zfi_saved_tensor_t *tensor, zf_error_t *err) {
    tensor_check_t check = {.values = {.saved = saved, .param = param, .tensor = tensor}, .tensor = tensor};
    char name[ZFI_TENSOR_NAME];
    uint8_t *late = NULL;
    zf_status_t st = ZF_OK;
    zfi_saved_tensor_name(param, tensor, 0, name, sizeof name);
    if (make_parts(saved, param, tensor))
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of \"%s\"", name);
    if (tensor->n_matrices == 1)
        tensor->parts[0].crc = tensor->crc;
    if (saved->shape.is_mean && !saved->is_compact && strcmp(tensor->array->name, "n") == 0)
        st = find_late(store, saved, param, tensor, &late, err);
    check.values.late = late;
    if (!st)
        st = zfi_state_stream(store, saved, tensor, name, check_and_sum, &check, err);
    free(late);
    return st;
}

/* Matrix number check->at of the tensor's list. */
static zf_status_t read_part(zfi_store_t *store, zfi_value_check_t *check, unsigned char *out, zf_error_t *err) {
    const zfi_saved_tensor_t *tensor = check->tensor;
    const char *file = check->saved->files[tensor->file].name;
    uint64_t nbytes = part_nbytes(check->saved, check->param, tensor, check->at);
    uint64_t from = tensor->parts[check->at].from;
    uint32_t crc = 0, need = tensor->parts[check->at].crc;
    zf_status_t st = ZF_OK;
    for (uint64_t done = 0; done < nbytes && !st; done += ZFI_STATE_BLOCK) {
        uint64_t n = nbytes - done < ZFI_STATE_BLOCK ? nbytes - done : ZFI_STATE_BLOCK;
        st = zfi_store_read(store, file, tensor->offset + from + done, out + done, n, err);
        if (!st)
            crc = zfi_crc32(crc, out + done, n);
        if (!st)
            st = zfi_state_check_block(check, from + done, out + done, n, err);
    }
    return st || crc == need ? st : bad(err, file, "it was changed while it was read");
}

zf_status_t zfi_state_read_part(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                const zfi_saved_tensor_t *tensor, uint32_t matrix, void *out, zf_error_t *err) {
    zfi_value_check_t check = {.saved = saved, .param = param, .tensor = tensor};
    if (!holds_matrix(tensor, matrix))
        return ZF_OK;
    check.at = find_part(tensor, matrix);
    return read_part(store, &check, out, err);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_state_check_tensors(zfi_store_t *store, zfi_saved_t *saved, uint32_t p, zf_error_t *err) {
    zfi_saved_param_t *param = &saved->params[p];
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < param->n_tensors && !st; i++)
        st = check_tensor(store, saved, param, &param->tensors[i], err);
    return st;
}

static zf_status_t check_matrices(const zfi_saved_t *saved, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < saved->n_params && !saved->is_compact && !st; p++)
        for (uint32_t m = 0; m < saved->params[p].n_matrices && !st; m++)
            st = check_matrix(saved, p, m, err);
    return st;
}

/* The index and what its steps need; not the headers. */
static zf_status_t open_index(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = zfi_index_read(store, out, err);
    if (st)
        return st;
    st = zfi_state_check_index(out, err);
    if (!st)
        st = read_step_values(store, out, err);
    if (!st)
        st = check_matrices(out, err);
    if (!st)
        st = zfi_header_check_places(out, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_state_check_param(zfi_store_t *store, const char *name, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = open_index(store, out, err);
    if (st)
        return st;
    for (uint32_t p = 0; p < out->n_params && !st; p++)
        if (strcmp(out->params[p].param.name, name) == 0)
            st = zfi_state_check_tensors(store, out, p, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_state_open(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = open_index(store, out, err);
    if (st)
        return st;
    for (uint32_t f = 0; f < out->n_files && !st; f++)
        st = zfi_header_read(store, out, f, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_state_check(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = zfi_state_open(store, out, err);
    if (st)
        return st;
    for (uint32_t p = 0; p < out->n_params && !st; p++)
        st = zfi_state_check_tensors(store, out, p, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

void zfi_state_report(const zfi_saved_t *saved, const zfi_store_t *store, zf_state_report_t *out) {
    out->is_exact = !saved->is_compact;
    out->step = saved->clocks[ZFI_CLOCK_T][0] + saved->clocks[ZFI_CLOCK_STEPS_BEFORE][0];
    out->nbytes = store->total_nbytes;
    out->n_params = saved->n_params;
    out->note_nbytes = saved->note_nbytes;
}
