/* SPDX-License-Identifier: Apache-2.0 */
/* grids.h - what scalar and vector code of a run (runs.c) share: its grid, from the extremes of its values, and its
 * random numbers. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "../kernels.h"

/* Random numbers of a run's elements, modulo 2^32: that of element e is first + e * step. With both drawn at random,
 * the upper 26 bits of any two elements of a run are independent (Dietzfelbinger, 1996). index: of the run's element 0.
 */
typedef struct zfi_run_random {
    uint32_t first, step;
} zfi_run_random_t;

static inline zfi_run_random_t zfi_run_random(uint64_t key, uint64_t index, zfi_moment_t which) {
    uint64_t z = key + (index + (which == ZFI_V)) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (zfi_run_random_t){(uint32_t)z, (uint32_t)(z >> 32)};
}

enum {
    ZFI_GRID_FINEST = 8, /* s: bits of a number that a grid has not; between these */
    ZFI_GRID_COARSEST = 20,
    ZFI_GRID_V_CELLS = 254, /* a code of v has 8 bits, and 0 is no cell */
    ZFI_GRID_M_CELLS = 127,
    ZFI_GRID_EDGE = 0x7f700000 /* from here on to round up may give Inf */
};

/* Bits of numbers without sign; least: of those that are not 0. */
typedef struct zfi_grid_range {
    uint32_t most, least;
} zfi_grid_range_t;

typedef struct zfi_grid {
    uint32_t shift;    /* s */
    uint32_t least;    /* bits of the lowest value but 0 */
    uint32_t before;   /* the number of code 0's cell: a code is a cell's number less this */
    int is_edge;       /* rounding up may give Inf: all is cut */
    int has_floor;     /* v: lower values become the lowest */
    float least_share; /* m: 2^-20 of the lowest value */
    uint32_t kept;     /* zfi_run8_t.grid */
} zfi_grid_t;

static inline uint32_t zfi_grid_least(uint32_t kept) { return kept & ~0xffu; }
static inline uint32_t zfi_grid_shift(uint32_t kept) { return kept & 0xffu; }

/* The number of the cell that ends at or above these bits. */
static inline uint32_t zfi_grid_end(uint32_t bits, uint32_t shift) { return (bits + (1u << shift) - 1) >> shift; }

/* The bits of a number. */
static inline uint32_t zfi_grid_bits(uint32_t x) { return x ? 32u - (uint32_t)__builtin_clz(x) : 0; }

/* The least s whose cells from `least` to `most` have codes. They are no fewer than the distance takes, and one more s
 * halves them. */
static inline uint32_t zfi_grid_shift_of(zfi_grid_range_t range) {
    const uint32_t distance = range.most - range.least;
    uint32_t shift = distance ? zfi_grid_bits((distance - 1) / ZFI_GRID_V_CELLS) : 0;
    shift = shift < ZFI_GRID_FINEST ? ZFI_GRID_FINEST : shift;
    shift += zfi_grid_end(range.most, shift) - (range.least >> shift) > ZFI_GRID_V_CELLS;
    return shift < ZFI_GRID_COARSEST ? shift : ZFI_GRID_COARSEST;
}

static inline zfi_grid_t zfi_grid_of_v(zfi_grid_range_t range) {
    const uint32_t shift = zfi_grid_shift_of(range);
    uint32_t first, end;
    int has_floor;
    first = range.least >> shift;
    end = zfi_grid_end(range.most, shift);
    has_floor = end - first > ZFI_GRID_V_CELLS;
    first = has_floor ? end - ZFI_GRID_V_CELLS : first;
    return (zfi_grid_t){.shift = shift,
                        .least = first << shift,
                        .before = first - 1,
                        .is_edge = range.most >= ZFI_GRID_EDGE,
                        .has_floor = has_floor,
                        .kept = first << shift | shift};
}

static inline zfi_grid_t zfi_grid_of_m(uint32_t most) {
    const uint32_t end = zfi_grid_end(most, ZFI_GRID_COARSEST);
    const uint32_t before = end > ZFI_GRID_M_CELLS ? end - ZFI_GRID_M_CELLS : 0;
    zfi_grid_t grid = {.shift = ZFI_GRID_COARSEST,
                       .least = (before + 1) << ZFI_GRID_COARSEST,
                       .before = before,
                       .is_edge = most >= ZFI_GRID_EDGE,
                       .kept = before};
    float least;
    memcpy(&least, &grid.least, sizeof least);
    grid.least_share = least * 0x1p-20f;
    return grid;
}
