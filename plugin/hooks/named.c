/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/named.c - parameters named by a call (contract in named.h). */
#include "hooks/named.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/struct.h"

zf_status_t zfi_named_check_range(const zfi_param_t *named, uint64_t n_batch, uint32_t first, uint32_t n,
                                  const char *what, const char *origin, zf_error_t *err) {
    uint64_t end = (uint64_t)first + n;
    if (end <= n_batch && (n || !first))
        return ZF_OK;
    return zfi_error(err, ZF_ERR_SHAPE, origin,
                     "%s\"%s\": matrices %u..%" PRIu64 " (first_batch, n_batches = %u), but it has %" PRIu64
                     ": 0, 0 stands for all",
                     what, named->name, first, end, n, n_batch);
}

/* The matrices of a tied parameter are its owner's, as of its gradient. */
static zf_status_t check_range(const zfi_param_t *params, const zf_param_item_t *item, const char *origin,
                               zf_error_t *err) {
    const zfi_param_t *named = &params[item->id], *param = &params[named->owner];
    zf_status_t st = zfi_named_check_range(named, param->n_batch, item->first_batch, item->n_batches, "", origin, err);
    if (!st && item->n_batches && item->n_batches < param->n_batch && param->is_sharded)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, origin,
                         "\"%s\" lives as shards ([shard] stage = 3), so it is named whole: first_batch = %u, "
                         "n_batches = %u; need 0, 0",
                         named->name, item->first_batch, item->n_batches);
    return st;
}

static zf_status_t check_item(const zf_instance_t *inst, const zfi_named_list_t *list, uint32_t i, const char *origin,
                              zf_error_t *err) {
    zf_param_item_t item;
    zf_status_t st = ZFI_READ_ITEM_CHAINED(&item, list->items, i, list->elem_size, zf_param_item_t, err);
    if (!st)
        st = zfi_reserved_check(item.reserved0, "zf_param_item_t", err);
    if (st)
        return st;
    if (item.id >= inst->run->n_params)
        return zfi_error(err, ZF_ERR_PARAM, origin, "item %u: unknown parameter id %u; %u are bound", i, item.id,
                         inst->run->n_params);
    st = check_range(inst->run->params, &item, origin, err);
    if (!st && item.flags)
        st = zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, origin, "\"%s\": unknown flags 0x%x of zf_param_item_t; need 0",
                       inst->run->params[item.id].name, item.flags);
    return zfi_error_about(err, st, item.id);
}

zf_status_t zfi_named_check(const zf_instance_t *inst, const zfi_named_list_t *list, const char *origin,
                            zf_error_t *err) {
    zf_status_t st = ZFI_CHECK_ARRAY(list->items, list->n, 0, list->elem_size, zf_param_item_t, "items", err);
    for (uint32_t i = 0; i < list->n && !st; i++)
        st = check_item(inst, list, i, origin, err);
    return st;
}

uint32_t zfi_named_n(uint32_t n_params, const zfi_named_list_t *list) { return list->n ? list->n : n_params; }

/* It was checked before. */
static zf_param_item_t item_at(const zfi_named_list_t *list, uint32_t i) {
    zf_param_item_t item = {0};
    (void)ZFI_READ_ITEM(&item, list->items, i, list->elem_size, zf_param_item_t, NULL);
    return item;
}

zfi_named_t zfi_named_at(const zfi_param_t *params, const zfi_named_list_t *list, uint32_t i) {
    zf_param_item_t item = list->items ? item_at(list, i) : (zf_param_item_t){.id = list->ids ? list->ids[i] : i};
    const zfi_param_t *owner = &params[params[item.id].owner];
    zfi_named_t named = {item.id, owner->id, owner->first_matrix, owner->first_matrix + owner->n_matrices, 0};
    named.is_part = item.n_batches != 0 && item.n_batches < owner->n_batch;
    if (named.is_part) {
        uint32_t per_batch = (uint32_t)(owner->n_matrices / owner->n_batch);
        named.first += item.first_batch * per_batch;
        named.end = named.first + item.n_batches * per_batch;
    }
    return named;
}

zfi_ids_t zfi_named_ids(const zfi_named_list_t *list) {
    return (zfi_ids_t){list->n ? &list->items->id : NULL, list->n, list->elem_size};
}
