/* glue_sha256.h - SHA-256 (FIPS 180-4), for names of kept runs and for saying which data and library a result is of. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_SHA256_H
#define ZF_CONFORMANCE_CASES_GLUE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { ZG_SHA256_HEX_NBYTES = 65 }; /* 64 digits and the end */

typedef struct zg_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
} zg_sha256_t;

void zg_sha256_init(zg_sha256_t *hash);
void zg_sha256_update(zg_sha256_t *hash, const void *data, size_t nbytes);
void zg_sha256_hex(zg_sha256_t *hash, char out[ZG_SHA256_HEX_NBYTES]);

/* The digest of a whole file. Returns 0, or -1 with errno where it cannot be read. */
int zg_sha256_file(const char *path, char out[ZG_SHA256_HEX_NBYTES]);

#endif
