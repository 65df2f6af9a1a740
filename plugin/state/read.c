/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read.c - the index read back (contract in state/index.h). The text may be anybody's: every number is
 * checked before it is used as a size, an index or a loop's end, and memory is asked for only in proportion to the
 * text.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "config/config_table.h"
#include "state/index.h"
#include "state/json.h"

static const uint64_t LARGEST_INDEX = (uint64_t)1 << 30;
static const uint64_t LARGEST = (uint64_t)1 << 56; /* of any number in it: sums of a few cannot wrap */
enum { MOST_COHORTS = 64, MOST_GROUPS = 65536, MOST_STEPS = 64 + 1, MOST_PARTS = 1 << 20 };

typedef struct reader {
    zf_error_t *err;
    zfi_saved_t *out;
} reader_t;

static zf_status_t bad(const reader_t *reader, const char *where, const char *what) {
    return zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state", "%s: %s: %s; the file was changed or is not a checkpoint",
                     ZF_STATE_INDEX, where, what);
}

static zf_status_t no_memory(const reader_t *reader) {
    return zfi_error(reader->err, ZF_ERR_MEMORY, "state", "no memory for the index of a checkpoint");
}

/* ---- members -------------------------------------------------------------------------------------------------------
 */

/* A number in [0, max]. */
static zf_status_t to_number(const reader_t *reader, const json_t *value, const char *where, uint64_t max,
                             uint64_t *out) {
    char what[96];
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > max) {
        snprintf(what, sizeof what, "need a whole number, at most %" PRIu64, max);
        return bad(reader, where, what);
    }
    *out = (uint64_t)json_integer_value(value);
    return ZF_OK;
}

static zf_status_t number(const reader_t *reader, const json_t *from, const char *name, uint64_t max, uint64_t *out) {
    return to_number(reader, json_object_get(from, name), name, max, out);
}

static zf_status_t text(const reader_t *reader, const json_t *from, const char *name, size_t max, const char **out) {
    const json_t *value = json_object_get(from, name);
    if (!json_is_string(value) || json_string_length(value) > max ||
        strlen(json_string_value(value)) != json_string_length(value))
        return bad(reader, name, "need a text that is not too long");
    *out = json_string_value(value);
    return ZF_OK;
}

/* ---- files and tensors ---------------------------------------------------------------------------------------------
 */

static zf_status_t read_file(const reader_t *reader, const json_t *from, zfi_saved_file_t *out) {
    const char *name;
    uint64_t crc = 0;
    zf_status_t st = text(reader, from, "name", ZFI_BLOB_NAME - 1, &name);
    if (!st && (!zfi_store_is_name(name) || strncmp(name, "zf_state", 8) != 0 || strcmp(name, ZF_STATE_INDEX) == 0))
        st = bad(reader, "files", "a name that no checkpoint's file has");
    if (!st)
        st = number(reader, from, "nbytes", LARGEST, &out->nbytes);
    if (!st)
        st = number(reader, from, "header_nbytes", out->nbytes, &out->header_nbytes);
    if (!st)
        st = number(reader, from, "header_crc32", UINT32_MAX, &crc);
    if (st)
        return st;
    out->header_crc = (uint32_t)crc;
    snprintf(out->name, sizeof out->name, "%s", name);
    return ZF_OK;
}

static zf_status_t read_files(const reader_t *reader, const json_t *root) {
    const json_t *list = json_object_get(root, "files");
    zfi_saved_t *saved = reader->out;
    zf_status_t st = ZF_OK;
    if (!json_is_array(list))
        return bad(reader, "files", "need a list");
    saved->files = calloc(json_array_size(list) + 1, sizeof *saved->files);
    if (!saved->files)
        return no_memory(reader);
    for (; saved->n_files < json_array_size(list) && !st; saved->n_files++)
        st = read_file(reader, json_array_get(list, saved->n_files), &saved->files[saved->n_files]);
    return st;
}

static zf_status_t read_place(const reader_t *reader, const json_t *from, const char *where, uint64_t nbytes,
                              zfi_saved_tensor_t *out) {
    const zfi_saved_t *saved = reader->out;
    uint64_t file = 0, crc = 0;
    zf_status_t st = number(reader, from, "file", saved->n_files ? saved->n_files - 1 : 0, &file);
    if (!st)
        st = number(reader, from, "offset", LARGEST, &out->offset);
    if (!st)
        st = number(reader, from, "nbytes", LARGEST, &out->nbytes);
    if (!st)
        st = number(reader, from, "crc32", UINT32_MAX, &crc);
    if (!st && (saved->n_files == 0 || out->nbytes != nbytes || out->offset < saved->files[file].header_nbytes ||
                out->offset + out->nbytes > saved->files[file].nbytes))
        st = bad(reader, where, "the tensor does not have the bytes that its shape needs, or lies outside its file");
    out->file = (uint32_t)file;
    out->crc = (uint32_t)crc;
    return st;
}

