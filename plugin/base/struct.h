/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/struct.h - the size rules of the ABI's structs (abi/README.md, "Growth"). */
#pragma once

#include <stdint.h>

#include "zf/types.h"

/* [any-thread] An input struct of the host: first_size = its size in the first version, size = as compiled here. A
 * longer one is accepted only if its unknown tail is zero. ZF_ERR_ARGUMENT (NULL), ZF_ERR_ABI,
 * ZF_ERR_UNSUPPORTED_FIELD. */
zf_status_t zfi_struct_check(const void *given, uint32_t first_size, uint32_t size, const char *name, zf_error_t *err);

/* [any-thread] The same, and a zero-extended copy in *out (size bytes). */
zf_status_t zfi_struct_read(void *out, const void *given, uint32_t first_size, uint32_t size, const char *name,
                            zf_error_t *err);

/* [any-thread] The same for element i of an array; its struct_size may not exceed elem_size. */
zf_status_t zfi_struct_read_item(void *out, const void *items, uint32_t i, uint32_t elem_size, uint32_t first_size,
                                 uint32_t size, const char *name, zf_error_t *err);

/* [any-thread] A member that a later version may give a meaning. ZF_ERR_UNSUPPORTED_FIELD where it is not 0. */
zf_status_t zfi_reserved_check(uint32_t reserved0, const char *name, zf_error_t *err);

/* [any-thread] What `next` of an input struct leads to: this version knows none of it. ZF_ERR_ARGUMENT (no chain),
 * ZF_ERR_ABI (a size), ZF_ERR_UNSUPPORTED_FIELD (an unknown flag, or one that is required). */
zf_status_t zfi_chain_check(const void *next, const char *name, zf_error_t *err);

/* [any-thread] An output struct: ZF_ERR_ABI where its struct_size is smaller than 8 bytes. NULL is legal. */
zf_status_t zfi_struct_check_out(const void *out, const char *name, zf_error_t *err);

/* [any-thread] The same where the host must give one. ZF_ERR_ARGUMENT (NULL), which names the call. */
zf_status_t zfi_struct_need_out(const void *out, const char *name, const char *origin, zf_error_t *err);

/* [any-thread] Writes the smaller of both sizes, never struct_size. out may be NULL. */
void zfi_struct_write(void *out, const void *from, uint32_t size);

/* [any-thread] Arrays travel with elem_size: at least first_size, a multiple of 8, at most 4096; n >= min_n. */
zf_status_t zfi_array_check(const void *items, uint32_t n, uint32_t min_n, uint32_t elem_size, uint32_t first_size,
                            const char *name, zf_error_t *err);
