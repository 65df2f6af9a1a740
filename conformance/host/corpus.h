/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h - a tokenized data set, and batches of it.
 *
 * Rows lie back to back in one array of piece ids. Most of a 30,522-row table is spent on pieces that never occur:
 * host_piece_map renumbers those of some corpora densely, and any other piece becomes [UNK]. A model from scratch maps
 * its training file's pieces; one that is pretrained those of every file, so that nothing changes but the table's size.
 */
#ifndef ZF_CONFORMANCE_HOST_CORPUS_H
#define ZF_CONFORMANCE_HOST_CORPUS_H

#include "encoder.h"
#include "glue/data.h"
#include "tokenizer.h"

typedef struct host_corpus {
    const glue_task_t *task;
    int32_t *ids;             /* [starts[n_rows]] */
    int32_t *types;           /* [starts[n_rows]] 0 first text, 1 second */
    size_t *starts;           /* [n_rows + 1] */
    double *targets;          /* [n_rows] class number or score */
    size_t n_rows, n_skipped; /* lines of the file that were no rows: glue/data.h */
} host_corpus_t;

/* Tokenizes every row to at most max_tokens pieces. Release with host_corpus_free. */
int host_corpus_encode(const host_tokenizer_t *tokenizer, const glue_dataset_t *dataset, size_t max_tokens,
                       host_corpus_t *out, glue_error_t *err);
void host_corpus_free(host_corpus_t *corpus);

typedef struct host_piece_map {
    int32_t *new_of_old; /* [n_old] or -1 */
    size_t n_old, n_new;
    int32_t unknown; /* [UNK] in the new numbering */
} host_piece_map_t;

/* Numbers [PAD], [UNK], [CLS], [SEP] and then the pieces of n corpora in ascending order. */
int host_piece_map_init(const host_tokenizer_t *tokenizer, const host_corpus_t *const *corpora, size_t n,
                        host_piece_map_t *out, glue_error_t *err);
void host_piece_map_free(host_piece_map_t *map);

/* Renumbers a corpus in place; returns how many of its pieces became [UNK]. */
size_t host_piece_map_apply(const host_piece_map_t *map, host_corpus_t *corpus);

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

#endif