static zf_status_t read_matrix_numbers(const reader_t *reader, const json_t *list, const zfi_saved_param_t *param,
                                       zfi_saved_tensor_t *out) {
    uint64_t n = json_is_array(list) ? json_array_size(list) : param->n_matrices, x, last = 0;
    if (list && (!json_is_array(list) || n == 0 || n > param->n_matrices))
        return bad(reader, param->param.name, "\"matrices\" of a tensor");
    out->matrices = malloc(n * sizeof *out->matrices);
    if (!out->matrices)
        return no_memory(reader);
    for (uint64_t i = 0; i < n; i++) {
        x = i;
        if (list && to_number(reader, json_array_get(list, i), "matrices", param->n_matrices - 1u, &x))
            return ZF_ERR_CHECKPOINT;
        if (i && x <= last)
            return bad(reader, param->param.name, "\"matrices\" of a tensor do not rise");
        out->matrices[out->n_matrices++] = (uint32_t)(last = x);
    }
    return ZF_OK;
}

/* "w", or "slot.17". */
static zf_status_t read_tensor(const reader_t *reader, const char *key, const json_t *from, zfi_saved_param_t *param) {
    const zfi_saved_t *saved = reader->out;
    zfi_saved_tensor_t *out = &param->tensors[param->n_tensors];
    size_t length = strcspn(key, ".");
    const zfi_state_array_t *array = zfi_state_array_find(key, length);
    char *end = NULL, again[32];
    zf_status_t st;
    if (!array || !(array->flags & ZFI_ARRAY_PER_STEP) != (key[length] == '\0') ||
        (saved->is_compact && !(array->flags & ZFI_ARRAY_COMPACT)))
        return bad(reader, param->param.name, "a tensor of a kind that this version does not know");
    *out = (zfi_saved_tensor_t){.array = array};
    if (array->flags & ZFI_ARRAY_PER_STEP) {
        out->step = strtoull(key + length + 1, &end, 10);
        snprintf(again, sizeof again, "%" PRIu64, out->step);
        if (strcmp(again, key + length + 1) != 0 || out->step < saved->first_step ||
            out->step >= saved->first_step + saved->n_steps)
            return bad(reader, param->param.name, "a slot of a step that is not open");
    }
    param->n_tensors++; /* from here on its memory is freed with the rest */
    st = read_matrix_numbers(reader, json_object_get(from, "matrices"), param, out);
    for (uint32_t i = 0; i < out->n_matrices && !st; i++)
        if (array->length(&saved->shape, &param->matrices[out->matrices[i]]) == 0)
            st = bad(reader, param->param.name, "a tensor for a matrix that cannot have it");
    return st ? st : read_place(reader, from, param->param.name, zfi_saved_tensor_nbytes(saved, param, out), out);
}

/* ---- parameters ----------------------------------------------------------------------------------------------------
 */

static zf_status_t read_dtype(const reader_t *reader, const json_t *from, const char *name, zfi_dtype_t *out) {
    const char *value;
    zf_status_t st = text(reader, from, name, 8, &value);
    if (st)
        return st;
    for (int i = 0; i < ZFI_N_DTYPES; i++) {
        zfi_param_t probe = {.dtype = (zfi_dtype_t)i};
        zfi_state_array_t visible = {.dtype_kind = ZFI_DTYPE_VISIBLE};
        if (strcmp(value, zfi_state_dtype_name(zfi_state_array_dtype(&visible, &probe))) == 0) {
            *out = (zfi_dtype_t)i;
            return ZF_OK;
        }
    }
    return bad(reader, name, "a data type that this version does not know");
}

static zf_status_t read_shape(const reader_t *reader, const json_t *from, zfi_param_t *out) {
    const json_t *list = json_object_get(from, "shape");
    uint64_t n = 1, x = 0;
    if (!json_is_array(list) || json_array_size(list) > ZF_MAX_NDIM)
        return bad(reader, out->name, "need a shape");
    out->ndim = (int)json_array_size(list);
    for (int i = 0; i < out->ndim; i++) {
        if (to_number(reader, json_array_get(list, (size_t)i), "shape", LARGEST, &x))
            return ZF_ERR_CHECKPOINT;
        if (x == 0 || n > LARGEST / x)
            return bad(reader, out->name, "a shape without elements, or with too many");
        out->shape[i] = (int64_t)x;
        n *= x;
    }
    out->n_elems = n;
    return ZF_OK;
}

