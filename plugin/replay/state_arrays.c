/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/state_arrays.c - weights, moments and counts by elements (contract in the header). */
#include "replay/state_arrays.h"

#include <string.h>

#include "digest.h"
#include "instance/device_memory.h"
#include "instance/moments.h"

static zfi_moment_t moment_of(zfi_array_t array) { return array == ZFI_STATE_M ? ZFI_M : ZFI_V; }

/* Whether an array lies in runs. Kernels know them in the host's memory alone. */
static int is_in_runs(const zfi_matrix_t *matrix, zfi_array_t array) {
    return array != ZFI_STATE_W && zfi_is_in_runs(matrix->moments, moment_of(array));
}

zfi_dtype_t zfi_state_dtype(const zfi_matrix_t *matrix, zfi_array_t array) {
    return array == ZFI_STATE_W || matrix->moments == ZFI_MOMENTS_F32 || is_in_runs(matrix, array) ? ZFI_F32 : ZFI_BF16;
}

/* Whether an element of w is where the model reads it, and nowhere else. */
static int is_at_model(const zfi_state_t *state, zfi_array_t array, const zfi_matrix_t *matrix) {
    return array == ZFI_STATE_W && zfi_is_own_master(matrix) && !state->dev->is_apart;
}

/* Elements [first, first + n) of what the model reads of a matrix, from or to memory of their own. The host's threads
 * reach them, and everything rests. */
static void move_model(const zfi_matrix_t *matrix, uint64_t first, uint64_t n, void *bits, int is_write) {
    const zfi_place_t *place = &matrix->place;
    size_t elem = zfi_dtype_nbytes(place->dtype);
    uint64_t most = place->col_offset ? 1 : place->row_stride == (int64_t)matrix->cols ? n : matrix->cols, m;
    for (uint64_t done = 0; done < n; done += m) {
        uint64_t row = (first + done) / matrix->cols, col = (first + done) % matrix->cols;
        void *at = zfi_place_at(place, row, col), *own = (unsigned char *)bits + done * elem;
        m = most == matrix->cols && most - col < n - done ? most - col : n - done < most ? n - done : most;
        memcpy(is_write ? at : own, is_write ? own : at, m * elem);
    }
}

/* Whether an array lies in the device's memory: weights that are their own masters are the host's. */
static int is_on_device(const zfi_matrix_t *matrix, zfi_array_t array) {
    return matrix->is_resident && !(array == ZFI_STATE_W && zfi_is_own_master(matrix));
}

/* The address of an array's element, or of the run that holds it, on the side where the matrix has its home; NULL: the
 * rule has no such array. *io_n: as many of the elements from there on as lie together. */
static void *place_of(const zfi_state_t *state, zfi_array_t array, const zfi_matrix_t *matrix, uint64_t element,
                      uint64_t *io_n) {
    const zfi_data_t *head = &state->dev->head;
    zfi_chunk_state_t of = {.w = head->all_w, .m = (void *)head->all_m, .v = (void *)head->all_v};
    uint64_t at = zfi_state_find(matrix, element);
    if (array == ZFI_STATE_W && zfi_is_own_master(matrix)) {
        of.w = (float *)(void *)state->dev->apart.base;
        at -= state->plan->n_resident_masters;
    }
    if (!matrix->is_resident) {
        uint32_t number = zfi_state_chunk(state->plan, at, 0);
        const zfi_chunk_t *chunk = &state->plan->chunks[number];
        of = state->host->chunks[number];
        at -= chunk->state_base;
        *io_n = *io_n < chunk->n_elems - at ? *io_n : chunk->n_elems - at;
    }
    if (array == ZFI_STATE_V && matrix->lacks_v)
        return NULL;
    if (array == ZFI_STATE_W)
        return of.w + at;
    unsigned char *base = array == ZFI_STATE_M ? of.m : of.v;
    if (!base)
        return NULL;
    return base + (matrix->is_resident ? zfi_resident_before(head, moment_of(array), at)
                                       : zfi_moment_nbytes(matrix->moments, moment_of(array), at));
}

/* Whether the host may have written elements of w that the master does not know of yet. */
static int may_be_edited(const zfi_state_t *state, const zfi_matrix_t *matrix) {
    return matrix->sees_edits && !zfi_is_own_master(matrix) && !state->dev->is_apart;
}

