/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch.c - kernels of a step (kernels/launch.h) against naive loops: delivered gradients, their statistics, the
 * step's scalars, the update of what is selected. world.h says how they are compared. */
#include <launch.h>

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"
#include "world.h"

#define LAUNCH(table, kernel, args) zfi_launch_cpu[kernel](table, args)

/* ---- collect ----------------------------------------------------------------------------------------------------- */

enum { N_DELIVERIES = 3 * WORLD_PARAMS, N_STRIDED = 3 };

static const uint32_t flags_of[] = {ZFI_GRADIENT_SHIP,
                                    ZFI_GRADIENT_SHIP | ZFI_GRADIENT_KEEP,
                                    ZFI_GRADIENT_SHIP | ZFI_GRADIENT_STRIDED,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_SUM_FIRST,
                                    ZFI_GRADIENT_SUM,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_SHIP,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_SUM_FIRST | ZFI_GRADIENT_SHIP,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_SHIP,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_SUM_FIRST,
                                    ZFI_GRADIENT_SUM | ZFI_GRADIENT_KEEP,
                                    ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_SHIP,
                                    ZFI_GRADIENT_KEEP,
                                    ZFI_GRADIENT_STRIDED};
enum { N_FLAGS = sizeof flags_of / sizeof *flags_of };

/* Where element i of a [rows][cols] gradient lies: transposed; in eight dimensions with its columns backwards; one axis
 * with gaps. */
static int64_t strided_at(int variant, int64_t rows, int64_t cols, int64_t i) {
    int64_t r = i / cols, c = i % cols;
    if (variant == 0)
        return c * rows + r;
    return variant == 1 ? r * 2 * cols + 2 * (cols - 1 - c) : 3 * i;
}

static void describe_strides(zfi_gradient_t *gradient, int variant, int64_t rows, int64_t cols, size_t elem) {
    static const int64_t none[ZFI_LAUNCH_NDIM];
    int64_t shapes[N_STRIDED][ZFI_LAUNCH_NDIM] = {{rows, cols}, {1, 1, rows, 1, cols, 1, 1, 1}, {rows * cols}};
    int64_t strides[N_STRIDED][ZFI_LAUNCH_NDIM] = {{1, rows}, {9, 9, 2 * cols, 7, -2, 5, 5, 5}, {3}};
    static const int ndims[N_STRIDED] = {2, 8, 1};
    memcpy(gradient->shape, none, sizeof none);
    gradient->ndim = ndims[variant];
    memcpy(gradient->shape, shapes[variant], sizeof none);
    memcpy(gradient->strides, strides[variant], sizeof none);
    gradient->source = (const unsigned char *)gradient->source + strided_at(variant, rows, cols, 0) * (int64_t)elem;
}

typedef struct delivery {
    const void *memory; /* that a strided source lies in */
    int variant;
} delivery_t;

/* Several deliveries of every parameter, one behind the other; staging and sum are the parameter's. */
static void draw_deliveries(world_t *world, zfi_gradient_t *out, delivery_t *deliveries) {
    void *staging[WORLD_PARAMS];
    float *sums[WORLD_PARAMS];
    for (uint32_t p = 0; p < WORLD_PARAMS; p++) {
        const zfi_data_param_t *param = &world->params[p];
        staging[p] = world_array(world, "staging", WORLD_BYTES, param->n_elems, zfi_dtype_nbytes(param->grad_dtype));
        sums[p] = world_array(world, "sum of parts", WORLD_FLOATS, param->n_elems, sizeof(float));
        world_fill(world, sums[p], ZFI_F32, param->n_elems);
    }
    for (uint32_t i = 0; i < N_DELIVERIES; i++) {
        uint32_t p = i % WORLD_PARAMS;
        const zfi_data_param_t *param = &world->params[p];
        const zfi_data_matrix_t *matrix = &world->matrices[param->first_matrix];
        int64_t rows = (int64_t)(matrix->rows * param->n_matrices), cols = (int64_t)matrix->cols;
        size_t elem = zfi_dtype_nbytes(param->grad_dtype);
        void *source = world_array(world, "source", WORLD_BYTES, 3 * param->n_elems, elem);
        world_fill(world, source, param->grad_dtype, 3 * param->n_elems);
        deliveries[i] = (delivery_t){source, (int)world_below(world, N_STRIDED)};
        out[i] = (zfi_gradient_t){.param = p,
                                  .flags = flags_of[world_below(world, N_FLAGS)],
                                  .source = source,
                                  .grad = staging[p],
                                  .sum = sums[p]};
        if (out[i].flags & ZFI_GRADIENT_STRIDED)
            describe_strides(&out[i], deliveries[i].variant, rows, cols, elem);
    }
}

