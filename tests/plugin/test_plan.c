/* tests/plugin/test_plan.c - matrices, cohorts, chunks and the slot pool of many random models, against the rules of
 * SCHEDULE.md and a simulation that plays the schedule step by step. */
#include "plan.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "suite.h"

enum { MOST = 12 };

static zf_tensor_t tensors[MOST];
static zf_param_decl_t decls[MOST];
static int64_t sizes[MOST][3];
static char names[MOST][8];
static uint32_t n_params;
static zfi_param_t *params;
static zfi_plan_t plan;
static zfi_config_t config;
static zf_error_t err = {.struct_size = sizeof err};
static float nowhere[16]; /* plans do not look at values */

static void start(uint32_t interval, int stagger, double topk) {
    n_params = 0;
    ck_assert_int_eq(zfi_config_parse("", 0, "plan", NULL, 0, &config, &err), ZF_OK);
    config.update_interval = interval;
    config.stagger = stagger;
    config.topk_ratio = topk;
}

/* b x rows x cols with one batch axis, in a place of its own. */
static void add(int64_t b, int64_t rows, int64_t cols, int is_bf16, uint32_t flags, int32_t channels) {
    uint32_t i = n_params++;
    sizes[i][0] = b;
    sizes[i][1] = rows;
    sizes[i][2] = cols;
    names[i][0] = 'p';
    names[i][1] = (char)('a' + i);
    zt_tensor(&tensors[i], nowhere, sizes[i], 3, is_bf16);
    tensors[i].dl.byte_offset = (uint64_t)i << 40;
    decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i],
                                 .flags = flags,
                                 .name = names[i],
                                 .tensor = &tensors[i],
                                 .n_batch_axes = 1,
                                 .channels = channels};
}

static void build(void) {
    ck_assert_msg(zfi_params_build(decls, n_params, sizeof *decls, ZF_DEVICE_CPU, &params, &err) == ZF_OK, "%s",
                  err.message);
    ck_assert_msg(zfi_plan_build(&config, params, n_params, &plan, &err) == ZF_OK, "%s", err.message);
}

static void end(void) {
    zfi_plan_free(&plan);
    zfi_params_free(params, n_params);
}

static uint64_t elem_nbytes(uint32_t param) { return params[param].dtype == ZFI_F32 ? 4 : 2; }

/* ---- the rules, as SCHEDULE.md writes them ----------------------------------------------------------------------- */

static void check_matrices(void) {
    uint64_t total = 0, c = config.stagger ? config.update_interval : 1;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_params; i++)
        total += params[i].has_state ? params[i].n_elems * elem_nbytes(i) : 0;
    for (uint32_t i = 0; i < n_params; i++) {
        uint64_t bytes = params[i].rows * params[i].cols * elem_nbytes(i), nb = 1, offset = 0;
        ck_assert_uint_eq(params[i].first_matrix, at);
        if (!params[i].has_state)
            continue;
        if (bytes * c > total)
            nb = (bytes * c + total - 1) / total;
        if (nb > params[i].rows)
            nb = params[i].rows;
        for (uint64_t b = 0; b < params[i].n_batch; b++)
            for (uint64_t j = 0; j < nb; j++, at++) {
                const zfi_matrix_t *matrix = &plan.matrices[at];
                ck_assert_uint_eq(matrix->param, i);
                ck_assert_uint_eq(matrix->rows, (j + 1) * params[i].rows / nb - j * params[i].rows / nb);
                ck_assert_uint_eq(matrix->cols, params[i].cols);
                ck_assert_uint_eq(matrix->param_offset, offset);
                offset += matrix->rows * matrix->cols;
            }
        ck_assert_uint_eq(offset, params[i].n_elems);
    }
    ck_assert_uint_eq(at, plan.n_matrices);
}

static void check_selection(void) {
    for (uint32_t i = 0; i < plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan.matrices[i];
        uint32_t flags = params[matrix->param].flags;
        uint64_t channels = matrix->channels_are_rows ? matrix->rows : matrix->cols;
        double k = floor(config.topk_ratio * (double)channels + 0.5);
        if (k < 1)
            k = 1;
        if (k > (double)channels || (flags & ZF_PARAM_ALWAYS_SELECTED))
            k = (double)channels;
        if ((flags & ZF_PARAM_NEVER_SELECTED) || (config.topk_ratio == 0 && !(flags & ZF_PARAM_ALWAYS_SELECTED)))
            k = 0;
        ck_assert_uint_eq(matrix->n_channels, channels);
        ck_assert_uint_eq(matrix->k, (uint32_t)k);
        ck_assert_int_eq(matrix->is_choosable, k > 0 && k < (double)channels);
    }
}