static zf_status_t read_matrix(const reader_t *reader, const json_t *from, const zfi_param_t *param, uint64_t at,
                               zfi_matrix_t *out) {
    uint64_t x[5] = {0};
    if (!json_is_array(from) || json_array_size(from) != 5)
        return bad(reader, param->name, "a matrix is five numbers");
    for (size_t i = 0; i < 5; i++) {
        uint64_t max = i == 0 ? LARGEST : i == 3 ? reader->out->n_cohorts - 1u : UINT32_MAX;
        if (to_number(reader, json_array_get(from, i), "matrices", max, &x[i]))
            return ZF_ERR_CHECKPOINT;
    }
    *out = (zfi_matrix_t){.param_offset = x[0],
                          .rows = x[1],
                          .cols = x[2],
                          .cohort = (uint32_t)x[3],
                          .k = (uint32_t)x[4],
                          .channels_are_rows = param->channels_are_rows};
    if (x[0] != at || !x[1] || !x[2] || x[1] > (param->n_elems - at) / x[2])
        return bad(reader, param->name, "its matrices do not follow one another");
    out->n_channels = (uint32_t)(param->channels_are_rows ? x[1] : x[2]);
    if (out->k > out->n_channels)
        return bad(reader, param->name, "more selected channels than there are");
    out->is_choosable = out->k > 0 && out->k < out->n_channels;
    return ZF_OK;
}

static zf_status_t read_matrices(const reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    const json_t *list = json_object_get(from, "matrices");
    uint64_t at = 0;
    zf_status_t st = ZF_OK;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return bad(reader, out->param.name, "need its matrices");
    out->matrices = calloc(json_array_size(list), sizeof *out->matrices);
    if (!out->matrices)
        return no_memory(reader);
    for (; out->n_matrices < json_array_size(list) && !st; out->n_matrices++) {
        zfi_matrix_t *matrix = &out->matrices[out->n_matrices];
        st = at < out->param.n_elems
                 ? read_matrix(reader, json_array_get(list, out->n_matrices), &out->param, at, matrix)
                 : bad(reader, out->param.name, "its matrices hold more than it has");
        if (!st)
            at += matrix->rows * matrix->cols;
    }
    if (!st && at != out->param.n_elems)
        st = bad(reader, out->param.name, "its matrices hold less than it has");
    return st;
}

static zf_status_t read_tensors(const reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    json_t *list = json_object_get(from, "tensors");
    const char *key;
    json_t *value;
    zf_status_t st = ZF_OK;
    if (!json_is_object(list))
        return bad(reader, out->param.name, "need its tensors");
    out->tensors = calloc(json_object_size(list) + 1, sizeof *out->tensors);
    if (!out->tensors)
        return no_memory(reader);
    json_object_foreach(list, key, value) if (!st) st = read_tensor(reader, key, value, out);
    for (uint32_t i = 0; i < zfi_n_state_arrays && !st; i++) {
        const zfi_state_array_t *array = &zfi_state_arrays[i];
        const zfi_saved_tensor_t *tensor =
            array->flags & ZFI_ARRAY_COMPACT ? zfi_saved_find(out, array->name, 0) : NULL;
        if ((array->flags & ZFI_ARRAY_COMPACT) && (!tensor || tensor->n_matrices != out->n_matrices))
            st = bad(reader, out->param.name, "w, m, v or n is missing");
    }
    return st;
}

static zf_status_t read_id(const reader_t *reader, const json_t *from, uint32_t *out) {
    uint64_t id = reader->out->n_params;
    zf_status_t st = json_object_get(from, "id") ? number(reader, from, "id", ZF_NO_ID - 1, &id) : ZF_OK;
    *out = (uint32_t)id;
    return st;
}

