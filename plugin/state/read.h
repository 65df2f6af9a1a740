/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read.h - what reading an index is made of. Each function reports what is wrong, and returns it.
 *
 * All of it is [control]. */
#pragma once

#include <jansson.h>

#include "state/index.h"

static const uint64_t ZFI_LARGEST_SAVED = (uint64_t)1 << 56; /* of any number in it: sums of a few cannot wrap */

typedef struct zfi_reader {
    zf_error_t *err;
    zfi_saved_t *out;
} zfi_reader_t;

/* ZF_ERR_CHECKPOINT; ZF_ERR_MEMORY. */
zf_status_t zfi_read_bad(const zfi_reader_t *reader, const char *where, const char *what);
zf_status_t zfi_read_no_memory(const zfi_reader_t *reader);

/* A number in [0, max], as a value and as a member; a text of at most max bytes, which lives as long as `from`. */
zf_status_t zfi_read_to_number(const zfi_reader_t *reader, const json_t *value, const char *where, uint64_t max,
                               uint64_t *out);
zf_status_t zfi_read_number(const zfi_reader_t *reader, const json_t *from, const char *name, uint64_t max,
                            uint64_t *out);
zf_status_t zfi_read_text(const zfi_reader_t *reader, const json_t *from, const char *name, size_t max,
                          const char **out);

/* Where nbytes of a tensor lie; the files are read. */
zf_status_t zfi_read_place(const zfi_reader_t *reader, const json_t *from, const char *where, uint64_t nbytes,
                           zfi_saved_tensor_t *out);

/* The list of parameters; head and files are read. */
zf_status_t zfi_read_params(const zfi_reader_t *reader, const json_t *root);
