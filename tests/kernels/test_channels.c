/* SPDX-License-Identifier: Apache-2.0 */
/* test_channels.c - kernels that know where channels lie and compute: run-ahead, scatter. A visible parameter is
 * compared as a whole, so a write outside the places fails too. */
#include <stdlib.h>
#include <string.h>

#include <digest.h>

#include "arrays.h"
#include "suite.h"

enum { MAX_ROWS = 9, MAX_COLS = 1200 };

/* A matrix whose rows lie row_stride apart in visible, columns at col_offset, and a random sub-matrix of it. */
typedef struct geometry {
    uint64_t rows, cols, n_visible;
    int64_t row_stride, col_offset[MAX_COLS];
    uint32_t row_index[MAX_ROWS], col_index[MAX_COLS];
    zfi_submatrix_t sub;
    int has_col_offset;
} geometry_t;

static void geometry_random(geometry_t *g, uint64_t max_cols) {
    g->rows = random_below(MAX_ROWS + 1);
    g->cols = random_below(max_cols + 1);
    g->row_stride = (int64_t)(2 * g->cols + random_below(5));
    g->n_visible = g->rows * (uint64_t)g->row_stride + 2 * g->cols;
    g->has_col_offset = random_below(2) == 0;
    for (uint64_t c = 0; c < g->cols; c++)
        g->col_offset[c] = (int64_t)(2 * (g->cols - 1 - c) + c % 2); /* falling, with holes */
    g->sub = (zfi_submatrix_t){.n_rows = g->rows, .n_cols = g->cols};
    if (random_below(2) == 0) {
        g->sub.row_index = g->row_index;
        g->sub.n_rows = random_subset(g->rows, g->row_index);
    }
    if (random_below(4) != 0) {
        g->sub.col_index = g->col_index;
        g->sub.n_cols = random_subset(g->cols, g->col_index);
    }
}

static zfi_place_t place_of(const geometry_t *g, const array_t *visible) {
    return (zfi_place_t){.visible = visible->at,
                         .dtype = visible->dtype,
                         .row_stride = g->row_stride,
                         .col_offset = g->has_col_offset ? g->col_offset : NULL};
}

ZT_TEST(scatter_places) {
    static geometry_t g;
    for (int repeat = 0; repeat < ZT_FEWER(300); repeat++) {
        geometry_random(&g, repeat % 10 ? 70 : MAX_COLS);
        array_t w = array_new(ZFI_F32, g.sub.n_rows * g.sub.n_cols, SPECIAL);
        array_t start = array_new((zfi_dtype_t)(repeat % ZFI_N_DTYPES), g.n_visible, ANY_BITS);
        array_t want = array_copy(&start);
        zfi_place_t place = place_of(&g, &want);
        GENERIC->scatter(&place, &g.sub, w.at);
        for (EACH_TABLE(table)) {
            array_t got = array_copy(&start);
            place = place_of(&g, &got);
            table->scatter(&place, &g.sub, w.at);
            check_arrays(&want, &got, table->name, "scatter", g.n_visible);
        }
        arrays_free();
    }
}

typedef struct ahead {
    array_t w, m, v, visible;
    zfi_run_ahead_t job;
} ahead_t;

static ahead_t ahead_copy(const ahead_t *from, const geometry_t *g) {
    ahead_t copy = *from;
    copy.w = array_copy(&from->w);
    copy.m = array_copy(&from->m);
    copy.v = array_copy(&from->v);
    copy.visible = array_copy(&from->visible);
    copy.job.w = copy.w.at;
    copy.job.m = copy.m.at;
    copy.job.v = copy.job.v ? copy.v.at : NULL;
    copy.job.place = place_of(g, &copy.visible);
    return copy;
}

static void random_scalars(zfi_scalars_t *scalars, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        scalars[i] = (zfi_scalars_t){.s = 1.0f + random_unit() / 2,
                                     .b1 = 0.9f,
                                     .one_minus_b1 = 0.1f,
                                     .b2 = 0.999f,
                                     .one_minus_b2 = 0.001f,
                                     .inv_sqrt_bc2 = 2.0f + random_unit(),
                                     .eps = 1e-8f,
                                     .neg_step = -1e-3f * (2.0f + random_unit()),
                                     .decay = 1.0f - 1e-5f,
                                     .l2 = 1e-2f * random_unit()};
}

