/* tests/plugin/test_select.c - choices of the control stream against a naive top-k; the walk over entering state. */
#include "select.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "suite.h"
#include "window.h"

static const zt_shape_t shapes[] = {{.rows = 30, .cols = 50},
                                    {.rows = 41, .cols = 13, .channels = ZF_CHANNELS_ROWS},
                                    {.rows = 19},
                                    {.rows = 6, .cols = 300, .flags = ZF_PARAM_NEVER_SELECTED},
                                    {.rows = 700, .cols = 40},
                                    {.rows = 3, .cols = 2600}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MINUTE_MS = 60000 };
static const char config[] = "[zenflow]\nupdate_interval = 2\nfull_warm_up_rounds = 1\nselect_interval = 1\n"
                             "topk_ratio = 0.3\n";

static zt_rig_t rig;
static zf_instance_t *inst;
static double *importance; /* the model's */
static uint8_t *mask, *old_mask;

static void start(void) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    inst = zt_bare_create(&rig, config);
    ck_assert_int_eq(zfi_queue_create(&inst->control_stream, "control", NULL), ZF_OK);
    zt_bare_pass(&inst->down); /* everything the choice waits for is there already */
    zt_bare_pass(&inst->jobs);
    zt_bare_pass(&inst->entered);
    zt_bare_pass(&inst->enter_done);
    zt_bare_pass(&inst->enter_due);
    importance = calloc(inst->plan.n_sums + 1, sizeof *importance);
    mask = calloc(inst->plan.n_channels, 1);
    old_mask = calloc(inst->plan.n_channels, 1);
    ck_assert(importance && mask && old_mask);
}

static void end(void) {
    zfi_queue_destroy(inst->control_stream);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
    free(importance);
    free(mask);
    free(old_mask);
}

/* ---- the naive model --------------------------------------------------------------------------------------------- */

