/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_plan.c - matrices, cohorts, chunks and the slot pool of many random models, against the rules of
 * SCHEDULE.md and a simulation that plays the schedule step by step. */
#include "plan/plan.h"

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

static void start(uint32_t interval, double topk) {
    n_params = 0;
    ck_assert_int_eq(zfi_config_parse("", 0, "plan", NULL, 0, &config, &err), ZF_OK);
    config.update_interval = interval;
    config.topk_ratio = topk;
}

/* b x rows x cols with one batch axis, in a place of its own. */
static void add(int64_t b, int64_t rows, int64_t cols, int is_bf16, int32_t home, int32_t channels) {
    uint32_t i = n_params++;
    sizes[i][0] = b;
    sizes[i][1] = rows;
    sizes[i][2] = cols;
    names[i][0] = 'p';
    names[i][1] = (char)('a' + i);
    zt_tensor(&tensors[i], nowhere, sizes[i], 3, is_bf16);
    tensors[i].dl.byte_offset = (uint64_t)i << 40;
    decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i],
                                 .name = names[i],
                                 .tensor = &tensors[i],
                                 .n_batch_axes = 1,
                                 .channels = channels,
                                 .home = home};
}

static void build(void) {
    ck_assert_msg(zfi_params_build(decls, n_params, sizeof *decls, ZF_DEVICE_CPU, &params, &err) == ZF_OK, "%s",
                  err.message);
    ck_assert_msg(zfi_plan_build(&config, params, n_params, NULL, &plan, &err) == ZF_OK, "%s", err.message);
}

static void end(void) {
    zfi_plan_free(&plan);
    zfi_params_free(params, n_params);
}

/* ---- the rules, as SCHEDULE.md writes them ----------------------------------------------------------------------- */

static uint64_t total_elems(void) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_params; i++)
        total += params[i].has_state ? params[i].n_elems : 0;
    return total;
}

/* The fewest blocks of which none has more elements than it may, or is one row: found by trying. */
static uint64_t fewest_blocks(const zfi_param_t *param) {
    uint64_t most = total_elems() / 1024 > config.block_elems ? total_elems() / 1024 : config.block_elems, nb = 1;
    while (nb < param->rows && (param->rows + nb - 1) / nb * param->cols > most)
        nb++;
    return nb;
}

static void check_matrices(void) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_params; i++) {
        uint64_t nb, offset = 0;
        ck_assert_uint_eq(params[i].first_matrix, at);
        if (!params[i].has_state)
            continue;
        nb = fewest_blocks(&params[i]);
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
        int32_t home = params[matrix->param].home;
        uint64_t channels = matrix->channels_are_rows ? matrix->rows : matrix->cols;
        double k = floor(config.topk_ratio * (double)channels + 0.5);
        if (k < 1)
            k = 1;
        if (k > (double)channels || home == ZF_HOME_RESIDENT)
            k = (double)channels;
        if (home == ZF_HOME_HOST || (config.topk_ratio == 0 && home != ZF_HOME_RESIDENT))
            k = 0;
        ck_assert_uint_eq(matrix->n_channels, channels);
        ck_assert_uint_eq(matrix->k, (uint32_t)k);
        ck_assert_int_eq(matrix->is_choosable, k > 0 && k < (double)channels);
    }
}

static uint64_t matrix_elems(uint32_t i) { return plan.matrices[i].rows * plan.matrices[i].cols; }

static int is_alike(uint32_t a, uint32_t b) {
    const zfi_param_t *x = &params[plan.matrices[a].param], *y = &params[plan.matrices[b].param];
    return x->dtype == y->dtype && x->grad_dtype == y->grad_dtype;
}

/* Neighbours of one type, as many as have total / 1,024 elements together (a small model's total / 256, up to 32,768),
 * go to the lightest cohort, ties by number. */
