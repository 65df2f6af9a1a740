/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/crc32.c - eight bytes at a time from eight tables ("slicing by 8": Kounavis and Berry, "Novel table
 * lookup-based algorithms for high-performance CRC generation", 2008). About 2 GB/s on one core. */
#include "base/crc32.h"

#include <pthread.h>

enum { POLYNOMIAL = (int)0xEDB88320u };

static uint32_t tables[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (c & 1 ? (uint32_t)POLYNOMIAL : 0);
        tables[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 255u];
}

/* Bytes in little-endian order, wherever this runs. */
static uint32_t load(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Product of two polynomials modulo POLYNOMIAL; the highest bit of a word is the coefficient of x^0. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = (uint32_t)1 << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ (b & 1 ? (uint32_t)POLYNOMIAL : 0);
    }
    return product;
}

/* The checksum of what comes first is moved up by as many bits as follow: times x^(8 nbytes), by repeated squaring. */
uint32_t zfi_crc32_join(uint32_t first, uint32_t second, uint64_t nbytes) {
    uint32_t power = (uint32_t)1 << 23 /* x^8 */, moved = first;
    for (; nbytes; nbytes >>= 1) {
        if (nbytes & 1)
            moved = multiply(moved, power);
        power = multiply(power, power);
    }
    return moved ^ second;
}

uint32_t zfi_crc32(uint32_t before, const void *data, size_t nbytes) {
    const unsigned char *p = data;
    uint32_t c = ~before;
    pthread_once(&once, fill_tables);
    for (; nbytes >= 8; nbytes -= 8, p += 8) {
        uint32_t low = c ^ load(p), high = load(p + 4);
        c = tables[7][low & 255u] ^ tables[6][low >> 8 & 255u] ^ tables[5][low >> 16 & 255u] ^ tables[4][low >> 24] ^
            tables[3][high & 255u] ^ tables[2][high >> 8 & 255u] ^ tables[1][high >> 16 & 255u] ^ tables[0][high >> 24];
    }
    for (; nbytes; nbytes--, p++)
        c = (c >> 8) ^ tables[0][(c ^ *p) & 255u];
    return ~c;
}
