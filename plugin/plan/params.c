/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/params.c - checking and recording declared parameters (contract in params.h). */
#include "plan/params.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"
#include "base/tensor.h"
#include "base/utf8.h"

enum {
    KNOWN_FLAGS = ZF_PARAM_FROZEN | ZF_PARAM_TIED | ZF_PARAM_NOT_IN_NORM | ZF_PARAM_AVERAGE | ZF_PARAM_CARRIES,
    MAX_PARAMS = 10000000,
    MAX_GROUPS = 65536
};

static zf_status_t check_name(const zf_param_decl_t *decl, uint32_t i, zf_error_t *err) {
    size_t length = decl->name ? strnlen(decl->name, 256) : 0;
    if (length == 0 || length > 255)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params", "parameter %u: name is %s; need 1..255 bytes", i,
                         !decl->name ? "NULL"
                         : length    ? "longer than 255 bytes"
                                     : "empty");
    if (!zfi_utf8_is_name(decl->name, length)) /* a checkpoint could not hold it, or a message would end there */
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "parameter %u: name is not UTF-8, or has a control character; need 1..255 bytes without", i);
    return ZF_OK;
}

static zf_status_t check_numbers(const zf_param_decl_t *decl, uint32_t i, zf_error_t *err) {
    if (decl->flags & ~(uint32_t)KNOWN_FLAGS)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "bind_params", "parameter \"%s\": unknown flags 0x%x",
                         decl->name, decl->flags);
    if (decl->group >= MAX_GROUPS)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params", "parameter \"%s\": group = %u, allowed 0..%d", decl->name,
                         decl->group, MAX_GROUPS - 1);
    if (decl->channels != ZF_CHANNELS_COLUMNS && decl->channels != ZF_CHANNELS_ROWS)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "parameter \"%s\": channels = %d, allowed 0 (columns) or 1 (rows)", decl->name,
                         decl->channels);
    if (decl->home < ZF_HOME_PLUGIN || decl->home > ZF_HOME_HOST)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "bind_params",
                         "parameter \"%s\": home = %d; allowed: 0 (plugin), 1 (resident), 2 (host)", decl->name,
                         decl->home);
    if ((decl->flags & ZF_PARAM_TIED) && decl->tied_to >= i)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "parameter \"%s\" (%u) is tied to %u: the owner must be declared before it", decl->name, i,
                         decl->tied_to);
    return ZF_OK;
}

/* Matrices of the tensor: B x rows x columns. */
static void shape_matrices(zfi_param_t *param) {
    int at = param->n_batch_axes;
    param->n_batch = param->rows = param->cols = 1;
    for (int i = 0; i < at; i++)
        param->n_batch *= (uint64_t)param->shape[i];
    if (at < param->ndim)
        param->rows = (uint64_t)param->shape[at];
    for (int i = at + 1; i < param->ndim; i++)
        param->cols *= (uint64_t)param->shape[i];
    param->row_stride = at < param->ndim ? param->strides[at] : (int64_t)param->cols;
}

/* Element offsets of the columns within a row, where they are not simply 0, 1, 2 ... */
static zf_status_t map_columns(zfi_param_t *param, zf_error_t *err) {
    int first = param->n_batch_axes + 1;
    int64_t expected = 1;
    int is_plain = 1;
    for (int i = param->ndim - 1; i >= first; i--) {
        if (param->shape[i] > 1 && param->strides[i] != expected)
            is_plain = 0;
        expected *= param->shape[i];
    }
    if (is_plain || param->n_elems == 0)
        return ZF_OK;
    param->col_offset = malloc(param->cols * sizeof *param->col_offset);
    if (!param->col_offset)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the column map of \"%s\"", param->name);
    for (uint64_t c = 0; c < param->cols; c++) {
        int64_t rest = (int64_t)c, offset = 0;
        for (int i = param->ndim - 1; i >= first; i--) {
            offset += rest % param->shape[i] * param->strides[i];
            rest /= param->shape[i];
        }
        param->col_offset[c] = offset;
    }
    return ZF_OK;
}

