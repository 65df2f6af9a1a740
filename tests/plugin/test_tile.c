/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_tile.c - ranges of elements cut into rectangles: they cover the range, all of it once, and nothing
 * else; a bucket cut into parts gives every element of every matrix to one part. */
#include "plan/tile.h"

#include <check.h>
#include <string.h>

#include "plan/plan.h"
#include "rig.h"
#include "suite.h"

enum { MOST = 4096 };

/* Marks the elements of a matrix that rectangles cover; in order, each behind the one before. */
static void mark(uint64_t cols, const zfi_rect_t *rects, uint32_t n, uint8_t *marks) {
    for (uint32_t i = 0; i < n; i++) {
        const zfi_rect_t *rect = &rects[i];
        ck_assert(rect->n_rows > 0 && rect->n_cols > 0 && rect->first_col + rect->n_cols <= cols);
        ck_assert(rect->n_rows == 1 || rect->n_cols == cols); /* one range of elements too */
        for (uint64_t r = rect->first_row; r < rect->first_row + rect->n_rows; r++)
            for (uint64_t c = rect->first_col; c < rect->first_col + rect->n_cols; c++)
                marks[r * cols + c]++;
        ck_assert(i == 0 || rect->first_row >= rects[i - 1].first_row + rects[i - 1].n_rows);
    }
}

static void check_range(uint64_t rows, uint64_t cols, uint64_t first, uint64_t end) {
    uint8_t marks[MOST] = {0};
    zfi_rect_t rects[ZFI_MOST_TILES];
    uint32_t n = zfi_tiles_of_range(rows, cols, first, end, rects);
    ck_assert_uint_le(n, ZFI_MOST_TILES);
    mark(cols, rects, n, marks);
    for (uint64_t e = 0; e < rows * cols; e++)
        ck_assert_msg(marks[e] == (e >= first && e < end), "%lu x %lu, [%lu, %lu): element %lu is covered %u times",
                      (unsigned long)rows, (unsigned long)cols, (unsigned long)first, (unsigned long)end,
                      (unsigned long)e, marks[e]);
}

START_TEST(every_range_of_small_matrices) {
    for (uint64_t rows = 1; rows <= 5; rows++)
        for (uint64_t cols = 1; cols <= 5; cols++)
            for (uint64_t first = 0; first <= rows * cols; first++)
                for (uint64_t end = first; end <= rows * cols; end++)
                    check_range(rows, cols, first, end);
}
END_TEST

START_TEST(random_ranges) {
    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint64_t x = zt_hash(seed), cols = 1 + x % 64, rows = 1 + (x >> 8) % 64;
        uint64_t a = (x >> 16) % (rows * cols + 1), b = (x >> 32) % (rows * cols + 1);
        check_range(rows, cols, a < b ? a : b, a < b ? b : a);
    }
}
END_TEST

START_TEST(as_few_as_can_be) {
    zfi_rect_t out[ZFI_MOST_TILES];
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 5, 5, out), 0);
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 0, 28, out), 1);
    ck_assert(out[0].n_rows == 4 && out[0].n_cols == 7);
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 8, 13, out), 1); /* inside a row */
    ck_assert(out[0].first_row == 1 && out[0].first_col == 1 && out[0].n_cols == 5);
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 8, 14, out), 1); /* to its end */
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 7, 21, out), 1); /* whole rows */
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 5, 21, out), 2);
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 5, 9, out), 2); /* two ends, no whole row */
    ck_assert_uint_eq(zfi_tiles_of_range(4, 7, 5, 23, out), 3);
    ck_assert_uint_eq(zfi_tiles_of_range(1ull << 40, 1ull << 20, 3, 1ull << 60, out), 2);
    ck_assert(out[1].n_rows == (1ull << 40) - 1);
}
END_TEST

/* Matrices behind each other in a bucket of n elements, which P ranks share equally. */
static void check_bucket(uint64_t seed) {
    uint64_t x = zt_hash(seed), n_ranks = 1 + x % 9, offset = 0, n;
    uint64_t rows[8], cols[8], at[8];
    for (int i = 0; i < 8; i++) {
        uint64_t y = zt_hash(seed * 64 + (uint64_t)i + 1);
        rows[i] = 1 + y % 20;
        cols[i] = 1 + (y >> 8) % 20;
        at[i] = offset += (y >> 16) % 5; /* padding */
        offset += rows[i] * cols[i];
    }
    n = (offset + n_ranks - 1) / n_ranks * n_ranks;
    for (int i = 0; i < 8; i++) {
        uint8_t marks[MOST] = {0};
        for (uint64_t r = 0; r < n_ranks; r++) {
            zfi_rect_t rects[ZFI_MOST_TILES];
            uint64_t first, end;
            zfi_overlap(at[i], rows[i] * cols[i], r * n / n_ranks, (r + 1) * n / n_ranks, &first, &end);
            ck_assert(first <= end && end <= rows[i] * cols[i]);
            mark(cols[i], rects, zfi_tiles_of_range(rows[i], cols[i], first, end, rects), marks);
        }
        for (uint64_t e = 0; e < rows[i] * cols[i]; e++)
            ck_assert_uint_eq(marks[e], 1);
    }
}

START_TEST(parts_of_a_bucket) {
    for (uint64_t seed = 0; seed < 500; seed++)
        check_bucket(seed);
}
END_TEST

/* A matrix of which a rank owns the end of a row, two rows and the beginning of one: where its elements lie. */
START_TEST(state_of_three_tiles) {
    static zfi_tile_t tiles[4] = {{.matrix = 9, .n_elems = 99, .state_base = 999}};
    zfi_matrix_t matrix = {.rows = 4, .cols = 7, .first_tile = 1};
    zfi_plan_t of = {.tiles = tiles, .n_tiles = 4};
    zfi_rect_t rects[ZFI_MOST_TILES];
    uint64_t n_here;
    matrix.n_tiles = zfi_tiles_of_range(4, 7, 5, 23, rects);
    ck_assert_uint_eq(matrix.n_tiles, 3);
    for (uint32_t i = 0; i < 3; i++)
        tiles[1 + i] = (zfi_tile_t){.rect = rects[i],
                                    .matrix_offset = rects[i].first_row * 7 + rects[i].first_col,
                                    .n_elems = rects[i].n_rows * rects[i].n_cols,
                                    .state_base = 100 * (i + 1)};
    for (uint64_t e = 5; e < 23; e++) {
        uint64_t at = e < 7 ? 100 + e - 5 : (e < 21 ? 200 + e - 7 : 300 + e - 21), left = e < 7 ? 7 - e : 21 - e;
        ck_assert_uint_eq(zfi_state_index(&of, &matrix, e), at);
        ck_assert_uint_eq(zfi_state_stretch(&of, &matrix, e, 23 - e, &n_here), at);
        ck_assert_uint_eq(n_here, e < 21 ? left : 23 - e);
        ck_assert_uint_eq(zfi_state_stretch(&of, &matrix, e, 1, &n_here), at);
        ck_assert_uint_eq(n_here, 1);
    }
}
END_TEST

ZT_MAIN("tile", every_range_of_small_matrices, random_ranges, as_few_as_can_be, parts_of_a_bucket, state_of_three_tiles)