/* Largest first, ties by number, each to the lightest cohort, ties by number: no sorting here, the largest is looked
 * for. */
static void check_cohorts(void) {
    uint64_t *load = calloc(plan.n_cohorts, sizeof *load);
    uint8_t *is_dealt = calloc(plan.n_matrices, 1);
    ck_assert(load && is_dealt);
    for (uint32_t round = 0; round < plan.n_matrices; round++) {
        uint32_t largest = UINT32_MAX, lightest = 0;
        for (uint32_t i = 0; i < plan.n_matrices; i++)
            if (!is_dealt[i] && (largest == UINT32_MAX || plan.matrices[i].nbytes > plan.matrices[largest].nbytes))
                largest = i;
        for (uint32_t j = 1; j < plan.n_cohorts; j++)
            if (load[j] < load[lightest])
                lightest = j;
        ck_assert_uint_eq(plan.matrices[largest].cohort, lightest);
        is_dealt[largest] = 1;
        load[lightest] += plan.matrices[largest].nbytes;
    }
    for (uint32_t j = 0; j < plan.n_cohorts; j++)
        ck_assert_uint_eq(plan.cohorts[j].nbytes, load[j]);
    free(load);
    free(is_dealt);
}

/* Marks elements; how many were marked before. */
static uint64_t cover(uint8_t *marks, uint64_t n) {
    uint64_t twice = 0;
    for (uint64_t i = 0; i < n; i++)
        twice += marks[i]++;
    return twice;
}

/* Every element of every matrix lies in exactly one segment; segments agree with chunks, state, parameters. */
static void check_chunks(void) {
    uint8_t *is_covered = calloc(plan.n_state_elems, 1);
    uint32_t *n_refs = calloc(n_params, sizeof *n_refs);
    uint32_t segment = 0;
    uint64_t n_covered = 0;
    ck_assert(is_covered && n_refs);
    for (uint32_t i = 0; i < plan.n_chunks; i++) {
        const zfi_chunk_t *chunk = &plan.chunks[i];
        ck_assert_uint_eq(chunk->first_segment, segment);
        ck_assert_uint_gt(chunk->n_segments, 0);
        ck_assert_uint_le(chunk->n_elems * (chunk->grad_dtype == ZFI_F32 ? 4u : 2u), plan.piece_nbytes);
        ck_assert_uint_le(chunk->n_elems * (chunk->dtype == ZFI_F32 ? 4u : 2u), plan.publish_piece_nbytes);
        for (; segment < chunk->first_segment + chunk->n_segments; segment++) {
            const zfi_segment_t *s = &plan.segments[segment];
            const zfi_matrix_t *matrix = &plan.matrices[s->matrix];
            const zfi_cohort_plan_t *cohort = &plan.cohorts[matrix->cohort];
            ck_assert(s->chunk == i && i >= cohort->first_chunk && i < cohort->first_chunk + cohort->n_chunks);
            ck_assert_uint_eq(chunk->state_base + s->chunk_offset, matrix->state_base + s->matrix_offset);
            ck_assert_uint_le(s->matrix_offset + s->n_elems, matrix->rows * matrix->cols);
            ck_assert_uint_le(s->chunk_offset + s->n_elems, chunk->n_elems);
            ck_assert(params[matrix->param].dtype == chunk->dtype &&
                      params[matrix->param].grad_dtype == chunk->grad_dtype);
            ck_assert_uint_eq(matrix->state_base % ZFI_STATE_ALIGN, 0);
            ck_assert_uint_le(matrix->state_base + s->matrix_offset + s->n_elems, plan.n_state_elems);
            ck_assert_uint_eq(cover(is_covered + matrix->state_base + s->matrix_offset, s->n_elems), 0);
            n_covered += s->n_elems;
            n_refs[matrix->param]++;
        }
    }
    ck_assert_uint_eq(segment, plan.n_segments);
    ck_assert_uint_eq(n_covered, plan.n_elems);
    for (uint32_t i = 0; i < n_params; i++) {
        ck_assert_uint_eq(params[i].n_refs, n_refs[i]);
        for (uint32_t r = 0; r < n_refs[i]; r++)
            ck_assert_uint_eq(plan.matrices[plan.segments[plan.param_segments[params[i].first_ref + r]].matrix].param,
                              i);
    }
    free(is_covered);
    free(n_refs);
}

