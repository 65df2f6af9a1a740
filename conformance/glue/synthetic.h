/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic.h - a generated sentiment corpus in SST-2's TSV layout, for machines that have no GLUE files.
 *
 * Deterministic: the same bytes for a seed everywhere. Sentences come from a small grammar of film reviews: nouns,
 * praising and blaming words (some of two word pieces), negation that turns them round, "but" and "although" that
 * decide which clause counts, neutral filler. Of the labels 6 % are wrong on purpose, so about 94 % is the best that
 * can be reached. Results on it say nothing about GLUE and every output must call them synthetic. */
#ifndef ZF_CONFORMANCE_GLUE_SYNTHETIC_H
#define ZF_CONFORMANCE_GLUE_SYNTHETIC_H

#include "error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct glue_synthetic_options {
    uint64_t seed;
    size_t n_train, n_dev; /* 0 = 20000 and 1500 */
} glue_synthetic_options_t;

/* Writes train.tsv, dev.tsv and vocab.txt into folder (made when missing; existing files are replaced, each at once
 * by a rename). options may be NULL. */
int glue_synthetic_write(const char *folder, const glue_synthetic_options_t *options, glue_error_t *err);

/* The same, but only where one of the three files is missing. */
int glue_synthetic_ensure(const char *folder, glue_error_t *err);

#endif
