/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_replay.c - one chunk of a closed window, called alone: slots, holes, skipped steps, mean mode,
 * and a weight that overflows. */
#include "replay/replay.h"
#include "replay/replay_columns.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "suite.h"

enum { N_SLOTS = 5 };
static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 30}, {.rows = 31, .group = 1}, {.rows = 12, .cols = 50, .is_bf16 = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;
static zfi_run_t *run;
static zfi_close_t close;
static float *scratch;
static unsigned char *visible;
static uint64_t replayed_elems;
static uint32_t nonfinite_matrix;

static uint64_t first_filled; /* the step that lies in slot 0 ... */
static uint32_t n_filled;     /* ... and how many do */

/* Parameter p's gradient of step t into a slot of a chunk: as the down stream would. */
static void fill_slot(uint32_t number, uint32_t p, uint64_t t, uint32_t slot) {
    const zfi_chunk_t *chunk = &run->plan.chunks[number];
    const zfi_param_t *param = &run->params[p];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    zt_rig_fill_grad(&rig, p, t);
    for (uint32_t i = 0; i < param->n_refs; i++) {
        const zfi_segment_t *s = &run->plan.segments[run->plan.param_segments[param->first_ref + i]];
        const zfi_matrix_t *m = &run->plan.matrices[s->matrix];
        if (s->chunk != number)
            continue;
        ck_assert_uint_lt(slot, run->plan.layers[chunk->layer].n_pieces);
        zfi_slot_pieces(run, chunk->cohort, 0, slot)[chunk->layer] =
            (int32_t)(run->plan.layers[chunk->layer].first_piece + slot);
        memcpy(zfi_slot(run, s->chunk, 0, slot) + s->chunk_offset * elem,
               rig.params[p].grad + (m->param_offset + s->matrix_offset) * elem, s->n_elems * elem);
    }
}

static void fill_row(uint64_t t, int applied, uint32_t hole) {
    zfi_step_row_t *row = zfi_row(run, t);
    row->scalars.applied = applied;
    row->scalars.s = 0.5f * (float)t;
    for (uint32_t g = 0; g < ZT_MAX_GROUPS; g++)
        row->hyper[g] = (zfi_hyper_t){rig.groups[g].lr / (double)t, 0.9, 0.999, 1e-8, rig.groups[g].weight_decay};
    for (uint32_t p = 0; p < N_SHAPES; p++)
        row->present[p] = p != hole;
}

/* The host's masters = the declared values; one window of five steps, of which one is skipped and two have a hole. */
static void start_rows(const char *config) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    run = zt_bare_create(&rig, config);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++) {
        const zfi_matrix_t *m = &run->plan.matrices[i];
        memcpy(run->hs.w + zfi_state_index(&run->plan, m, 0), rig.params[m->param].serial.w + m->param_offset,
               m->rows * m->cols * 4);
    }
    close = (zfi_close_t){.n_slots = N_SLOTS, .step = N_SLOTS, .first_step = 1};
    for (uint64_t t = 1; t <= N_SLOTS; t++)
        fill_row(t, t != 3, t == 2 ? 0 : t == 5 ? 2 : UINT32_MAX);
    scratch = calloc(zfi_replay_columns_scratch(run->plan.chunk_nbytes / 2), sizeof *scratch);
    visible = calloc(run->plan.n_state_elems, 4);
    ck_assert(scratch && visible);
}

static void fill_slots(uint32_t chunk) {
    for (uint32_t slot = 0; slot < n_filled; slot++)
        for (uint32_t p = 0; p < N_SHAPES; p++)
            if (zfi_row(run, first_filled + slot)->present[p])
                fill_slot(chunk, p, first_filled + slot, slot);
}

/* ... and with all slots of the window. */
static void start(const char *config) {
    start_rows(config);
    first_filled = 1;
    n_filled = N_SLOTS;
}

static void end(void) {
    free(scratch);
    free(visible);
    zt_bare_destroy(run);
    zt_rig_end(&rig);
}

static zf_status_t replay_all(void) {
    zf_status_t st = ZF_OK;
    zfi_replay_view_t view;
    zfi_replayed_t replayed;
    zfi_replay_view(run, &view);
    for (uint32_t i = 0; i < run->plan.n_chunks && !st; i++) {
        uint64_t base = run->plan.chunks[i].state_base;
        zfi_replay_target_t target = {.w = run->hs.w + base,
                                      .m = zfi_moment_at(run->dev.head.moments, run->hs.m, base),
                                      .v = zfi_moment_at(run->dev.head.moments, run->hs.v, base),
                                      .visible = visible + 4 * base,
                                      .scratch = scratch};
        fill_slots(i);
        close.cohort = run->plan.chunks[i].cohort;
        st = zfi_replay_chunk(&view, &close, i, &target, &replayed);
        replayed_elems += replayed.n_elems;
        nonfinite_matrix = replayed.nonfinite_matrix;
    }
    for (close.cohort = 0; close.cohort < run->plan.n_cohorts && !st; close.cohort++)
        zfi_replay_count(&view, &close);
    return st;
}

