/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - multi-head self-attention, one sequence and head at a time (attention.h). */
#include "attention.h"

#include "layers.h"
#include "matmul.h"

/* One head of one sequence: [length, head_width] blocks inside [n_tokens, n_heads * head_width] arrays. */
typedef struct block {
    size_t offset; /* elements from the array's start */
    size_t length, width, stride;
} block_t;

static block_t block_of(const host_attention_shape_t *shape, size_t sequence, size_t head) {
    size_t first = (size_t)shape->starts[sequence], end = (size_t)shape->starts[sequence + 1];
    size_t stride = shape->n_heads * shape->head_width;

    return (block_t){.offset = first * stride + head * shape->head_width,
                     .length = end - first,
                     .width = shape->head_width,
                     .stride = stride};
}

static host_matrix_t rows_of(const block_t *b, const host_real_t *array) {
    return (host_matrix_t){.data = array + b->offset, .stride = b->stride};
}

static host_matrix_t columns_of(const block_t *b, const host_real_t *array) {
    return (host_matrix_t){.data = array + b->offset, .stride = b->stride, .is_transposed = 1};
}

static double scale_of(const host_attention_shape_t *shape) { return 1.0 / sqrt((double)shape->head_width); }

size_t host_attention_n_probs(const host_attention_shape_t *shape) {
    size_t n = 0;

    for (size_t s = 0; s < shape->n_sequences; s++) {
        size_t length = (size_t)(shape->starts[s + 1] - shape->starts[s]);

        n += shape->n_heads * length * length;
    }
    return n;
}

void host_attention_forward(const host_attention_shape_t *shape, const host_real_t *q, const host_real_t *k,
                            const host_real_t *v, host_real_t *probs, host_real_t *context) {
    for (size_t s = 0; s < shape->n_sequences; s++)
        for (size_t h = 0; h < shape->n_heads; h++) {
            block_t b = block_of(shape, s, h);

            host_matmul(b.length, b.length, b.width, scale_of(shape), rows_of(&b, q), columns_of(&b, k), 0.0, probs,
                        b.length);
            host_softmax_forward(probs, b.length, b.length);
            host_matmul(b.length, b.width, b.length, 1.0, (host_matrix_t){.data = probs, .stride = b.length},
                        rows_of(&b, v), 0.0, context + b.offset, b.stride);
            probs += b.length * b.length;
        }
}

void host_attention_backward(const host_attention_shape_t *shape, const host_real_t *q, const host_real_t *k,
                             const host_real_t *v, const host_real_t *probs, const host_real_t *d_context,
                             host_real_t *d_probs, host_real_t *dq, host_real_t *dk, host_real_t *dv) {
    for (size_t s = 0; s < shape->n_sequences; s++)
        for (size_t h = 0; h < shape->n_heads; h++) {
            block_t b = block_of(shape, s, h);
            host_matrix_t p_transposed = {.data = probs, .stride = b.length, .is_transposed = 1};
            host_matrix_t d_scores = {.data = d_probs, .stride = b.length};
            host_matrix_t d_scores_transposed = {.data = d_probs, .stride = b.length, .is_transposed = 1};

            host_matmul(b.length, b.width, b.length, 1.0, p_transposed, rows_of(&b, d_context), 0.0, dv + b.offset,
                        b.stride);
            host_matmul(b.length, b.length, b.width, 1.0, rows_of(&b, d_context), columns_of(&b, v), 0.0, d_probs,
                        b.length);
            host_softmax_backward(probs, b.length, b.length, d_probs);
            host_matmul(b.length, b.width, b.length, scale_of(shape), d_scores, rows_of(&b, k), 0.0, dq + b.offset,
                        b.stride);
            host_matmul(b.length, b.width, b.length, scale_of(shape), d_scores_transposed, rows_of(&b, q), 0.0,
                        dk + b.offset, b.stride);
            probs += b.length * b.length;
        }
}
