/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read.h - what reading an index is made of. The first failure is reported and stays in the reader: what
 * is read behind it is 0 or "", and each function that returns a status returns it.
 *
 * All of it is [control]. */
#pragma once

#include <jansson.h>

#include "state/index.h"

static const uint64_t ZFI_LARGEST_SAVED = (uint64_t)1 << 56; /* of any number in it: sums of a few cannot wrap */

typedef struct zfi_reader {
    zf_error_t *err;
    zfi_saved_t *out;
    zf_status_t st;
} zfi_reader_t;

/* ZF_ERR_CHECKPOINT; ZF_ERR_MEMORY. */
zf_status_t zfi_read_bad(zfi_reader_t *reader, const char *where, const char *what);
zf_status_t zfi_read_no_memory(zfi_reader_t *reader);

/* A number in [0, max], as a value and as a member; a text of at most max bytes, which lives as long as `from`. */
uint64_t zfi_read_to_number(zfi_reader_t *reader, const json_t *value, const char *where, uint64_t max);
uint64_t zfi_read_number(zfi_reader_t *reader, const json_t *from, const char *name, uint64_t max);
const char *zfi_read_text(zfi_reader_t *reader, const json_t *from, const char *name, size_t max);

/* Where nbytes of a tensor lie; the files are read. */
zf_status_t zfi_read_place(zfi_reader_t *reader, const json_t *from, const char *where, uint64_t nbytes,
                           zfi_saved_tensor_t *out);

/* The list of parameters; head and files are read. */
zf_status_t zfi_read_params(zfi_reader_t *reader, const json_t *root);
