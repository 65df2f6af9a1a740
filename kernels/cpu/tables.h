/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h - what the files of kernels/cpu share: one table per instruction set, and the functions that move elements
 * without arithmetic, which are compiled once for the baseline CPU and used by every table. */
#pragma once

#include "../kernels.h"

extern const zfi_kernels_t zfi_kernels_generic;
#ifdef ZFI_HAVE_ARM64
extern const zfi_kernels_t zfi_kernels_neon;
#endif
#ifdef ZFI_HAVE_X86
extern const zfi_kernels_t zfi_kernels_avx2;
extern const zfi_kernels_t zfi_kernels_avx512;
#endif

/* Writes n elements (bits, of the place's dtype) at columns first_col ... of row i of the sub-matrix. Returns what
 * their digest has moved by, in a matrix of `cols` columns; cols = 0: 0, and nothing is read. */
uint64_t zfi_place_row(const zfi_place_t *place, const zfi_submatrix_t *sub, uint64_t i, uint64_t first_col, uint64_t n,
                       const void *bits, uint64_t cols);
