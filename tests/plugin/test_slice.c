/* SPDX-License-Identifier: Apache-2.0 */
/* test_slice.c - matrices to ranks (plan/slice.h): each element has one owner, and work is even, counted from the
 * owners alone for the shapes of language models. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/slice.h"
#include "rig.h"
#include "suite.h"

enum { MOST_PARAMS = 1000, INTERVAL = 4 };

typedef struct shape {
    int64_t n_layers, hidden, ffn, kv, vocabulary;
} shape_t;

static const shape_t shapes[] = {{32, 4096, 11008, 4096, 32000},  /* 7B */
                                 {40, 5120, 13824, 5120, 32000},  /* 13B */
                                 {80, 8192, 28672, 1024, 32000}}; /* 70B */

static zf_tensor_t tensors[MOST_PARAMS];
static zf_param_decl_t decls[MOST_PARAMS];
static int64_t sizes[MOST_PARAMS][2];
static char names[MOST_PARAMS][8];
static uint32_t n_params;
static zfi_param_t *params;
static zfi_plan_t plan;
static zfi_buckets_t buckets;
static float nowhere[16]; /* plans do not look at values */

static void add(int64_t rows, int64_t cols) {
    uint32_t i = n_params++;
    sizes[i][0] = rows;
    sizes[i][1] = cols;
    snprintf(names[i], sizeof names[i], "p%u", (unsigned)i);
    zt_tensor(&tensors[i], nowhere, sizes[i], cols ? 2 : 1, 1);
    tensors[i].dl.byte_offset = (uint64_t)i << 34;
    decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i], .name = names[i], .tensor = &tensors[i]};
}

static void declare(const shape_t *s) {
    n_params = 0;
    add(s->vocabulary, s->hidden);
    for (int64_t i = 0; i < s->n_layers; i++) {
        add(s->hidden, 0);
        add(s->hidden, s->hidden);
        add(s->kv, s->hidden);
        add(s->kv, s->hidden);
        add(s->hidden, s->hidden);
        add(s->hidden, 0);
        add(s->ffn, s->hidden);
        add(s->ffn, s->hidden);
        add(s->hidden, s->ffn);
    }
    add(s->hidden, 0);
    add(s->vocabulary, s->hidden);
}

/* What rank `rank` of n_ranks plans; sharded: every parameter with two axes is. */
static void deal(uint32_t rank, uint32_t n_ranks, int is_sharded) {
    zf_error_t err = {.struct_size = sizeof err};
    zfi_config_t config;
    ck_assert_int_eq(zfi_config_parse("", 0, "plan", NULL, 0, &config, &err), ZF_OK);
    config.update_interval = INTERVAL;
    ck_assert_msg(zfi_params_build(decls, n_params, sizeof *decls, ZF_DEVICE_CPU, &params, &err) == ZF_OK, "%s",
                  err.message);
    for (uint32_t i = 0; i < n_params; i++)
        params[i].is_sharded = is_sharded && params[i].ndim > 1;
    ck_assert_int_eq(zfi_buckets_build(params, n_params, 0, &(zfi_member_t){rank, n_ranks}, &buckets), ZF_OK);
    buckets.is_owner = 1;
    ck_assert_msg(zfi_plan_build(&config, params, n_params, &buckets, &plan, &err) == ZF_OK, "%s", err.message);
}

static void end(void) {
    zfi_buckets_free(&buckets);
    zfi_plan_free(&plan);
    zfi_params_free(params, n_params);
}

/* The most of any rank by the mean. cohort = UINT32_MAX: of all. */
static double unevenness(uint32_t n_ranks, uint32_t cohort) {
    double most = 0, all = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        double own = 0;
        for (uint32_t m = 0; m < plan.n_matrices; m++)
            if (cohort == UINT32_MAX || plan.matrices[m].cohort == cohort)
                own += (double)plan.matrices[m].slices[r].n;
        most = own > most ? own : most;
        all += own;
    }
    return most * n_ranks / all;
}

/* Neighbours in rank order, whole rows, a unit apart in size. */
static void check_slices(uint32_t n_ranks) {
    for (uint32_t m = 0; m < plan.n_matrices; m++) {
        const zfi_matrix_t *matrix = &plan.matrices[m];
        uint64_t at = 0,
                 unit = matrix->cols < ZFI_SLICE_ALIGN ? (ZFI_SLICE_ALIGN + matrix->cols - 1) / matrix->cols : 1;
        uint64_t least = matrix->rows / unit / n_ranks * unit;
        for (uint32_t r = 0; r < n_ranks; r++) {
            const zfi_slice_t *slice = &matrix->slices[r];
            uint64_t rows = slice->n / matrix->cols;
            ck_assert_uint_eq(slice->first, at);
            ck_assert_uint_eq(slice->n % matrix->cols, 0);
            at += slice->n;
            if (matrix->is_sharded && matrix->channels_are_rows)
                ck_assert(rows == 0 || rows == matrix->rows);
            else
                ck_assert(rows <= least + unit && (rows + unit > least || at == matrix->rows * matrix->cols));
        }
        ck_assert_uint_eq(at, matrix->rows * matrix->cols);
    }
}

/* What travels of a bucket, by what would have to. */
static double padding(uint32_t n_ranks) {
    uint64_t travels = 0, all = 0;
    for (uint32_t b = 0; b < buckets.n; b++)
        travels += buckets.all[b].part_elems * n_ranks;
    for (uint32_t i = 0; i < n_params; i++)
        all += params[i].n_elems;
    return (double)travels / (double)all;
}