int64_t zfi_param_batch_offset(const zfi_param_t *param, uint64_t b) {
    int64_t offset = 0;
    for (int i = param->n_batch_axes - 1; i >= 0; i--) {
        offset += (int64_t)(b % (uint64_t)param->shape[i]) * param->strides[i];
        b /= (uint64_t)param->shape[i];
    }
    return offset;
}

/* Whether no two elements have one place: each axis steps over all that the axes of smaller strides reach. */
static int is_disjoint(const zfi_view_t *view) {
    int64_t reach = 0, stride = 0;
    for (int n = 0; n < view->ndim; n++) {
        int next = -1;
        for (int i = 0; i < view->ndim; i++)
            if (view->shape[i] > 1 && view->strides[i] > stride && (next < 0 || view->strides[i] < view->strides[next]))
                next = i;
        if (next < 0)
            return 1;
        for (int i = 0; i < view->ndim; i++)
            if (i != next && view->shape[i] > 1 && view->strides[i] == view->strides[next])
                return 0;
        stride = view->strides[next];
        if (stride <= reach)
            return 0;
        reach += (view->shape[next] - 1) * stride;
    }
    return 1;
}

static zf_status_t fill_tensor(const zf_param_decl_t *decl, int32_t device_type, zfi_param_t *param, zf_error_t *err) {
    zfi_view_t view;
    static const zf_dtype_t none = {0, 0, 0};
    zf_status_t st = zfi_tensor_check(decl->tensor, "parameter", decl->name, device_type, &view, err);
    if (st)
        return st;
    param->dtype = view.dtype;
    param->ndim = view.ndim;
    memcpy(param->shape, view.shape, sizeof view.shape);
    memcpy(param->strides, view.strides, sizeof view.strides);
    for (int i = 0; i < view.ndim; i++)
        if (view.strides[i] == 0 && view.shape[i] > 1 && view.n_elems > 0)
            return zfi_error(err, ZF_ERR_SHAPE, "bind_params",
                             "parameter \"%s\": axis %d has stride 0: several elements would share one place",
                             decl->name, i);
    if (view.n_elems > 0 && !is_disjoint(&view))
        return zfi_error(err, ZF_ERR_SHAPE, "bind_params",
                         "parameter \"%s\": elements overlap or interleave: each stride must be larger than what the "
                         "axes of smaller strides reach together",
                         decl->name);
    param->n_elems = view.n_elems;
    param->visible = view.data;
    param->is_contiguous = view.is_contiguous;
    if (decl->n_batch_axes < 0 || decl->n_batch_axes > view.ndim)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params", "parameter \"%s\": n_batch_axes = %d, allowed 0..%d",
                         decl->name, decl->n_batch_axes, view.ndim);
    param->n_batch_axes = decl->n_batch_axes;
    shape_matrices(param);
    if (param->rows > UINT32_MAX || param->cols > UINT32_MAX)
        return zfi_error(err, ZF_ERR_SHAPE, "bind_params",
                         "parameter \"%s\": %" PRIu64 " rows by %" PRIu64 " columns; at most 2^32 - 1 each", decl->name,
                         param->rows, param->cols);
    int grad_dtype = memcmp(&decl->grad_dtype, &none, sizeof none) ? zfi_dtype_of(decl->grad_dtype) : (int)view.dtype;
    if (grad_dtype < 0) {
        char have[64];
        zfi_dtype_text(have, sizeof have, decl->grad_dtype);
        return zfi_error(err, ZF_ERR_DTYPE, "bind_params",
                         "parameter \"%s\": gradient data type %s; supported: float32, bfloat16, float16", decl->name,
                         have);
    }
    param->grad_dtype = (zfi_dtype_t)grad_dtype;
    return ZF_OK;
}