static void model_record(uint64_t t, int applied, double s) {
    for (uint32_t i = 0; i < inst->plan.n_matrices && applied; i++) {
        const zfi_matrix_t *m = &inst->plan.matrices[i];
        for (uint64_t c = m->sum_base; m->is_choosable && c < m->sum_base + m->n_channels; c++)
            if (zfi_row(inst, t)->present[m->param])
                importance[c] += s * inst->sel.records[t % ZFI_RECORD_DEPTH][c];
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
    for (uint64_t i = 0; i < inst->plan.n_sums; i++) /* few values: many ties */
        inst->sel.records[t % ZFI_RECORD_DEPTH][i] = (double)(zt_hash(t * 100000 + i) % 4);
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        row->chooses[c] = t == 1 || zt_hash(t * 3 + c) % 2 == 0;
    row->has_choice = 0;
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        row->has_choice |= row->chooses[c];
}

/* Positions keep their channel until it leaves; who enters takes the place of who left, both rising. */
static void check_matrix(uint32_t number, int is_first) {
    const zfi_matrix_t *m = &inst->plan.matrices[number];
    uint32_t n_entering = 0, n_at = 0;
    ck_assert_int_eq(memcmp(inst->sel.mask + m->channel_base, mask + m->channel_base, m->n_channels), 0);
    for (uint32_t c = 0; c < m->n_channels; c++) {
        if (!mask[m->channel_base + c] || (!is_first && old_mask[m->channel_base + c]))
            continue;
        ck_assert_uint_eq(inst->sel.enter_channel[m->index_base + n_entering], c);
        n_at = inst->sel.enter_pos[m->index_base + n_entering];
        ck_assert_uint_lt(n_at, m->k);
        if (n_entering)
            ck_assert_uint_gt(n_at, inst->sel.enter_pos[m->index_base + n_entering - 1]);
        ck_assert_uint_eq(inst->sel.index[m->index_base + n_at], c);
        n_entering++;
    }
    ck_assert_uint_eq(inst->sel.n_enter[number], n_entering);
    for (uint32_t pos = 0; pos < m->k; pos++)
        ck_assert_uint_eq(mask[m->channel_base + inst->sel.index[m->index_base + pos]], 1);
}

static void one_step(uint64_t t) {
    zfi_step_row_t *row = zfi_row(inst, t);
    fill_row(row, t);
    memcpy(old_mask, mask, inst->plan.n_channels);
    if (t == 1)
        model_record(t, row->scalars.applied, row->scalars.s_exact); /* the last of warm-up counts already */
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        if (row->chooses[inst->plan.matrices[i].cohort])
            model_choose(&inst->plan.matrices[i]);
    if (t != 1)
        model_record(t, row->scalars.applied, row->scalars.s_exact);
    ck_assert_int_eq(zfi_select_push(inst, t), ZF_OK);
    ck_assert_int_eq(zfi_timeline_wait(&inst->control, t, MINUTE_MS * 1000000ull, NULL), ZF_OK);
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        if (row->chooses[inst->plan.matrices[i].cohort])
            check_matrix(i, t == 1);
    ck_assert_int_eq(memcmp(importance, inst->sel.importance, inst->plan.n_sums * sizeof *importance), 0);
    ck_assert_int_eq(zfi_timeline_now(&inst->host_sel) == t, row->has_choice);
    inst->t = t;
    zfi_window_prepare(inst);
}

START_TEST(choices) {
    start();
    for (uint64_t t = 1; t <= 40; t++)
        one_step(t);
    ck_assert_uint_gt(atomic_load(&inst->count.channels_entered), 100);
    end();
}
END_TEST

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* Every element of every entering channel exactly once, packed into blocks: any two neighbours hold more than one
 * could. */
static void check_walk(const zfi_step_row_t *row) {
    uint64_t *n_seen = calloc(inst->plan.n_matrices, sizeof *n_seen);
    uint8_t *is_seen = calloc(inst->plan.n_state_elems, 1);
    zfi_enter_walk_t walk;
    zfi_enter_rect_t rect;
    uint64_t twice = 0, total = 0, n_blocks = 0, fill = 0;
    ck_assert(n_seen && is_seen);
    zfi_enter_walk_start(&walk, inst, row);
    while (zfi_enter_walk_next(&walk, &rect)) {
        const zfi_matrix_t *m = &inst->plan.matrices[rect.matrix];
        uint32_t n = inst->sel.n_enter[rect.matrix];
        uint64_t rows = m->channels_are_rows ? n : m->rows, cols = m->channels_are_rows ? m->cols : n;
        ck_assert(rect.na > 0 && rect.nb > 0 && rect.at + rect.na * rect.nb <= ZFI_ENTER_ELEMS);
        fill = rect.opens_block ? 0 : fill;
        n_blocks += rect.opens_block != 0;
        ck_assert_uint_eq(rect.at, fill);
        fill += rect.na * rect.nb;
        total += rect.na * rect.nb;
        ck_assert(rect.a0 + rect.na <= rows && rect.b0 + rect.nb <= cols && row->chooses[m->cohort]);
        for (uint64_t a = rect.a0; a < rect.a0 + rect.na; a++)
            for (uint64_t b = rect.b0; b < rect.b0 + rect.nb; b++)
                twice += is_seen[m->state_base + a * cols + b]++;
        n_seen[rect.matrix] += rect.na * rect.nb;
    }
    ck_assert_uint_eq(twice, 0);
    ck_assert_uint_le(n_blocks, 2 * total / ZFI_ENTER_ELEMS + 1);
    ck_assert_int_eq(n_blocks > 0, total > 0);
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        const zfi_matrix_t *m = &inst->plan.matrices[i];
        ck_assert_uint_eq(n_seen[i], row->chooses[m->cohort] ? inst->sel.n_enter[i] * zfi_channel_elems(m) : 0);
    }
    free(n_seen);
    free(is_seen);
}

START_TEST(walks) {
    start();
    for (uint64_t seed = 0; seed < 60; seed++) {
        zfi_step_row_t *row = zfi_row(inst, 1);
        for (uint32_t i = 0; i < inst->plan.n_matrices; i++) { /* none, some, all */
            uint64_t r = zt_hash(seed * 50 + i);
            inst->sel.n_enter[i] = r % 4 == 0   ? 0
                                   : r % 4 == 1 ? inst->plan.matrices[i].k
                                                : (uint32_t)((r >> 8) % (inst->plan.matrices[i].k + 1));
        }
        for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
            row->chooses[c] = (seed >> c) & 1;
        check_walk(row);
    }
    end();
}
END_TEST

ZT_MAIN("select", choices, walks)
