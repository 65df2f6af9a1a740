/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - the digest (../digest.h) of elements that lie one behind the other, for compilers to vectorise: each file
 * that includes it has its own copy in its own instruction set. */
#pragma once

#include <string.h>

#include "../digest.h"
#include "../kernels.h"

/* Two sums: that of the mixed bits costs an addition, where the factor 2 * spread + 1 would cost a wide product. */
static inline uint64_t digest_run_16(const char *at, uint64_t n, uint64_t index) {
    uint64_t products = 0, sum = 0;
    for (uint64_t j = 0; j < n; j++) {
        uint16_t bits;
        uint32_t h, mixed;

        memcpy(&bits, at + 2 * j, 2);
        h = zfi_digest_spread((uint32_t)index + (uint32_t)j);
        mixed = zfi_digest_mix(bits ^ h);
        products += (uint64_t)mixed * h;
        sum += mixed;
    }
    return 2 * products + sum;
}

static inline uint64_t digest_run_32(const char *at, uint64_t n, uint64_t index) {
    uint64_t products = 0, sum = 0;
    for (uint64_t j = 0; j < n; j++) {
        uint32_t bits, h, mixed;

        memcpy(&bits, at + 4 * j, 4);
        h = zfi_digest_spread((uint32_t)index + (uint32_t)j);
        mixed = zfi_digest_mix(bits ^ h);
        products += (uint64_t)mixed * h;
        sum += mixed;
    }
    return 2 * products + sum;
}

/* kernels.h: digest. */
static inline uint64_t digest_run(const void *at, zfi_dtype_t dtype, uint64_t n, uint64_t index) {
    return zfi_dtype_nbytes(dtype) == 2 ? digest_run_16(at, n, index) : digest_run_32(at, n, index);
}