static zf_status_t check_tied_memory(const zfi_param_t *param, const zfi_param_t *owner, zf_error_t *err) {
    if (param->visible != owner->visible)
        return zfi_error(
            err, ZF_ERR_PARAM, "bind_params",
            "parameter \"%s\" lies at %p, \"%s\" that it is tied to at %p: tied parameters share one memory",
            param->name, (const void *)param->visible, owner->name, (const void *)owner->visible);
    return ZF_OK;
}

int zfi_param_has_shape(const zfi_param_t *param, int ndim, const int64_t *shape) {
    return param->ndim == ndim && memcmp(param->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

/* Gradients of a tied parameter are taken as its owner's: same shape, same data types. */
static zf_status_t check_tie(const zfi_param_t *param, const zfi_param_t *owner, zf_error_t *err) {
    char have[128], need[128];
    if (param->dtype != owner->dtype || param->grad_dtype != owner->grad_dtype)
        return zfi_error(
            err, ZF_ERR_DTYPE, "bind_params",
            "parameter \"%s\" and \"%s\" that it is tied to differ in the data type of weights or gradients",
            param->name, owner->name);
    if (zfi_param_has_shape(param, owner->ndim, owner->shape))
        return check_tied_memory(param, owner, err);
    zfi_shape_text(have, sizeof have, param->ndim, param->shape);
    zfi_shape_text(need, sizeof need, owner->ndim, owner->shape);
    return zfi_error(err, ZF_ERR_SHAPE, "bind_params",
                     "parameter \"%s\" has shape %s, \"%s\" that it is tied to has %s", param->name, have, owner->name,
                     need);
}

static zf_status_t fill(const zf_param_decl_t *decl, uint32_t i, int32_t device_type, zfi_param_t *params,
                        zf_error_t *err) {
    zfi_param_t *param = &params[i];
    zf_status_t st = check_name(decl, i, err);
    if (!st)
        st = check_numbers(decl, i, err);
    if (!st)
        st = fill_tensor(decl, device_type, param, err);
    if (st)
        return st;
    memcpy(param->name, decl->name, strlen(decl->name) + 1);
    param->id = i;
    param->flags = decl->flags;
    param->home = decl->home;
    param->group = decl->group;
    param->rule = zfi_rule_builtin(ZF_RULE_ADAMW);
    param->reduce_group[0] = decl->reduce_group;
    param->reduce_group[1] = decl->reduce_group2;
    param->counts_in_norm = !(decl->flags & ZF_PARAM_NOT_IN_NORM);
    param->channels_are_rows = decl->channels == ZF_CHANNELS_ROWS;
    param->owner = (decl->flags & ZF_PARAM_TIED) ? params[decl->tied_to].owner : i;
    param->has_state = param->owner == i && !(decl->flags & ZF_PARAM_FROZEN) && param->n_elems > 0;
    param->carries = (decl->flags & ZF_PARAM_CARRIES) != 0;
    st = param->owner == i ? ZF_OK : check_tie(param, &params[param->owner], err);
    return st ? st : map_columns(param, err);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const zfi_param_t *const *)a)->name, (*(const zfi_param_t *const *)b)->name);
}

static int by_key(const void *name, const void *at) { return strcmp(name, (*(const zfi_param_t *const *)at)->name); }

const zfi_param_t **zfi_params_by_name(const zfi_param_t *params, uint32_t n) {
    const zfi_param_t **out = malloc((n + 1) * sizeof *out);
    for (uint32_t i = 0; out && i < n; i++)
        out[i] = &params[i];
    if (out)
        qsort(out, n, sizeof *out, by_name);
    return out;
}

const zfi_param_t *zfi_params_find(const zfi_param_t *const *sorted, uint32_t n, const char *name) {
    const zfi_param_t *const *found = bsearch(name, sorted, n, sizeof *sorted, by_key);
    return found ? *found : NULL;
}