static zf_status_t read_param(const reader_t *reader, const json_t *from, zfi_saved_param_t *out) {
    zfi_param_t *param = &out->param;
    const char *name, *channels;
    uint64_t flags = 0, group = 0, axes = 0;
    zf_status_t st = text(reader, from, "name", sizeof param->name - 1, &name);
    if (st)
        return st;
    snprintf(param->name, sizeof param->name, "%s", name);
    st = read_id(reader, from, &param->id);
    if (!st)
        st = read_shape(reader, from, param);
    if (!st)
        st = read_dtype(reader, from, "dtype", &param->dtype);
    if (!st)
        st = read_dtype(reader, from, "grad_dtype", &param->grad_dtype);
    if (!st)
        st = number(reader, from, "flags", UINT32_MAX, &flags);
    if (!st)
        st = number(reader, from, "group", reader->out->shape.n_groups - 1, &group);
    if (!st)
        st = number(reader, from, "n_batch_axes", (uint64_t)param->ndim, &axes);
    if (!st)
        st = text(reader, from, "channels", 8, &channels);
    if (st)
        return st;
    param->flags = (uint32_t)flags;
    param->group = (uint32_t)group;
    param->n_batch_axes = (int)axes;
    param->channels_are_rows = strcmp(channels, "rows") == 0;
    param->has_state = 1;
    st = read_matrices(reader, from, out);
    return st ? st : read_tensors(reader, from, out);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const zfi_saved_param_t *const *)a)->param.name,
                  (*(const zfi_saved_param_t *const *)b)->param.name);
}

static zf_status_t check_names(const reader_t *reader) {
    const zfi_saved_t *saved = reader->out;
    const zfi_saved_param_t **sorted = malloc((saved->n_params + 1) * sizeof *sorted);
    zf_status_t st = ZF_OK;
    if (!sorted)
        return no_memory(reader);
    for (uint32_t i = 0; i < saved->n_params; i++)
        sorted[i] = &saved->params[i];
    qsort(sorted, saved->n_params, sizeof *sorted, by_name);
    for (uint32_t i = 1; i < saved->n_params && !st; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            st = bad(reader, sorted[i]->param.name, "two parameters of this name");
    free(sorted);
    return st;
}

static zf_status_t read_params(const reader_t *reader, const json_t *root) {
    const json_t *list = json_object_get(root, "params");
    zfi_saved_t *saved = reader->out;
    zf_status_t st = ZF_OK;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return bad(reader, "params", "need a list that is not empty");
    saved->params = calloc(json_array_size(list), sizeof *saved->params);
    if (!saved->params)
        return no_memory(reader);
    saved->shape.n_params = (uint32_t)json_array_size(list);
    for (; saved->n_params < json_array_size(list) && !st; saved->n_params++)
        st = read_param(reader, json_array_get(list, saved->n_params), &saved->params[saved->n_params]);
    return st ? st : check_names(reader);
}

/* ---- clocks, steps, configuration ----------------------------------------------------------------------------------
 */

static zf_status_t read_clocks(const reader_t *reader, const json_t *root) {
    const json_t *from = json_object_get(root, "clocks");
    zfi_saved_t *saved = reader->out;
    for (int i = 0; i < ZFI_N_CLOCKS; i++) {
        const json_t *value = json_object_get(from, zfi_state_clocks[i].name);
        uint32_t n = zfi_state_clocks[i].is_per_cohort ? saved->n_cohorts : 1;
        saved->clocks[i] = calloc(n, sizeof *saved->clocks[i]);
        if (!saved->clocks[i])
            return no_memory(reader);
        if (zfi_state_clocks[i].is_per_cohort && json_array_size(value) != n)
            return bad(reader, zfi_state_clocks[i].name, "need one number per cohort");
        for (uint32_t c = 0; c < n; c++)
            if (to_number(reader, zfi_state_clocks[i].is_per_cohort ? json_array_get(value, c) : value,
                          zfi_state_clocks[i].name, LARGEST, &saved->clocks[i][c]))
                return ZF_ERR_CHECKPOINT;
    }
    return ZF_OK;
}

static zf_status_t read_steps(const reader_t *reader, const json_t *root) {
    const json_t *from = json_object_get(root, "steps");
    zfi_saved_t *saved = reader->out;
    for (int i = 0; i < ZFI_N_STATE_STEPS && saved->n_steps; i++) {
        uint64_t nbytes = saved->n_steps * zfi_state_steps[i].length(&saved->shape) *
                          zfi_state_dtype_nbytes(zfi_state_steps[i].dtype);
        zf_status_t st = read_place(reader, json_object_get(from, zfi_state_steps[i].name), zfi_state_steps[i].name,
                                    nbytes, &saved->steps[i]);
        if (st)
            return st;
    }
    return ZF_OK;
}

/* A key of a configuration that a load does not compare, or that is gone and says what this version does; of a compact
 * checkpoint any that is gone: what it holds does not depend on it. */
static int is_left_out(const char *key, const char *said, int is_compact) {
    const char *dot = strchr(key, '.');
    char section[32];
    if (!dot || (size_t)(dot - key) >= sizeof section)
        return 0;
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    return zfi_key_is_free(section, dot + 1) || zfi_gone_is_implied(key, said, is_compact);
}

/* The values as overrides of the defaults. A key that is unknown here may change what the numbers mean. */
static zf_status_t read_config(const reader_t *reader, const json_t *root) {
    json_t *from = json_object_get(root, "config");
    size_t n = json_object_size(from), i = 0;
    char **overrides = calloc(n + 1, sizeof *overrides);
    zf_error_t problem = {.struct_size = sizeof problem};
    zf_status_t st = overrides ? ZF_OK : no_memory(reader);
    const char *key;
    json_t *value;
    json_object_foreach(from, key, value) {
        const char *said = json_string_value(value);
        size_t length = strlen(key) + (said ? strlen(said) : 0) + 2;
        if (st)
            break;
        if (said && is_left_out(key, said, reader->out->is_compact))
            continue;
        overrides[i] = said ? malloc(length) : NULL;
        if (!overrides[i]) {
            st = said ? no_memory(reader) : bad(reader, "config", "need texts");
            break;
        }
        snprintf(overrides[i++], length, "%s=%s", key, said);
    }
    if (!st && zfi_config_parse(NULL, 0, "the checkpoint", (const char *const *)overrides, (uint32_t)i,
                                &reader->out->config, &problem))
        st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                       "%s: its configuration is not one of this version's: %.300s", ZF_STATE_INDEX, problem.message);
    zfi_config_settle(&reader->out->config, 0, 1); /* it was when it was saved; a written one need not be */
    for (size_t k = 0; k < i; k++)
        free(overrides[k]);
    free(overrides);
    return st;
}