static void naive_collect(const world_t *world, const zfi_gradient_t *gradient, const delivery_t *delivery) {
    const zfi_data_param_t *param = &world->params[gradient->param];
    const zfi_data_matrix_t *matrix = &world->matrices[param->first_matrix];
    int64_t cols = (int64_t)matrix->cols, rows = (int64_t)(matrix->rows * param->n_matrices);
    uint32_t flags = gradient->flags;
    for (uint64_t i = 0; i < param->n_elems; i++) {
        int is_strided = (flags & ZFI_GRADIENT_STRIDED) != 0;
        uint64_t from = is_strided ? (uint64_t)strided_at(delivery->variant, rows, cols, (int64_t)i) : i;
        float g = world_load(delivery->memory, param->grad_dtype, from);
        if (flags & (ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_KEEP))
            world_store(gradient->grad, param->grad_dtype, i, g);
        if (flags & ZFI_GRADIENT_SUM)
            gradient->sum[i] = flags & ZFI_GRADIENT_SUM_FIRST ? g : gradient->sum[i] + g;
        if ((flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM)) && (flags & ZFI_GRADIENT_SHIP))
            world_store(gradient->grad, param->grad_dtype, i, gradient->sum[i]);
    }
}

static void try_collect(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_gradient_t gradients[2][N_DELIVERIES];
    delivery_t deliveries[2][N_DELIVERIES];
    zfi_gradients_args_t args = {&got->data, gradients[1], N_DELIVERIES, (uint32_t)(seed & 1), 1};
    draw_deliveries(want, gradients[0], deliveries[0]);
    draw_deliveries(got, gradients[1], deliveries[1]);
    for (uint32_t i = 0; i < N_DELIVERIES; i++)
        naive_collect(want, &gradients[0][i], &deliveries[0][i]);
    LAUNCH(table, ZFI_KERNEL_COLLECT, &args);
}

START_TEST(collect) { world_try(try_collect, "collect"); }
END_TEST

START_TEST(collect_of_no_axis) { /* a tensor of one element and no dimension */
    zfi_data_param_t param = {.n_elems = 1};
    zfi_data_t data = {.params = &param};
    float source = 3.0f, staging = 0.0f;
    zfi_gradient_t gradient = {.flags = ZFI_GRADIENT_STRIDED, .source = &source, .grad = &staging};
    zfi_gradients_args_t args = {&data, &gradient, 1, 0, 0};
    LAUNCH(zfi_kernels_of(ZFI_ISA_GENERIC), ZFI_KERNEL_COLLECT, &args);
    ck_assert(staging == 3.0f);
}
END_TEST

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* From the gradient of the whole parameter. */
static void naive_gather(const world_t *world, const zfi_data_matrix_t *matrix, const unsigned char *grad) {
    size_t elem = zfi_dtype_nbytes(world->params[matrix->param].grad_dtype);
    unsigned char *to = world->data.grad + matrix->grad_base;
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        for (uint64_t i = 0; i < world_channel_elems(matrix); i++) {
            uint64_t at = world_compact(matrix, pos, i) - matrix->sel_base;
            uint64_t from = matrix->param_offset + world_element(matrix, world_channel(world, matrix, pos), i);
            memcpy(to + at * elem, grad + from * elem, elem);
        }
}

static void try_gather(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    uint32_t number = (uint32_t)(seed % want->data.n_matrices);
    const zfi_data_matrix_t *matrix = &got->matrices[number];
    size_t elem = zfi_dtype_nbytes(got->params[matrix->param].grad_dtype);
    const unsigned char *grad = got->grad[matrix->param];
    zfi_gather_args_t args = {&got->data, number, grad + matrix->param_offset * elem};
    naive_gather(want, &want->matrices[number], want->grad[matrix->param]);
    LAUNCH(table, ZFI_KERNEL_GATHER, &args);
}