/* visible holds what the state says, but for elements written by "the host": the digest moves by what was there. */
static void fill_visible(ahead_t *start, const geometry_t *g) {
    zfi_place_t place = place_of(g, &start->visible);
    array_t changed = array_copy(&start->w);
    for (uint64_t e = 0; e < changed.n_elems; e++)
        if (random_below(10) == 0)
            ((float *)changed.at)[e] += 1.0f;
    GENERIC->scatter(&place, &g->sub, changed.at);
}

static void compare_run_ahead(geometry_t *g, zfi_rule_t rule, zfi_dtype_t grad_dtype, zfi_dtype_t visible_dtype,
                              int scalars_by, contents_t contents) {
    const uint64_t n = g->sub.n_rows * g->sub.n_cols;
    static zfi_scalars_t scalars[MAX_COLS];
    array_t grad = array_new(grad_dtype, n, contents);
    ahead_t start = {.w = array_new(ZFI_F32, n, contents),
                     .m = array_new(ZFI_F32, n, contents),
                     .v = array_new(ZFI_F32, n, POSITIVE),
                     .visible = array_new(visible_dtype, g->n_visible, ORDINARY)};
    random_scalars(scalars, scalars_by == 0 ? 1 : scalars_by == 1 ? g->sub.n_rows : g->sub.n_cols);
    start.job = (zfi_run_ahead_t){.v = zfi_rule_has_v(rule) ? start.v.at : NULL,
                                  .grad = grad.at,
                                  .grad_dtype = grad_dtype,
                                  .sub = g->sub,
                                  .scalars = scalars,
                                  .scalars_row_stride = scalars_by == 1,
                                  .scalars_col_stride = scalars_by == 2,
                                  .cols = contents == ORDINARY ? g->cols : 0}; /* NaN has many bits */
    fill_visible(&start, g);
    ahead_t want = ahead_copy(&start, g);
    uint64_t want_moved = GENERIC->run_ahead[rule](&want.job);
    for (EACH_TABLE(table)) {
        ahead_t got = ahead_copy(&start, g);
        ck_assert_uint_eq(table->run_ahead[rule](&got.job), want_moved);
        check_arrays(&want.w, &got.w, table->name, "run_ahead: w", n);
        check_arrays(&want.m, &got.m, table->name, "run_ahead: m", n);
        check_arrays(&want.v, &got.v, table->name, "run_ahead: v", n);
        check_arrays(&want.visible, &got.visible, table->name, "run_ahead: visible", g->n_visible);
    }
    arrays_free();
}

ZT_TEST(run_ahead) {
    static geometry_t g;
    for (int repeat = 0; repeat < ZT_FEWER(1200); repeat++) {
        geometry_random(&g, repeat % 20 ? 70 : MAX_COLS);
        compare_run_ahead(&g, (zfi_rule_t)(repeat % ZFI_N_RULES), (zfi_dtype_t)random_below(ZFI_N_DTYPES),
                          (zfi_dtype_t)random_below(ZFI_N_DTYPES), repeat % 3, repeat % 7 ? ORDINARY : SPECIAL);
    }
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

static uint64_t digest_of(const array_t *bits, uint64_t index) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bits->n_elems; i++)
        sum += zfi_digest_element(bits->dtype == ZFI_F32 ? ((uint32_t *)bits->at)[i] : ((uint16_t *)bits->at)[i],
                                  index + i);
    return sum;
}

