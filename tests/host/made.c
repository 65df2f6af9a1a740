/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/made.c - see made.h. */
#include "made.h"

#include <check.h>
#include <stdlib.h>

#include "glue/rng.h"

enum { CLS = 2, SEP = 3, N_SPECIAL = 4, LEAST_TOKENS = 6 };

/* Pieces N_SPECIAL and N_SPECIAL + 1 are the two that decide. */
static void make_row(host_corpus_t *c, size_t row, glue_rng_t rng) {
    size_t first = c->starts[row], counter = row * 2 * ZT_MADE_TOKENS;
    size_t n = LEAST_TOKENS + (size_t)glue_rng_below(rng, counter++, ZT_MADE_TOKENS - LEAST_TOKENS + 1);
    size_t label = (size_t)glue_rng_below(rng, counter++, 2);
    for (size_t i = 1; i + 1 < n; i++)
        c->ids[first + i] = N_SPECIAL + 2 + (int32_t)glue_rng_below(rng, counter++, ZT_MADE_PIECES - N_SPECIAL - 2);
    c->ids[first] = CLS;
    c->ids[first + n - 1] = SEP;
    c->ids[first + 1 + (size_t)glue_rng_below(rng, counter, n - 2)] = N_SPECIAL + (int32_t)label;
    c->targets[row] = (double)label;
    c->starts[row + 1] = first + n;
}

static void make_corpus(host_corpus_t *c, size_t n_rows, uint64_t stream) {
    *c = (host_corpus_t){.ids = calloc(n_rows * ZT_MADE_TOKENS, sizeof *c->ids),
                         .types = calloc(n_rows * ZT_MADE_TOKENS, sizeof *c->types),
                         .starts = calloc(n_rows + 1, sizeof *c->starts),
                         .targets = calloc(n_rows, sizeof *c->targets),
                         .n_rows = n_rows};
    ck_assert(c->ids != NULL && c->types != NULL && c->starts != NULL && c->targets != NULL);
    for (size_t i = 0; i < n_rows; i++)
        make_row(c, i, glue_rng(7, stream));
}

void zt_examples_make(host_examples_t *out) {
    *out = (host_examples_t){
        .shape = {.n_pieces = ZT_MADE_PIECES, .max_positions = ZT_MADE_TOKENS, .n_labels = 2},
        .task = "made",
        .file = {.fd = -1},
    };
    make_corpus(&out->train, ZT_MADE_TRAIN, 0);
    make_corpus(&out->dev, ZT_MADE_DEV, 1);
}