START_TEST(gather) { world_try(try_gather, "gather"); }
END_TEST

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* kernels.h: blocks of 4096, 32 lanes each, a tree. */
static double sum_in_lanes(const double *x, uint64_t n) {
    double total = 0.0;
    for (uint64_t block = 0; block < n; block += ZFI_SUM_BLOCK_ELEMS) {
        double lanes[ZFI_SUM_LANES] = {0.0};
        for (uint64_t i = block; i < n && i < block + ZFI_SUM_BLOCK_ELEMS; i++)
            lanes[i % ZFI_SUM_LANES] += x[i];
        for (uint32_t off = ZFI_SUM_LANES / 2; off; off /= 2)
            for (uint32_t l = 0; l < off; l++)
                lanes[l] += lanes[l + off];
        total += lanes[0];
    }
    return total;
}

/* ... of one column, in blocks of 64 rows. */
static double sum_in_rows(const double *x, uint64_t rows, uint64_t cols, uint64_t c) {
    double total = 0.0;
    for (uint64_t block = 0; block < rows; block += ZFI_SUM_BLOCK_ROWS) {
        double sum = 0.0;
        for (uint64_t r = block; r < rows && r < block + ZFI_SUM_BLOCK_ROWS; r++)
            sum += x[r * cols + c];
        total += sum;
    }
    return total;
}

static void naive_statistics(world_t *world, uint32_t p, uint32_t turn) {
    const zfi_data_param_t *param = &world->params[p];
    double *magnitudes = calloc(param->n_elems, sizeof *magnitudes), *squares = calloc(param->n_elems, sizeof *squares);
    uint64_t first = world->matrices[param->first_matrix].param_offset, end = first + param->n_read;
    ck_assert(magnitudes && squares);
    world->data.has_nonfinite[p] = 0;
    for (uint64_t i = first; i < end; i++) {
        double g = world_load(world->grad[p], param->grad_dtype, i);
        magnitudes[i] = fabs(g);
        squares[i] = g * g;
        if (!isfinite(g))
            world->data.has_nonfinite[p] = 1;
    }
    world->data.sum_squares[p] = sum_in_lanes(squares + first, end - first);
    for (uint32_t k = param->first_matrix; k < param->first_matrix + param->n_matrices; k++) {
        const zfi_data_matrix_t *matrix = &world->matrices[k];
        const double *x = magnitudes + matrix->param_offset;
        for (uint32_t c = 0; c < matrix->n_channels && matrix->has_sums; c++)
            world->data.sums[turn][matrix->sum_base + c] = matrix->channels_are_rows
                                                               ? sum_in_lanes(x + c * matrix->cols, matrix->cols)
                                                               : sum_in_rows(x, matrix->rows, matrix->cols, c);
    }
    free(magnitudes);
    free(squares);
}

/* Some matrices are another rank's, or all: statistics are taken of those between. */
static void leave_out(world_t *world, uint64_t seed) {
    zfi_data_param_t *param = &world->params[1];
    uint32_t first = (uint32_t)(seed % (param->n_matrices + 1));
    uint64_t each = param->n_elems / param->n_matrices;
    param->first_matrix += first < param->n_matrices ? first : 0;
    param->n_matrices = (uint32_t)(seed / 7 % (param->n_matrices - first + 1));
    param->n_read = param->n_matrices * each;
}

/* Some gradients are not finite. */
static void spoil(world_t *world) {
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (uint32_t p = 0; p < WORLD_PARAMS; p++)
        if (world_below(world, 4) == 0)
            world_store(world->grad[p], world->params[p].grad_dtype, world_below(world, world->params[p].n_elems),
                        bad[world_below(world, 3)]);
}