static void check_bases(void) {
    uint64_t channels = 0, index = 0, sums = 0, sel = 0;
    uint32_t listed = 0;
    for (uint32_t i = 0; i < plan.n_matrices; i++) {
        const zfi_matrix_t *m = &plan.matrices[i];
        ck_assert(m->channel_base == channels && m->index_base == index && m->sum_base == sums && m->sel_base == sel);
        channels += m->n_channels;
        index += m->k;
        sums += m->is_choosable ? m->n_channels : 0;
        sel += m->k * (m->channels_are_rows ? m->cols : m->rows);
    }
    ck_assert(plan.n_channels == channels && plan.n_index == index && plan.n_sums == sums && plan.n_sel_elems == sel);
    for (uint32_t c = 0; c < plan.n_cohorts; c++)
        for (uint32_t i = 0; i < plan.cohorts[c].n_matrices; i++, listed++) {
            ck_assert_uint_eq(plan.cohorts[c].first_matrix + i, listed);
            ck_assert_uint_eq(plan.matrices[plan.cohort_matrices[listed]].cohort, c);
        }
    ck_assert_uint_eq(listed, plan.n_matrices);
}

/* Plays the schedule: a warm-up step, then windows. A closed window's pieces are held until the next step is over, as
 * its replay may take that long. Returns the most pieces ever held; *mean is over whole rounds of the steady state. */
static uint64_t simulate_pool(double *mean) {
    uint32_t interval = config.update_interval, n = plan.n_cohorts;
    uint64_t *open = calloc(n, sizeof *open), peak = 2u * (uint64_t)plan.n_chunks, sum = 0;
    uint64_t replaying = 0;
    ck_assert(open != NULL);
    for (uint32_t t = 1; t <= 6 * interval; t++) {
        uint64_t held = replaying;
        replaying = 0;
        for (uint32_t c = 0; c < n; c++)
            held += ++open[c] * plan.cohorts[c].n_chunks;
        if (held > peak)
            peak = held;
        if (t > 2 * interval)
            sum += held;
        for (uint32_t c = 0; c < n; c++) {
            uint32_t first = config.stagger ? c + 1 : interval;
            if (t < first || (t - first) % interval)
                continue;
            replaying += open[c] * plan.cohorts[c].n_chunks;
            open[c] = 0;
        }
    }
    *mean = (double)sum / (4.0 * interval) / plan.n_chunks;
    free(open);
    return peak;
}

static void check_pool(void) {
    double mean, half = ((double)config.update_interval + 1) / 2;
    ck_assert_uint_eq(plan.n_slot_pieces, simulate_pool(&mean));
    ck_assert_msg(fabs(plan.slots_mean - mean) < 1e-9, "mean %g, simulated %g", plan.slots_mean, mean);
    ck_assert(plan.slots_peak == (double)plan.n_slot_pieces / plan.n_chunks);
    ck_assert_msg(fabs(mean - (half + 1)) < 1e-9, "%g slots, the formula says %g", mean, half + 1);
}

