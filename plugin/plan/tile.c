/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/tile.c - ranges of elements cut into rectangles (contract in tile.h). */
#include "plan/tile.h"

uint32_t zfi_tiles_of_range(uint64_t rows, uint64_t cols, uint64_t first, uint64_t end,
                            zfi_rect_t out[ZFI_MOST_TILES]) {
    uint64_t row = cols ? first / cols : rows, last = cols ? end / cols : rows; /* `last` is the row that end is in */
    uint64_t head = cols ? first % cols : 0, tail = cols ? end % cols : 0;
    uint32_t n = 0;
    if (first >= end)
        return 0;
    if (row == last) { /* inside one row */
        out[0] = (zfi_rect_t){row, 1, head, tail - head};
        return 1;
    }
    if (head)
        out[n++] = (zfi_rect_t){row++, 1, head, cols - head};
    if (row < last)
        out[n++] = (zfi_rect_t){row, last - row, 0, cols};
    if (tail)
        out[n++] = (zfi_rect_t){last, 1, 0, tail};
    return n;
}

void zfi_overlap(uint64_t offset, uint64_t n_elems, uint64_t first, uint64_t end, uint64_t *out_first,
                 uint64_t *out_end) {
    first = first > offset ? first - offset : 0;
    end = end > offset ? end - offset : 0;
    *out_end = end < n_elems ? end : n_elems;
    *out_first = first < *out_end ? first : *out_end;
}