static void try_statistics(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_gradient_t gradients[WORLD_PARAMS];
    zfi_gradients_args_t args = {&got->data, gradients, WORLD_PARAMS, (uint32_t)(seed & 1), seed % 3 != 0};
    const void **held = got->data.held;
    spoil(want);
    spoil(got);
    leave_out(want, seed);
    leave_out(got, seed);
    for (uint32_t p = 0; p < WORLD_PARAMS; p++) {
        uint32_t other = (uint32_t)world_below(want, 3) == 0 ? 0 : ZFI_GRADIENT_SHIP;
        gradients[p] = (zfi_gradient_t){.param = p, .flags = other | ZFI_GRADIENT_KEEP, .grad = got->grad[p]};
        held[p] = NULL;
        if (!other)
            continue;
        naive_statistics(want, p, args.turn);
        for (uint32_t k = 0; k < want->params[p].n_matrices && args.gathers; k++)
            naive_gather(want, &want->matrices[want->params[p].first_matrix + k], want->grad[p]);
    }
    got->data.held = seed % 4 ? held : NULL;
    LAUNCH(table, ZFI_KERNEL_STATISTICS, &args);
    got->data.held = held;
    for (uint32_t p = 0; p < WORLD_PARAMS; p++)
        ck_assert_ptr_eq(held[p], seed % 4 && (gradients[p].flags & ZFI_GRADIENT_SHIP) ? got->grad[p] : NULL);
}

START_TEST(statistics) { world_try(try_statistics, "statistics"); }
END_TEST

/* ---- norm, scalars, report --------------------------------------------------------------------------------------- */

static void try_norm_part(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_norm_part_t part = {-1.0, 99};
    zfi_norm_part_args_t args = {&got->data, {got->hyper, got->present}, &part};
    double sum = 0.0;
    int64_t bad = ZFI_NO_PARAM;
    for (uint32_t p = 0; p < WORLD_PARAMS; p++)
        got->data.has_nonfinite[p] = want->data.has_nonfinite[p] = seed % 3 ? world_below(want, 2) == 0 : 0;
    for (uint32_t p = 0; p < WORLD_PARAMS; p++)
        if (want->present[p] && want->params[p].counts_in_norm)
            sum += want->data.sum_squares[p];
    for (uint32_t p = WORLD_PARAMS; p-- > 0;)
        if (want->present[p] && want->data.has_nonfinite[p])
            bad = p;
    LAUNCH(table, ZFI_KERNEL_NORM_PART, &args);
    ck_assert(part.sum_squares == sum && part.nonfinite_param == bad);
}

START_TEST(norm_part) { world_try(try_norm_part, "norm part"); }
END_TEST

typedef struct scalars_case {
    zfi_norm_part_t parts[3];
    double unscale, clip_norm, host_norm;
    double norm, clip_factor;
    int has_host_norm, applied;
    int64_t nonfinite_param;
} scalars_case_t;

#define FINE ZFI_NO_PARAM
#define PARTS(a, b, c) .parts = {{a, FINE}, {b, FINE}, {c, FINE}}

static const scalars_case_t cases[] = {
    {PARTS(9, 4, 3), .unscale = 0.5, .norm = 2, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 2, .norm = 4, .clip_factor = 2 / (4 + 1e-6), .applied = 1,
     .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 8, .norm = 4, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 0.25, .clip_norm = 1, .host_norm = 3, .has_host_norm = 1, .norm = 3,
     .clip_factor = 1 / (3 + 1e-6), .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .host_norm = -1, .has_host_norm = 1, .norm = -1, .clip_factor = 1,
     .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 1, .host_norm = NAN, .has_host_norm = 1, .norm = NAN, .clip_factor = 1,
     .nonfinite_param = FINE},
    {PARTS(9, INFINITY, 3), .unscale = 1, .clip_norm = 1, .norm = INFINITY, .clip_factor = 0, .nonfinite_param = FINE},
    {PARTS(0, 0, 0), .unscale = 1e300, .clip_norm = 1, .norm = 0, .clip_factor = 1, .nonfinite_param = FINE},
    {PARTS(0, 0, 0), .unscale = 1, .clip_norm = 1, .norm = 0, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {.parts = {{9, FINE}, {4, 7}, {3, 2}}, .unscale = 1, .norm = 4, .clip_factor = 1, .nonfinite_param = 2},
    {.parts = {{9, 0}, {4, 7}, {3, FINE}}, .unscale = 1, .norm = 4, .clip_factor = 1, .nonfinite_param = 0},
    {.parts = {{9, FINE}, {4, FINE}, {3, 5}},
     .unscale = 1,
     .host_norm = 4,
     .has_host_norm = 1,
     .norm = 4,
     .clip_factor = 1,
     .nonfinite_param = 5},
};

static int same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

START_TEST(step_scalars) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const scalars_case_t *c = &cases[i];
        zfi_step_scalars_t out;
        zfi_scalars_args_t args = {c->parts, 3, c->unscale, c->clip_norm, c->has_host_norm ? &c->host_norm : NULL,
                                   &out};
        memset(&out, 0x55, sizeof out);
        LAUNCH(zfi_kernels_of(ZFI_ISA_GENERIC), ZFI_KERNEL_SCALARS, &args);
        ck_assert_msg(same(out.norm, c->norm) && out.clip_factor == c->clip_factor &&
                          out.s_exact == c->unscale * c->clip_factor && out.s == (float)out.s_exact &&
                          out.applied == c->applied && out.nonfinite_param == c->nonfinite_param,
                      "case %zu: norm %g, factor %g, s %g, applied %d, parameter %d", i, out.norm, out.clip_factor,
                      out.s_exact, out.applied, (int)out.nonfinite_param);
    }
}
END_TEST

