/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - BERT's WordPiece: text to piece ids.
 *
 * Text is cleaned (controls dropped, any space a blank), folded (unicode.h; not for a cased vocabulary), split at
 * spaces, punctuation and CJK characters, and each word is cut into the longest pieces that the vocabulary has,
 * continuations being written
 * "##piece"; a word that cannot be cut, or of more than 100 characters, is [UNK].
 * The vocabulary is one piece per line, its line number from 0 its id; [PAD], [UNK], [CLS] and [SEP] must be there.
 * A loaded tokenizer is read-only: any thread may encode with it. */
#ifndef ZF_CONFORMANCE_HOST_TOKENIZER_H
#define ZF_CONFORMANCE_HOST_TOKENIZER_H

#include "glue/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct host_tokenizer host_tokenizer_t;

/* Release with host_tokenizer_free. *out is written on success only. */
int host_tokenizer_load(const char *vocab_path, host_tokenizer_t **out, glue_error_t *err);

/* For a cased vocabulary (do_lower_case = false): letters stay as they are. Before the first encoding. */
void host_tokenizer_keep_case(host_tokenizer_t *tokenizer);
void host_tokenizer_free(host_tokenizer_t *tokenizer);

size_t host_tokenizer_n_pieces(const host_tokenizer_t *tokenizer);

/* The piece of an id, or NULL; the id of a piece, or -1. */
const char *host_tokenizer_piece(const host_tokenizer_t *tokenizer, int32_t id);
int32_t host_tokenizer_id(const host_tokenizer_t *tokenizer, const char *piece);

/* Pieces of one text, without [CLS] and [SEP]; at most capacity ids are written and the rest of the text is dropped.
 * Returns the number written. */
size_t host_tokenize(const host_tokenizer_t *tokenizer, const char *text, int32_t *out_ids, size_t capacity);

/* [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where text_b is not NULL; types are 0 up to the first [SEP], then 1. At most
 * max_tokens (>= 5) ids are written: the longer text is shortened first. Returns the number written. */
size_t host_encode(const host_tokenizer_t *tokenizer, const char *text_a, const char *text_b, size_t max_tokens,
                   int32_t *out_ids, int32_t *out_types);

#endif
