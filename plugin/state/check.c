/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/check.c - a checkpoint checked by itself: every byte against its checksum, every value against what
 * training can leave (contract in state.h). After this, a load can fail on the way only for want of memory or because
 * reading fails. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "state/spread.h"
#include "state/state.h"

static zf_status_t check_values(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array,
                                uint64_t first, const void *values, uint64_t n, zf_error_t *err) {
    uint64_t bad = zfi_saved_find_bad(array, &saved->rules[param->group], saved->n_submitted, values, n);
    if (bad == n)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s of \"%s\": value %" PRIu64
                     " is one that no training leaves (Inf, NaN, negative or out of range); load another checkpoint",
                     zfi_saved_name(array), param->name, first + bad);
}

static zf_status_t check_sum(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array,
                             uint32_t crc, zf_error_t *err) {
    const zfi_saved_tensor_t *tensor = &param->tensors[array];
    if (tensor->lacks_crc)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                         "tensor \"%s/%s\" has no checksum in the index, which is for loads with ZF_STATE_OWN, of w, m "
                         "and v",
                         zfi_saved_name(array), param->name);
    if (crc == tensor->crc)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s: tensor \"%s/%s\" (bytes %" PRIu64 " to %" PRIu64
                     ") is damaged: checksum %08x, need %08x; load another checkpoint",
                     saved->files[param->file].name, zfi_saved_name(array), param->name, tensor->offset,
                     tensor->offset + tensor->nbytes, crc, tensor->crc);
}

zf_status_t zfi_state_read(zfi_store_t *store, const zfi_saved_t *saved, const zfi_tensor_range_t *of, zfi_values_fn fn,
                           void *arg, uint32_t *io_crc, zf_error_t *err) {
    const zfi_saved_tensor_t *tensor = &of->param->tensors[of->array];
    size_t elem = zfi_saved_elem_nbytes(of->array);
    uint64_t at = of->first * elem, end = at + of->n * elem, n;
    unsigned char *block = malloc(end - at < ZFI_STATE_BLOCK ? end - at + 1 : ZFI_STATE_BLOCK);
    zf_status_t st = block ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a block of a checkpoint");
    for (; at < end && !st; at += n) {
        n = end - at < ZFI_STATE_BLOCK ? end - at : ZFI_STATE_BLOCK;
        st = zfi_store_read(store, saved->files[of->param->file].name, tensor->offset + at, block, n, err);
        if (st)
            break;
        zfi_spread_add(io_crc, block, n, tensor->nbytes - at - n);
        st = check_values(saved, of->param, of->array, at / elem, block, n / elem, err);
        if (!st && fn)
            st = fn(arg, at / elem, block, n / elem, err);
    }
    free(block);
    return st;
}

/* All of a tensor, against its checksum. */
static zf_status_t read_tensor(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                               zfi_saved_array_t array, zfi_values_fn fn, void *arg, zf_error_t *err) {
    const zfi_tensor_range_t all = {param, array, 0, param->tensors[array].nbytes / zfi_saved_elem_nbytes(array)};
    uint32_t crc = 0;
    zf_status_t st = zfi_state_read(store, saved, &all, fn, arg, &crc, err);
    return st ? st : check_sum(saved, param, array, crc, err);
}

typedef struct kept {
    unsigned char *to;
    size_t elem;
} kept_t;

static zf_status_t keep(void *arg, uint64_t first, const void *values, uint64_t n, zf_error_t *err) {
    const kept_t *kept = arg;
    (void)err;
    memcpy(kept->to + first * kept->elem, values, n * kept->elem);
    return ZF_OK;
}

zf_status_t zfi_state_read_all(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                               zfi_saved_array_t array, void *out, zf_error_t *err) {
    kept_t kept = {out, zfi_saved_elem_nbytes(array)};
    return read_tensor(store, saved, param, array, keep, &kept, err);
}

zf_status_t zfi_state_check_param(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                  zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (int a = 0; a < ZFI_SAVED_ARRAYS && !st; a++)
        if (param->tensors[a].nbytes)
            st = read_tensor(store, saved, param, (zfi_saved_array_t)a, NULL, NULL, err);
    return st;
}

zf_status_t zfi_state_open(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = zfi_index_read(store, out, err);
    if (st)
        return st;
    for (uint32_t f = 0; f < out->n_files && !st; f++)
        st = zfi_header_check(store, out, f, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_state_check(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = zfi_state_open(store, out, err);
    if (st)
        return st;
    for (uint32_t p = 0; p < out->n_params && !st; p++)
        st = zfi_state_check_param(store, out, &out->params[p], err);
    if (st)
        zfi_saved_free(out);
    return st;
}

void zfi_state_report(const zfi_saved_t *saved, const zfi_store_t *store, zf_state_report_t *out) {
    out->step = saved->n_submitted;
    out->nbytes = store->total_nbytes;
    out->n_params = saved->n_params;
    out->note_nbytes = saved->note_nbytes;
}
