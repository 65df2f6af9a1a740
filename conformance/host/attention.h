/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - multi-head self-attention over sequences that lie back to back.
 *
 * q, k, v and context are [n_tokens, n_heads * head_width]; sequence s has the rows starts[s] .. starts[s+1]-1 and its
 * tokens attend to those rows only. That is what a padding mask computes on padded batches, without the padding.
 * probs holds [length, length] per sequence and head, in that order: host_attention_n_probs elements. */
#ifndef ZF_CONFORMANCE_HOST_ATTENTION_H
#define ZF_CONFORMANCE_HOST_ATTENTION_H

#include "real.h"

#include <stddef.h>
#include <stdint.h>

typedef struct host_attention_shape {
    const int32_t *starts; /* [n_sequences + 1] */
    size_t n_sequences, n_heads, head_width;
} host_attention_shape_t;

size_t host_attention_n_probs(const host_attention_shape_t *shape);

void host_attention_forward(const host_attention_shape_t *shape, const host_real_t *q, const host_real_t *k,
                            const host_real_t *v, host_real_t *probs, host_real_t *context);

/* Writes dq, dk, dv. d_probs is scratch of (longest sequence)^2 elements. */
void host_attention_backward(const host_attention_shape_t *shape, const host_real_t *q, const host_real_t *k,
                             const host_real_t *v, const host_real_t *probs, const host_real_t *d_context,
                             host_real_t *d_probs, host_real_t *dq, host_real_t *dk, host_real_t *dv);

#endif
