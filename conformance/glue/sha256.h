/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.h - SHA-256 (FIPS 180-4), for names of kept runs and for saying which data and library a result is of. */
#ifndef ZF_CONFORMANCE_GLUE_SHA256_H
#define ZF_CONFORMANCE_GLUE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { GLUE_SHA256_HEX_NBYTES = 65 }; /* 64 digits and the end */

typedef struct glue_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
} glue_sha256_t;

void glue_sha256_init(glue_sha256_t *hash);
void glue_sha256_update(glue_sha256_t *hash, const void *data, size_t nbytes);
void glue_sha256_hex(glue_sha256_t *hash, char out[GLUE_SHA256_HEX_NBYTES]);

#endif
