/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/header.h - the header of a safetensors file against what the index says of the file.
 *
 * A file begins with eight bytes, the length of a JSON object, little-endian; then the object, which gives dtype, shape
 * and place of each tensor; then the tensors. Foreign tools read the file by this header alone, the plugin reads it by
 * the index: so both must say the same, and the tensors of the index must fill the file without gap or overlap. That
 * also bounds the work of a check by the bytes that the files have. */
#pragma once

#include "state/index.h"

enum { ZFI_HEADER_MOST_NBYTES = 100000000 }; /* safetensors' own limit */

/* [any-thread] The shape that a tensor has in its file; param = NULL: of the steps, number i. Returns ndim. */
int zfi_header_shape(const zfi_saved_t *saved, const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor,
                     uint32_t i, uint64_t shape[ZF_MAX_NDIM]);

/* [any-thread] The first header_nbytes of a file, in memory. */
zf_status_t zfi_header_check(const zfi_saved_t *saved, uint32_t file, const unsigned char *header, zf_error_t *err);
/* [any-thread] The same of a blob; checks its checksum too. */
zf_status_t zfi_header_read(zfi_store_t *store, const zfi_saved_t *saved, uint32_t file, zf_error_t *err);

/* [any-thread] Headers and tensors fill each file. Memory: one record per tensor of the index. */
zf_status_t zfi_header_check_places(const zfi_saved_t *saved, zf_error_t *err);
