/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_window.c - the clocks over many steps against a naive model of SCHEDULE.md, and the slot pool: a
 * piece is never in two places, never runs out, and is not written before the replay that read it. */
#include "schedule/window.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "suite.h"

enum { MOST_COHORTS = 16, N_STEPS = 160 };

static const zt_shape_t shapes[] = {{.rows = 33},
                                    {.rows = 40, .cols = 60},
                                    {.rows = 20, .cols = 90, .is_bf16 = 1},
                                    {.rows = 16, .cols = 16},
                                    {.rows = 3, .cols = 700}};
static zt_rig_t rig;
static zfi_run_t *run;

/* ---- the naive model --------------------------------------------------------------------------------------------- */

typedef struct model {
    uint64_t t, w, s, base, interval;
    uint64_t last_choice[MOST_COHORTS], first[MOST_COHORTS];
} model_t;

static int model_closes(const model_t *model, uint32_t j, uint64_t t) {
    if (t <= model->w)
        return 1;
    for (uint64_t at = model->base + j + 1; at <= t; at += model->s)
        if (at == t)
            return 1;
    return 0;
}

static int model_chooses(const model_t *model, uint32_t j, uint64_t t) {
    if (t < model->w)
        return 0;
    return t == model->w || t - model->last_choice[j] >= model->interval;
}

/* ---- the pool's owner of each piece -------------------------------------------------------------------------------
 */

static uint32_t *owner;      /* [n_pieces] cohort + 1 while in an open window */
static uint64_t *free_after; /* [n_pieces] job that must be over before it is written again */

/* Chunks of the first cohorts lie behind those of later ones: a list of chunks is no range of them. */
static int has_mixed_cohorts(void) {
    for (uint32_t i = 1; i < run->plan.n_chunks; i++)
        if (run->plan.chunks[i].cohort < run->plan.chunks[i - 1].cohort)
            return 1;
    return 0;
}

/* The piece of a chunk's slot. */
static int32_t piece_of(uint32_t chunk, uint32_t table, uint32_t slot) {
    const zfi_chunk_t *c = &run->plan.chunks[chunk];
    return zfi_slot_pieces(&run->slots, c->cohort, table, slot)[c->layer];
}

static int32_t coming_piece(uint32_t chunk) {
    const zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    uint32_t cohort = run->plan.chunks[chunk].cohort;
    return piece_of(chunk, (uint32_t)row->cohort_table[cohort], (uint32_t)row->cohort_slot[cohort]);
}

/* Of the layer that the chunk is in. */
static int is_of_layer(uint32_t chunk, int32_t piece) {
    const zfi_layer_t *layer = &run->plan.layers[run->plan.chunks[chunk].layer];
    return piece >= (int32_t)layer->first_piece && piece < (int32_t)(layer->first_piece + layer->n_pieces);
}

static void take_slots(uint64_t seed) {
    for (uint32_t i = 0; i < run->plan.n_chunks; i++) {
        uint32_t cohort = run->plan.chunks[i].cohort;
        uint64_t needs = 0;
        int32_t piece = coming_piece(i);
        int is_new = piece == ZFI_NO_PIECE; /* no chunk of this cohort and layer has a gradient yet */
        if (zt_hash(seed + i) % 8 == 0)
            continue; /* a hole */
        ck_assert_int_eq(zfi_window_slot(&run->windows, i, &needs), ZF_OK);
        ck_assert(is_new || coming_piece(i) == piece);
        piece = coming_piece(i);
        ck_assert(is_of_layer(i, piece));
        ck_assert_uint_eq(owner[piece], is_new ? 0 : cohort + 1);
        ck_assert(!is_new || needs >= free_after[piece]);
        owner[piece] = cohort + 1;
        needs = 0;
        ck_assert_int_eq(zfi_window_slot(&run->windows, i, &needs), ZF_OK); /* again: the same place */
        ck_assert_int_eq(coming_piece(i), piece);
    }
}

