/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read_params.c - the parameters of an index, with their matrices and tensors (contract in read.h). */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state/read.h"

enum { HOME_FLAGS = 12 }; /* flags of ABI 0.1; the cut says what they did */

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static zf_status_t read_matrix_numbers(zfi_reader_t *reader, const json_t *list, const zfi_saved_param_t *param,
                                       zfi_saved_tensor_t *out) {
    uint64_t n = json_is_array(list) ? json_array_size(list) : param->n_matrices, x, last = 0;
    if (list && (!json_is_array(list) || n == 0 || n > param->n_matrices))
        return zfi_read_bad(reader, param->param.name, "\"matrices\" of a tensor");
    out->matrices = malloc(n * sizeof *out->matrices);
    if (!out->matrices)
        return zfi_read_no_memory(reader);
    for (uint64_t i = 0; i < n; i++) {
        x = list ? zfi_read_to_number(reader, json_array_get(list, i), "matrices", param->n_matrices - 1u) : i;
        if (i && x <= last)
            return zfi_read_bad(reader, param->param.name, "\"matrices\" of a tensor do not rise");
        out->matrices[out->n_matrices++] = (uint32_t)(last = x);
    }
    return reader->st;
}

/* "w", or "slot.17". */
static zf_status_t read_tensor(zfi_reader_t *reader, const char *key, const json_t *from, zfi_saved_param_t *param) {
    const zfi_saved_t *saved = reader->out;
    zfi_saved_tensor_t *out = &param->tensors[param->n_tensors];
    size_t length = strcspn(key, ".");
    const zfi_state_array_t *array = zfi_state_array_find(key, length);
    char *end = NULL, again[32];
    if (!array || !(array->flags & ZFI_ARRAY_PER_STEP) != (key[length] == '\0') ||
        (saved->is_compact && !(array->flags & ZFI_ARRAY_COMPACT)))
        return zfi_read_bad(reader, param->param.name, "a tensor of a kind that this version does not know");
    *out = (zfi_saved_tensor_t){.array = array};
    if (array->flags & ZFI_ARRAY_PER_STEP) {
        out->step = strtoull(key + length + 1, &end, 10);
        snprintf(again, sizeof again, "%" PRIu64, out->step);
        if (strcmp(again, key + length + 1) != 0 || out->step < saved->first_step ||
            out->step >= saved->first_step + saved->n_steps)
            return zfi_read_bad(reader, param->param.name, "a slot of a step that is not open");
    }
    param->n_tensors++; /* from here on its memory is freed with the rest */
    if (read_matrix_numbers(reader, json_object_get(from, "matrices"), param, out))
        return reader->st;
    for (uint32_t i = 0; i < out->n_matrices; i++)
        if (array->length(&saved->shape, &param->matrices[out->matrices[i]]) == 0)
            return zfi_read_bad(reader, param->param.name, "a tensor for a matrix that cannot have it");
    return zfi_read_place(reader, from, param->param.name, zfi_saved_tensor_nbytes(saved, param, out), out);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static zfi_dtype_t read_dtype(zfi_reader_t *reader, const json_t *from, const char *name) {
    const char *value = zfi_read_text(reader, from, name, 8);
    for (int i = 0; i < ZFI_N_DTYPES; i++) {
        zfi_param_t probe = {.dtype = (zfi_dtype_t)i};
        zfi_state_array_t visible = {.dtype_kind = ZFI_DTYPE_VISIBLE};
        if (strcmp(value, zfi_state_dtype_name(zfi_state_array_dtype(&visible, &probe))) == 0)
            return (zfi_dtype_t)i;
    }
    zfi_read_bad(reader, name, "a data type that this version does not know");
    return ZFI_F32;
}

static zf_status_t read_shape(zfi_reader_t *reader, const json_t *from, zfi_param_t *out) {
    const json_t *list = json_object_get(from, "shape");
    uint64_t n = 1, x;
    if (!json_is_array(list) || json_array_size(list) > ZF_MAX_NDIM)
        return zfi_read_bad(reader, out->name, "need a shape");
    out->ndim = (int)json_array_size(list);
    for (int i = 0; i < out->ndim; i++) {
        x = zfi_read_to_number(reader, json_array_get(list, (size_t)i), "shape", ZFI_LARGEST_SAVED);
        if (x == 0 || n > ZFI_LARGEST_SAVED / x)
            return zfi_read_bad(reader, out->name, "a shape without elements, or with too many");
        out->shape[i] = (int64_t)x;
        n *= x;
    }
    out->n_elems = n;
    return reader->st;
}

static zf_status_t read_matrix(zfi_reader_t *reader, const json_t *from, const zfi_param_t *param, uint64_t at,
                               zfi_matrix_t *out) {
    uint64_t x[5];
    if (!json_is_array(from) || json_array_size(from) != 5)
        return zfi_read_bad(reader, param->name, "a matrix is five numbers");
    for (size_t i = 0; i < 5; i++) {
        uint64_t max = i == 0 ? ZFI_LARGEST_SAVED : i == 3 ? reader->out->n_cohorts : UINT32_MAX;
        x[i] = zfi_read_to_number(reader, json_array_get(from, i), "matrices", max);
    }
    *out = (zfi_matrix_t){.param_offset = x[0],
                          .rows = x[1],
                          .cols = x[2],
                          .is_resident = x[3] == reader->out->n_cohorts || reader->out->policy.is_whole,
                          .cohort = x[3] == reader->out->n_cohorts ? 0 : (uint32_t)x[3],
                          .k = (uint32_t)x[4],
                          .channels_are_rows = param->channels_are_rows};
    if (x[0] != at || !x[1] || !x[2] || x[1] > (param->n_elems - at) / x[2])
        return zfi_read_bad(reader, param->name, "its matrices do not follow one another");
    out->n_channels = (uint32_t)(param->channels_are_rows ? x[1] : x[2]);
    if (out->k > (out->is_resident ? 0 : out->n_channels))
        return zfi_read_bad(reader, param->name, "more selected channels than there are");
    out->is_choosable = out->k > 0 && out->k < out->n_channels;
    return reader->st;
}

static zf_status_t read_matrices(zfi_reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    const json_t *list = json_object_get(from, "matrices");
    uint64_t at = 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return zfi_read_bad(reader, out->param.name, "need its matrices");
    out->matrices = calloc(json_array_size(list), sizeof *out->matrices);
    if (!out->matrices)
        return zfi_read_no_memory(reader);
    for (; out->n_matrices < json_array_size(list) && !reader->st; out->n_matrices++) {
        zfi_matrix_t *matrix = &out->matrices[out->n_matrices];
        if (at >= out->param.n_elems)
            return zfi_read_bad(reader, out->param.name, "its matrices hold more than it has");
        if (!read_matrix(reader, json_array_get(list, out->n_matrices), &out->param, at, matrix))
            at += matrix->rows * matrix->cols;
    }
    return at == out->param.n_elems ? reader->st
                                    : zfi_read_bad(reader, out->param.name, "its matrices hold less than it has");
}

static zf_status_t read_tensors(zfi_reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    json_t *list = json_object_get(from, "tensors");
    const char *key;
    json_t *value;
    if (!json_is_object(list))
        return zfi_read_bad(reader, out->param.name, "need its tensors");
    out->tensors = calloc(json_object_size(list) + 1, sizeof *out->tensors);
    if (!out->tensors)
        return zfi_read_no_memory(reader);
    json_object_foreach(list, key, value) if (!reader->st) read_tensor(reader, key, value, out);
    for (uint32_t i = 0; i < zfi_n_state_arrays; i++) {
        const zfi_state_array_t *array = &zfi_state_arrays[i];
        const zfi_saved_tensor_t *tensor =
            array->flags & ZFI_ARRAY_COMPACT ? zfi_saved_find(out, array->name, 0) : NULL;
        if ((array->flags & ZFI_ARRAY_COMPACT) && (!tensor || tensor->n_matrices != out->n_matrices))
            zfi_read_bad(reader, out->param.name, "w, m, v or n is missing");
    }
    return reader->st;
}

static zf_status_t read_param(zfi_reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    zfi_param_t *param = &out->param;
    const zfi_saved_t *saved = reader->out;
    snprintf(param->name, sizeof param->name, "%s", zfi_read_text(reader, from, "name", sizeof param->name - 1));
    param->id = saved->n_params;
    if (json_object_get(from, "id"))
        param->id = (uint32_t)zfi_read_number(reader, from, "id", ZF_NO_ID - 1);
    read_shape(reader, from, param);
    param->dtype = read_dtype(reader, from, "dtype");
    param->grad_dtype = read_dtype(reader, from, "grad_dtype");
    param->flags = (uint32_t)zfi_read_number(reader, from, "flags", UINT32_MAX) & ~(uint32_t)HOME_FLAGS;
    param->group = (uint32_t)zfi_read_number(reader, from, "group", saved->shape.n_groups - 1);
    param->rule = &saved->rules[param->group];
    param->n_batch_axes = (int)zfi_read_number(reader, from, "n_batch_axes", (uint64_t)param->ndim);
    param->channels_are_rows = strcmp(zfi_read_text(reader, from, "channels", 8), "rows") == 0;
    param->has_state = 1;
    if (reader->st || read_matrices(reader, from, out))
        return reader->st;
    return read_tensors(reader, from, out);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const zfi_saved_param_t *const *)a)->param.name,
                  (*(const zfi_saved_param_t *const *)b)->param.name);
}

