/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/matrix.h - "zf.matrix/0": update rules that need a matrix whole (Muon, Shampoo), as functions of the
 * host's.
 *
 * The plugin keeps masters and moments, and of each step the norm, clipping, skipping and accumulation. The host's
 * function computes: once per step it is given every matrix that has a gradient, whole, in host memory.
 *
 *   bind_params   zf_matrix_rules_t in the chain of its arguments. A group is updated by it whose declaration has
 *                 ZF_RULE_CALLBACK and a callback without `update`; its name and n_moments count. Other groups keep
 *                 their rules.
 *   step          when gradients, norm and every other group are done, the function is called once, on the thread that
 *                 is in step. A step that is skipped calls nothing.
 *
 * There are no device pointers: where weights lie on a device, w, m and v are in host memory all the same, and the host
 * copies as it likes, on streams of its own; the list lets it copy the next matrix while one is computed. The function
 * returns when its writes to w, m and v are over.
 *
 * Several ranks: from [shard] stage = 1 on each matrix has one owner, whose function alone is given it, with the sums
 * of all ranks; ranks get about as much to compute, rows * cols * min(rows, cols). A rank that owns none of a step's
 * matrices is not called. With stage = 0 every rank makes all updates.
 *
 * Moments are kept as [host] moments_dtype says: with bfloat16 and bfloat16_stochastic in 16 bits, which `store` of an
 * update rounds; with the types of 8 bits in float32.
 *
 * Refused by name at bind_params: what is not [zenflow] mode = exact with parameters in host memory (ZF_DEVICE_CPU),
 * [shard] stage = 3, reduce_group2, ZF_HOME_HOST, a tensor that is not contiguous.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_MATRIX_H
#define ZF_EXT_DRAFT_MATRIX_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_MATRIX "zf.matrix/0"

/* One update of one matrix, row-major and contiguous. In each array those of a parameter lie one behind the other. */
typedef struct zf_matrix_update {
    uint32_t struct_size;
    uint32_t group; /* optimizer parameter group */
    uint32_t param; /* id of the parameter; of tied ones the owner's */
    uint32_t batch; /* which of the parameter's matrices */
    uint64_t rows, cols;
    uint64_t n;    /* number of this update of the matrix, from 1 */
    float *w;      /* [rows][cols] master weights, in/out; edits of the visible ones are in it already */
    void *m, *v;   /* [rows][cols] moments, of moments_dtype; NULL beyond n_moments; zero before the first update */
    const void *g; /* [rows][cols] gradient as it was delivered, of grad_dtype: the update's is s * g */
    zf_dtype_t grad_dtype;    /* float32, bfloat16, float16 */
    zf_dtype_t moments_dtype; /* float32: in/out; bfloat16: in, and store writes them */
    double s;                 /* unscales and clips: a number of float32 */
    double lr, beta1, beta2, eps, weight_decay;
    const void *rounding; /* the plugin's own, for store */
    /* Writes elements [first, first + n) of a moment, which = 0: m, 1: v, rounded as moments_dtype is kept; the workers
     * lend a hand. NULL of float32. A range may go on into the parameter's next matrices of the list. What is stored
     * twice in a step is rounded twice. Called inside the function, on its thread.
     * [hook] */
    void (*store)(const struct zf_matrix_update *update, uint32_t which, uint64_t first, uint64_t n,
                  const float *values);
} zf_matrix_update_t;

typedef struct zf_matrix_rules { /* begins as zf_chained_t */
    uint32_t struct_size;
    uint32_t flags; /* ZF_CHAINED_... */
    const char *id; /* ZF_EXT_MATRIX */
    const void *next;
    void *ctx;
    /* Updates n matrices, ordered by parameter and batch; elem_size: bytes from one to the next. Called on the thread
     * that is in step, between bind_params and destroy: must not call the plugin. It may take its time, and use threads
     * of its own. 0, or a code of the host's: it ends the instance, with ZF_ERR_RULE and a message that names the code.
     * [hook] */
    int32_t (*update)(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size);
} zf_matrix_rules_t;

/* It has no function yet: that a plugin has this table says that bind_params reads zf_matrix_rules_t. */
typedef struct zf_matrix_ext {
    uint32_t struct_size;
    uint32_t reserved0;
} zf_matrix_ext_t;

#ifdef __cplusplus
}
#endif
#endif