static void release(const zfi_close_t *close) {
    for (uint32_t l = 0; l < run->plan.n_layers; l++)
        for (uint32_t k = 0; k < close->n_slots; k++) {
            int32_t piece = zfi_slot_pieces(&run->slots, close->cohort, close->table, k)[l];
            if (piece == ZFI_NO_PIECE)
                continue;
            ck_assert_uint_eq(owner[piece], close->cohort + 1);
            owner[piece] = 0;
            free_after[piece] = close->first_job + close->n_chunks;
        }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void close_and_compare(model_t *model, uint32_t c, uint64_t t, int is_flush) {
    zfi_close_t close;
    uint64_t job = run->clock.next_job;
    zfi_window_close(&run->windows, c, t, is_flush, &close);
    ck_assert(close.cohort == c && close.step == t && close.publishes_all == is_flush && close.first_job == job);
    ck_assert_uint_eq(close.first_step, model->first[c]);
    ck_assert_uint_eq(close.n_slots, t + 1 - model->first[c]);
    ck_assert_uint_le(close.n_slots, run->engine->config.update_interval);
    ck_assert_int_eq(close.is_warm_up, t <= model->w);
    ck_assert_uint_eq(close.choice_step, model->last_choice[c]);
    ck_assert_uint_eq(run->clock.next_job, job + run->plan.cohorts[c].n_chunks);
    model->first[c] = t + 1;
    release(&close);
}

static void one_step(model_t *model, uint64_t seed) {
    uint64_t t = run->clock.t + 1;
    take_slots(seed);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++) {
        int closes = zfi_window_closes(&run->clock, c, t);
        ck_assert_int_eq(closes, model_closes(model, c, t));
        if (!closes)
            continue;
        close_and_compare(model, c, t, 0);
        ck_assert_int_eq(zfi_window_chooses(&run->clock, c, t), model_chooses(model, c, t));
        if (!zfi_window_chooses(&run->clock, c, t))
            continue;
        run->clock.last_choice[c] = model->last_choice[c] = t; /* as step.c does */
    }
    run->clock.t = t;
    zfi_window_prepare(&run->windows);
    ck_assert_uint_eq(zfi_row(&run->rows, t + 1)->t, t + 1);
}

static void flush(model_t *model, uint64_t seed) {
    zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    int32_t *before = calloc(run->plan.n_chunks, sizeof *before);
    int has_open = zt_hash(seed + 99) % 2 != 0; /* the coming step has gradients already */
    ck_assert(before != NULL);
    if (has_open)
        take_slots(seed);
    for (uint32_t i = 0; i < run->plan.n_chunks; i++) {
        before[i] = coming_piece(i);
    }
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        close_and_compare(model, c, run->clock.t, 1);
    zfi_window_restart(&run->windows);
    if (run->clock.t >= model->w)
        model->base = run->clock.t;
    for (uint32_t i = 0; i < run->plan.n_chunks; i++) { /* what was delivered has moved along */
        uint32_t c = run->plan.chunks[i].cohort;
        ck_assert_int_eq(row->cohort_slot[c], 0);
        ck_assert_int_eq(piece_of(i, (uint32_t)row->cohort_table[c], 0), before[i]);
    }
    free(before);
}

static void run_steps(uint64_t seed) {
    static const uint32_t intervals[] = {1, 2, 3, 4, 7, 16};
    char text[160];
    uint64_t r = zt_hash(seed);
    model_t model = {.w = 1 + (r >> 8) % 6, .s = intervals[r % 6], .interval = 1 + (r >> 16) % 20};
    snprintf(text, sizeof text,
             "[zenflow]\nupdate_interval = %u\nfull_warm_up_rounds = %u\n"
             "select_interval = %u\n",
             (unsigned)model.s, (unsigned)model.w, (unsigned)model.interval);
    model.base = model.w;
    for (int c = 0; c < MOST_COHORTS; c++)
        model.first[c] = 1;
    run = zt_bare_create(&rig, text);
    owner = calloc(run->plan.n_pieces, sizeof *owner);
    free_after = calloc(run->plan.n_pieces, sizeof *free_after);
    ck_assert(owner && free_after);
    ck_assert(run->plan.n_cohorts == 1 || run->plan.n_cohorts >= run->plan.n_lots || has_mixed_cohorts());
    for (uint64_t i = 0; i < N_STEPS; i++) {
        one_step(&model, r + i * 1000);
        if (zt_hash(r + i) % 23 == 0)
            flush(&model, r + i);
    }
    ck_assert_uint_le(atomic_load(&run->engine->count.slots_peak), run->plan.n_pieces);
    free(owner);
    free(free_after);
    zt_bare_destroy(run);
}

START_TEST(clocks_and_pool) {
    zt_rig_start(&rig, shapes, sizeof shapes / sizeof *shapes);
    for (uint64_t seed = 0; seed < 40; seed++)
        run_steps(seed);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("window", clocks_and_pool)
