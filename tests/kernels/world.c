/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - see world.h. */
#include "world.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <digest.h>

#include "arrays.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

static uint64_t bits(world_t *world) {
    uint64_t z = world->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t world_below(world_t *world, uint64_t n) { return n ? bits(world) % n : 0; }

float world_unit(world_t *world) { return (float)(bits(world) >> 40) * 0x1p-23f - 1.0f; }

float world_load(const void *array, zfi_dtype_t dtype, uint64_t i) {
    if (dtype == ZFI_F32)
        return ((const float *)array)[i];
    return dtype == ZFI_BF16 ? zfi_bf16_to_f32(((const uint16_t *)array)[i])
                             : zfi_f16_to_f32(((const uint16_t *)array)[i]);
}

void world_store(void *array, zfi_dtype_t dtype, uint64_t i, float value) {
    if (dtype == ZFI_F32)
        ((float *)array)[i] = value;
    else
        ((uint16_t *)array)[i] = dtype == ZFI_BF16 ? zfi_f32_to_bf16(value) : zfi_f32_to_f16(value);
}

void world_fill(world_t *world, void *array, zfi_dtype_t dtype, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        world_store(array, dtype, i, world_unit(world));
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

void *world_array(world_t *world, const char *name, world_kind_t kind, uint64_t n, size_t elem) {
    world_array_t *array = &world->arrays[world->n_arrays++];
    ck_assert_uint_le(world->n_arrays, WORLD_ARRAYS);
    *array = (world_array_t){name, kind, calloc(n + 1, elem), n * elem};
    ck_assert_ptr_nonnull(array->at);
    return array->at;
}

static float *floats(world_t *world, const char *name, uint64_t n) {
    float *out = world_array(world, name, WORLD_FLOATS, n, sizeof *out);
    world_fill(world, out, ZFI_F32, n);
    return out;
}

static double *doubles(world_t *world, const char *name, uint64_t n) {
    double *out = world_array(world, name, WORLD_DOUBLES, n, sizeof *out);
    for (uint64_t i = 0; i < n; i++)
        out[i] = world_unit(world);
    return out;
}

/* Numbers below a bound. */
static uint32_t *words(world_t *world, const char *name, uint64_t n, uint64_t below) {
    uint32_t *out = world_array(world, name, WORLD_BYTES, n, sizeof *out);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (uint32_t)world_below(world, below);
    return out;
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

uint64_t world_channel_elems(const zfi_data_matrix_t *matrix) {
    return matrix->channels_are_rows ? matrix->cols : matrix->rows;
}

uint64_t world_compact(const zfi_data_matrix_t *matrix, uint64_t pos, uint64_t i) {
    return matrix->sel_base + (matrix->channels_are_rows ? pos * matrix->cols + i : i * matrix->k + pos);
}

uint64_t world_element(const zfi_data_matrix_t *matrix, uint64_t channel, uint64_t i) {
    return matrix->channels_are_rows ? channel * matrix->cols + i : i * matrix->cols + channel;
}

uint32_t world_channel(const world_t *world, const zfi_data_matrix_t *matrix, uint32_t pos) {
    return matrix->has_sums ? world->data.index[matrix->index_base + pos] : pos;
}

void *world_visible(const zfi_data_matrix_t *matrix, uint64_t element) {
    const zfi_place_t *place = &matrix->place;
    uint64_t col = element % matrix->cols;
    int64_t at = (int64_t)(element / matrix->cols) * place->row_stride +
                 (place->col_offset ? place->col_offset[col] : (int64_t)col);
    return (unsigned char *)place->visible + at * (int64_t)zfi_dtype_nbytes(place->dtype);
}

/* Parameter 0 has two blocks of 64 rows and of 4096 elements; 1 consists of three matrices; 2 is selected as a whole;
 * of 3 nothing ever is. */
static void draw_param(world_t *world, uint32_t i) {
    zfi_data_param_t *param = &world->params[i];
    uint64_t rows = i == 0 ? 70 : 1 + world_below(world, 9), cols = i == 0 ? 65 : 1 + world_below(world, 70);
    param->grad_dtype = (zfi_dtype_t)world_below(world, ZFI_N_DTYPES);
    param->group = (uint32_t)world_below(world, WORLD_GROUPS);
    param->channels_are_rows = (int)world_below(world, 2);
    param->counts_in_norm = i != 4;
    param->first_matrix = world->data.n_matrices;
    param->n_matrices = i == 1 ? 3 : 1;
    for (uint32_t k = 0; k < param->n_matrices; k++) {
        zfi_data_matrix_t *matrix = &world->matrices[world->data.n_matrices++];
        *matrix = (zfi_data_matrix_t){.param = i,
                                      .n_channels = (uint32_t)(param->channels_are_rows ? rows : cols),
                                      .channels_are_rows = param->channels_are_rows,
                                      .has_sums = i != 2 && i != 3,
                                      .rows = rows,
                                      .cols = cols,
                                      .param_offset = k * rows * cols};
        matrix->k = i == 2   ? matrix->n_channels
                    : i == 3 ? 0
                             : (uint32_t)(1 + world_below(world, (matrix->n_channels + 1) / 2));
    }
    param->n_elems = param->n_read = param->n_matrices * rows * cols;
}

/* A parameter is contiguous, or its rows have holes, or its columns lie in falling order as well. */
static void draw_place(world_t *world, uint32_t i) {
    const zfi_data_param_t *param = &world->params[i];
    zfi_dtype_t dtype = (zfi_dtype_t)world_below(world, ZFI_N_DTYPES);
    zfi_data_matrix_t *first = &world->matrices[param->first_matrix];
    uint64_t kind = world_below(world, 3);
    uint64_t stride = kind ? 2 * first->cols + world_below(world, 4) : first->cols;
    uint64_t n = (param->n_matrices * first->rows + 1) * stride;
    unsigned char *visible = world_array(world, "visible", WORLD_BYTES, n, zfi_dtype_nbytes(dtype));
    world_fill(world, visible, dtype, n);
    for (uint64_t c = 0; c < first->cols; c++)
        world->col_offset[i][c] = (int64_t)(2 * (first->cols - 1 - c) + c % 2);
    for (uint32_t k = 0; k < param->n_matrices; k++)
        first[k].place = (zfi_place_t){.visible = visible + k * first->rows * stride * zfi_dtype_nbytes(dtype),
                                       .dtype = dtype,
                                       .row_stride = (int64_t)stride,
                                       .col_offset = kind == 2 ? world->col_offset[i] : NULL};
}

/* Where each matrix begins in the arrays that they share; out: their lengths. */
static void number_matrices(world_t *world, uint64_t *out_grad, uint64_t *out_index, uint64_t *out_channels) {
    uint64_t grad = 0, index = 0, channels = 0;
    for (uint32_t i = 0; i < world->data.n_matrices; i++) {
        zfi_data_matrix_t *matrix = &world->matrices[i];
        uint64_t n = matrix->k * world_channel_elems(matrix);
        matrix->sel_base = world->n_selected;
        matrix->grad_base = grad;
        matrix->index_base = index;
        matrix->channel_base = matrix->sum_base = channels;
        world->dense_base[i] = world->n_dense;
        world->n_selected += n;
        grad += (n * zfi_dtype_nbytes(world->params[matrix->param].grad_dtype) + 3) / 4 * 4;
        index += matrix->k;
        channels += matrix->n_channels;
        world->n_dense += matrix->rows * matrix->cols;
    }
    *out_grad = grad;
    *out_index = index;
    *out_channels = channels;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* k different channels in random order: positions keep a channel until it leaves. */
static void draw_selection(world_t *world, const zfi_data_matrix_t *matrix) {
    uint32_t *index = world->data.index + matrix->index_base;
    uint8_t *mask = world->data.masks[0] + matrix->channel_base;
    for (uint32_t pos = 0; pos < matrix->k; pos++) {
        uint32_t channel = pos;
        while (matrix->has_sums && mask[channel = (uint32_t)world_below(world, matrix->n_channels)])
            ;
        index[pos] = channel;
        mask[channel] = 1;
    }
}

/* Half of what is selected shows its state, as it does unless the host has written there. */
static void show_selection(world_t *world, const zfi_data_matrix_t *matrix) {
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        for (uint64_t i = 0; i < world_channel_elems(matrix); i++)
            if (world_below(world, 2))
                world_store(world_visible(matrix, world_element(matrix, world_channel(world, matrix, pos), i)),
                            matrix->place.dtype, 0, world->data.w[world_compact(matrix, pos, i)]);
}

/* ---- segments and pieces ----------------------------------------------------------------------------------------- */

/* Matrices are cut into one to three segments; a piece takes one or two of them of one gradient type, listed in falling
 * order. */
static void draw_pieces(world_t *world) {
    uint32_t n_segments = 0;
    for (uint32_t i = 0; i < world->data.n_matrices; i++) {
        uint64_t n = world->matrices[i].rows * world->matrices[i].cols, from = 0;
        for (int left = (int)world_below(world, 3); from < n; left--) {
            uint64_t take = left > 0 ? 1 + world_below(world, n - from) : n - from;
            world->segments[n_segments++] =
                (zfi_data_segment_t){.matrix = i, .n_elems = (uint32_t)take, .matrix_offset = from};
            from += take;
        }
    }
    for (uint32_t s = 0; s < n_segments;) {
        const zfi_data_matrix_t *first = &world->matrices[world->segments[s].matrix];
        zfi_data_piece_t *piece = &world->pieces[world->n_pieces++];
        *piece = (zfi_data_piece_t){.first_segment = s,
                                    .grad_dtype = world->params[first->param].grad_dtype,
                                    .dense_base = world->dense_base[world->segments[s].matrix] +
                                                  world->segments[s].matrix_offset};
        do {
            world->segments[s].piece_offset = piece->n_elems;
            piece->n_elems += world->segments[s].n_elems;
            piece->n_segments++;
            s++;
        } while (s < n_segments && piece->n_segments < 2 &&
                 world->params[world->matrices[world->segments[s].matrix].param].grad_dtype == piece->grad_dtype);
    }
    world->data.n_pieces = world->n_pieces;
    for (uint32_t i = 0; i < world->n_pieces; i++)
        world->listed_pieces[i] = world->n_pieces - 1 - i;
}

/* ---- start, end -------------------------------------------------------------------------------------------------- */

static void draw_state(world_t *world) {
    zfi_data_t *data = &world->data;
    uint64_t n_grad, n_index, n_channels;
    number_matrices(world, &n_grad, &n_index, &n_channels);
    data->w = floats(world, "w", world->n_selected);
    data->m = floats(world, "m", world->n_selected);
    data->v = zfi_rule_has_v(data->rule) ? floats(world, "v", world->n_selected) : NULL;
    for (uint64_t i = 0; i < world->n_selected && data->v; i++)
        data->v[i] = data->v[i] < 0 ? -data->v[i] : data->v[i];
    data->grad = world_array(world, "grad", WORLD_BYTES, n_grad, 1);
    for (uint32_t i = 0; i < data->n_matrices; i++)
        world_fill(world, data->grad + world->matrices[i].grad_base, world->params[world->matrices[i].param].grad_dtype,
                   world->matrices[i].k * world_channel_elems(&world->matrices[i]));
    data->index = words(world, "index", n_index, 1);
    data->masks[0] = world_array(world, "mask", WORLD_BYTES, n_channels, 1);
    data->masks[1] = world_array(world, "other mask", WORLD_BYTES, n_channels, 1);
    data->n = words(world, "n", data->counts_per_channel ? n_index : data->n_matrices, 5);
    data->sums[0] = doubles(world, "sums[0]", n_channels);
    data->sums[1] = doubles(world, "sums[1]", n_channels);
    data->sum_squares = doubles(world, "sum_squares", WORLD_PARAMS);
    data->has_nonfinite = world_array(world, "has_nonfinite", WORLD_BYTES, WORLD_PARAMS, 1);
    data->sum1 = floats(world, "sum1", world->n_dense);
    data->sum2 = floats(world, "sum2", world->n_dense);
    data->has_dense = world_array(world, "has_dense", WORLD_BYTES, data->n_matrices, 1);
    data->held = calloc(WORLD_PARAMS, sizeof *data->held);
    data->scalars = calloc(n_index + 1, sizeof *data->scalars);
    data->stats_matrices = calloc(WORLD_MATRICES, sizeof *data->stats_matrices);
    data->overwritten = world_array(world, "overwritten", WORLD_BYTES, WORLD_PARAMS, 1);
    data->is_foreign = world_array(world, "is_foreign", WORLD_BYTES, WORLD_PARAMS, 1);
    for (uint32_t i = 0; i < WORLD_PARAMS; i++)
        data->is_foreign[i] = world_below(world, 5) == 0;
    world->digests = world_array(world, "digests", WORLD_BYTES, data->n_matrices, sizeof *world->digests);
    for (uint32_t i = 0; i < data->n_matrices; i++)
        world->digests[i] = world_below(world, UINT64_MAX);
    data->digests = world_below(world, 6) ? world->digests : NULL;
    ck_assert(data->held && data->scalars && data->stats_matrices);
}

static void draw_step(world_t *world) {
    for (uint32_t g = 0; g < WORLD_GROUPS; g++)
        world->hyper[g] = (zfi_hyper_t){0.01 * (g + 1), 0.9, 0.99 + 0.005 * g, 1e-8, 0.1 * g};
    for (uint32_t i = 0; i < WORLD_PARAMS; i++) {
        zfi_dtype_t dtype = world->params[i].grad_dtype;
        world->present[i] = world_below(world, 4) != 0;
        world->grad[i] = world_array(world, "gradient", WORLD_BYTES, world->params[i].n_elems, zfi_dtype_nbytes(dtype));
        world_fill(world, world->grad[i], dtype, world->params[i].n_elems);
        world->data.held[i] = world->grad[i];
    }
}

void world_start(world_t *world, uint64_t seed) {
    zfi_data_t *data = &world->data;
    memset(world, 0, sizeof *world);
    world->random = seed * 0x2545f4914f6cdd1du;
    data->params = world->params;
    data->matrices = world->matrices;
    data->segments = world->segments;
    data->pieces = world->pieces;
    data->listed_pieces = world->listed_pieces;
    data->listed_matrices = world->listed_matrices;
    data->merge_from = world->merge_from;
    data->totals = &world->totals;
    data->n_params = WORLD_PARAMS;
    data->rule = (zfi_rule_t)(seed % ZFI_N_RULES);
    data->moments = (zfi_moments_t)world_below(world, ZFI_N_MOMENTS);
    data->counts_per_channel = (int)world_below(world, 2);
    for (uint32_t i = 0; i < WORLD_PARAMS; i++)
        draw_param(world, i);
    for (uint32_t i = 0; i < data->n_matrices; i++)
        world->listed_matrices[i] = data->n_matrices - 1 - i;
    draw_state(world);
    for (uint32_t i = 0; i < WORLD_PARAMS; i++)
        draw_place(world, i);
    for (uint32_t i = 0; i < data->n_matrices; i++) {
        draw_selection(world, &world->matrices[i]);
        show_selection(world, &world->matrices[i]);
    }
    draw_pieces(world);
    draw_step(world);
}

void world_end(world_t *world) {
    for (uint32_t i = 0; i < world->n_arrays; i++)
        free(world->arrays[i].at);
    free(world->data.held);
    free(world->data.scalars);
    free(world->data.stats_matrices);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static int is_same(const world_array_t *a, const world_array_t *b, uint64_t i, size_t elem) {
    const unsigned char *x = a->at + i * elem, *y = b->at + i * elem;
    if (memcmp(x, y, elem) == 0)
        return 1;
    if (a->kind == WORLD_FLOATS) {
        float p = *(const float *)(const void *)x, q = *(const float *)(const void *)y;
        return p != p && q != q;
    }
    if (a->kind == WORLD_DOUBLES) {
        double p = *(const double *)(const void *)x, q = *(const double *)(const void *)y;
        return p != p && q != q;
    }
    return 0;
}

static void check_totals(const zfi_totals_t *want, const zfi_totals_t *got, const char *table, const char *what) {
    ck_assert_msg(memcmp(want, got, sizeof *want) == 0,
                  "%s, %s: totals are %llu %llu %llu %llu, wanted %llu %llu %llu %llu", table, what,
                  (unsigned long long)got->n_applied, (unsigned long long)got->n_skipped,
                  (unsigned long long)got->n_overwritten, (unsigned long long)got->n_params_overwritten,
                  (unsigned long long)want->n_applied, (unsigned long long)want->n_skipped,
                  (unsigned long long)want->n_overwritten, (unsigned long long)want->n_params_overwritten);
}

void world_check(const world_t *want, const world_t *got, const char *table, const char *what) {
    ck_assert_uint_eq(want->n_arrays, got->n_arrays);
    for (uint32_t a = 0; a < want->n_arrays; a++) {
        const world_array_t *x = &want->arrays[a], *y = &got->arrays[a];
        size_t elem = x->kind == WORLD_DOUBLES ? 8 : x->kind == WORLD_FLOATS ? 4 : 1;
        ck_assert(x->nbytes == y->nbytes && strcmp(x->name, y->name) == 0);
        for (uint64_t i = 0; i < x->nbytes / elem; i++)
            if (!is_same(x, y, i, elem))
                ck_abort_msg("%s, %s: array %u (%s) differs at %llu of %llu", table, what, a, x->name,
                             (unsigned long long)i, (unsigned long long)(x->nbytes / elem));
    }
    check_totals(&want->totals, &got->totals, table, what);
}

uint64_t world_digest(const zfi_data_matrix_t *matrix) {
    uint64_t sum = 0;
    for (uint64_t e = 0; e < matrix->rows * matrix->cols; e++) {
        uint32_t bits = 0;
        memcpy(&bits, world_visible(matrix, e), zfi_dtype_nbytes(matrix->place.dtype));
        sum += zfi_digest_element(bits, e);
    }
    return sum;
}

/* The wanted digests move by what the naive loops of a trial have written; sign -1 before it and 1 after it. */
static void count_digests(world_t *world, uint64_t sign) {
    for (uint32_t i = 0; i < world->data.n_matrices && world->data.digests; i++)
        world->digests[i] += sign * world_digest(&world->matrices[i]);
}

void world_try(world_trial_fn trial, const char *what) {
    const zfi_kernels_t *tables[ZFI_N_ISAS];
    int n_tables = available_tables(tables);
    world_t *want = malloc(sizeof *want), *got = malloc(sizeof *got);
    ck_assert(want && got);
    for (int t = 0; t < n_tables; t++)
        for (uint64_t seed = 1; seed <= 30; seed++) {
            world_start(want, seed);
            world_start(got, seed);
            count_digests(want, UINT64_MAX);
            trial(want, got, tables[t], seed);
            count_digests(want, 1);
            world_check(want, got, tables[t]->name, what);
            world_end(want);
            world_end(got);
        }
    free(want);
    free(got);
}