static zf_status_t read_rule(const reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const char *name = "";
    uint64_t rule = 0, n_moments = 0;
    zf_status_t st = number(reader, root, "rule", ZF_RULE_CALLBACK, &rule);
    if (!st)
        st = text(reader, root, "rule_name", sizeof saved->rule_name - 1, &name);
    if (!st)
        st = number(reader, root, "rule_moments", 2, &n_moments);
    saved->rule = (uint32_t)rule;
    saved->rule_moments = (uint32_t)n_moments;
    snprintf(saved->rule_name, sizeof saved->rule_name, "%s", name);
    return st;
}

static zf_status_t read_part(const reader_t *reader, const json_t *root, zfi_part_t *out) {
    const json_t *from = json_object_get(root, "part");
    uint64_t part = 0, n = 0;
    zf_status_t st;
    if (!from)
        return ZF_OK;
    st = json_array_size(from) == 2 ? to_number(reader, json_array_get(from, 1), "part", MOST_PARTS, &n)
                                    : bad(reader, "part", "need two numbers");
    if (!st)
        st = n > 1 ? to_number(reader, json_array_get(from, 0), "part", n - 1, &part)
                   : bad(reader, "part", "need 2 parts at least");
    *out = (zfi_part_t){(uint32_t)part, (uint32_t)n};
    return st;
}

static zf_status_t read_head(const reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const char *kind, *note;
    uint64_t x = 0;
    zf_status_t st = text(reader, root, "kind", 16, &kind);
    if (!st)
        st = text(reader, root, "note", 65536, &note);
    if (st)
        return st;
    if (strcmp(kind, "exact") != 0 && strcmp(kind, "compact") != 0)
        return bad(reader, "kind", "need \"exact\" or \"compact\"");
    saved->is_compact = strcmp(kind, "compact") == 0;
    saved->note = strdup(note);
    if (!saved->note)
        return no_memory(reader);
    saved->note_nbytes = (uint32_t)strlen(note);
    saved->shape.is_mean = json_is_true(json_object_get(root, "is_mean"));
    st = read_rule(reader, root);
    if (!st)
        st = read_part(reader, root, &saved->part);
    if (!st)
        st = number(reader, root, "n_cohorts", MOST_COHORTS, &x);
    saved->n_cohorts = (uint32_t)x;
    if (!st)
        st = number(reader, root, "n_groups", MOST_GROUPS, &x);
    saved->shape.n_groups = (uint32_t)x;
    if (!st && (!saved->n_cohorts || !saved->shape.n_groups))
        st = bad(reader, "n_cohorts, n_groups", "need 1 at least");
    if (!st)
        st = number(reader, root, "first_step", LARGEST, &saved->first_step);
    if (!st)
        st = number(reader, root, "n_steps", saved->is_compact ? 0 : MOST_STEPS, &saved->n_steps);
    return st;
}

