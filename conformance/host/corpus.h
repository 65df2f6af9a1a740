/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h - a set of rows that are pieces already, and batches of it. Rows lie back to back in one array of ids. */
#pragma once

#include "encoder.h"

typedef struct host_corpus {
    int32_t *ids;    /* [starts[n_rows]] */
    int32_t *types;  /* [starts[n_rows]] 0 first text, 1 second */
    size_t *starts;  /* [n_rows + 1] */
    double *targets; /* [n_rows] class number or score */
    size_t n_rows;
} host_corpus_t;

void host_corpus_free(host_corpus_t *corpus);

/* Memory of one batch. */
typedef struct host_batch_buffer {
    int32_t *ids, *types, *starts;
    double *targets;
    size_t max_tokens, max_rows; /* allocated */
} host_batch_buffer_t;

/* Gathers n_rows rows. out_batch points into the buffer (zero-initialised before its first use), which grows. */
int host_corpus_gather(const host_corpus_t *corpus, const uint32_t *rows, size_t n_rows, host_batch_buffer_t *buffer,
                       host_batch_t *out_batch, glue_error_t *err);
void host_batch_buffer_free(host_batch_buffer_t *buffer);
