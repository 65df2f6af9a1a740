/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/together.c - what the kernels together_* of opcodes.cu compute: shuffles, votes, barriers,
 * atomics. */
#include "reference.h"

#include <string.h>

static uint32_t value(const uint64_t *in, uint32_t t) { return (uint32_t)in[4 * t]; }

/* The value of a lane of t's segment of `width` lanes, or t's own where the lane is outside. */
static uint64_t lane(const uint64_t *in, uint32_t t, int place, int width) {
    uint32_t start = t / (uint32_t)width * (uint32_t)width;
    return place < 0 || place >= width ? value(in, t) : value(in, start + (uint32_t)place);
}
static int place(uint32_t t, int width) { return (int)(t % (uint32_t)width); }

static uint64_t down_1(const uint64_t *in, uint32_t t) { return lane(in, t, place(t, 32) + 1, 32); }
static uint64_t down_7_of_16(const uint64_t *in, uint32_t t) { return lane(in, t, place(t, 16) + 7, 16); }
static uint64_t up_3(const uint64_t *in, uint32_t t) { return lane(in, t, place(t, 32) - 3, 32); }
static uint64_t up_5_of_8(const uint64_t *in, uint32_t t) { return lane(in, t, place(t, 8) - 5, 8); }
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
static uint64_t any(const uint64_t *in, uint32_t t) {
    for (uint32_t i = 0; i < 32; i++)
        if ((value(in, t / 32 * 32 + i) & 63) == 0)
            return 1;
    return 0;
}
static uint64_t all(const uint64_t *in, uint32_t t) { return !any(in, t); }
static uint64_t count(const uint64_t *in, uint32_t t) {
    uint64_t n = 0;
    (void)t;
    for (uint32_t i = 0; i < RF_BLOCK; i++)
        n += value(in, i) & 1;
    return n;
}
static uint64_t or (const uint64_t *in, uint32_t t) {
    (void)t;
    for (uint32_t i = 0; i < RF_BLOCK; i++)
        if ((value(in, i) & 1023) == 0)
            return 1;
    return 0;
}
static uint64_t and (const uint64_t *in, uint32_t t) { return ! or (in, t); }
static uint64_t half_warp(const uint64_t *in, uint32_t t) { return t % 32 < 16 ? value(in, t ^ 3) : 7; }
static uint64_t tree(const uint64_t *in, uint32_t t) {
    uint64_t sum = t;
    for (uint32_t i = 0; i < RF_BLOCK; i++)
        sum += in[4 * i];
    return sum;
}
static uint64_t atomics(const uint64_t *in, uint32_t t) {
    uint32_t most = 0, bits = 0;
    (void)t;
    for (uint32_t i = 0; i < RF_BLOCK; i++) {
        most = value(in, i) > most ? value(in, i) : most;
        bits |= 1u << (in[4 * i + 1] & 31);
    }
    return (uint64_t)most << 32 | bits;
}
static uint64_t memory(const uint64_t *in, uint32_t t) {
    const uint64_t *own = in + 4 * t;
    int8_t byte;
    int16_t half;
    uint16_t neighbour;
    memcpy(&byte, (const char *)own + 3, 1);
    memcpy(&half, (const char *)own + 2, 2);
    memcpy(&neighbour, (const char *)(in + 4 * (t ^ 1)) + 2, 2);
    return own[0] + 3 * own[1] + 5 * own[2] + 7 * own[3] + (uint64_t)(11 * (int64_t)byte) +
           (uint64_t)(13 * (int64_t)half) + 17 * (uint64_t)neighbour;
}

#define ROW(name)                                                                                                      \
    { "together_" #name, name }
const rf_together_t rf_together[] = {
    ROW(down_1), ROW(down_7_of_16), ROW(up_3),      ROW(up_5_of_8), ROW(xor_16),  ROW(xor_5_of_4),
    ROW(idx_9),  ROW(idx_own),      ROW(ballot),    ROW(any),       ROW(all),     ROW(count),
    ROW(or),     ROW(and),          ROW(half_warp), ROW(tree),      ROW(atomics), ROW(memory),
};
const uint32_t rf_n_together = sizeof rf_together / sizeof rf_together[0];
