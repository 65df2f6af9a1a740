/* SPDX-License-Identifier: Apache-2.0 */
/* grids.h - the grid of a run (runs.c), from the extremes of its values: what scalar and vector code share. */
#pragma once

#include <stdint.h>
#include <string.h>

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

static inline zfi_grid_t zfi_grid_of_v(zfi_grid_range_t range) {
    uint32_t shift = ZFI_GRID_FINEST, first, end;
    int has_floor;
    while (shift < ZFI_GRID_COARSEST && zfi_grid_end(range.most, shift) - (range.least >> shift) > ZFI_GRID_V_CELLS)
        shift++;
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