static int by_address(const void *a, const void *b) {
    const zfi_param_t *x = *(const zfi_param_t *const *)a, *y = *(const zfi_param_t *const *)b;
    return x->visible < y->visible ? -1 : x->visible > y->visible;
}

/* No two of the same name; no two with state in the same memory (strided views may interleave: only equal starts
 * there). */
static zf_status_t check_distinct(zfi_param_t *params, uint32_t n, zf_error_t *err) {
    const zfi_param_t **sorted = zfi_params_by_name(params, n);
    zf_status_t st = ZF_OK;
    uint32_t n_stateful = 0;
    if (!sorted)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to check %u parameters", n);
    for (uint32_t i = 1; i < n && !st; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            st = zfi_error_of(err, ZF_ERR_PARAM, sorted[i]->id, "bind_params",
                              "parameters %u and %u have the same name \"%s\"", sorted[i - 1]->id, sorted[i]->id,
                              sorted[i]->name);
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            sorted[n_stateful++] = &params[i];
    qsort(sorted, n_stateful, sizeof *sorted, by_address);
    for (uint32_t i = 1; i < n_stateful && !st; i++) {
        const zfi_param_t *a = sorted[i - 1], *b = sorted[i];
        size_t extent = a->is_contiguous ? a->n_elems * zfi_dtype_nbytes(a->dtype) : 1;
        if (a->visible + extent > b->visible)
            st = zfi_error(err, ZF_ERR_PARAM, "bind_params",
                           "parameters \"%s\" and \"%s\" share memory at %p: declare one of them ZF_PARAM_TIED to the "
                           "other, or freeze it",
                           a->name, b->name, (const void *)b->visible);
    }
    free(sorted);
    return st;
}

static zf_status_t check_carried(const zfi_param_t *params, uint32_t n, zf_error_t *err) {
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state && params[i].carries != zfi_params_carry(params, n))
            return zfi_error_of(
                err, ZF_ERR_PARAM, i, "bind_params",
                "parameter \"%s\": ZF_PARAM_CARRIES is declared %s it; need it of all that are trained, or "
                "of none",
                params[i].name, params[i].carries ? "of it, and not of others before" : "of others before, and not of");
    return ZF_OK;
}

zf_status_t zfi_params_build(const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size, int32_t device_type,
                             zfi_param_t **out, zf_error_t *err) {
    zf_status_t st = ZFI_CHECK_ARRAY(decls, n, 1, elem_size, zf_param_decl_t, "decls", err);
    if (st)
        return st;
    if (n > MAX_PARAMS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "n = %u parameters, at most %d", n, MAX_PARAMS);
    zfi_param_t *params = calloc(n, sizeof *params);
    if (!params)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for %u parameter records", n);
    for (uint32_t i = 0; i < n && !st; i++) {
        zf_param_decl_t decl;
        st = ZFI_READ_ITEM_CHAINED(&decl, decls, i, elem_size, zf_param_decl_t, err);
        if (!st)
            st = zfi_error_about(err, fill(&decl, i, device_type, params, err), i);
    }
    if (!st)
        st = check_distinct(params, n, err);
    if (!st)
        st = check_carried(params, n, err);
    if (st) {
        zfi_params_free(params, n);
        return st;
    }
    *out = params;
    return ZF_OK;
}

int zfi_params_carry(const zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            return params[i].carries;
    return 0;
}

uint32_t zfi_params_n_groups(const zfi_param_t *params, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state && params[i].group > most)
            most = params[i].group;
    return most + 1;
}

uint32_t zfi_params_n_moments(const zfi_param_t *params, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state && params[i].rule->n_moments > most)
            most = params[i].rule->n_moments;
    return most;
}

void zfi_params_free(zfi_param_t *params, uint32_t n) {
    if (!params)
        return;
    for (uint32_t i = 0; i < n; i++)
        free(params[i].col_offset);
    free(params);
}
