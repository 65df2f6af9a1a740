/* tests/plugin/test_window.c - the clocks over many steps against a naive model of SCHEDULE.md, and the slot pool: a
 * piece is never in two places, never runs out, and is not written before the replay that read it. */
#include "window.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "suite.h"

enum { MOST_COHORTS = 16, N_STEPS = 160 };

static const zt_shape_t shapes[] = {{.rows = 40, .cols = 60},
                                    {.rows = 33},
                                    {.rows = 20, .cols = 90, .is_bf16 = 1},
                                    {.rows = 16, .cols = 16},
                                    {.rows = 3, .cols = 700}};
static zt_rig_t rig;
static zf_instance_t *inst;

/* ---- the naive model --------------------------------------------------------------------------------------------- */

typedef struct model {
    uint64_t t, w, s, base, interval;
    int is_staggered;
    uint64_t last_choice[MOST_COHORTS], first[MOST_COHORTS];
} model_t;

static int model_closes(const model_t *model, uint32_t j, uint64_t t) {
    if (t <= model->w)
        return 1;
    for (uint64_t at = model->base + (model->is_staggered ? j + 1 : model->s); at <= t; at += model->s)
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

static uint32_t *owner;      /* [n_pieces] chunk + 1 while in an open window */
static uint64_t *free_after; /* [n_pieces] job that must be over before it is written again */

static void take_slots(uint64_t seed) {
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) {
        const zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
        uint32_t cohort = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[i].first_segment].matrix].cohort;
        uint64_t needs = 0;
        int32_t piece;
        if (zt_hash(seed + i) % 8 == 0)
            continue; /* a hole */
        ck_assert_int_eq(zfi_window_slot(inst, i, &needs), ZF_OK);
        piece = zfi_slot_table(inst, i, (uint32_t)row->cohort_table[cohort])[row->cohort_slot[cohort]];
        ck_assert(piece >= 0 && (uint32_t)piece < inst->slots.n_pieces);
        if (owner[piece] != i + 1) {
            ck_assert_uint_eq(owner[piece], 0);
            ck_assert_uint_ge(needs, free_after[piece]);
        }
        owner[piece] = i + 1;
        needs = 0;
        ck_assert_int_eq(zfi_window_slot(inst, i, &needs), ZF_OK); /* again: the same place */
        ck_assert_int_eq(zfi_slot_table(inst, i, (uint32_t)row->cohort_table[cohort])[row->cohort_slot[cohort]], piece);
    }
}

static void release(const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[close->cohort];
    for (uint32_t i = cohort->first_chunk; i < cohort->first_chunk + cohort->n_chunks; i++)
        for (uint32_t k = 0; k < close->n_slots; k++) {
            int32_t piece = zfi_slot_table(inst, i, close->table)[k];
            if (piece == ZFI_NO_PIECE)
                continue;
            ck_assert_uint_eq(owner[piece], i + 1);
            owner[piece] = 0;
            free_after[piece] = close->first_job + close->n_chunks;
        }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void close_and_compare(model_t *model, uint32_t c, uint64_t t, int is_flush) {
    zfi_close_t close;
    uint64_t job = inst->next_job;
    zfi_window_close(inst, c, t, is_flush, &close);
    ck_assert(close.cohort == c && close.step == t && close.publishes_all == is_flush && close.first_job == job);
    ck_assert_uint_eq(close.first_step, model->first[c]);
    ck_assert_uint_eq(close.n_slots, t + 1 - model->first[c]);
    ck_assert_uint_le(close.n_slots, inst->config.update_interval);
    ck_assert_int_eq(close.is_warm_up, t <= model->w);
    ck_assert_uint_eq(close.choice_step, model->last_choice[c]);
    ck_assert_uint_eq(inst->next_job, job + inst->plan.cohorts[c].n_chunks);
    model->first[c] = t + 1;
    release(&close);
}

static void one_step(model_t *model, uint64_t seed) {
    uint64_t t = inst->t + 1;
    take_slots(seed);
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++) {
        int closes = zfi_window_closes(inst, c, t);
        ck_assert_int_eq(closes, model_closes(model, c, t));
        if (!closes)
            continue;
        close_and_compare(model, c, t, 0);
        ck_assert_int_eq(zfi_window_chooses(inst, c, t), model_chooses(model, c, t));
        if (!zfi_window_chooses(inst, c, t))
            continue;
        inst->last_choice[c] = model->last_choice[c] = t; /* as step.c does */
    }
    inst->t = t;
    zfi_window_prepare(inst);
    ck_assert_uint_eq(zfi_row(inst, t + 1)->t, t + 1);
}

