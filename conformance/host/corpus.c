/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.c - tokenized data sets, dense renumbering of pieces, batches (corpus.h). */
#include "corpus.h"

#include <stdlib.h>
#include <string.h>

static int allocate(host_corpus_t *c, size_t n_rows, size_t n_tokens) {
    c->ids = malloc(n_tokens * sizeof *c->ids);
    c->types = malloc(n_tokens * sizeof *c->types);
    c->starts = malloc((n_rows + 1) * sizeof *c->starts);
    c->targets = malloc(n_rows * sizeof *c->targets);
    return c->ids != NULL && c->types != NULL && c->starts != NULL && c->targets != NULL ? 0 : -1;
}

/* A text of n bytes has at most n pieces. */
static size_t upper_bound(const glue_row_t *row, size_t max_tokens) {
    size_t n = strlen(row->text_a) + (row->text_b != NULL ? strlen(row->text_b) : 0) + 3;

    return n < max_tokens ? n : max_tokens;
}

int host_corpus_encode(const host_tokenizer_t *tokenizer, const glue_dataset_t *dataset, size_t max_tokens,
                       host_corpus_t *out, glue_error_t *err) {
    host_corpus_t c = {.task = dataset->task, .n_rows = dataset->n_rows, .n_skipped = dataset->n_skipped};
    size_t n_bound = 0, n = 0;

    for (size_t i = 0; i < dataset->n_rows; i++)
        n_bound += upper_bound(&dataset->rows[i], max_tokens);
    if (allocate(&c, dataset->n_rows, n_bound) != 0) {
        host_corpus_free(&c);
        return glue_fail(err, "corpus: out of memory for %zu tokens", n_bound);
    }
    for (size_t i = 0; i < dataset->n_rows; i++) {
        const glue_row_t *row = &dataset->rows[i];

        c.starts[i] = n;
        c.targets[i] = row->score;
        n += host_encode(tokenizer, row->text_a, row->text_b, max_tokens, c.ids + n, c.types + n);
    }
    c.starts[dataset->n_rows] = n;
    *out = c;
    return 0;
}

void host_corpus_free(host_corpus_t *c) {
    free(c->ids);
    free(c->types);
    free(c->starts);
    free(c->targets);
    *c = (host_corpus_t){.task = NULL};
}

static void mark_piece(const host_tokenizer_t *tokenizer, const char *piece, host_piece_map_t *map) {
    map->new_of_old[host_tokenizer_id(tokenizer, piece)] = (int32_t)map->n_new++;
}

int host_piece_map_init(const host_tokenizer_t *tokenizer, const host_corpus_t *const *corpora, size_t n,
                        host_piece_map_t *out, glue_error_t *err) {
    host_piece_map_t map = {.n_old = host_tokenizer_n_pieces(tokenizer), .unknown = 1};
    enum { ABSENT = -1, SEEN = -2 };

    map.new_of_old = malloc(map.n_old * sizeof *map.new_of_old);
    if (map.new_of_old == NULL)
        return glue_fail(err, "corpus: out of memory for a map of %zu pieces", map.n_old);
    for (size_t i = 0; i < map.n_old; i++)
        map.new_of_old[i] = ABSENT;
    for (size_t c = 0; c < n; c++)
        for (size_t i = 0; i < corpora[c]->starts[corpora[c]->n_rows]; i++)
            map.new_of_old[corpora[c]->ids[i]] = SEEN;
    mark_piece(tokenizer, "[PAD]", &map);
    mark_piece(tokenizer, "[UNK]", &map);
    mark_piece(tokenizer, "[CLS]", &map);
    mark_piece(tokenizer, "[SEP]", &map);
    for (size_t i = 0; i < map.n_old; i++)
        if (map.new_of_old[i] == SEEN)
            map.new_of_old[i] = (int32_t)map.n_new++;
    *out = map;
    return 0;
}

void host_piece_map_free(host_piece_map_t *map) {
    free(map->new_of_old);
    map->new_of_old = NULL;
}

size_t host_piece_map_apply(const host_piece_map_t *map, host_corpus_t *corpus) {
    size_t n_unknown = 0;

    for (size_t i = 0; i < corpus->starts[corpus->n_rows]; i++) {
        int32_t id = map->new_of_old[corpus->ids[i]];

        n_unknown += id < 0;
        corpus->ids[i] = id < 0 ? map->unknown : id;
    }
    return n_unknown;
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