/* The same of published values, of all cohorts: of a bucket and a cohort every rank sends as much as the one with most.
 */
static double value_padding(uint32_t n_ranks) {
    uint64_t travels = 0, all = 0, *own = calloc((uint64_t)INTERVAL * n_ranks, sizeof *own);
    ck_assert_ptr_nonnull(own);
    for (uint32_t b = 0; b < buckets.n; b++) {
        memset(own, 0, INTERVAL * n_ranks * sizeof *own);
        for (uint32_t m = 0; m < plan.n_matrices; m++)
            for (uint32_t r = 0; r < n_ranks && buckets.of_param[plan.matrices[m].param] == b; r++)
                own[plan.matrices[m].cohort * n_ranks + r] += plan.matrices[m].slices[r].n;
        for (uint32_t c = 0; c < INTERVAL; c++) {
            uint64_t most = 0;
            for (uint32_t r = 0; r < n_ranks; r++) {
                most = own[c * n_ranks + r] > most ? own[c * n_ranks + r] : most;
                all += own[c * n_ranks + r];
            }
            travels += most * n_ranks;
        }
    }
    free(own);
    return (double)travels / (double)all;
}

START_TEST(work_is_even) {
    static const uint32_t numbers[] = {2, 3, 4, 8, 64, 512};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            uint32_t n = numbers[i];
            double worst = 0;
            declare(&shapes[s]);
            deal(n - 1, n, 0);
            check_slices(n);
            for (uint32_t c = 0; c < INTERVAL; c++)
                worst = unevenness(n, c) > worst ? unevenness(n, c) : worst;
            printf("shape %zu, %3u ranks: state %.4f, a step %.4f, parts %.4f, values %.4f\n", s, (unsigned)n,
                   unevenness(n, UINT32_MAX), worst, padding(n), value_padding(n));
            ck_assert_double_le(value_padding(n), n <= 64 ? 1.02 : 1.05);
            ck_assert_double_le(unevenness(n, UINT32_MAX), 1.02);
            ck_assert_double_le(worst, 1.05);
            ck_assert_double_le(padding(n), 1.02);
            end();
        }
}
END_TEST

/* In each rank's part slices follow each other, and the longest fits; of values those that are not sharded. */
static void check_parts(uint32_t rank, uint32_t n_ranks) {
    for (uint32_t b = 0; b < buckets.n; b++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            uint64_t at = 0, n_values = 0;
            for (uint32_t i = 0; i < buckets.all[b].n_params; i++) {
                const zfi_param_t *param = &params[buckets.params[buckets.all[b].first + i]];
                if (r == rank)
                    ck_assert_uint_eq(buckets.own_at[param->id], at);
                for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
                    const zfi_slice_t *slice = &plan.matrices[m].slices[r];
                    ck_assert_uint_eq(slice->at, at);
                    at += slice->n;
                    n_values += param->is_sharded ? 0 : slice->n;
                }
            }
            ck_assert_uint_le(at, buckets.all[b].part_elems);
            ck_assert_uint_le(n_values, buckets.all[b].value_elems);
        }
}

/* A rank's state is its slices, what it holds of a sharded matrix too, and its gradients lie in its part. */
static void check_own(uint32_t rank) {
    uint64_t n_owned = 0, n_in_chunks = 0;
    for (uint32_t m = 0; m < plan.n_matrices; m++) {
        const zfi_matrix_t *matrix = &plan.matrices[m];
        ck_assert_int_eq(memcmp(&matrix->own, &matrix->slices[rank], sizeof matrix->own), 0);
        ck_assert_uint_eq(matrix->held_rows * matrix->cols,
                          matrix->is_sharded ? matrix->own.n : matrix->rows * matrix->cols);
        ck_assert_uint_eq(matrix->held_first, matrix->is_sharded ? matrix->own.first : 0);
        ck_assert_uint_eq(matrix->grad_offset + matrix->own.first + buckets.own_at[matrix->param], matrix->own.at);
        n_owned += matrix->own.n;
    }
    for (uint32_t i = 0; i < plan.n_segments; i++) {
        const zfi_segment_t *segment = &plan.segments[i];
        ck_assert(zfi_state_find(&plan.matrices[segment->matrix], segment->matrix_offset) != ZFI_NOT_OWNED);
        n_in_chunks += segment->n_elems;
    }
    ck_assert_uint_eq(n_owned, n_in_chunks);
}

/* Matrices of few rows, of narrow rows, vectors, and rows as channels. */
static void declare_odd(uint64_t seed) {
    n_params = 0;
    for (uint64_t i = 0; i < 12; i++) {
        uint64_t x = zt_hash(seed * 64 + i);
        add((int64_t)(1 + x % 90), (x >> 8) % 3 ? (int64_t)(1 + (x >> 16) % 40) : 0);
        decls[n_params - 1].channels = (x >> 32) % 3 == 0 ? ZF_CHANNELS_ROWS : ZF_CHANNELS_COLUMNS;
    }
}

START_TEST(every_element_has_an_owner) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint32_t n = 1 + (uint32_t)(seed % 9), rank = (uint32_t)(zt_hash(seed) % n);
        declare_odd(seed);
        deal(rank, n, seed % 2 != 0);
        check_slices(n);
        check_parts(rank, n);
        check_own(rank);
        end();
    }
}
END_TEST

ZT_MAIN("slice", work_is_even, every_element_has_an_owner)
