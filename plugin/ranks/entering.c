/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/entering.c - entering state of all ranks (contract in entering.h). */
#include "ranks/entering.h"

#include "ranks/gathering.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A rectangle of a block, and elements [first, end) of its matrix. */
typedef struct piece {
    zfi_gathering_t *gathering;
    const zfi_matrix_t *matrix;
    const zfi_enter_rect_t *rect;
    const uint32_t *channels; /* that enter */
    float *values;            /* of the rectangle */
    uint32_t n_arrays;
    uint64_t first, end;
} piece_t;

/* n neighbours in each array. */
static void pass(const piece_t *piece, uint64_t at, uint64_t n) {
    for (uint32_t k = 0; k < piece->n_arrays && n; k++)
        zfi_gathering_pass(piece->gathering, piece->values + k * piece->rect->na * piece->rect->nb + at,
                           n * sizeof(float));
}

/* Rows of the rectangle are channels, and their columns neighbours. */
static void pass_rows(const piece_t *piece) {
    const zfi_enter_rect_t *rect = piece->rect;
    for (uint64_t i = 0; i < rect->na; i++) {
        uint64_t from = piece->channels[rect->a0 + i] * piece->matrix->cols + rect->b0;
        uint64_t first = larger(from, piece->first), end = smaller(from + rect->nb, piece->end);
        if (first < end)
            pass(piece, i * rect->nb + first - from, end - first);
    }
}

/* Columns are channels: of the rows those that the slice has. */
static void pass_columns(const piece_t *piece) {
    const zfi_enter_rect_t *rect = piece->rect;
    uint64_t from = larger(piece->first / piece->matrix->cols, rect->a0);
    uint64_t to = smaller(piece->end / piece->matrix->cols, rect->a0 + rect->na);
    if (from < to)
        pass(piece, (from - rect->a0) * rect->nb, (to - from) * rect->nb);
}

typedef struct blocks {
    uint32_t n;
} blocks_t;

static void walk(zfi_gathering_t *gathering, uint32_t rank) {
    const blocks_t *blocks = gathering->arg;
    const zfi_plan_t *plan = gathering->ranks->plan;
    piece_t piece = {.gathering = gathering, .n_arrays = zfi_enter_arrays(gathering->ranks->n_moments)};
    zfi_slice_t slice;
    for (uint32_t b = 0; b < blocks->n; b++) {
        zfi_enter_block_t *block = zfi_entering_block(gathering->ranks->reduction, b);
        for (uint64_t i = 0; i < block->n_rects; i++) {
            piece.rect = &block->rects[i];
            piece.matrix = &plan->matrices[piece.rect->matrix];
            slice = zfi_gathering_slice(gathering, piece.matrix, rank);
            piece.first = slice.first;
            piece.end = slice.first + slice.n;
            piece.channels = gathering->ranks->sel->enter_channel + piece.matrix->index_base;
            piece.values = block->values + (uint64_t)piece.rect->at * piece.n_arrays;
            if (piece.matrix->channels_are_rows)
                pass_rows(&piece);
            else
                pass_columns(&piece);
        }
    }
}

zf_status_t zfi_entering_join(zfi_ranks_t *ranks, uint32_t n, uint64_t step) {
    blocks_t blocks = {n};
    zfi_gathering_t gathering = {.ranks = ranks, .walk = walk, .arg = &blocks};
    return zfi_gathering_by_control(&gathering, ZF_COLLECTIVE_FOR_ENTERING, step);
}