static zf_status_t check_names(zfi_reader_t *reader) {
    const zfi_saved_t *saved = reader->out;
    const zfi_saved_param_t **sorted = malloc((saved->n_params + 1) * sizeof *sorted);
    if (!sorted)
        return zfi_read_no_memory(reader);
    for (uint32_t i = 0; i < saved->n_params; i++)
        sorted[i] = &saved->params[i];
    qsort(sorted, saved->n_params, sizeof *sorted, by_name);
    for (uint32_t i = 1; i < saved->n_params; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            zfi_read_bad(reader, sorted[i]->param.name, "two parameters of this name");
    free(sorted);
    return reader->st;
}

zf_status_t zfi_read_params(zfi_reader_t *reader, const json_t *root) {
    const json_t *list = json_object_get(root, "params");
    zfi_saved_t *saved = reader->out;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return zfi_read_bad(reader, "params", "need a list that is not empty");
    saved->params = calloc(json_array_size(list), sizeof *saved->params);
    if (!saved->params)
        return zfi_read_no_memory(reader);
    saved->shape.n_params = (uint32_t)json_array_size(list);
    for (; saved->n_params < json_array_size(list) && !reader->st; saved->n_params++)
        read_param(reader, json_array_get(list, saved->n_params), &saved->params[saved->n_params]);
    return reader->st ? reader->st : check_names(reader);
}