void zfi_state_edit(const zfi_kernels_t *kernels, zfi_dtype_t dtype, const void *visible, uint64_t n, float *w) {
    enum { STRIP = 1024 };
    const uint16_t *bits = visible;
    uint16_t due[STRIP];
    if (dtype == ZFI_F32)
        memcpy(w, visible, n * sizeof *w);
    for (uint64_t done = 0, m; done < n && dtype != ZFI_F32; done += m) {
        m = n - done < STRIP ? n - done : STRIP;
        kernels->narrow(due, dtype, w + done, m);
        for (uint64_t i = 0; i < m; i++)
            if (due[i] != bits[done + i])
                kernels->widen(&w[done + i], &bits[done + i], dtype, 1);
    }
}

void zfi_state_take_edits(const zfi_state_t *state, const zfi_matrix_t *matrix, uint64_t first, uint64_t n, float *w) {
    enum { STRIP = 1024 };
    uint16_t visible[STRIP];
    for (uint64_t done = 0, m; done < n; done += m) {
        m = n - done < STRIP ? n - done : STRIP;
        move_model(matrix, first + done, m, visible, 0);
        zfi_state_edit(state->engine->kernels, matrix->place.dtype, visible, m, w + done);
    }
}

/* Values as they lie. */
static zf_status_t copy(zfi_engine_t *engine, int is_device, const void *from, uint64_t nbytes, void *out) {
    if (is_device)
        return zfi_device_read(engine, out, from, nbytes);
    memcpy(out, from, nbytes);
    return ZF_OK;
}

/* One array of a matrix, as get and put see it. */
typedef struct part {
    const zfi_device_side_t *side;
    const zfi_matrix_t *matrix;
    zfi_array_t array;
    uint64_t at; /* of a run: the element that is wanted first; the runs before it are left behind */
} part_t;

/* Values of runs, of which `from` is the first; a few runs at a time are read. */
static zf_status_t get_of_runs(const part_t *part, const void *from, uint64_t n, float *out) {
    enum { AT_ONCE = 32 };
    zfi_run8_t runs[AT_ONCE];
    const zfi_run8_t *next = from;
    zf_status_t st = ZF_OK;
    for (uint64_t done = 0, at = part->at, m; done < n && !st; done += m, at = 0) {
        uint64_t room = AT_ONCE * ZFI_RUN - at;
        m = n - done < room ? n - done : room;
        uint64_t n_runs = (at + m + ZFI_RUN - 1) / ZFI_RUN;
        st = copy(part->side->engine, part->matrix->is_resident, next, n_runs * sizeof *runs, runs);
        if (!st)
            zfi_moments_get(ZFI_MOMENTS_INT8, moment_of(part->array), runs, at, m, out + done);
        next += n_runs;
    }
    return st;
}

/* Values of two bytes arrive in the second half of `out`: none is overwritten before it was read. */
static zf_status_t get(const part_t *part, const void *from, uint64_t n, float *out) {
    uint16_t *bits = (uint16_t *)(void *)out + n;
    int is_device = is_on_device(part->matrix, part->array);
    if (!from) {
        memset(out, 0, n * sizeof *out);
        return ZF_OK;
    }
    if (is_in_runs(part->matrix, part->array))
        return get_of_runs(part, from, n, out);
    if (zfi_state_dtype(part->matrix, part->array) == ZFI_F32)
        return copy(part->side->engine, is_device, from, n * sizeof *out, out);
    zf_status_t st = copy(part->side->engine, is_device, from, n * sizeof *bits, bits);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, bits + i, sizeof half);
        out[i] = zfi_bf16_to_f32(half);
    }
    return st;
}

static zf_status_t put(const part_t *part, void *to, uint64_t n, const float *values) {
    const zfi_kernels_t *kernels = part->side->engine->kernels;
    zfi_dtype_t dtype = zfi_state_dtype(part->matrix, part->array);
    void *bits = part->side->dev->exchange + part->side->dev->exchange_elems;
    if (!to)
        return ZF_OK;
    if (is_in_runs(part->matrix, part->array)) {
        zfi_moments_put(ZFI_MOMENTS_INT8, moment_of(part->array), kernels, to, part->at, n, values);
        return ZF_OK;
    }
    if (!is_on_device(part->matrix, part->array)) {
        kernels->narrow(to, dtype, values, n);
        return ZF_OK;
    }
    if (dtype == ZFI_F32)
        return zfi_device_write(part->side->engine, to, values, n * sizeof *values);
    kernels->narrow(bits, dtype, values, n);
    return zfi_device_write(part->side->engine, to, bits, n * zfi_dtype_nbytes(dtype));
}

