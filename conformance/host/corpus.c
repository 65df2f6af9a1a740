/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.c - see corpus.h. */
#include "corpus.h"

#include <stdlib.h>
#include <string.h>

void host_corpus_free(host_corpus_t *c) {
    free(c->ids);
    free(c->types);
    free(c->starts);
    free(c->targets);
    *c = (host_corpus_t){.ids = NULL};
}

static int reserve(host_batch_buffer_t *b, size_t n_rows, size_t n_tokens, glue_error_t *err) {
    if (n_rows <= b->max_rows && n_tokens <= b->max_tokens)
        return 0;
    host_batch_buffer_free(b);
    b->max_rows = n_rows;
    b->max_tokens = n_tokens + n_tokens / 2;
    b->ids = malloc(b->max_tokens * sizeof *b->ids);
    b->types = malloc(b->max_tokens * sizeof *b->types);
    b->starts = malloc((n_rows + 1) * sizeof *b->starts);
    b->targets = malloc(n_rows * sizeof *b->targets);
    if (b->ids == NULL || b->types == NULL || b->starts == NULL || b->targets == NULL) {
        host_batch_buffer_free(b);
        return glue_fail(err, "corpus: out of memory for a batch of %zu tokens", n_tokens);
    }
    return 0;
}

int host_corpus_gather(const host_corpus_t *corpus, const uint32_t *rows, size_t n_rows, host_batch_buffer_t *b,
                       host_batch_t *out_batch, glue_error_t *err) {
    size_t n_tokens = 0;
    for (size_t i = 0; i < n_rows; i++)
        n_tokens += corpus->starts[rows[i] + 1] - corpus->starts[rows[i]];
    if (reserve(b, n_rows, n_tokens, err) != 0)
        return -1;
    n_tokens = 0;
    for (size_t i = 0; i < n_rows; i++) {
        size_t first = corpus->starts[rows[i]], n = corpus->starts[rows[i] + 1] - first;
        memcpy(b->ids + n_tokens, corpus->ids + first, n * sizeof *b->ids);
        memcpy(b->types + n_tokens, corpus->types + first, n * sizeof *b->types);
        b->starts[i] = (int32_t)n_tokens;
        b->targets[i] = corpus->targets[rows[i]];
        n_tokens += n;
    }
    b->starts[n_rows] = (int32_t)n_tokens;
    *out_batch = (host_batch_t){
        .ids = b->ids, .types = b->types, .starts = b->starts, .targets = b->targets, .n_sequences = n_rows};
    return 0;
}

void host_batch_buffer_free(host_batch_buffer_t *b) {
    free(b->ids);
    free(b->types);
    free(b->starts);
    free(b->targets);
    *b = (host_batch_buffer_t){.ids = NULL};
}
