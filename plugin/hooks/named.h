/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/named.h - the parameters that a call names (zf_param_item_t): checked as a whole, then read one by one.
 *
 * Nothing is copied, since hooks do not allocate: a hook that goes through a list reads the host's items again. */
#pragma once

#include "instance/instance.h"
#include "ranks/shards.h"

/* The parameters that a hook was given. n = 0: all parameters, each whole. */
typedef struct zfi_named_list {
    const zf_param_item_t *items;
    uint32_t n, elem_size;
    const uint32_t *ids; /* of a hook that names whole parameters by bare ids; items is NULL then */
} zfi_named_list_t;

/* One of them. */
typedef struct zfi_named {
    uint32_t id, owner;  /* of its state */
    uint32_t first, end; /* matrices of the plan; none where it has no state */
    int is_part;         /* not all of its matrices */
} zfi_named_t;

/* [hook] Every item: sizes, flags, id, range. Ranges of a parameter that lives as shards are refused. */
zf_status_t zfi_named_check(const zf_instance_t *inst, const zfi_named_list_t *list, const char *origin,
                            zf_error_t *err);

/* [hook] A range of a parameter's matrices, of which there are n_batch. */
zf_status_t zfi_named_check_range(const zfi_param_t *named, uint64_t n_batch, uint32_t first, uint32_t n,
                                  const char *what, const char *origin, zf_error_t *err);

/* [hook] How many a checked list stands for, and number i of them. */
uint32_t zfi_named_n(uint32_t n_params, const zfi_named_list_t *list);
zfi_named_t zfi_named_at(const zfi_param_t *params, const zfi_named_list_t *list, uint32_t i);

/* [hook] The ids of a checked list. */
zfi_ids_t zfi_named_ids(const zfi_named_list_t *list);