START_TEST(parts_are_added_by_rank) { /* 1 + 1 + 2^53 and 2^53 + 1 + 1 differ */
    zfi_norm_part_t rising[] = {{1, FINE}, {1, FINE}, {0x1p53, FINE}},
                    falling[] = {{0x1p53, FINE}, {1, FINE}, {1, FINE}};
    zfi_step_scalars_t up, down, one;
    zfi_scalars_args_t args = {rising, 3, 1.0, 0.0, NULL, &up};
    const zfi_kernels_t *table = zfi_kernels_of(ZFI_ISA_GENERIC);
    LAUNCH(table, ZFI_KERNEL_SCALARS, &args);
    args.parts = falling;
    args.out = &down;
    LAUNCH(table, ZFI_KERNEL_SCALARS, &args);
    ck_assert(up.norm == sqrt(0x1p53 + 2) && down.norm == sqrt(0x1p53));
    args.n_parts = 1;
    args.parts = rising;
    args.out = &one;
    LAUNCH(table, ZFI_KERNEL_SCALARS, &args);
    ck_assert(one.norm == 1.0);
}
END_TEST

START_TEST(report) {
    zfi_totals_t totals = {10, 20, 30, 40, 0};
    zfi_data_t data = {.totals = &totals};
    zfi_step_scalars_t scalars = {.norm = 2, .clip_factor = 0.5, .s_exact = 0.25, .s = 0.25f, .nonfinite_param = 3};
    zfi_step_scalars_t out = {0};
    zfi_report_args_t args = {&data, &scalars, &out};
    for (int applied = 0; applied < 2; applied++) {
        scalars.applied = applied;
        LAUNCH(zfi_kernels_of(ZFI_ISA_GENERIC), ZFI_KERNEL_REPORT, &args);
        ck_assert(out.norm == 2 && out.clip_factor == 0.5 && out.s_exact == 0.25 && out.s == 0.25f);
        ck_assert(out.applied == applied && out.nonfinite_param == 3);
    }
    ck_assert(totals.n_applied == 11 && totals.n_skipped == 21 && totals.n_overwritten == 30 &&
              totals.n_params_overwritten == 40);
}
END_TEST

/* ---- run-ahead --------------------------------------------------------------------------------------------------- */

/* One element's update and its visible value by the reference. */
static void naive_update(world_t *world, const zfi_data_matrix_t *matrix, uint32_t pos, uint64_t i,
                         const zfi_scalars_t *scalars) {
    uint64_t at = world_compact(matrix, pos, i);
    zfi_dtype_t dtype = world->params[matrix->param].grad_dtype;
    zfi_run_ahead_t job = {.w = world->data.w + at,
                           .m = world->data.m + at,
                           .v = world->data.v ? world->data.v + at : NULL,
                           .grad =
                               world->data.grad + matrix->grad_base + (at - matrix->sel_base) * zfi_dtype_nbytes(dtype),
                           .grad_dtype = dtype,
                           .sub = {.n_rows = 1, .n_cols = 1},
                           .scalars = scalars};
    job.place.dtype = matrix->place.dtype;
    job.place.visible = world_visible(matrix, world_element(matrix, world_channel(world, matrix, pos), i));
    (void)zfi_kernels_ref()->run_ahead[world->data.rule](&job);
}

