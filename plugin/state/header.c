/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/header.c - see state/header.h. */
#include "state/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"

static zf_status_t bad(zf_error_t *err, const char *file, const char *what) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s: %s; the checkpoint was changed or is damaged", file, what);
}

/* ---- what a header must say -------------------------------------------------------------------------------------- */

/* The shape that a tensor has in its file; param = NULL: of the steps, number i. */
static json_t *print_shape(zfi_json_t *json, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                           const zfi_saved_tensor_t *tensor, uint32_t i) {
    json_t *out = json_array();
    if (!param) {
        zfi_json_append(json, out, json_integer((json_int_t)saved->n_steps));
        zfi_json_append(json, out, json_integer((json_int_t)zfi_state_steps[i].length(&saved->shape)));
    } else if ((tensor->array->flags & ZFI_ARRAY_PER_ELEMENT) && tensor->n_matrices == param->n_matrices) {
        for (int d = 0; d < param->param.ndim; d++)
            zfi_json_append(json, out, json_integer(param->param.shape[d]));
    } else {
        uint64_t n = tensor->nbytes / zfi_state_dtype_nbytes(zfi_saved_dtype(param, tensor, i));
        zfi_json_append(json, out, json_integer((json_int_t)n));
    }
    return out;
}

json_t *zfi_header_print(zfi_json_t *json, const zfi_saved_t *saved, uint32_t file) {
    json_t *out = json_object();
    zfi_json_set(json, out, "__metadata__", json_pack("{s:s}", "format", "zf.state"));
    for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(saved, &at);) {
        json_int_t first = (json_int_t)(at.tensor->offset - saved->files[file].header_nbytes);
        char name[ZFI_TENSOR_NAME];
        if (at.tensor->file != file)
            continue;
        zfi_saved_tensor_name(at.param, at.tensor, (int)at.number, name, sizeof name);
        zfi_json_set(json, out, name,
                     json_pack("{s:s, s:o, s:[I,I]}", "dtype",
                               zfi_state_dtype_name(zfi_saved_dtype(at.param, at.tensor, at.number)), "shape",
                               print_shape(json, saved, at.param, at.tensor, at.number), "data_offsets", first,
                               first + (json_int_t)at.tensor->nbytes));
    }
    return out;
}

static zf_status_t compare(const zfi_saved_t *saved, uint32_t file, const json_t *parsed, zf_error_t *err) {
    zfi_json_t json = {0};
    json_t *need = zfi_header_print(&json, saved, file);
    int is_whole = need && !json.is_bad, is_equal = json_equal(need, parsed);
    json_decref(need);
    if (!is_whole)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the header of %s", saved->files[file].name);
    return is_equal ? ZF_OK : bad(err, saved->files[file].name, "its header names other tensors than the index does");
}

static zf_status_t check(const zfi_saved_t *saved, uint32_t file, const unsigned char *header, zf_error_t *err) {
    const zfi_saved_file_t *of = &saved->files[file];
    char problem[ZFI_JSON_PROBLEM], what[ZFI_JSON_PROBLEM + 40];
    uint64_t nbytes = 0;
    zf_status_t st;
    for (int i = 7; of->header_nbytes >= 8 && i >= 0; i--)
        nbytes = nbytes << 8 | header[i];
    if (of->header_nbytes < 8 || nbytes != of->header_nbytes - 8)
        return bad(err, of->name, "its first eight bytes are not the length of its header");
    json_t *parsed = zfi_json_parse((const char *)header + 8, nbytes, &st, problem);
    if (!parsed && st == ZF_ERR_MEMORY)
        return zfi_error(err, st, "state", "the header of %s: %s", of->name, problem);
    if (!parsed) {
        snprintf(what, sizeof what, "its header is no JSON object: %s", problem);
        return bad(err, of->name, what);
    }
    st = compare(saved, file, parsed, err);
    json_decref(parsed);
    return st;
}

zf_status_t zfi_header_read(zfi_store_t *store, const zfi_saved_t *saved, uint32_t file, zf_error_t *err) {
    const zfi_saved_file_t *of = &saved->files[file];
    if (of->header_nbytes > ZFI_HEADER_MOST_NBYTES)
        return bad(err, of->name, "its header is longer than safetensors allows");
    unsigned char *header = malloc(of->header_nbytes + 1);
    if (!header)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the header of %s", of->name);
    zf_status_t st = zfi_store_read(store, of->name, 0, header, of->header_nbytes, err);
    if (!st && zfi_crc32(0, header, of->header_nbytes) != of->header_crc)
        st = bad(err, of->name, "its header has another checksum than the index says");
    if (!st)
        st = check(saved, file, header, err);
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
