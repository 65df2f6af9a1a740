/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/params.h - the registered parameters: what the host declared, checked, in registration order. */
#pragma once

#include <stdint.h>

#include "kernels.h"
#include "plan/rule.h"
#include "zf/plugin.h"

typedef struct zfi_param {
    char name[256];
    uint32_t flags;
    uint32_t id;
    uint32_t owner; /* id of the parameter that holds the state: itself, or another for a tied one */
    int has_state;  /* trainable and not empty */
    zfi_dtype_t dtype, grad_dtype;
    int32_t home; /* ZF_HOME_... */
    uint32_t group;
    const zfi_group_rule_t *rule; /* the group's: AdamW, until zfi_rules_give() */
    uint32_t reduce_group[2];     /* process groups of its gradient, as the host numbers them; [1] = 0: no second one */
    uint32_t group_index[2];      /* as the transport numbers them (ranks/groups.h) */
    int counts_in_norm;           /* in this rank's part of it */
    int carries;                  /* gradient and value lie in its memory in turn: ZF_PARAM_CARRIES */
    int ndim;
    int n_batch_axes;
    int channels_are_rows;
    int64_t shape[ZF_MAX_NDIM];
    int64_t strides[ZF_MAX_NDIM]; /* of the visible tensor, elements */
    uint64_t n_elems;
    uint64_t n_batch, rows, cols;
    unsigned char *visible; /* element 0: the host's memory; sharded, once bound: of what is here (ranks/shards.h) */
    int is_contiguous;
    int is_kept;         /* sharded, and its slices lie one behind the other from `visible` on */
    int is_sharded;      /* several ranks: each has its own part of the visible values only (ranks/shards.h) */
    int64_t row_stride;  /* of the visible tensor */
    int64_t *col_offset; /* [cols] elements from a row's start, or NULL where columns are contiguous; owned */
    uint32_t first_matrix, n_matrices; /* plan.h */
    uint32_t first_ref, n_refs;        /* its segments, through plan.param_segments */
    int has_resident;                  /* some of its matrices are: a gradient is read until its step is over */
} zfi_param_t;

/* [control] Checks declarations and builds the records. On failure nothing is left allocated. */
zf_status_t zfi_params_build(const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size, int32_t device_type,
                             zfi_param_t **out, zf_error_t *err);
void zfi_params_free(zfi_param_t *params, uint32_t n);

/* [control] Pointers to them by rising name, to be freed; NULL without memory. And one of them by its name, or NULL. */
const zfi_param_t **zfi_params_by_name(const zfi_param_t *params, uint32_t n);
const zfi_param_t *zfi_params_find(const zfi_param_t *const *by_name, uint32_t n, const char *name);

/* [any-thread] Whether both have the same axes. */
int zfi_param_has_shape(const zfi_param_t *param, int ndim, const int64_t *shape);

/* [any-thread] Whether the memory of the trained ones carries gradients too: of all of them, or of none. */
int zfi_params_carry(const zfi_param_t *params, uint32_t n);

/* Optimizer parameter groups: one more than the highest number. */
uint32_t zfi_params_n_groups(const zfi_param_t *params, uint32_t n);

/* Moments that are kept of every element: as many as any rule of theirs needs. */
uint32_t zfi_params_n_moments(const zfi_param_t *params, uint32_t n);

/* Offset in elements of the first element of batch matrix b in the visible tensor. */
int64_t zfi_param_batch_offset(const zfi_param_t *param, uint64_t b);
