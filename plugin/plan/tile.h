/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/tile.h - what one rank owns of a matrix: at most three rectangles, cut from a range of its elements.
 *
 * Model. A rank owns ranges of elements in row-major order, which begin and end anywhere inside a row. The overlap of a
 * range with a matrix is the end of a row, whole rows, and the beginning of a row; each may be missing:
 *
 *   . . . . x x x     the end of a row          tile 0
 *   x x x x x x x     whole rows                tile 1
 *   x x x x x x x
 *   x x . . . . .     the beginning of a row    tile 2
 *
 * Each of these rectangles is one range of the matrix's elements too. One rank alone has one tile per matrix, all of
 * it.
 */
#ifndef ZFI_TILE_H
#define ZFI_TILE_H

#include <stdint.h>

enum { ZFI_MOST_TILES = 3 }; /* of one range in one matrix */

typedef struct zfi_rect {
    uint64_t first_row, n_rows, first_col, n_cols;
} zfi_rect_t;

typedef struct zfi_tile {
    uint32_t matrix;
    zfi_rect_t rect;
    uint64_t matrix_offset; /* elements from the matrix's start (row-major) to the tile's */
    uint64_t n_elems;
    uint64_t state_base; /* index of its element (0, 0) in w, m, v, the host's or the device's */
} zfi_tile_t;

/* [any-thread] The rectangles that cover elements [first, end) of a matrix of rows x cols and nothing else, in order.
 * end <= rows * cols. Returns how many; 0 of an empty range. */
uint32_t zfi_tiles_of_range(uint64_t rows, uint64_t cols, uint64_t first, uint64_t end, zfi_rect_t out[ZFI_MOST_TILES]);

/* [any-thread] Elements [*out_first, *out_end) of a matrix that lies at `offset` of something (a parameter, a bucket),
 * of which a rank owns [first, end). Empty where they do not meet: *out_first = *out_end. */
void zfi_overlap(uint64_t offset, uint64_t n_elems, uint64_t first, uint64_t end, uint64_t *out_first,
                 uint64_t *out_end);

#endif
