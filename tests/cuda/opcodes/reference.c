/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/reference.c - what every row of table.h computes, in plain C, written without the emulator's help.
 * Compiled with -ffp-contract=off. */
#include "reference.h"

#include <math.h>
#include <string.h>

static float bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double bits_f64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint64_t f64_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The number of two where one is a NaN; -0 is less than +0. */
static double ref_min(double a, double b) {
    if (a != a)
        return b;
    if (b != b)
        return a;
    if (a == 0 && b == 0)
        return signbit(a) ? a : b;
    return a <= b ? a : b;
}

/* Schoolbook multiplication of halves. */
static uint64_t ref_mul_hi(uint64_t a, uint64_t b) {
    uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
    uint64_t middle = a1 * b0 + ((a0 * b0) >> 32), other = a0 * b1 + (middle & 0xffffffff);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* As the PTX manual writes it, bit by bit. */
static uint64_t ref_bfe(uint64_t a, uint32_t b, uint32_t c, uint32_t width, int is_signed) {
    uint32_t at = b & 255, n = c & 255, last = at + n - 1 < width - 1 ? at + n - 1 : width - 1;
    uint64_t sign = is_signed && n > 0 ? a >> last & 1 : 0, out = 0;
    for (uint32_t i = 0; i < width; i++)
        out |= (i < n && at + i < width ? a >> (at + i) & 1 : sign) << i;
    return out;
}
static uint64_t ref_bfi(uint64_t a, uint64_t b, uint32_t c, uint32_t d, uint32_t width) {
    uint32_t at = c & 255, n = d & 255;
    for (uint32_t i = 0; i < n && at + i < width; i++)
        b = (b & ~(1ull << (at + i))) | (a >> i & 1) << (at + i);
    return b;
}
static uint32_t ref_popc(uint64_t a) {
    uint32_t n = 0;
    for (; a; a >>= 1)
        n += a & 1;
    return n;
}
static uint32_t ref_clz(uint64_t a, uint32_t width) {
    uint32_t n = 0;
    while (n < width && !(a >> (width - 1 - n) & 1))
        n++;
    return n;
}
static uint32_t ref_prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint8_t bytes[8], out[4];
    uint32_t result;
    memcpy(bytes, &a, 4);
    memcpy(bytes + 4, &b, 4);
    for (int i = 0; i < 4; i++) {
        uint8_t byte = bytes[selector >> (4 * i) & 7];
        out[i] = selector >> (4 * i) & 8 ? (byte >= 128 ? 255 : 0) : byte;
    }
    memcpy(&result, out, 4);
    return result;
}
static float ref_from_f16(uint16_t bits) {
    float size = 0, one = bits & 0x8000 ? -1.0f : 1.0f;
    uint32_t e = bits >> 10 & 31, f = bits & 1023;
    if (e == 31)
        return f ? NAN : one * INFINITY;
    size = e ? (1 + (float)f / 1024) * ldexpf(1, (int)e - 15) : (float)f / 1024 * ldexpf(1, -14);
    return one * size;
}
#include "types.h"

#define ROW(name) static uint64_t name(const uint64_t *in)
#define OP1(name, ptx, R, A, expected)                                                                                 \
    ROW(name) {                                                                                                        \
        A##_TYPE a = A##_IN(in[0]);                                                                                    \
        return R##_OUT((R##_TYPE)(expected));                                                                          \
    }
#define OP2(name, ptx, R, A, B, expected)                                                                              \
    ROW(name) {                                                                                                        \
        A##_TYPE a = A##_IN(in[0]);                                                                                    \
        B##_TYPE b = B##_IN(in[1]);                                                                                    \
        (void)b;                                                                                                       \
        return R##_OUT((R##_TYPE)(expected));                                                                          \
    }
#define OP3(name, ptx, R, A, B, C, expected)                                                                           \
    ROW(name) {                                                                                                        \
        A##_TYPE a = A##_IN(in[0]);                                                                                    \
        B##_TYPE b = B##_IN(in[1]);                                                                                    \
        C##_TYPE c = C##_IN(in[2]);                                                                                    \
        return R##_OUT((R##_TYPE)(expected));                                                                          \
    }
#define OP4(name, ptx, R, A, B, C, D, expected)                                                                        \
    ROW(name) {                                                                                                        \
        A##_TYPE a = A##_IN(in[0]);                                                                                    \
        B##_TYPE b = B##_IN(in[1]);                                                                                    \
        C##_TYPE c = C##_IN(in[2]);                                                                                    \
        D##_TYPE d = D##_IN(in[3]);                                                                                    \
        return R##_OUT((R##_TYPE)(expected));                                                                          \
    }
#define ATOM32(name, ptx, expected) OP2(name, ptx, U32, U32, U32, expected)
#define ATOM64(name, ptx, expected) OP2(name, ptx, U64, U64, U64, expected)
#include "table.h"
#undef OP1
#undef OP2
#undef OP3
#undef OP4
#undef ATOM32
#undef ATOM64

/* Operand types for drawing inputs, and what kind of float the result is. */
#define KIND_U16 RF_INT
#define KIND_U32 RF_INT
#define KIND_S32 RF_INT
#define KIND_U64 RF_INT
#define KIND_S64 RF_INT
#define KIND_F32 RF_F32
#define KIND_F64 RF_F64
#define KIND_U64_FROM_F64 RF_INT
#define OP1(name, ptx, R, A, e) {#name, name, KIND_##R, {KIND_##A}, 1},
#define OP2(name, ptx, R, A, B, e) {#name, name, KIND_##R, {KIND_##A, KIND_##B}, 2},
#define OP3(name, ptx, R, A, B, C, e) {#name, name, KIND_##R, {KIND_##A, KIND_##B, KIND_##C}, 3},
#define OP4(name, ptx, R, A, B, C, D, e) {#name, name, KIND_##R, {KIND_##A, KIND_##B, KIND_##C, KIND_##D}, 4},
#define ATOM32(name, ptx, e) {#name, name, RF_INT, {RF_INT, RF_INT}, 2},
#define ATOM64(name, ptx, e) {#name, name, RF_INT, {RF_INT, RF_INT}, 2},

const rf_row_t rf_rows[] = {
#include "table.h"
};
const uint32_t rf_n_rows = sizeof rf_rows / sizeof rf_rows[0];
