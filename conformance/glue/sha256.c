/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.c - SHA-256 as FIPS 180-4 states it, section 6.2 (glue_sha256.h). */
#include "sha256.h"

#include <stdio.h>
#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static void expand(const unsigned char block[64], uint32_t w[64]) {
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               (uint32_t)block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] =
            (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10) + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 16];
    }
}

static void take_block(glue_sha256_t *hash) {
    uint32_t w[64], s[8];

    expand(hash->block, w);
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                      ((s[4] & s[5]) ^ (~s[4] & s[6])) + round_constants[i] + w[i];
        uint32_t t2 =
            (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        hash->state[i] += s[i];
}

void glue_sha256_init(glue_sha256_t *hash) {
    *hash = (glue_sha256_t){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void glue_sha256_update(glue_sha256_t *hash, const void *data, size_t nbytes) {
    const unsigned char *p = data;

    while (nbytes > 0) {
        size_t used = (size_t)(hash->n_bytes % 64), n = 64 - used < nbytes ? 64 - used : nbytes;

        memcpy(hash->block + used, p, n);
        hash->n_bytes += n;
        p += n;
        nbytes -= n;
        if (hash->n_bytes % 64 == 0)
            take_block(hash);
    }
}

void glue_sha256_hex(glue_sha256_t *hash, char out[GLUE_SHA256_HEX_NBYTES]) {
    uint64_t n_bits = hash->n_bytes * 8;
    unsigned char length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    glue_sha256_update(hash, "\x80", 1);
    while (hash->n_bytes % 64 != 56)
        glue_sha256_update(hash, "", 1);
    glue_sha256_update(hash, length, sizeof length);
    for (int i = 0; i < 8; i++)
        (void)snprintf(out + (size_t)i * 8, 9, "%08x", hash->state[i]);
}