zf_status_t zfi_state_get(const zfi_state_t *state, zfi_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                          float *out) {
    const zfi_matrix_t *of = &state->plan->matrices[matrix];
    zf_status_t st = ZF_OK;
    if (is_at_model(state, array, of)) {
        move_model(of, first, n, out, 0);
        return ZF_OK;
    }
    for (uint64_t done = 0, m; done < n && !st; done += m) {
        m = n - done;
        const void *from = place_of(state, array, of, first + done, &m);
        st = get(&(part_t){state->side, of, array, (first + done) % ZFI_RUN}, from, m, out + done);
    }
    if (!st && array == ZFI_STATE_W && may_be_edited(state, of))
        zfi_state_take_edits(state, of, first, n, out);
    return st;
}

zf_status_t zfi_state_put(const zfi_state_t *state, zfi_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                          const float *values) {
    const zfi_matrix_t *of = &state->plan->matrices[matrix];
    zf_status_t st = ZF_OK;
    if (is_at_model(state, array, of)) {
        move_model(of, first, n, (void *)(uintptr_t)values, 1);
        return ZF_OK;
    }
    for (uint64_t done = 0, m; done < n && !st; done += m) {
        m = n - done;
        void *to = place_of(state, array, of, first + done, &m);
        st = put(&(part_t){state->side, of, array, (first + done) % ZFI_RUN}, to, m, values + done);
    }
    return st;
}

/* The kernel counts in 32 bits: beyond, each 2^32 elements have a factor of their own. */
uint64_t zfi_param_digest(const zfi_kernels_t *kernels, const void *bits, zfi_dtype_t dtype, uint64_t n,
                          uint64_t index) {
    const unsigned char *from = bits;
    uint64_t sum = 0;
    while (n) {
        uint64_t left = ((uint64_t)1 << 32) - (uint32_t)index, m = n < left ? n : left;
        sum += zfi_digest_factor(index) * kernels->digest(from, dtype, m, index);
        from += m * zfi_dtype_nbytes(dtype);
        index += m;
        n -= m;
    }
    return sum;
}

static zf_status_t clear(const zfi_state_t *state, zfi_array_t array, const zfi_matrix_t *matrix) {
    for (uint64_t done = 0, n; done < matrix->own.n; done += n) {
        n = matrix->own.n - done;
        void *to = place_of(state, array, matrix, matrix->own.first + done, &n);
        if (!to)
            return ZF_OK;
        uint64_t nbytes = zfi_moment_nbytes(matrix->moments, moment_of(array), n);
        if (matrix->is_resident)
            return zfi_device_clear(state->engine, to, nbytes); /* all of it */
        memset(to, 0, nbytes);
    }
    return ZF_OK;
}

zf_status_t zfi_state_clear_moments(const zfi_state_t *state, uint32_t number) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    zf_status_t st = clear(state, ZFI_STATE_M, matrix);
    return st ? st : clear(state, ZFI_STATE_V, matrix);
}

zf_status_t zfi_state_take_counts(const zfi_state_t *state) {
    const zfi_plan_t *plan = state->plan;
    const zfi_device_state_t *dev = state->dev;
    uint32_t *counts = (uint32_t *)(void *)dev->exchange, n;
    zf_status_t st = ZF_OK;
    for (uint32_t first = 0; first < plan->n_matrices && plan->n_resident && !st; first += n) {
        uint64_t left = plan->n_matrices - first;
        n = (uint32_t)(left < dev->exchange_elems ? left : dev->exchange_elems);
        st = zfi_device_read(state->engine, counts, dev->head.all_n + first, n * sizeof *counts);
        for (uint32_t i = first; i < first + n && !st; i++)
            for (uint32_t c = 0; c < plan->matrices[i].n_counts && plan->matrices[i].is_resident; c++)
                state->host->n[plan->matrices[i].count_base + c] = counts[i - first];
    }
    return st;
}
