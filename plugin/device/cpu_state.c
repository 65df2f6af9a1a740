/* plugin/device/cpu_state.c - what checkpoints read of and write to the CPU backend's device side (contract in
 * device.h).
 */
#include <string.h>

#include "device/cpu.h"

enum { COLUMNS = 1024 }; /* handled at a time */

static unsigned char *place_of(const zfi_place_t *place, uint64_t r, uint64_t c) {
    int64_t offset = (int64_t)r * place->row_stride + (place->col_offset ? place->col_offset[c] : (int64_t)c);
    return (unsigned char *)place->visible + offset * (int64_t)zfi_dtype_nbytes(place->dtype);
}

static void read_bits(const zfi_place_t *place, uint64_t r, uint64_t c, uint64_t n, unsigned char *out) {
    size_t elem = zfi_dtype_nbytes(place->dtype);
    for (uint64_t i = 0; i < n; i++)
        memcpy(out + i * elem, place_of(place, r, c + i), elem);
}

static void write_bits(const zfi_place_t *place, uint64_t r, uint64_t c, uint64_t n, const unsigned char *bits) {
    size_t elem = zfi_dtype_nbytes(place->dtype);
    for (uint64_t i = 0; i < n; i++)
        memcpy(place_of(place, r, c + i), bits + i * elem, elem);
}

void zfi_cpu_get_visible(zf_instance_t *inst, uint32_t number, uint64_t first, uint64_t n, void *out) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    unsigned char *to = out;
    while (n) {
        uint64_t r = first / matrix->cols, c = first % matrix->cols;
        uint64_t count = matrix->cols - c < n ? matrix->cols - c : n;
        read_bits(&matrix->place, r, c, count, to);
        to += count * elem;
        first += count;
        n -= count;
    }
}

/* ---- what the state says -------------------------------------------------------------------------------------------
 */

/* Position + 1 of every channel among the selected ones, 0 for others; in the choice's scratch, which is idle. */
static const uint32_t *positions(const zf_instance_t *inst, const zfi_matrix_t *matrix) {
    uint32_t *out = (uint32_t *)(void *)inst->sel.order;
    if (inst->dev.enter_block == 0 || matrix->k == 0)
        return NULL;
    memset(out, 0, matrix->n_channels * sizeof *out);
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        out[inst->dev.index[matrix->index_base + pos]] = pos + 1;
    return out;
}

/* round(w) of n <= COLUMNS elements of row r from column c on. */
static void expected(const zf_instance_t *inst, const zfi_matrix_t *matrix, const uint32_t *pos, uint64_t r, uint64_t c,
                     uint64_t n, unsigned char *out) {
    float w[COLUMNS];
    memcpy(w, inst->hs.w + matrix->state_base + r * matrix->cols + c, n * sizeof *w);
    for (uint64_t i = 0; i < n && pos; i++) {
        uint32_t at = pos[matrix->channels_are_rows ? r : c + i];
        if (at && matrix->channels_are_rows)
            w[i] = inst->dev.w[matrix->sel_base + (at - 1u) * matrix->cols + c + i];
        else if (at)
            w[i] = inst->dev.w[matrix->sel_base + r * matrix->k + at - 1u];
    }
    inst->kernels->narrow(out, matrix->place.dtype, w, n);
}

/* ---- moments mode ------------------------------------------------------------------------------------------------ */

/* Where element e of the matrix lies in the compact arrays, or -1. */
static int64_t compact_of(const zfi_matrix_t *matrix, const uint32_t *pos, uint64_t e) {
    uint64_t r = e / matrix->cols, c = e % matrix->cols;
    uint32_t at = pos ? pos[matrix->channels_are_rows ? r : c] : 0;
    if (!at)
        return -1;
    return (int64_t)(matrix->sel_base +
                     (matrix->channels_are_rows ? (at - 1u) * matrix->cols + c : r * matrix->k + at - 1u));
}

void zfi_cpu_get_selected(zf_instance_t *inst, uint32_t number, int array, uint64_t first, uint64_t n, float *out) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *pos = positions(inst, matrix);
    const float *from = array == 0 ? inst->dev.w : array == 1 ? inst->dev.m : inst->dev.v;
    for (uint64_t e = first; e < first + n; e++) {
        int64_t at = compact_of(matrix, pos, e);
        if (at >= 0)
            out[e - first] = from[at];
    }
}

void zfi_cpu_put_selected(zf_instance_t *inst, uint32_t number, float *const arrays[3], uint32_t n) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *pos = positions(inst, matrix);
    inst->dev.n[number] = n;
    for (uint64_t e = 0; arrays[0] && e < matrix->rows * matrix->cols; e++) {
        int64_t at = compact_of(matrix, pos, e);
        if (at < 0)
            continue;
        inst->dev.w[at] = arrays[0][e];
        inst->dev.m[at] = arrays[1][e];
        inst->dev.v[at] = arrays[2][e];
    }
}

void zfi_cpu_move_sums(zf_instance_t *inst, uint32_t number, int array, uint64_t first, uint64_t n, const float *in,
                       float *out) {
    float *sum = (array == 0 ? inst->dev.sum1 : inst->dev.sum2) + inst->plan.matrices[number].state_base + first;
    if (in)
        memcpy(sum, in, n * sizeof *sum);
    else
        memcpy(out, sum, n * sizeof *sum);
}

/* ---- what the state says, in all ----------------------------------------------------------------------------------
 */

void zfi_cpu_put_visible(zf_instance_t *inst, uint32_t number, const void *bits) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *pos = bits ? NULL : positions(inst, matrix);
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    unsigned char block[COLUMNS * sizeof(float)];
    for (uint64_t r = 0; r < matrix->rows; r++)
        for (uint64_t c = 0; c < matrix->cols; c += COLUMNS) {
            uint64_t n = matrix->cols - c < COLUMNS ? matrix->cols - c : COLUMNS;
            const unsigned char *from = bits ? (const unsigned char *)bits + (r * matrix->cols + c) * elem : block;
            if (!bits)
                expected(inst, matrix, pos, r, c, n, block);
            write_bits(&matrix->place, r, c, n, from);
        }
}

int zfi_cpu_shows_state(zf_instance_t *inst, uint32_t number) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *pos = positions(inst, matrix);
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    unsigned char need[COLUMNS * sizeof(float)], have[COLUMNS * sizeof(float)];
    for (uint64_t r = 0; r < matrix->rows; r++)
        for (uint64_t c = 0; c < matrix->cols; c += COLUMNS) {
            uint64_t n = matrix->cols - c < COLUMNS ? matrix->cols - c : COLUMNS;
            expected(inst, matrix, pos, r, c, n, need);
            read_bits(&matrix->place, r, c, n, have);
            if (memcmp(need, have, n * elem) != 0)
                return 0;
        }
    return 1;
}

void zfi_cpu_put_maps(zf_instance_t *inst) {
    memcpy(inst->dev.index, inst->sel.index, inst->plan.n_index * sizeof *inst->dev.index);
    memcpy(inst->dev.mask, inst->sel.mask, inst->plan.n_channels);
}