static void flush(model_t *model, uint64_t seed) {
    zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    int32_t *before = calloc(inst->plan.n_chunks, sizeof *before);
    int has_open = zt_hash(seed + 99) % 2 != 0; /* the coming step has gradients already */
    ck_assert(before != NULL);
    if (has_open)
        take_slots(seed);
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) {
        uint32_t c = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[i].first_segment].matrix].cohort;
        before[i] = zfi_slot_table(inst, i, (uint32_t)row->cohort_table[c])[row->cohort_slot[c]];
    }
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        close_and_compare(model, c, inst->t, 1);
    zfi_window_restart(inst);
    if (inst->t >= model->w)
        model->base = inst->t;
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) { /* what was delivered has moved along */
        uint32_t c = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[i].first_segment].matrix].cohort;
        ck_assert_int_eq(row->cohort_slot[c], 0);
        ck_assert_int_eq(zfi_slot_table(inst, i, (uint32_t)row->cohort_table[c])[0], before[i]);
    }
    free(before);
}

static void run(uint64_t seed) {
    static const uint32_t intervals[] = {1, 2, 3, 4, 7, 16};
    char text[160];
    uint64_t r = zt_hash(seed);
    model_t model = {.w = 1 + (r >> 8) % 6,
                     .s = intervals[r % 6],
                     .interval = 1 + (r >> 16) % 20,
                     .is_staggered = (r >> 24) % 3 != 0};
    snprintf(text, sizeof text,
             "[zenflow]\nupdate_interval = %u\nstagger = %s\nfull_warm_up_rounds = %u\n"
             "select_interval = %u\n",
             (unsigned)model.s, model.is_staggered ? "true" : "false", (unsigned)model.w, (unsigned)model.interval);
    model.base = model.w;
    for (int c = 0; c < MOST_COHORTS; c++)
        model.first[c] = 1;
    inst = zt_bare_create(&rig, text);
    owner = calloc(inst->slots.n_pieces, sizeof *owner);
    free_after = calloc(inst->slots.n_pieces, sizeof *free_after);
    ck_assert(owner && free_after);
    for (uint64_t i = 0; i < N_STEPS; i++) {
        one_step(&model, r + i * 1000);
        if (zt_hash(r + i) % 23 == 0)
            flush(&model, r + i);
    }
    ck_assert_uint_le(atomic_load(&inst->count.slots_peak), inst->slots.n_pieces);
    free(owner);
    free(free_after);
    zt_bare_destroy(inst);
}

START_TEST(clocks_and_pool) {
    zt_rig_start(&rig, shapes, sizeof shapes / sizeof *shapes);
    for (uint64_t seed = 0; seed < 40; seed++)
        run(seed);
    zt_rig_end(&rig);
}
END_TEST

/* ---- moments mode ------------------------------------------------------------------------------------------------ */

/* No piece is in two tables, and the free ring holds every other one once. */
static void check_pieces(void) {
    uint8_t *seen = calloc(inst->slots.n_pieces, 1);
    const zfi_slots_t *slots = &inst->slots;
    ck_assert(seen != NULL);
    for (uint64_t i = slots->free_head; i < slots->free_tail; i++) {
        int32_t piece = slots->free[i % slots->n_pieces].piece;
        ck_assert_msg(!seen[piece], "piece %d is free twice", piece);
        seen[piece] = 1;
    }
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) {
        uint32_t c = inst->plan.matrices[inst->plan.segments[inst->plan.chunks[i].first_segment].matrix].cohort;
        const int32_t *table = zfi_slot_table(inst, i, inst->window_table[c]);
        for (uint32_t k = 0; k < inst->config.update_interval; k++) {
            ck_assert_msg(table[k] == ZFI_NO_PIECE || !seen[table[k]], "piece %d is free and in an open table",
                          table[k]);
            if (table[k] != ZFI_NO_PIECE)
                seen[table[k]] = 1;
        }
    }
    free(seen);
}

static void check_sums(const zfi_close_t *close) { /* two pieces of its own for every chunk */
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[close->cohort];
    for (uint32_t i = cohort->first_chunk; i < cohort->first_chunk + cohort->n_chunks; i++) {
        const int32_t *table = zfi_slot_table(inst, i, close->table);
        ck_assert(table[0] >= 0 && table[1] >= 0 && table[0] != table[1]);
    }
}