ZT_TEST(digest) {
    for (uint64_t repeat = 0; repeat < ZT_FEWER(300); repeat++) {
        const zfi_dtype_t dtype = (zfi_dtype_t)random_below(ZFI_N_DTYPES);
        const size_t nbytes = zfi_dtype_nbytes(dtype);
        const uint64_t n = 1 + random_below(3000), index = random_below(1u << 31), at = random_below(n);
        const uint64_t other = random_below(n);
        array_t bits = array_new(dtype, n, ANY_BITS);
        unsigned char *a = (unsigned char *)bits.at + at * nbytes, *b = (unsigned char *)bits.at + other * nbytes;
        const uint64_t want = digest_of(&bits, index);
        const int differ = memcmp(a, b, nbytes) != 0;
        for (EACH_TABLE(table))
            ck_assert_uint_eq(table->digest(bits.at, dtype, n, index), want);
        for (size_t i = 0; i < nbytes; i++) { /* two elements exchanged */
            unsigned char was = a[i];

            a[i] = b[i];
            b[i] = was;
        }
        for (EACH_TABLE(table))
            ck_assert_int_eq(table->digest(bits.at, dtype, n, index) != want, differ);
        a[random_below(nbytes)] ^= (unsigned char)(1u << random_below(8)); /* or one that differs */
        ck_assert(differ || digest_of(&bits, index) != want);
        arrays_free();
    }
}

enum { N_EDITS = 1024, N_PAIRS = N_EDITS * (N_EDITS - 1) / 2, N_KINDS = 6 };

/* Edits that are alike in all elements: a sign, one bit low or high, a factor, the next value's, a constant. */
static uint32_t edited(int kind, float value, float next) {
    float to = kind == 3 ? value * 1.005f : kind == 4 ? next : value;
    uint32_t bits;
    memcpy(&bits, &to, 4);
    return kind == 0 ? bits ^ 0x80000000u : kind == 1 ? bits ^ 1u : kind == 2 ? bits ^ 1u << 22 : kind == 5 ? 0 : bits;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int is_among(const uint64_t *sorted, uint64_t n, uint64_t value) {
    return bsearch(&value, sorted, n, sizeof value, by_value) != NULL;
}

/* No two, three or four of these edits leave the digest as it is: sums of pairs are compared with edits and pairs.
 * Values in [low, high) and of both signs, or equal in all elements (low = high). */
static void check_edits(int kind, float low, float high) {
    uint64_t *moves = malloc(N_EDITS * sizeof *moves), *pairs = malloc(N_PAIRS * sizeof *pairs), n = 0;
    float values[N_EDITS + 1];
    for (int i = 0; i <= N_EDITS; i++) {
        float part = (float)random_below(1 << 24) / (float)(1 << 24);
        values[i] = (low < 0 && random_below(2) ? -1.0f : 1.0f) * (low + part * (high - low));
    }
    for (int i = 0; i < N_EDITS; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        moves[i] = zfi_digest_element(edited(kind, values[i], values[i + 1]), (uint64_t)i) -
                   zfi_digest_element(bits, (uint64_t)i);
    }
    for (int i = 0; i < N_EDITS; i++)
        for (int k = 0; k < i; k++)
            pairs[n++] = moves[i] + moves[k];
    qsort(pairs, N_PAIRS, sizeof *pairs, by_value);
    ck_assert_msg(!is_among(pairs, N_PAIRS, 0), "two edits of kind %d", kind);
    for (int i = 0; i < N_EDITS; i++)
        if (is_among(pairs, N_PAIRS, 0 - moves[i])) /* not ck_assert, which writes to a file each time */
            ck_abort_msg("three edits of kind %d", kind);
    for (uint64_t i = 0; i < N_PAIRS; i++)
        if (is_among(pairs, N_PAIRS, 0 - pairs[i]))
            ck_abort_msg("four edits of kind %d", kind);
    for (uint64_t i = 1; i < N_PAIRS; i++) /* two made, two undone */
        if (pairs[i] == pairs[i - 1])
            ck_abort_msg("two edits of kind %d in place of two others", kind);
    free(moves);
    free(pairs);
}

ZT_TEST(edits_that_are_alike_do_not_cancel) {
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_edits(kind, 32.0f, 64.0f);
        check_edits(kind, -1.0f, 1.0f);
        if (kind != 4) /* the next one's is the same */
            check_edits(kind, 0.5f, 0.5f);
    }
}

ZT_SUITE("channels")
