/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/header.h - the header of a safetensors file against what the index says of the file.
 *
 * A file begins with eight bytes, the length of a JSON object, little-endian; then the object, which gives dtype, shape
 * and place of each tensor; then the tensors. Foreign tools read the file by this header alone, the plugin reads it by
 * the index: so both must say the same, and the tensors of the index must fill the file without gap or overlap. That
 * also bounds the work of a check by the bytes that the files have. */
#pragma once

#include "state/index.h"
#include "state/json.h"

enum { ZFI_HEADER_MOST_NBYTES = 100000000 }; /* safetensors' own limit */

/* [any-thread] What the header of a file says of the tensors that the index places there; their offsets count from the
 * file's start, of which header_nbytes are the header. */
json_t *zfi_header_print(zfi_json_t *json, const zfi_saved_t *saved, uint32_t file);

/* [any-thread] The first header_nbytes of a file, and their checksum. */
zf_status_t zfi_header_read(zfi_store_t *store, const zfi_saved_t *saved, uint32_t file, zf_error_t *err);

/* [any-thread] Headers and tensors fill each file. Memory: one record per tensor of the index. */
zf_status_t zfi_header_check_places(const zfi_saved_t *saved, zf_error_t *err);