static void naive_run_ahead(world_t *world, uint32_t number, float s, int counts_only) {
    const zfi_data_matrix_t *matrix = &world->matrices[number];
    const zfi_hyper_t *hyper = &world->hyper[world->params[matrix->param].group];
    if (!world->data.counts_per_channel)
        world->data.n[number]++;
    for (uint32_t pos = 0; pos < matrix->k && !counts_only; pos++) {
        uint32_t *n = &world->data.n[world->data.counts_per_channel ? matrix->index_base + pos : number];
        zfi_scalars_t scalars;
        if (world->data.counts_per_channel)
            ++*n;
        scalars = zfi_rule_scalars(world->data.rule, hyper, s, *n);
        for (uint64_t i = 0; i < world_channel_elems(matrix); i++)
            naive_update(world, matrix, pos, i, &scalars);
    }
}

static void try_run_ahead(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_step_scalars_t step = {.s = 0.5f, .applied = seed % 5 != 0};
    uint32_t first = (uint32_t)world_below(want, 3), end = want->data.n_matrices - (uint32_t)world_below(want, 3);
    zfi_run_ahead_args_t args = {&got->data, {got->hyper, got->present}, &step, first, end, seed % 7 == 0};
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = first; i < end && step.applied; i++)
            if (want->present[want->matrices[i].param] && !want->data.is_foreign[want->matrices[i].param])
                naive_run_ahead(want, i, step.s, args.counts_only);
        LAUNCH(table, ZFI_KERNEL_RUN_AHEAD, &args);
    }
}

START_TEST(run_ahead) { world_try(try_run_ahead, "run-ahead"); }
END_TEST

/* What a host's rule is given: it adds the group to the weights and says that the digest moved by 3. */
typedef struct own_rule {
    const world_t *world;
    uint64_t n_calls, n_wrong;
} own_rule_t;

static uint64_t add_group(const void *raw, const zfi_run_ahead_t *job, uint32_t group, const zfi_hyper_t *hyper,
                          const uint32_t *n) {
    own_rule_t *rule = (own_rule_t *)(uintptr_t)raw;
    const zfi_data_t *data = &rule->world->data;
    rule->n_calls++;
    rule->n_wrong += hyper != &rule->world->hyper[group];
    rule->n_wrong += job->scalars != data->scalars || n < data->n;
    for (uint64_t i = 0; i < job->sub.n_rows * job->sub.n_cols; i++)
        job->w[i] += (float)group;
    for (uint64_t i = 0; i < job->sub.n_rows; i++)
        for (uint64_t j = 0; j < job->sub.n_cols; j++) {
            uint64_t at = i * job->scalars_row_stride + j * job->scalars_col_stride;
            zfi_scalars_t scalars = zfi_rule_scalars(data->rule, hyper, 0.5f, n[at]);
            rule->n_wrong += memcmp(&scalars, &job->scalars[at], sizeof scalars) != 0;
        }
    return 3;
}

static void try_own_rule(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_step_scalars_t step = {.s = 0.5f, .applied = 1};
    own_rule_t rule = {.world = got};
    zfi_run_ahead_args_t args = {&got->data, {got->hyper, got->present}, &step, 0, got->data.n_matrices, 0};
    uint64_t n_calls = 0;
    (void)seed;
    got->data.host_rule = add_group;
    got->data.host_rule_ctx = &rule;
    for (uint32_t i = 0; i < want->data.n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &want->matrices[i];
        if (!want->present[matrix->param] || want->data.is_foreign[matrix->param])
            continue;
        want->data.n[i] += !want->data.counts_per_channel;
        for (uint32_t pos = 0; pos < matrix->k && want->data.counts_per_channel; pos++)
            want->data.n[matrix->index_base + pos]++;
        for (uint64_t e = 0; e < matrix->k * world_channel_elems(matrix); e++)
            want->data.w[matrix->sel_base + e] += (float)want->params[matrix->param].group;
        n_calls += matrix->k != 0;
        want->digests[i] += matrix->k && want->data.digests ? 3 : 0;
    }
    LAUNCH(table, ZFI_KERNEL_RUN_AHEAD, &args);
    ck_assert_uint_eq(rule.n_calls, n_calls);
    ck_assert_uint_eq(rule.n_wrong, 0);
}

START_TEST(a_rule_of_the_host) { world_try(try_own_rule, "a rule of the host"); }
END_TEST

ZT_MAIN("launch", collect, collect_of_no_axis, gather, statistics, norm_part, step_scalars, parts_are_added_by_rank,
        report, run_ahead, a_rule_of_the_host)
