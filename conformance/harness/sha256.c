/* SPDX-License-Identifier: Apache-2.0 */
/* harness/sha256.c - see sha256.h. The constants are the first bits of the roots of the first primes. */
#include "sha256.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 64, ROUNDS = 64 };

typedef struct state {
    uint32_t h[8], k[ROUNDS];
} state_t;

/* 32 bits behind the point of a root of a small number; long double has them. */
static uint32_t fraction(long double root) { return (uint32_t)((root - floorl(root)) * 4294967296.0L); }

static void start(state_t *s) {
    for (int n = 2, i = 0; i < ROUNDS; n++) {
        int is_prime = 1;
        for (int d = 2; d * d <= n; d++)
            is_prime &= n % d != 0;
        if (!is_prime)
            continue;
        if (i < 8)
            s->h[i] = fraction(sqrtl(n));
        s->k[i++] = fraction(cbrtl(n));
    }
}

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void take(state_t *s, const unsigned char *block) {
    uint32_t w[ROUNDS], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < ROUNDS; i++) {
        uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t e = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25), choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t a = turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22);
        uint32_t most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]), first = v[7] + e + choice + s->k[i] + w[i];
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + a + most;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
}

int zc_sha256_file(const char *path, char out[65]) {
    unsigned char block[BLOCK];
    uint64_t nbytes = 0;
    state_t s;
    size_t n;
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    start(&s);
    while ((n = fread(block, 1, BLOCK, file)) == BLOCK) {
        take(&s, block);
        nbytes += n;
    }
    int is_bad = ferror(file) != 0;
    (void)fclose(file);
    nbytes += n;
    memset(block + n, 0, BLOCK - n);
    block[n] = 0x80;
    if (n >= BLOCK - 8) {
        take(&s, block);
        memset(block, 0, BLOCK);
    }
    for (int i = 0; i < 8; i++)
        block[BLOCK - 1 - i] = (unsigned char)(nbytes * 8 >> 8 * i);
    take(&s, block);
    for (int i = 0; i < 8; i++)
        (void)snprintf(out + 8 * i, 9, "%08x", s.h[i]);
    return is_bad ? -1 : 0;
}
