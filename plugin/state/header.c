/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/header.c - see state/header.h. */
#include "state/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "state/json.h"

static zf_status_t bad(zf_error_t *err, const char *file, const char *what) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s: %s; the checkpoint was changed or is damaged", file, what);
}

/* ---- what a header must say -------------------------------------------------------------------------------------- */

int zfi_header_shape(const zfi_saved_t *saved, const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor,
                     uint32_t i, uint64_t shape[ZF_MAX_NDIM]) {
    if (!param) {
        shape[0] = saved->n_steps;
        shape[1] = zfi_state_steps[i].length(&saved->shape);
        return 2;
    }
    if ((tensor->array->flags & ZFI_ARRAY_PER_ELEMENT) && tensor->n_matrices == param->n_matrices) {
        for (int d = 0; d < param->param.ndim; d++)
            shape[d] = (uint64_t)param->param.shape[d];
        return param->param.ndim;
    }
    shape[0] = tensor->nbytes / zfi_state_dtype_nbytes(zfi_saved_dtype(param, tensor, i));
    return 1;
}

static int is_number(const json_t *value, uint64_t x) {
    return json_is_integer(value) && json_integer_value(value) == (json_int_t)x;
}

typedef struct comparison {
    const zfi_saved_t *saved;
    uint32_t file;
    const json_t *header;
    size_t n_tensors; /* of the file, found in the header */
} comparison_t;

/* 1: the header says of the tensor what the index says. */
static int agrees(comparison_t *with, const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, uint32_t i) {
    uint64_t shape[ZF_MAX_NDIM], at = tensor->offset - with->saved->files[with->file].header_nbytes;
    char name[ZFI_TENSOR_NAME];
    const json_t *entry, *dims, *offsets;
    const char *dtype;
    int ndim = zfi_header_shape(with->saved, param, tensor, i, shape), same;
    zfi_saved_tensor_name(param, tensor, (int)i, name, sizeof name);
    entry = json_object_get(with->header, name);
    dims = json_object_get(entry, "shape");
    offsets = json_object_get(entry, "data_offsets");
    dtype = json_string_value(json_object_get(entry, "dtype"));
    same = dtype && strcmp(dtype, zfi_state_dtype_name(zfi_saved_dtype(param, tensor, i))) == 0 &&
           json_array_size(dims) == (size_t)ndim && json_array_size(offsets) == 2 &&
           is_number(json_array_get(offsets, 0), at) && is_number(json_array_get(offsets, 1), at + tensor->nbytes);
    for (int d = 0; d < ndim && same; d++)
        same = is_number(json_array_get(dims, (size_t)d), shape[d]);
    with->n_tensors++;
    return same;
}

static int all_agree(comparison_t *with) {
    for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(with->saved, &at);)
        if (at.tensor->file == with->file && !agrees(with, at.param, at.tensor, at.number))
            return 0;
    return json_object_size(with->header) == with->n_tensors + (json_object_get(with->header, "__metadata__") != NULL);
}

zf_status_t zfi_header_check(const zfi_saved_t *saved, uint32_t file, const unsigned char *header, zf_error_t *err) {
    const zfi_saved_file_t *of = &saved->files[file];
    comparison_t with = {.saved = saved, .file = file};
    char problem[ZFI_JSON_PROBLEM], what[ZFI_JSON_PROBLEM + 40];
    uint64_t nbytes = 0;
    json_t *parsed;
    zf_status_t st;
    for (int i = 7; of->header_nbytes >= 8 && i >= 0; i--)
        nbytes = nbytes << 8 | header[i];
    if (of->header_nbytes < 8 || nbytes != of->header_nbytes - 8)
        return bad(err, of->name, "its first eight bytes are not the length of its header");
    parsed = zfi_json_parse((const char *)header + 8, nbytes, &st, problem);
    if (!parsed && st == ZF_ERR_MEMORY)
        return zfi_error(err, st, "state", "the header of %s: %s", of->name, problem);
    if (!parsed) {
        snprintf(what, sizeof what, "its header is no JSON object: %s", problem);
        return bad(err, of->name, what);
    }
    with.header = parsed;
    st = all_agree(&with) ? ZF_OK : bad(err, of->name, "its header names other tensors than the index does");
    json_decref(parsed);
    return st;
}

zf_status_t zfi_header_read(zfi_store_t *store, const zfi_saved_t *saved, uint32_t file, zf_error_t *err) {
    const zfi_saved_file_t *of = &saved->files[file];
    unsigned char *header;
    zf_status_t st;
    if (of->header_nbytes > ZFI_HEADER_MOST_NBYTES)
        return bad(err, of->name, "its header is longer than safetensors allows");
    header = malloc(of->header_nbytes + 1);
    if (!header)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the header of %s", of->name);
    st = zfi_store_read(store, of->name, 0, header, of->header_nbytes, err);
    if (!st && zfi_crc32(0, header, of->header_nbytes) != of->header_crc)
        st = bad(err, of->name, "its header has another checksum than the index says");
    if (!st)
        st = zfi_header_check(saved, file, header, err);
    free(header);
    return st;
}

/* ---- no gap, no overlap ------------------------------------------------------------------------------------------ */

typedef struct extent {
    uint32_t file;
    uint64_t offset, nbytes;
} extent_t;

static int by_place(const void *a, const void *b) {
    const extent_t *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

zf_status_t zfi_header_check_places(const zfi_saved_t *saved, zf_error_t *err) {
    size_t n = zfi_count_tensors(saved), at = 0;
    extent_t *all = malloc((n + 1) * sizeof *all);
    zf_status_t st = ZF_OK;
    if (!all)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the places of %zu tensors", n);
    for (zfi_tensor_walk_t walk = {0}; zfi_next_tensor(saved, &walk);)
        all[at++] = (extent_t){walk.tensor->file, walk.tensor->offset, walk.tensor->nbytes};
    qsort(all, n, sizeof *all, by_place);
    at = 0;
    for (uint32_t f = 0; f < saved->n_files && !st; f++) {
        uint64_t end = saved->files[f].header_nbytes;
        for (; at < n && all[at].file == f && all[at].offset == end; at++)
            end += all[at].nbytes;
        if (end != saved->files[f].nbytes || (at < n && all[at].file == f))
            st = bad(err, saved->files[f].name, "its tensors overlap, or do not fill it");
    }
    free(all);
    return st;
}
