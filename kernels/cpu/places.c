/* SPDX-License-Identifier: Apache-2.0 */
/* places.c - moves elements between compact arrays and their places in a matrix: gather, the scattering half of
 * run-ahead and scatter, masked publish. No arithmetic, so one baseline copy serves every instruction set: the cost is
 * that of scattered 2- and 4-byte accesses, for which vector gathers and scatters gain nothing.
 *
 * Each loop is written once over the element size and instantiated for 2 and 4 bytes by inlining. */
#include <string.h>

#include "digest.h"
#include "tables.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

static uint64_t row_of(const zfi_submatrix_t *sub, uint64_t i) { return sub->row_index ? sub->row_index[i] : i; }

static ALWAYS_INLINE void gather_row(char *out, const char *row, const uint32_t *col_index, uint64_t n_cols,
                                     size_t nbytes) {
    for (uint64_t j = 0; j < n_cols; j++)
        memcpy(out + j * nbytes, row + (size_t)col_index[j] * nbytes, nbytes);
}

void zfi_gather(void *out, const void *matrix, uint64_t cols, size_t elem_nbytes, const zfi_submatrix_t *sub) {
    char *to = out;
    for (uint64_t i = 0; i < sub->n_rows; i++, to += sub->n_cols * elem_nbytes) {
        const char *row = (const char *)matrix + row_of(sub, i) * cols * elem_nbytes;

        if (!sub->col_index)
            memcpy(to, row, sub->n_cols * elem_nbytes);
        else if (elem_nbytes == 2)
            gather_row(to, row, sub->col_index, sub->n_cols, 2);
        else
            gather_row(to, row, sub->col_index, sub->n_cols, 4);
    }
}

/* The place of column j of a sub-matrix in its row of the visible parameter, in elements. */
static ALWAYS_INLINE int64_t offset_of(const int64_t *col_offset, const uint32_t *col_index, uint64_t j) {
    uint64_t c = col_index ? col_index[j] : j;
    return col_offset ? col_offset[c] : (int64_t)c;
}

/* An element's bits as a number; nbytes is a constant. */
static ALWAYS_INLINE uint32_t bits_of(const char *at, size_t nbytes) {
    uint16_t half;
    uint32_t word;
    if (nbytes == 4) {
        memcpy(&word, at, 4);
        return word;
    }
    memcpy(&half, at, 2);
    return half;
}

/* index: of the matrix's column 0 in this row. */
static ALWAYS_INLINE uint64_t place_elems(char *row, const int64_t *col_offset, const uint32_t *col_index,
                                          uint64_t first_col, uint64_t n, const char *bits, int is_counted,
                                          uint64_t index, size_t nbytes) {
    uint64_t sum = 0;

    for (uint64_t j = 0; j < n; j++) {
        char *at = row + offset_of(col_offset, col_index, first_col + j) * (int64_t)nbytes;

        if (is_counted) {
            uint64_t here = index + (col_index ? col_index[first_col + j] : first_col + j);

            sum += zfi_digest_element(bits_of(bits + j * nbytes, nbytes), here) -
                   zfi_digest_element(bits_of(at, nbytes), here);
        }
        memcpy(at, bits + j * nbytes, nbytes);
    }
    return sum;
}

/* n elements one behind the other. */
static uint64_t place_run(char *at, zfi_dtype_t dtype, const void *bits, uint64_t n, int is_counted, uint64_t index) {
    uint64_t moved = is_counted ? digest_run(bits, dtype, n, index) - digest_run(at, dtype, n, index) : 0;
    memcpy(at, bits, n * zfi_dtype_nbytes(dtype));
    return moved;
}

/* The first element of row i of the sub-matrix. */
static char *visible_row(const zfi_place_t *place, uint64_t r) {
    return (char *)place->visible + (int64_t)r * place->row_stride * (int64_t)zfi_dtype_nbytes(place->dtype);
}

uint64_t zfi_place_row(const zfi_place_t *place, const zfi_submatrix_t *sub, uint64_t i, uint64_t first_col, uint64_t n,
                       const void *bits, uint64_t cols) {
    char *row = visible_row(place, row_of(sub, i));
    const int is_counted = cols != 0;
    const uint64_t index = row_of(sub, i) * cols;
    if (!sub->col_index && !place->col_offset)
        return place_run(row + first_col * zfi_dtype_nbytes(place->dtype), place->dtype, bits, n, is_counted,
                         index + first_col);
    if (zfi_dtype_nbytes(place->dtype) == 2)
        return place_elems(row, place->col_offset, sub->col_index, first_col, n, bits, is_counted, index, 2);
    return place_elems(row, place->col_offset, sub->col_index, first_col, n, bits, is_counted, index, 4);
}

/* Columns [c, c + n) of one row. The write to a selected column goes to a local instead: no branch to mispredict, and
 * nothing is read from or written to the element itself. */
static ALWAYS_INLINE void publish_row(char *row, const int64_t *col_offset, const uint8_t *selected, uint64_t c,
                                      uint64_t n, const char *staged, size_t nbytes) {
    uint32_t nowhere;
    for (uint64_t j = 0; j < n; j++) {
        char *at = row + offset_of(col_offset, NULL, c + j) * (int64_t)nbytes;

        memcpy(selected && selected[c + j] ? (char *)&nowhere : at, staged + j * nbytes, nbytes);
    }
}

void zfi_publish(const zfi_publish_t *job) {
    const zfi_place_t *place = &job->place;
    const size_t nbytes = zfi_dtype_nbytes(place->dtype);
    const uint8_t *column_mask = job->channels_are_rows ? NULL : job->selected;
    const char *staged = job->staged;
    uint64_t n;
    for (uint64_t e = 0; e < job->n_elems; e += n, staged += n * nbytes) {
        uint64_t r = (job->first + e) / job->cols, c = (job->first + e) % job->cols;
        char *row = visible_row(place, r);

        n = job->cols - c < job->n_elems - e ? job->cols - c : job->n_elems - e;
        if (job->channels_are_rows && job->selected && job->selected[r])
            continue;
        if (!column_mask && !place->col_offset)
            memcpy(row + c * nbytes, staged, n * nbytes);
        else if (nbytes == 2)
            publish_row(row, place->col_offset, column_mask, c, n, staged, 2);
        else
            publish_row(row, place->col_offset, column_mask, c, n, staged, 4);
    }
}