static void check_cohorts(void) {
    uint64_t *load = calloc(plan.n_cohorts, sizeof *load), n_elems = 0, total = total_elems();
    uint64_t small = total / 256 < 32768 ? total / 256 : 32768, most = total / 1024 > small ? total / 1024 : small;
    uint32_t lightest = 0, lot = UINT32_MAX;
    ck_assert(load != NULL);
    for (uint32_t i = 0; i < plan.n_matrices; i++) {
        n_elems += matrix_elems(i);
        if (i == 0 || n_elems > most || !is_alike(i, i - 1)) {
            n_elems = matrix_elems(i);
            lightest = 0;
            for (uint32_t j = 1; j < plan.n_cohorts; j++)
                if (load[j] < load[lightest])
                    lightest = j;
            lot++;
            ck_assert_uint_eq(plan.lots[lot].first_matrix, i);
        }
        ck_assert_uint_lt(i, plan.lots[lot].first_matrix + plan.lots[lot].n_matrices);
        ck_assert_uint_eq(plan.matrices[i].cohort, lightest);
        load[lightest] += plan.matrices[i].nbytes;
    }
    ck_assert_uint_eq(plan.n_lots, lot + 1);
    for (uint32_t j = 0; j < plan.n_cohorts; j++)
        ck_assert_uint_eq(plan.cohorts[j].nbytes, load[j]);
    free(load);
}

/* No cohort has more than another by more than the largest lot. */
static void check_evenness(void) {
    uint64_t largest = 0;
    for (uint32_t l = 0; l < plan.n_lots; l++)
        if (plan.lots[l].nbytes > largest)
            largest = plan.lots[l].nbytes;
    for (uint32_t i = 0; i < plan.n_cohorts; i++)
        for (uint32_t j = 0; j < plan.n_cohorts; j++)
            ck_assert_uint_le(plan.cohorts[i].nbytes, plan.cohorts[j].nbytes + largest);
}

