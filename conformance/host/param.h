/* SPDX-License-Identifier: Apache-2.0 */
/* param.h - parameters: name, shape, value, gradient, in the declared type.
 *
 * value is what the model reads and an optimizer writes; grad is what is delivered; both are row-major in `dtype`.
 * The model computes in host_real_t: it adds gradients into grad_sum and multiplies with `wide`. Where dtype is the
 * computing type these are value and grad themselves; else host_param_widen and host_param_round_grad convert.
 * A large table of which few rows are read (an embedding) is read by rows and has no wide copy. The arrays lie where
 * `compute` computes: on the processor, until host_params_move. */
#pragma once

#include "compute.h"

#include <stddef.h>
#include <stdint.h>

/* Optimizer parameter groups: weight decay for matrices, none for biases and LayerNorm. */
typedef enum host_group { HOST_GROUP_DECAY, HOST_GROUP_NO_DECAY, HOST_N_GROUPS } host_group_t;

enum { HOST_NAME_NBYTES = 96 };

typedef struct host_param {
    char name[HOST_NAME_NBYTES]; /* as in Hugging Face's BERT */
    int n_dims;                  /* 1 or 2 */
    int64_t shape[2];            /* [out, in], [rows, width] or [n] */
    size_t n_elems;
    host_dtype_t dtype;
    host_group_t group;
    int is_table;          /* read by rows: no wide copy */
    void *value, *grad;    /* [n_elems] of dtype */
    host_real_t *wide;     /* [n_elems]; value itself, a copy, or NULL for tables */
    host_real_t *grad_sum; /* [n_elems]; grad itself or a separate sum */
    host_compute_t *compute;
} host_param_t;

/* Fixed capacity from host_params_init on: pointers into list stay valid. */
typedef struct host_params {
    host_param_t *list;
    size_t n, capacity;
    host_dtype_t dtype;
} host_params_t;

size_t host_dtype_nbytes(host_dtype_t dtype);
const char *host_dtype_name(host_dtype_t dtype);

int host_params_init(host_params_t *params, size_t capacity, host_dtype_t dtype, glue_error_t *err);

/* Adds a parameter of zeros; columns = 0 makes a vector. Returns it, or NULL when memory is out. */
host_param_t *host_params_add(host_params_t *params, const char *name, size_t rows, size_t columns, int is_table);

void host_params_free(host_params_t *params);

/* All arrays go to where `compute`, which outlives them, computes; values are kept, gradients are not. From there on
 * host_param_get and host_param_set are not for them. After an error some are
 * there and some are not: release them. */
int host_params_move(host_params_t *params, host_compute_t *compute, glue_error_t *err);

/* The same parameters once more, on the processor, values included. Release with host_params_free. */
int host_params_copy(const host_params_t *params, host_params_t *out, glue_error_t *err);
size_t host_params_n_elems(const host_params_t *params);

/* Reads or writes element i; the type conversion is round to nearest even. For initialisation and tests. */
float host_param_get(const host_param_t *param, size_t i);
void host_param_set(host_param_t *param, size_t i, float value);

/* wide = value. Call after an optimizer may have written value, before the model reads wide. */
void host_param_widen(host_param_t *param);

void host_param_zero_grad(host_param_t *param);

/* grad = grad_sum rounded to dtype. Call before grad is delivered. */
void host_param_round_grad(host_param_t *param);