static zf_status_t read_all(const reader_t *reader, const json_t *root) {
    zf_status_t st = read_head(reader, root);
    if (!st)
        st = read_config(reader, root);
    if (!st)
        st = read_clocks(reader, root);
    if (!st)
        st = read_files(reader, root);
    if (!st)
        st = read_params(reader, root);
    return st ? st : read_steps(reader, root);
}

/* ---- the text ------------------------------------------------------------------------------------------------------
 */

static const char *check_prefix(const reader_t *reader, const char *all, uint64_t nbytes, zf_status_t *st) {
    unsigned version = 0, crc = 0;
    int used = 0;
    const char *payload;
    if (sscanf(all, "{\"format\":\"zf.state\",\"version\":%9u,\"crc32\":\"%8x\",%n", &version, &crc, &used) != 2 ||
        !used) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s does not begin as the index of a zf.state checkpoint", ZF_STATE_INDEX);
        return NULL;
    }
    if (version != ZFI_STATE_VERSION) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s is of version %u, this plugin knows %d: use the plugin that wrote it, or a newer one",
                        ZF_STATE_INDEX, version, ZFI_STATE_VERSION);
        return NULL;
    }
    reader->out->index_crc = crc;
    payload = all + used + 1; /* a line feed */
    if ((uint64_t)used + 3 > nbytes || payload[-1] != '\n' || all[nbytes - 1] != '\n' ||
        zfi_crc32(0, payload, nbytes - (uint64_t)used - 2) != crc) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s is damaged: its checksum is not %08x (%" PRIu64 " bytes)", ZF_STATE_INDEX, crc, nbytes);
        return NULL;
    }
    return payload;
}

static zf_status_t parse(const reader_t *reader, char *all, uint64_t nbytes) {
    char problem[ZFI_JSON_PROBLEM];
    json_t *root;
    zf_status_t st = ZF_OK;
    char *payload = (char *)(uintptr_t)check_prefix(reader, all, nbytes, &st);
    if (st)
        return st;
    payload[-1] = '{';
    root = zfi_json_parse(payload - 1, nbytes - (uint64_t)(payload - 1 - all), &st, problem);
    if (!root && st == ZF_ERR_MEMORY)
        return zfi_error(reader->err, st, "state", "%s: %s", ZF_STATE_INDEX, problem);
    if (!root)
        return bad(reader, "JSON", problem);
    st = json_is_object(root) ? read_all(reader, root) : bad(reader, "JSON", "need an object");
    json_decref(root);
    return st;
}

static zf_status_t check_sizes(zfi_store_t *store, const zfi_saved_t *saved, zf_error_t *err) {
    for (uint32_t i = 0; i < saved->n_files; i++) {
        uint64_t nbytes = 0;
        zf_status_t st = zfi_store_size(store, saved->files[i].name, &nbytes, err);
        if (st)
            return st;
        if (nbytes != saved->files[i].nbytes)
            return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                             "%s has %" PRIu64 " bytes, the index says %" PRIu64 ": the checkpoint is incomplete",
                             saved->files[i].name, nbytes, saved->files[i].nbytes);
    }
    return ZF_OK;
}

zf_status_t zfi_index_parse(char *text, uint64_t nbytes, zfi_saved_t *out, zf_error_t *err) {
    reader_t reader = {err, out};
    zf_status_t st;
    memset(out, 0, sizeof *out);
    st = parse(&reader, text, nbytes);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    reader_t reader = {err, out};
    uint64_t nbytes = 0;
    char *all;
    zf_status_t st = zfi_store_size(store, ZF_STATE_INDEX, &nbytes, err);
    if (st)
        return st;
    if (nbytes == 0 || nbytes > LARGEST_INDEX)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s has %" PRIu64 " bytes, allowed 1..%" PRIu64,
                         ZF_STATE_INDEX, nbytes, LARGEST_INDEX);
    all = malloc(nbytes + 1);
    if (!all)
        return no_memory(&reader);
    st = zfi_store_read(store, ZF_STATE_INDEX, 0, all, nbytes, err);
    all[nbytes] = '\0';
    if (!st)
        st = zfi_index_parse(all, nbytes, out, err);
    free(all);
    if (st)
        return st;
    st = check_sizes(store, out, err);
    if (st)
        zfi_saved_free(out);
    return st;
}
