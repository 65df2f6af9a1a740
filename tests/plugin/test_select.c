/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_select.c - choices of the control thread against a naive top-k, what the device then
 * holds, and the walk over entering state. */
#include "schedule/select.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "schedule/window.h"
#include "step/control.h"
#include "suite.h"

static const zt_shape_t shapes[] = {{.rows = 30, .cols = 50},
                                    {.rows = 41, .cols = 13, .channels = ZF_CHANNELS_ROWS},
                                    {.rows = 19},
                                    {.rows = 6, .cols = 300, .home = ZF_HOME_HOST},
                                    {.rows = 700, .cols = 40},
                                    {.rows = 3, .cols = 2600},
                                    {.rows = 9, .cols = 4500, .channels = ZF_CHANNELS_ROWS}}; /* wider than a block */
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const uint64_t a_minute = 60000000000u;
static const char config[] = "[zenflow]\nupdate_interval = 2\nfull_warm_up_rounds = 1\nselect_interval = 1\n"
                             "topk_ratio = 0.3\n";

static zt_rig_t rig;
static zfi_run_t *run;
static double *importance; /* the model's */
static uint8_t *mask, *old_mask;

/* State whose every element is another number, so that a value tells where it comes from. */
static void fill_state(void) {
    ck_assert_ptr_nonnull(run->hs.chunks->v);
    for (uint64_t i = 0; i < run->plan.n_state_elems; i++) {
        run->hs.chunks->w[i] = (float)i + 0.25f;
        ((float *)(void *)run->hs.chunks->m)[i] = -(float)i - 1.0f;
        ((float *)(void *)run->hs.chunks->v)[i] = (float)i + 0.5f;
    }
}

static void start(void) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    run = zt_bare_create(&rig, config);
    fill_state();
    zt_bare_pass(&run->engine->lines.down); /* everything the choice waits for is there already */
    zt_bare_pass(&run->engine->lines.recorded);
    zt_bare_pass(&run->engine->lines.jobs);
    zt_bare_pass(&run->engine->lines.stepped);
    zt_bare_pass(&run->engine->lines.shown);
    importance = calloc(run->plan.n_sums + 1, sizeof *importance);
    mask = calloc(run->plan.n_channels, 1);
    old_mask = calloc(run->plan.n_channels, 1);
    ck_assert(importance && mask && old_mask);
}

static void end(void) {
    zt_bare_destroy(run);
    zt_rig_end(&rig);
    free(importance);
    free(mask);
    free(old_mask);
}

/* ---- the naive model --------------------------------------------------------------------------------------------- */

static void model_record(uint64_t t, int applied, double s) {
    for (uint32_t i = 0; i < run->plan.n_matrices && applied; i++) {
        const zfi_matrix_t *m = &run->plan.matrices[i];
        for (uint64_t c = m->sum_base; m->is_choosable && c < m->sum_base + m->n_channels; c++)
            if (zfi_row(&run->rows, t)->present[m->param])
                importance[c] += s * zfi_record_part(&run->plan, &run->sel, zfi_first_record_part(&run->plan, t))[c];
    }
}