/* The chunks of a lot are its own; those of a cohort are listed once, in order, and know their place. */
static void check_chunk_lists(void) {
    uint32_t listed = 0, chunk = 0;
    for (uint32_t l = 0; l < plan.n_lots; l++) {
        ck_assert_uint_eq(plan.lots[l].first_chunk, chunk);
        ck_assert_uint_gt(plan.lots[l].n_chunks, 0);
        for (; chunk < plan.lots[l].first_chunk + plan.lots[l].n_chunks; chunk++) {
            const zfi_chunk_t *c = &plan.chunks[chunk];
            const zfi_segment_t *last = &plan.segments[c->first_segment + c->n_segments - 1];
            ck_assert_uint_ge(plan.segments[c->first_segment].matrix, plan.lots[l].first_matrix);
            ck_assert_uint_lt(last->matrix, plan.lots[l].first_matrix + plan.lots[l].n_matrices);
            ck_assert_uint_eq(c->cohort, plan.matrices[last->matrix].cohort);
            ck_assert_uint_eq(zfi_cohort_chunk(&plan, c->cohort, c->place), chunk);
        }
    }
    ck_assert_uint_eq(chunk, plan.n_chunks);
    for (uint32_t c = 0; c < plan.n_cohorts; c++)
        for (uint32_t i = 0; i < plan.cohorts[c].n_chunks; i++, listed++) {
            ck_assert_uint_eq(plan.cohorts[c].first_chunk + i, listed);
            ck_assert(i == 0 || zfi_cohort_chunk(&plan, c, i) > zfi_cohort_chunk(&plan, c, i - 1));
            ck_assert_uint_eq(plan.chunks[zfi_cohort_chunk(&plan, c, i)].cohort, c);
        }
    ck_assert_uint_eq(listed, plan.n_chunks);
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
        ck_assert_uint_le(chunk->n_elems * (chunk->grad_dtype == ZFI_F32 ? 4u : 2u), plan.chunk_nbytes);
        ck_assert_uint_le(chunk->n_elems * (chunk->dtype == ZFI_F32 ? 4u : 2u), plan.publish_piece_nbytes);
        for (; segment < chunk->first_segment + chunk->n_segments; segment++) {
            const zfi_segment_t *s = &plan.segments[segment];
            const zfi_matrix_t *matrix = &plan.matrices[s->matrix];
            ck_assert_uint_eq(s->chunk, i);
            ck_assert_uint_eq(matrix->cohort, chunk->cohort);
            uint64_t at = zfi_state_find(matrix, s->matrix_offset);
            ck_assert_uint_eq(chunk->state_base + s->chunk_offset, at);
            ck_assert_uint_le(s->matrix_offset + s->n_elems, matrix->rows * matrix->cols);
            ck_assert_uint_le(s->chunk_offset + s->n_elems, chunk->n_elems);
            ck_assert(params[matrix->param].dtype == chunk->dtype &&
                      params[matrix->param].grad_dtype == chunk->grad_dtype);
            ck_assert_uint_eq(matrix->state_base % ZFI_STATE_ALIGN, 0);
            ck_assert_uint_le(at + s->n_elems, plan.n_state_elems);
            ck_assert_uint_eq(cover(is_covered + at, s->n_elems), 0);
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

/* One rank owns all of each matrix. */
static void check_owned(void) {
    for (uint32_t i = 0; i < plan.n_matrices; i++) {
        const zfi_matrix_t *m = &plan.matrices[i];
        ck_assert(!m->slices && m->own.first == 0 && m->own.n == m->rows * m->cols);
        ck_assert(m->held_first == 0 && m->held_rows == m->rows && m->grad_offset == m->param_offset);
        ck_assert_uint_eq(zfi_state_find(m, m->own.n), ZFI_NOT_OWNED);
    }
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
        sel += (m->k * (m->channels_are_rows ? m->cols : m->rows) + 3) / 4 * 4;
    }
    ck_assert(plan.n_channels == channels && plan.n_index == index && plan.n_sums == sums && plan.n_sel_elems == sel);
    for (uint32_t c = 0; c < plan.n_cohorts; c++)
        for (uint32_t i = 0; i < plan.cohorts[c].n_matrices; i++, listed++) {
            ck_assert_uint_eq(plan.cohorts[c].first_matrix + i, listed);
            ck_assert_uint_eq(plan.matrices[plan.cohort_matrices[listed]].cohort, c);
        }
    ck_assert_uint_eq(listed, plan.n_matrices);
}

/* Plays the schedule: a warm-up step, then windows. Cohort c holds weight[c] for each slot; those of a closed window
 * are held until the next step is over, as its replay may take that long. Returns the most ever held; *mean is over
 * whole rounds of the steady state. */
static uint64_t simulate_pool(const uint64_t *weight, double *mean) {
    uint32_t interval = config.update_interval, n = plan.n_cohorts;
    uint64_t *open = calloc(n, sizeof *open), peak = 0, sum = 0, replaying = 0;
    ck_assert(open != NULL);
    for (uint32_t c = 0; c < n; c++)
        peak += 2 * weight[c];
    for (uint32_t t = 1; t <= 6 * interval; t++) {
        uint64_t held = replaying;
        replaying = 0;
        for (uint32_t c = 0; c < n; c++)
            held += ++open[c] * weight[c];
        if (held > peak)
            peak = held;
        if (t > 2 * interval)
            sum += held;
        for (uint32_t c = 0; c < n; c++) {
            uint32_t first = c + 1;
            if (t < first || (t - first) % interval)
                continue;
            replaying += open[c] * weight[c];
            open[c] = 0;
        }
    }
    *mean = (double)sum / (4.0 * interval);
    free(open);
    return peak;
}

static void check_slots(void) {
    double mean, half = ((double)config.update_interval + 1) / 2;
    uint64_t *weight = calloc(plan.n_cohorts, sizeof *weight), peak;
    ck_assert(weight != NULL);
    for (uint32_t c = 0; c < plan.n_cohorts; c++)
        weight[c] = plan.cohorts[c].n_chunks;
    peak = simulate_pool(weight, &mean);
    mean /= plan.n_chunks;
    ck_assert_msg(fabs(plan.slots_mean - mean) < 1e-9, "mean %g, simulated %g", plan.slots_mean, mean);
    ck_assert(plan.slots_peak == (double)peak / plan.n_chunks);
    ck_assert_msg(fabs(mean - (half + 1)) < 1e-9, "%g slots, the formula says %g", mean, half + 1);
    free(weight);
}

static uint64_t slot_nbytes(const zfi_chunk_t *chunk) {
    return chunk->n_elems * (chunk->grad_dtype == ZFI_F32 ? 4u : 2u);
}

/* The chunks of a cohort in a layer do not overlap in a piece. Returns whether there are any. */
static uint64_t check_piece(uint32_t cohort, uint32_t layer) {
    uint64_t end = 0, n = 0;
    for (uint32_t i = 0; i < plan.cohorts[cohort].n_chunks; i++) {
        const zfi_chunk_t *chunk = &plan.chunks[zfi_cohort_chunk(&plan, cohort, i)];
        if (chunk->layer != layer)
            continue;
        ck_assert_uint_ge(chunk->slot_offset, end);
        ck_assert_uint_eq(chunk->slot_offset % 64, 0);
        end = chunk->slot_offset + slot_nbytes(chunk);
        n++;
    }
    ck_assert_uint_le(end, plan.layers[layer].piece_nbytes);
    return n > 0;
}

/* Layers lie one behind the other, and each has the pieces that its cohorts need at once. */
static void check_layers(void) {
    uint64_t *is_in = calloc(plan.n_cohorts, sizeof *is_in), offset = 0;
    uint32_t pieces = 0;
    double mean;
    ck_assert(is_in && plan.n_layers > 0 && plan.n_layers <= plan.n_cohorts);
    for (uint32_t l = 0; l < plan.n_layers; l++) {
        for (uint32_t c = 0; c < plan.n_cohorts; c++)
            is_in[c] = check_piece(c, l);
        ck_assert_uint_eq(plan.layers[l].first_piece, pieces);
        ck_assert_uint_eq(plan.layers[l].pool_offset, offset);
        ck_assert_uint_eq(plan.layers[l].n_pieces, simulate_pool(is_in, &mean));
        pieces += plan.layers[l].n_pieces;
        offset += plan.layers[l].n_pieces * plan.layers[l].piece_nbytes;
    }
    ck_assert(plan.n_pieces == pieces && plan.pool_nbytes == offset);
    for (uint32_t i = 0; i < plan.n_chunks; i++)
        ck_assert_uint_lt(plan.chunks[i].layer, plan.n_layers);
    free(is_in);
}

/* What the pool holds beyond the slots of the schedule's peak: cohorts that differ, and alignment. */
static void check_waste(double most) {
    double nbytes = 0;
    for (uint32_t i = 0; i < plan.n_chunks; i++)
        nbytes += (double)slot_nbytes(&plan.chunks[i]);
    ck_assert_msg((double)plan.pool_nbytes <= nbytes * plan.slots_mean * (1 + most), "%g of %g bytes are lost",
                  (double)plan.pool_nbytes - nbytes * plan.slots_mean, nbytes * plan.slots_mean);
}

static void check_all(void) {
    check_matrices();
    check_selection();
    check_cohorts();
    check_evenness();
    check_chunk_lists();
    check_owned();
    check_chunks();
    check_bases();
    check_slots();
    check_layers();
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

START_TEST(random_models) {
    static const uint32_t intervals[] = {1, 2, 3, 4, 8, 16};
    for (uint64_t seed = 0; seed < 100; seed++) {
        uint64_t r = zt_hash(seed);
        start(intervals[r % 6], (double)((r >> 16) % 101) / 100);
        config.block_elems = 1 + (r >> 40) % 3000;
        for (uint64_t i = 0; i < 1 + (r >> 24) % MOST; i++) {
            uint64_t x = zt_hash(seed * 64 + i + 1);
            int64_t most = seed % 3 == 0 && i > 0 ? 3 : 90; /* a crowd of tiny ones, which share lots */
            add((int64_t)(1 + x % 3 * (x >> 8) % 4), (int64_t)(1 + (int64_t)(x >> 16) % most),
                (int64_t)(1 + (int64_t)(x >> 24 & 0xFFFF) % (most == 3 ? 2 : 70)), (x >> 32) % 2 != 0,
                (x >> 33) % 5 == 0   ? ZF_HOME_HOST
                : (x >> 33) % 5 == 1 ? ZF_HOME_RESIDENT
                                     : ZF_HOME_PLUGIN,
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
        start(interval, 0.1);
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
    start(4, 0.1);
    add(1, 700, 100, 0, 0, 0);
    add(1, 10, 10, 0, 0, 0);
    build();
    check_all();
    ck_assert_uint_eq(params[0].n_matrices, 2);
    ck_assert_uint_eq(plan.n_matrices, 3);
    end();
    start(8, 0.1);
    config.block_elems = 100;
    add(1, 3, 1000, 1, 0, 0); /* a row is never cut */
    build();
    check_all();
    ck_assert_uint_eq(plan.n_matrices, 3);
    end();
}
END_TEST

/* What update_interval must not move. */
static void check_fixed(const zfi_plan_t *was) {
    ck_assert(plan.n_matrices == was->n_matrices && plan.n_lots == was->n_lots && plan.n_chunks == was->n_chunks &&
              plan.n_segments == was->n_segments && plan.n_state_elems == was->n_state_elems);
    for (uint32_t i = 0; i < plan.n_matrices; i++)
        ck_assert_uint_eq(plan.matrices[i].state_base, was->matrices[i].state_base);
    for (uint32_t i = 0; i < plan.n_chunks; i++)
        ck_assert(plan.chunks[i].state_base == was->chunks[i].state_base &&
                  plan.chunks[i].n_elems == was->chunks[i].n_elems);
    ck_assert_int_eq(memcmp(plan.segments, was->segments, plan.n_segments * sizeof *plan.segments), 0);
}

START_TEST(the_cut_is_the_same_for_every_interval) {
    static const uint32_t intervals[] = {1, 2, 3, 4, 7};
    zfi_plan_t first;
    start(5, 0.1);
    config.block_elems = 500;
    for (int i = 0; i < 3; i++) {
        add(2, 90, 70, i == 1, 0, 0);
        add(1, 3, 1, i == 1, 0, 0);
        add(1, 2, 1, i == 1, 0, 0);
    }
    build();
    first = plan;
    memset(&plan, 0, sizeof plan);
    end();
    for (size_t i = 0; i < sizeof intervals / sizeof *intervals; i++) {
        config.update_interval = intervals[i];
        build();
        ck_assert_uint_eq(plan.n_cohorts, intervals[i]);
        check_fixed(&first);
        check_all();
        end();
    }
    zfi_plan_free(&first);
}
END_TEST

START_TEST(large_and_wide) { /* pieces of all sizes, segments that cross chunks */
    start(4, 0.05);
    add(1, 1500, 700, 0, 0, 0);
    add(1, 600, 900, 1, 0, 1);
    add(2, 7, 3, 0, 0, 0);
    build();
    check_all();
    end();
}
END_TEST

/* Slots in bytes, as the formula has them: one large tensor, cut; many small ones, in lots; layers of an encoder. */
START_TEST(little_of_the_pool_is_lost) {
    static const uint32_t intervals[] = {2, 4, 8};
    for (int i = 0; i < 9; i++) {
        start(intervals[i / 3], 0.1);
        if (i % 3 == 0)
            add(1, 3162, 3162, 0, 0, 0);
        else if (i % 3 == 1)
            add(10000, 1000, 1, 0, 0, 0);
        for (int k = 0; k < 6 && i % 3 == 2; k++) {
            add(1, k == 5 ? 768 : 3072, k == 5 ? 3072 : 768, 0, 0, 0);
            add(1, 768, 1, 0, 0, 0);
        }
        build();
        check_waste(0.015);
        end();
    }
}
END_TEST

/* Rows that may not be cut make cohorts of very different sizes: what each needs, not what the largest needs. */
START_TEST(uneven_cohorts_do_not_share_large_pieces) {
    start(4, 0.1);
    add(1, 1, 400000, 0, 0, 0);
    add(1, 1, 70000, 0, 0, 0);
    add(1, 1, 1000, 0, 0, 0);
    add(1, 1, 1000, 0, 0, 0);
    build();
    check_all();
    ck_assert_uint_eq(plan.n_layers, 3);
    check_waste(0.45); /* 5 slots of the largest at once, 3.5 on average */
    end();
}
END_TEST

START_TEST(nothing_to_train) {
    start(4, 0.1);
    add(1, 3, 3, 0, 0, 0);
    decls[n_params - 1].flags = ZF_PARAM_FROZEN;
    add(1, 0, 3, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 2, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_eq(zfi_plan_build(&config, params, 2, NULL, &plan, &err), ZF_ERR_PARAM);
    ck_assert_ptr_nonnull(strstr(err.message, "none of the 2 parameters"));
    zfi_params_free(params, 2);
}
END_TEST

START_TEST(more_matrices_than_can_be_numbered) { /* a batch axis of 2^33: one matrix each */
    start(4, 0.1);
    add((int64_t)1 << 33, 1, 1, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 1, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_lt(zfi_plan_build(&config, params, 1, NULL, &plan, &err), 0);
    zfi_params_free(params, 1);
}
END_TEST

ZT_MAIN("plan", random_models, equal_cohorts_follow_the_formula, a_large_matrix_is_cut, large_and_wide,
        the_cut_is_the_same_for_every_interval, little_of_the_pool_is_lost, uneven_cohorts_do_not_share_large_pieces,
        nothing_to_train, more_matrices_than_can_be_numbered)
