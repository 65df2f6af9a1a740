/* SPDX-License-Identifier: Apache-2.0 */
/* shard_model.h - tensors of a small transformer's shapes with made-up gradients: something for a plugin to move. */
#ifndef ZF_CONFORMANCE_CASES_SHARD_MODEL_H
#define ZF_CONFORMANCE_CASES_SHARD_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct zs_tensor {
    char name[32];
    int64_t shape[2];
    int32_t n_dims;
    size_t n_elems;
    uint16_t *value, *grad; /* bfloat16 */
} zs_tensor_t;

typedef struct zs_model {
    zs_tensor_t *list;
    size_t n, n_elems;
} zs_model_t;

/* An embedding table and encoder layers of width 256, as many as make about `millions` parameters. Returns 0, or -1
 * when memory runs out. Release with zs_model_free. */
int zs_model_init(zs_model_t *model, double millions);
void zs_model_free(zs_model_t *model);

/* Gradients of a step: the same for a step number everywhere; a slowly moving tenth of the columns is larger. */
void zs_model_fill_gradients(zs_model_t *model, unsigned step);

#endif
