/* SPDX-License-Identifier: Apache-2.0 */
/* perf_model.h - tensors of a small transformer's shapes with made-up gradients: something for a plugin to move. */
#ifndef ZF_CONFORMANCE_CASES_PERF_MODEL_H
#define ZF_CONFORMANCE_CASES_PERF_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct zp_tensor {
    char name[32];
    int64_t shape[2];
    int32_t n_dims;
    size_t n_elems;
    uint16_t *value; /* bfloat16 */
    void *grad;      /* bfloat16 or float32 */
} zp_tensor_t;

typedef struct zp_model {
    zp_tensor_t *list;
    size_t n, n_elems;
    unsigned gradient_size;
} zp_model_t;

/* An embedding table and encoder layers of width 256, as many as make about `millions` parameters. Returns 0, or -1
 * when memory runs out. Release with zp_model_free. */
int zp_model_init(zp_model_t *model, double millions, unsigned gradient_size);
void zp_model_free(zp_model_t *model);

/* Gradients of a step: the same for a step number everywhere; a slowly moving tenth of the columns is larger. */
void zp_model_fill_gradients(zp_model_t *model, unsigned step);

#endif