static void close_or_add(const model_t *model, uint32_t c, uint64_t t, int is_flush) {
    zfi_close_t close;
    uint64_t job = inst->next_job, publish = inst->next_publish;
    int is_on_device = zfi_sums_on_device(inst) && t > model->w, closes = is_flush || model_closes(model, c, t);
    if (is_on_device && closes)
        inst->cohort_sums[c] = ++inst->n_sums; /* as step.c does */
    if (closes)
        zfi_window_close(inst, c, t, is_flush, &close);
    else if (zfi_sums_on_host(inst))
        zfi_window_add(inst, c, t, &close);
    else
        return;
    ck_assert(close.first_job == job && close.first_publish == publish && close.n_slots == t + 1 - close.first_step);
    ck_assert_uint_eq(inst->next_publish, closes ? publish + close.n_chunks : publish);
    ck_assert_int_eq(close.is_sums_only, !closes);
    ck_assert_int_eq(close.takes_slot, zfi_sums_on_host(inst) && t > model->w && !is_flush);
    ck_assert_uint_eq(close.sums, is_on_device ? inst->n_sums : 0);
    if (is_on_device)
        check_sums(&close);
}

static void deliver(uint64_t seed) { /* as deliver.c does */
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) {
        uint64_t needs = 0;
        if (zfi_sums_on_device(inst) && !zfi_is_warm_up(inst, inst->t + 1))
            continue;
        if (zt_hash(seed + i) % 8)
            ck_assert_int_eq(zfi_window_slot(inst, i, &needs), ZF_OK);
    }
    check_pieces();
}

static void run_moments(uint64_t seed, const char *accumulate_on) {
    char text[200];
    uint64_t r = zt_hash(seed);
    model_t model = {.w = 1 + r % 4, .s = 2 + (r >> 8) % 6, .is_staggered = (r >> 16) % 3 != 0};
    snprintf(text, sizeof text,
             "[zenflow]\nupdate_interval = %u\nstagger = %s\nfull_warm_up_rounds = %u\ndeferred = moments\n"
             "accumulate_on = %s\n",
             (unsigned)model.s, model.is_staggered ? "true" : "false", (unsigned)model.w, accumulate_on);
    model.base = model.w;
    inst = zt_bare_create(&rig, text);
    for (uint64_t t = 1; t <= N_STEPS; t++) {
        deliver(r + t * 1000);
        for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
            close_or_add(&model, c, t, 0);
        inst->t = t;
        zfi_window_prepare(inst);
        check_pieces();
        if (zt_hash(r + t) % 9)
            continue;
        if (zt_hash(r + t) % 2)
            deliver(r + t * 1000 + 500); /* the coming step has gradients already */
        for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
            close_or_add(&model, c, t, 1);
        zfi_window_restart(inst);
        model.base = t >= model.w ? t : model.base;
        check_pieces();
    }
    ck_assert_uint_le(atomic_load(&inst->count.slots_peak), inst->slots.n_pieces);
    zt_bare_destroy(inst);
}

START_TEST(pool_of_moments) {
    zt_rig_start(&rig, shapes, sizeof shapes / sizeof *shapes);
    for (uint64_t seed = 0; seed < 40; seed++) {
        run_moments(seed, "host");
        run_moments(seed, "device");
    }
    zt_rig_end(&rig);
}
END_TEST

START_TEST(first_windows) { /* in numbers: W = 2, S = 3 */
    static const int closes[3][12] = {{1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1},
                                      {1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0},
                                      {1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0}};
    zt_rig_start(&rig, shapes, sizeof shapes / sizeof *shapes);
    inst = zt_bare_create(&rig, "[zenflow]\nupdate_interval = 3\nfull_warm_up_rounds = 2\n");
    for (uint32_t c = 0; c < 3; c++)
        for (uint64_t t = 1; t <= 12; t++)
            ck_assert_int_eq(zfi_window_closes(inst, c, t), closes[c][t - 1]);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}
END_TEST

/* W = 1, one cohort that closes at every step: a flag is used up by one choice. */
START_TEST(epochs) {
    static const int ends[9] = {0, 1, 0, 1, 0, 0, 1, 1, 0}, chooses[9] = {0, 1, 0, 1, 0, 0, 1, 1, 0};
    zt_rig_start(&rig, shapes, sizeof shapes / sizeof *shapes);
    inst = zt_bare_create(&rig, "[zenflow]\nupdate_interval = 1\nfull_warm_up_rounds = 1\nselect_strategy = epoch\n");
    inst->last_choice[0] = 1;
    for (uint64_t t = 2; t <= 8; t++) {
        if (ends[t])
            inst->epoch_end = t;
        ck_assert_int_eq(zfi_window_chooses(inst, 0, t), chooses[t]);
        if (chooses[t])
            inst->last_choice[0] = t;
    }
    inst->epoch_end = 9; /* of a later step's flag, the cohort's first close after it */
    ck_assert_int_eq(zfi_window_chooses(inst, 0, 12), 1);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("window", clocks_and_pool, pool_of_moments, first_windows, epochs)
