/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/moments.h - arrays of moments in the host's memory, by elements, however they are kept.
 *
 * What lies in runs (kernels.h) is reached by address at multiples of ZFI_RUN, and by value anywhere. A run keeps what
 * it holds when it is written with its own values; where one is written in part the rest may be rounded once more. */
#pragma once

#include "kernels.h"

/* [any-thread] Address of moment i; NULL of none. */
static inline void *zfi_moment_at(zfi_moments_t kind, zfi_moment_t which, void *moments, uint64_t i) {
    return moments ? (unsigned char *)moments + zfi_moment_nbytes(kind, which, i) : NULL;
}

/* [any-thread] Moments [first, first + n) as fp32 (zeros of none), and back: rounded to nearest. */
void zfi_moments_get(zfi_moments_t kind, zfi_moment_t which, const void *moments, uint64_t first, uint64_t n,
                     float *out);
void zfi_moments_put(zfi_moments_t kind, zfi_moment_t which, const zfi_kernels_t *kernels, void *moments,
                     uint64_t first, uint64_t n, const float *values);