static void model_choose(const zfi_matrix_t *m) {
    uint8_t *chosen = mask + m->channel_base;
    memset(chosen, m->k == m->n_channels, m->n_channels);
    if (!m->is_choosable)
        return;
    for (uint32_t k = 0; k < m->k; k++) { /* the largest that is not taken; the lower index of equals */
        uint32_t best = UINT32_MAX;
        for (uint32_t c = 0; c < m->n_channels; c++)
            if (!chosen[c] && (best == UINT32_MAX || importance[m->sum_base + c] > importance[m->sum_base + best]))
                best = c;
        chosen[best] = 1;
    }
    for (uint32_t c = 0; c < m->n_channels; c++)
        importance[m->sum_base + c] = 0;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void fill_row(zfi_step_row_t *row, uint64_t t) {
    uint64_t r = zt_hash(t);
    row->scalars.applied = r % 6 != 0 || t == 1;
    row->scalars.s_exact = 0.25 * (double)(1 + r % 3);
    for (uint32_t p = 0; p < N_SHAPES; p++)
        row->present[p] = zt_hash(t * 8 + p) % 5 != 0;
    for (uint64_t i = 0; i < run->plan.n_sums; i++) /* few values: many ties */
        zfi_record_part(&run->plan, &run->sel, zfi_first_record_part(&run->plan, t))[i] =
            (double)(zt_hash(t * 100000 + i) % 4);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        row->chooses[c] = t == 1 || zt_hash(t * 3 + c) % 2 == 0;
    row->has_choice = 0;
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        row->has_choice |= row->chooses[c];
}

/* Positions keep their channel until it leaves; who enters takes the place of who left, both rising. */
static void check_matrix(uint32_t number, int is_first) {
    const zfi_matrix_t *m = &run->plan.matrices[number];
    uint32_t n_entering = 0, n_at = 0;
    ck_assert_int_eq(memcmp(run->sel.mask + m->channel_base, mask + m->channel_base, m->n_channels), 0);
    for (uint32_t c = 0; c < m->n_channels; c++) {
        if (!mask[m->channel_base + c] || (!is_first && old_mask[m->channel_base + c]))
            continue;
        ck_assert_uint_eq(run->sel.enter_channel[m->index_base + n_entering], c);
        n_at = run->sel.enter_pos[m->index_base + n_entering];
        ck_assert_uint_lt(n_at, m->k);
        if (n_entering)
            ck_assert_uint_gt(n_at, run->sel.enter_pos[m->index_base + n_entering - 1]);
        ck_assert_uint_eq(run->sel.index[m->index_base + n_at], c);
        n_entering++;
    }
    ck_assert_uint_eq(run->sel.n_enter[number], n_entering);
    for (uint32_t pos = 0; pos < m->k; pos++)
        ck_assert_uint_eq(mask[m->channel_base + run->sel.index[m->index_base + pos]], 1);
}

/* The device's maps are the host's, and its compact state is the host's at the selected channels. */
static void check_device(const zfi_matrix_t *m) {
    const zfi_data_t *head = &run->dev.head;
    const float *moments[] = {run->hs.chunks->w, (const float *)(const void *)run->hs.chunks->m,
                              (const float *)(const void *)run->hs.chunks->v};
    const float *compact[] = {head->w, head->m, head->v};
    uint64_t n_wrong = 0;
    ck_assert_int_eq(
        memcmp(head->masks[run->clock.n_choices & 1] + m->channel_base, mask + m->channel_base, m->n_channels), 0);
    ck_assert_int_eq(memcmp(head->index + m->index_base, run->sel.index + m->index_base, m->k * sizeof *head->index),
                     0);
    for (uint64_t i = 0; i < zfi_channel_elems(m); i++)
        for (uint32_t pos = 0; pos < m->k; pos++) {
            uint64_t channel = run->sel.index[m->index_base + pos];
            uint64_t at = m->sel_base + (m->channels_are_rows ? pos * m->cols + i : i * m->k + pos);
            uint64_t from =
                zfi_state_index(&run->plan, m, m->channels_are_rows ? channel * m->cols + i : i * m->cols + channel);
            for (int array = 0; array < 3; array++)
                n_wrong += compact[array][at] != moments[array][from];
        }
    ck_assert_uint_eq(n_wrong, 0);
}

static void one_step(uint64_t t) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    fill_row(row, t);
    if (row->has_choice)
        row->choice_turn = ++run->clock.n_choices & 1;
    memcpy(old_mask, mask, run->plan.n_channels);
    if (t == 1)
        model_record(t, row->scalars.applied, row->scalars.s_exact); /* the last of warm-up counts already */
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        if (row->chooses[run->plan.matrices[i].cohort])
            model_choose(&run->plan.matrices[i]);
    if (t != 1)
        model_record(t, row->scalars.applied, row->scalars.s_exact);
    ck_assert_int_eq(zfi_control_start(run, t), ZF_OK);
    ck_assert_int_eq(zfi_timeline_wait(&run->engine->lines.control, t, a_minute, NULL), ZF_OK);
    zt_bare_sync(run, run->engine->enter_stream);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        if (row->chooses[run->plan.matrices[i].cohort])
            check_matrix(i, t == 1);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        check_device(&run->plan.matrices[i]);
    ck_assert_int_eq(zfi_timeline_now(&run->engine->lines.maps) == t, row->has_choice);
    ck_assert_int_eq(zfi_timeline_now(&run->engine->lines.entered) == t, row->has_choice);
    ck_assert_int_eq(memcmp(importance, run->sel.importance, run->plan.n_sums * sizeof *importance), 0);
    ck_assert_int_eq(zfi_timeline_now(&run->engine->lines.host_sel) == t, row->has_choice);
    run->clock.t = t;
    zfi_window_prepare(&run->windows);
}

START_TEST(choices) {
    start();
    for (uint64_t t = 1; t <= 40; t++)
        one_step(t);
    ck_assert_uint_gt(atomic_load(&run->engine->count.channels_entered), 100);
    end();
}
END_TEST

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

static uint8_t *is_seen; /* [n_state_elems] of an entering channel that was handed out */
static uint64_t *n_seen; /* [n_matrices] */

