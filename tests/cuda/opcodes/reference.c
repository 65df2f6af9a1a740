/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/reference.c - what every row of table.h computes, in plain C, written without the emulator's help.
 * Compiled with -ffp-contract=off. */
#include "reference.h"

#include <math.h>
#include <string.h>

typedef union {
    uint32_t bits;
    float x;
} single_t;
typedef union {
    uint64_t bits;
    double x;
} twofold_t;
#define bits_f32(b) ((single_t){.bits = (b)}.x)
#define f32_bits(f) ((single_t){.x = (f)}.bits)
#define bits_f64(b) ((twofold_t){.bits = (b)}.x)
#define f64_bits(f) ((twofold_t){.x = (f)}.bits)

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

/* As the PTX manual writes it, bit by bit. */
static uint64_t ref_bfi(uint64_t a, uint64_t b, uint32_t c, uint32_t n) {
    uint32_t at = c & 255;
    for (uint32_t i = 0; i < n && at + i < 64; i++)
        b = (b & ~(1ull << (at + i))) | (a >> i & 1) << (at + i);
    return b;
}
static uint32_t ref_popc(uint64_t a) {
    uint32_t n = 0;
    for (; a; a >>= 1)
        n += a & 1;
    return n;
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

#define OP3(name, ptx, R, A, B, C, expected)                                                                           \
    static uint64_t name(const uint64_t *in) {                                                                         \
        A##_TYPE a = A##_IN(in[0]);                                                                                    \
        B##_TYPE b = B##_IN(in[1]);                                                                                    \
        C##_TYPE c = C##_IN(in[2]);                                                                                    \
        return R##_OUT((R##_TYPE)(expected));                                                                          \
    }
#define ATOM(name, T, ptx, expected) OP3(name, ptx, T, T, T, U32, expected)
#include "table.h"

/* Operand types for drawing inputs, and what kind of float the result is. */
#define KIND_U16 RF_INT
#define KIND_U32 RF_INT
#define KIND_S32 RF_INT
#define KIND_U64 RF_INT
#define KIND_S64 RF_INT
#define KIND_F32 RF_F32
#define KIND_F64 RF_F64
#define KIND_U64_FROM_F64 RF_INT
#define OP3(name, ptx, R, A, B, C, e) {#name, name, KIND_##R, {KIND_##A, KIND_##B, KIND_##C}},
#define ATOM(name, T, ptx, e) {#name, name, RF_INT, {RF_INT, RF_INT, RF_INT}},

const rf_row_t rf_rows[] = {
#include "table.h"
};
const uint32_t rf_n_rows = sizeof rf_rows / sizeof rf_rows[0];

/* ---- what threads do together ------------------------------------------------------------------------------------ */

static uint32_t value(const uint64_t *in, uint32_t t) { return (uint32_t)in[4 * t]; }

/* The value of a lane of t's segment of `width` lanes, or t's own where the lane is outside. */
static uint64_t lane(const uint64_t *in, uint32_t t, int place, int width) {
    uint32_t start = t / (uint32_t)width * (uint32_t)width;
    return place < 0 || place >= width ? value(in, t) : value(in, start + (uint32_t)place);
}
static int place(uint32_t t, int width) { return (int)(t % (uint32_t)width); }

static uint64_t xor_16(const uint64_t *in, uint32_t t) { return lane(in, t, place(t, 32) ^ 16, 32); }
/* A source in a later segment is out of range; one in an earlier segment is not. */
static uint64_t xor_5_of_4(const uint64_t *in, uint32_t t) {
    uint32_t source = t ^ 5;
    return source / 4 > t / 4 ? value(in, t) : value(in, source);
}
static uint64_t idx_9(const uint64_t *in, uint32_t t) { return lane(in, t, 9, 32); }
static uint64_t idx_own(const uint64_t *in, uint32_t t) { return lane(in, t, (int)(value(in, t) & 15), 16); }

static uint64_t ballot(const uint64_t *in, uint32_t t) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < 32; i++)
        bits |= (uint64_t)(value(in, t / 32 * 32 + i) & 1) << i;
    return bits;
}
static uint64_t or (const uint64_t *in, uint32_t t) {
    (void)t;
    for (uint32_t i = 0; i < RF_BLOCK; i++)
        if ((value(in, i) & 1023) == 0)
            return 1;
    return 0;
}
static uint64_t half_warp(const uint64_t *in, uint32_t t) { return t % 32 < 16 ? value(in, t ^ 3) : 7; }
static uint64_t tree(const uint64_t *in, uint32_t t) {
    uint64_t sum = t;
    for (uint32_t i = 0; i < RF_BLOCK; i++)
        sum += in[4 * i];
    return sum;
}
static uint64_t memory(const uint64_t *in, uint32_t t) {
    const uint64_t *own = in + 4 * t;
    int8_t byte;
    int16_t half;
    uint16_t neighbour;
    memcpy(&byte, (const char *)own + 3, 1);
    memcpy(&half, (const char *)own + 2, 2);
    memcpy(&neighbour, (const char *)(in + 4 * (t ^ 1)) + 2, 2);
    return (own[0] + 3 * own[1] + 5 * own[2] + 7 * own[3]) ^ (uint64_t)(int64_t)byte << 20 ^ (uint64_t)(int64_t)half ^
           (uint64_t)neighbour << 40;
}

#define ROW(name)                                                                                                      \
    { "together_" #name, name }
const rf_together_t rf_together[] = {
    ROW(xor_16), ROW(xor_5_of_4), ROW(idx_9), ROW(idx_own), ROW(ballot),
    ROW(or),     ROW(half_warp),  ROW(tree),  ROW(memory),
};
const uint32_t rf_n_together = sizeof rf_together / sizeof rf_together[0];