/* The steps that count, one after the other. */
static void update_serially(uint32_t p) {
    for (uint64_t t = 1; t <= N_SLOTS; t++) {
        const zfi_step_row_t *row = zfi_row(run, t);
        zf_group_hyper_t hyper = rig.groups[shapes[p].group];
        if (!row->scalars.applied || !row->present[p])
            continue;
        hyper.lr = row->hyper[shapes[p].group].lr;
        zt_rig_fill_grad(&rig, p, t);
        zt_serial_update(&rig.params[p].serial, &hyper, rig.params[p].grad_values, row->scalars.s);
    }
}

static void check_equal(uint32_t p) {
    for (uint32_t i = run->params[p].first_matrix; i < run->params[p].first_matrix + run->params[p].n_matrices; i++) {
        const zfi_matrix_t *m = &run->plan.matrices[i];
        uint64_t nbytes = m->rows * m->cols * 4;
        ck_assert_int_eq(
            memcmp(run->hs.w + zfi_state_index(&run->plan, m, 0), rig.params[p].serial.w + m->param_offset, nbytes), 0);
        ck_assert_int_eq(memcmp(zfi_moment_at(run->dev.head.moments, run->hs.m, zfi_state_index(&run->plan, m, 0)),
                                rig.params[p].serial.m + m->param_offset, nbytes),
                         0);
        ck_assert_int_eq(memcmp(zfi_moment_at(run->dev.head.moments, run->hs.v, zfi_state_index(&run->plan, m, 0)),
                                rig.params[p].serial.v + m->param_offset, nbytes),
                         0);
    }
}

#define FIVE_STEPS "[zenflow]\nupdate_interval = 5\n"

START_TEST(replay_mode) {
    start(FIVE_STEPS);
    ck_assert_int_eq(replay_all(), ZF_OK);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        update_serially(p);
        check_equal(p);
        ck_assert_uint_eq(run->hs.n[run->params[p].first_matrix], rig.params[p].serial.n_updates);
    }
    ck_assert_uint_eq(rig.params[0].serial.n_updates, 3); /* five steps, one hole, one skipped */
    ck_assert_uint_eq(replayed_elems, 24 * 30 * 3 + 31 * 4 + 12 * 50 * 3);
    end();
}
END_TEST

START_TEST(warm_up_in_mean_mode_is_replay) {
    start(FIVE_STEPS "deferred = mean\n");
    close.is_warm_up = 1;
    ck_assert_int_eq(replay_all(), ZF_OK);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        update_serially(p);
        check_equal(p);
    }
    end();
}
END_TEST

/* Every third channel (column) of p0 is selected: those as in replay, the others one update from the mean. */
START_TEST(mean_mode) {
    const zfi_matrix_t *m;
    float *g[N_SLOTS] = {0}, want[3];
    zf_group_hyper_t hyper;
    start(FIVE_STEPS "deferred = mean\n");
    m = &run->plan.matrices[0];
    for (uint32_t c = 0; c < m->n_channels; c += 3)
        run->sel.mask[m->channel_base + c] = 1;
    ck_assert_int_eq(replay_all(), ZF_OK);
    for (uint64_t t = 1; t <= N_SLOTS; t++) {
        g[t - 1] = malloc(m->rows * m->cols * sizeof(float));
        zt_rig_fill_grad(&rig, 0, t);
        memcpy(g[t - 1], rig.params[0].grad_values, m->rows * m->cols * sizeof(float));
    }
    hyper = rig.groups[0];
    hyper.lr = rig.groups[0].lr / 5.0; /* of the last slot that counts, step 5 */
    for (uint64_t e = 0; e < m->rows * m->cols; e++) {
        want[0] = rig.params[0].serial.w[e];
        want[1] = want[2] = 0;
        if (e % m->cols % 3 == 0)
            continue; /* selected: replay, below */
        zt_adamw(&want[0], &want[1], &want[2], ((g[0][e] * 0.5f + g[3][e] * 2.0f) + g[4][e] * 2.5f) / 3.0f, 1.0f,
                 &hyper, 1);
        ck_assert_int_eq(memcmp(&want[0], &run->hs.w[zfi_state_index(&run->plan, m, e)], sizeof(float)), 0);
    }
    update_serially(0);
    for (uint64_t e = 0; e < m->rows * m->cols; e++)
        if (e % m->cols % 3 == 0)
            ck_assert_int_eq(
                memcmp(&rig.params[0].serial.w[e], &run->hs.w[zfi_state_index(&run->plan, m, e)], sizeof(float)), 0);
    for (uint32_t c = 0; c < m->n_channels; c++)
        ck_assert_uint_eq(run->hs.n[m->channel_base + c], c % 3 ? 1 : 3);
    for (int i = 0; i < N_SLOTS; i++)
        free(g[i]);
    end();
}
END_TEST

START_TEST(a_weight_overflows) {
    start(FIVE_STEPS);
    for (uint64_t t = 1; t <= N_SLOTS; t++)
        zfi_row(run, t)->hyper[1].lr = 3e38;
    for (uint64_t t = 1; t <= N_SLOTS; t++)
        zfi_row(run, t)->hyper[1].weight_decay = 1.0;
    ck_assert_int_eq(replay_all(), ZF_ERR_NONFINITE);
    ck_assert_uint_eq(run->plan.matrices[nonfinite_matrix].param, 1);
    end();
}
END_TEST

ZT_MAIN("replay", replay_mode, warm_up_in_mean_mode_is_replay, mean_mode, a_weight_overflows)