/* The rectangle lies where the one before ends, inside its matrix; its values are the state's. */
static uint64_t check_rect(const zfi_enter_rect_t *rect, uint64_t fill, const float *values) {
    const zfi_matrix_t *m = &run->plan.matrices[rect->matrix];
    const uint32_t *channels = run->sel.enter_channel + m->index_base;
    const float *moments[] = {run->hs.chunks->w, (const float *)(const void *)run->hs.chunks->m,
                              (const float *)(const void *)run->hs.chunks->v};
    uint64_t n = rect->na * rect->nb, n_wrong = 0, at = 0;
    uint32_t n_enter = run->sel.n_enter[rect->matrix];
    ck_assert(rect->na > 0 && rect->nb > 0 && rect->at == fill && fill + n <= ZFI_ENTER_ELEMS);
    ck_assert_uint_le(rect->a0 + rect->na, m->channels_are_rows ? n_enter : m->rows);
    ck_assert_uint_le(rect->b0 + rect->nb, m->channels_are_rows ? m->cols : n_enter);
    for (uint64_t a = rect->a0; a < rect->a0 + rect->na; a++)
        for (uint64_t b = rect->b0; b < rect->b0 + rect->nb; b++, at++) {
            uint64_t r = m->channels_are_rows ? channels[a] : a, c = m->channels_are_rows ? b : channels[b];
            uint64_t from = zfi_state_index(&run->plan, m, r * m->cols + c);
            n_wrong += is_seen[from]++;
            for (uint64_t array = 0; array < 3; array++)
                n_wrong += values[fill * 3 + array * n + at] != moments[array][from];
        }
    ck_assert_uint_eq(n_wrong, 0);
    n_seen[rect->matrix] += n;
    return n;
}

/* Every element of every entering channel exactly once, packed into blocks: any two neighbours hold more than one
 * could. */
static void check_walk(zfi_enter_block_t *block) {
    zfi_enter_walk_t walk = {.state = &run->state};
    uint64_t total = 0, n_blocks = 0;
    uint32_t n;
    memset(is_seen, 0, run->plan.n_state_elems);
    memset(n_seen, 0, run->plan.n_matrices * sizeof *n_seen);
    while ((n = zfi_enter_walk_fill(&walk, block)) != 0) {
        uint64_t fill = 0;
        ck_assert(block->n_rects > 0 && block->n_rects <= ZFI_ENTER_RECTS);
        for (uint64_t i = 0; i < block->n_rects; i++)
            fill += check_rect(&block->rects[i], fill, block->values);
        ck_assert_uint_eq(n, fill);
        total += n;
        n_blocks++;
    }
    ck_assert_uint_eq(zfi_enter_walk_fill(&walk, block), 0);
    ck_assert_uint_le(n_blocks, 2 * total / ZFI_ENTER_ELEMS + 1);
    ck_assert_int_eq(n_blocks > 0, total > 0);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        ck_assert_uint_eq(n_seen[i], run->sel.n_enter[i] * zfi_channel_elems(&run->plan.matrices[i]));
}

/* None, some or all of a matrix's k channels enter, if its cohort chooses: every second channel, or those from the
 * last on. */
static void draw_entering(uint32_t number, uint64_t seed) {
    const zfi_matrix_t *m = &run->plan.matrices[number];
    uint64_t r = zt_hash(seed * 50 + number);
    uint32_t n = r % 4 == 0 ? 0 : r % 4 == 1 ? m->k : (uint32_t)((r >> 8) % (m->k + 1));
    run->sel.n_enter[number] = (seed >> m->cohort) & 1 ? n : 0;
    for (uint32_t e = 0; e < n; e++)
        run->sel.enter_channel[m->index_base + e] = 2 * m->k <= m->n_channels ? 2 * e : m->n_channels - n + e;
}

START_TEST(walks) {
    zfi_enter_block_t *block;
    start();
    block = malloc(run->dev.enter_block_nbytes);
    n_seen = calloc(run->plan.n_matrices, sizeof *n_seen);
    is_seen = calloc(run->plan.n_state_elems, 1);
    ck_assert(block && n_seen && is_seen);
    for (uint64_t seed = 0; seed < 60; seed++) {
        for (uint32_t i = 0; i < run->plan.n_matrices; i++)
            draw_entering(i, seed);
        check_walk(block);
    }
    free(block);
    free(n_seen);
    free(is_seen);
    end();
}
END_TEST

START_TEST(a_block_ends_with_its_rectangles) { /* many small matrices: 64 rectangles are there before 4096 elements */
    zt_shape_t narrow[70];
    zfi_enter_walk_t walk;
    zfi_enter_block_t *block;
    for (uint32_t i = 0; i < 70; i++)
        narrow[i] = (zt_shape_t){.rows = 3, .cols = 10};
    zt_rig_start(&rig, narrow, 70);
    run = zt_bare_create(&rig, config);
    block = malloc(run->dev.enter_block_nbytes);
    ck_assert_ptr_nonnull(block);
    ck_assert_uint_eq(run->plan.n_matrices, 70);
    for (uint32_t i = 0; i < 70; i++)
        run->sel.n_enter[i] = 1;
    walk = (zfi_enter_walk_t){.state = &run->state};
    ck_assert_uint_eq(zfi_enter_walk_fill(&walk, block), ZFI_ENTER_RECTS * 3);
    ck_assert_uint_eq(block->n_rects, ZFI_ENTER_RECTS);
    ck_assert_uint_eq(zfi_enter_walk_fill(&walk, block), 6 * 3);
    ck_assert_uint_eq(block->n_rects, 6);
    ck_assert_uint_eq(block->rects[0].matrix, 64);
    ck_assert_uint_eq(zfi_enter_walk_fill(&walk, block), 0);
    free(block);
    zt_bare_destroy(run);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("select", choices, walks, a_block_ends_with_its_rectangles)