static void check_all(void) {
    check_matrices();
    check_selection();
    check_cohorts();
    check_chunks();
    check_bases();
    check_pool();
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

START_TEST(random_models) {
    static const uint32_t intervals[] = {1, 2, 3, 4, 8, 16};
    for (uint64_t seed = 0; seed < 100; seed++) {
        uint64_t r = zt_hash(seed);
        start(intervals[r % 6], (r >> 8) % 4 != 0, (double)((r >> 16) % 101) / 100);
        for (uint64_t i = 0; i < 1 + (r >> 24) % MOST; i++) {
            uint64_t x = zt_hash(seed * 64 + i + 1);
            add((int64_t)(1 + x % 3 * (x >> 8) % 4), (int64_t)(1 + (x >> 16) % 90), (int64_t)(1 + (x >> 24) % 70),
                (x >> 32) % 2 != 0,
                (x >> 33) % 5 == 0   ? ZF_PARAM_NEVER_SELECTED
                : (x >> 33) % 5 == 1 ? ZF_PARAM_ALWAYS_SELECTED
                                     : 0,
                (x >> 40) % 3 == 0);
            if ((x >> 48) % 9 == 0)
                decls[n_params - 1].grad_dtype = (zf_dtype_t){ZF_DTYPE_CODE_FLOAT, 32, 1};
        }
        build();
        check_all();
        end();
    }
}
END_TEST

START_TEST(
    equal_cohorts_follow_the_formula) { /* one matrix per cohort, all alike: slots = (S + 1) / 2 + 1 at every step */
    for (uint32_t interval = 1; interval <= 8; interval++) {
        start(interval, 1, 0.1);
        for (uint32_t i = 0; i < interval; i++)
            add(1, 64, 64, 0, 0, 0);
        build();
        check_all();
        ck_assert(plan.slots_peak == fmax(2, ((double)interval + 1) / 2 + 1));
        ck_assert(plan.slots_mean == ((double)interval + 1) / 2 + 1);
        end();
    }
}
END_TEST

START_TEST(a_large_matrix_is_cut) {
    start(4, 1, 0.1);
    add(1, 1000, 100, 0, 0, 0);
    add(1, 10, 10, 0, 0, 0);
    build();
    check_all();
    ck_assert_uint_eq(params[0].n_matrices, 4);
    ck_assert_uint_eq(plan.n_matrices, 5);
    end();
    start(8, 1, 0.1);
    add(1, 3, 1000, 1, 0, 0); /* fewer rows than blocks */
    build();
    check_all();
    ck_assert_uint_eq(plan.n_matrices, 3);
    end();
}
END_TEST

START_TEST(large_and_wide) { /* pieces of all sizes, segments that cross chunks */
    start(4, 1, 0.05);
    add(1, 1500, 700, 0, 0, 0);
    add(1, 600, 900, 1, 0, 1);
    add(2, 7, 3, 0, 0, 0);
    build();
    check_all();
    end();
}
END_TEST

START_TEST(nothing_to_train) {
    start(4, 1, 0.1);
    add(1, 3, 3, 0, ZF_PARAM_FROZEN, 0);
    add(1, 0, 3, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 2, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_eq(zfi_plan_build(&config, params, 2, &plan, &err), ZF_ERR_PARAM);
    ck_assert_ptr_nonnull(strstr(err.message, "none of the 2 parameters"));
    zfi_params_free(params, 2);
}
END_TEST

START_TEST(more_matrices_than_can_be_numbered) { /* a batch axis of 2^33: one matrix each */
    start(4, 1, 0.1);
    add((int64_t)1 << 33, 1, 1, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 1, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_lt(zfi_plan_build(&config, params, 1, &plan, &err), 0);
    zfi_params_free(params, 1);
}
END_TEST

/* topk_ratio = auto: k is open where there is something to choose; device memory for the budget or one channel each. */
static void check_auto(double most, uint64_t expected) {
    start(2, 0, ZFI_TOPK_AUTO);
    config.max_topk_ratio = most;
    add(1, 8, 100, 0, 0, 0);
    add(3, 8, 10, 1, 0, 0);
    add(1, 8, 1, 0, 0, 0); /* one channel: selected */
    add(1, 8, 10, 0, ZF_PARAM_NEVER_SELECTED, 0);
    add(1, 8, 5, 0, ZF_PARAM_ALWAYS_SELECTED, 0);
    build();
    for (uint32_t i = 0; i < plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan.matrices[i];
        ck_assert_int_eq(matrix->is_choosable, matrix->param < 2);
        ck_assert_uint_eq(matrix->k, matrix->param == 2 || matrix->param == 4 ? matrix->n_channels : 0);
        ck_assert_uint_eq(matrix->k_most, matrix->param == 3 ? 0 : matrix->n_channels);
    }
    ck_assert_uint_eq(plan.n_open_elems, 1040);
    ck_assert_uint_eq(plan.n_sel_elems, 48 + expected);
    ck_assert_uint_eq(plan.n_sel_grad_nbytes, 4 * (48 + expected));
    ck_assert_uint_eq(plan.n_index, 130 + 1 + 5);
    end();
}

START_TEST(auto_budget) {
    check_auto(1.0, 1040);
    check_auto(0.2, 208);
    check_auto(0.01, 32); /* four matrices of 8 rows */
}
END_TEST

ZT_MAIN("plan", random_models, equal_cohorts_follow_the_formula, a_large_matrix_is_cut, large_and_wide,
        nothing_to_train, more_matrices_than_can_be_numbered, auto_budget)
