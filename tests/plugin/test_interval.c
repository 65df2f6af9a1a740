/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_interval.c - update_interval = auto: decisions from records, and when hooks ask for them. */
#include "schedule/interval.h"

#include <check.h>
#include <stdio.h>

#include "bare.h"
#include "schedule/window.h"
#include "suite.h"

static const zt_shape_t shapes[] = {{.rows = 2, .cols = 4}, {.rows = 3, .cols = 4}, {.rows = 8192}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, W = 1 };
static zt_rig_t rig;
static zfi_run_t *run;
static uint32_t cohort;       /* of the two matrices, which are small beside the vector */
static uint64_t closing_step; /* after W */

/* In one cohort: two matrices of four channels, of which channel 0 is selected from step W on. In another: a vector. */
static void start(void) {
    char text[256];
    snprintf(text, sizeof text,
             "[zenflow]\nupdate_interval = auto\ntopk_ratio = 0.25\n"
             "full_warm_up_rounds = 1\n");
    zt_rig_start(&rig, shapes, N_SHAPES);
    run = zt_bare_create(&rig, text);
    cohort = run->plan.matrices[0].cohort;
    ck_assert_uint_eq(run->plan.matrices[1].cohort, cohort);
    for (uint32_t i = 0; i < 2; i++)
        run->sel.mask[run->plan.matrices[i].channel_base] = 1;
}

static void end(void) {
    zt_bare_destroy(run);
    zt_rig_end(&rig);
}

static void conclude(const zfi_step_row_t *row) {
    if (row->t > W)
        zfi_interval_take(&run->plan, &run->sel, row);
    zfi_interval_conclude(&run->clock, &run->plan, &run->sel, row);
}

/* Step t with the record s * {selected, deferred, deferred, deferred} in both matrices; s = 2. */
static void take(uint64_t t, double selected0, double deferred0, double selected1, double deferred1) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    double *record = zfi_record_part(&run->plan, &run->sel, zfi_first_record_part(&run->plan, t));
    row->t = t;
    row->scalars.applied = 1;
    row->scalars.s_exact = 2.0;
    row->chooses[cohort] = t == W;
    row->closes[cohort] = t == W || t == closing_step;
    for (uint32_t i = 0; i < 2; i++) {
        row->present[i] = 1;
        for (uint32_t c = 0; c < 4; c++)
            record[run->plan.matrices[i].sum_base + c] = i ? (c ? deferred1 : selected1) : (c ? deferred0 : selected0);
    }
    conclude(row);
}

static int is_ready(uint64_t t) { return run->sel.ready[t % ZFI_READY_DEPTH][cohort]; }

START_TEST(deferred_channels_catch_up) {
    start();
    take(1, 0, 100, 0, 100); /* warm-up: of no account */
    take(2, 4, 1, 4, 1);
    ck_assert(!is_ready(4)); /* 1 of 4 */
    take(3, 4, 1, 4, 1);
    ck_assert(!is_ready(5));
    take(4, 4, 1, 4, 1);
    ck_assert(!is_ready(6)); /* 3 of 4 */
    take(5, 4, 1, 4, 1);
    ck_assert(is_ready(7));
    end();
}
END_TEST

START_TEST(a_share_of_matrices_is_enough) {
    start();
    take(1, 0, 0, 0, 0);
    take(2, 4, 1, 4, 2);
    take(3, 4, 1, 4, 2);
    ck_assert(is_ready(5));
    end();
}
END_TEST

START_TEST(a_close_starts_the_deferred_sums_anew) {
    start();
    take(1, 0, 0, 0, 0);
    take(2, 4, 4, 4, 4);
    ck_assert(is_ready(4));
    closing_step = 3;
    take(3, 4, 4, 4, 4);
    take(4, 4, 3, 4, 3);
    ck_assert(!is_ready(6)); /* 3 of 4 */
    take(5, 4, 1, 4, 1);
    ck_assert(is_ready(7));
    zfi_interval_restart(&run->plan, &run->sel); /* FLUSH */
    take(6, 4, 3, 4, 3);
    ck_assert(!is_ready(8));
    end();
}
END_TEST

START_TEST(skipped_steps_and_holes_add_nothing) {
    start();
    take(1, 0, 0, 0, 0);
    zfi_row(&run->rows, 2)->t = 2;
    zfi_row(&run->rows, 2)->scalars.applied = 0;
    conclude(zfi_row(&run->rows, 2));
    take(3, 4, 2, 4, 2); /* the selected had 4 in two steps: 2 per step */
    ck_assert(is_ready(5));
    end();
}
END_TEST

/* Length of the window that is open, decisions of readiness, and what comes of them at step t. */
static int closes(uint64_t first, uint64_t t, int ready) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    row->t = t;
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        run->clock.window_first[c] = first;
    run->sel.ready[t % ZFI_READY_DEPTH][cohort] = (uint8_t)ready;
    ck_assert_int_eq(zfi_interval_decide(run->engine, run->plan.n_cohorts, &run->clock, &run->sel, row), ZF_OK);
    return row->closes[cohort];
}

START_TEST(hooks_ask_between_the_bounds) {
    start();
    run->clock.base = 1;
    run->engine->timeout_ns = 1;   /* a hook that asks without need fails */
    ck_assert(!closes(10, 11, 1)); /* 2 steps */
    ck_assert(closes(10, 25, 0));  /* 16: the bound */
    ck_assert(closes(1, 1, 0));    /* warm-up */
    zfi_timeline_signal(&run->engine->lines.decided, 13);
    ck_assert(closes(10, 13, 1) && !closes(10, 13, 0));
    ck_assert_uint_eq(atomic_load(&run->engine->count.closes_by_data), 1);
    zfi_row(&run->rows, 14)->t = 14;
    ck_assert_int_eq(
        zfi_interval_decide(run->engine, run->plan.n_cohorts, &run->clock, &run->sel, zfi_row(&run->rows, 14)),
        ZF_ERR_POISONED); /* it waits for step 14 */
    end();
}
END_TEST

/* What a checkpoint may say: a window of 3 to 15 steps is open, after the first one of as many. */
START_TEST(windows_that_can_be_open) {
    uint32_t last;
    start();
    last = run->plan.n_cohorts - 1; /* its first window is as long as all others */
    run->clock.base = 1;
    run->clock.t = 20;
    ck_assert(!zfi_interval_can_be_open(&run->clock, last, 5)); /* 16 steps: it has closed */
    ck_assert(zfi_interval_can_be_open(&run->clock, last, 6));
    ck_assert(zfi_interval_can_be_open(&run->clock, last, 21));
    ck_assert(!zfi_interval_can_be_open(&run->clock, last, 22)); /* still to come */
    run->clock.t = 6;
    ck_assert(!zfi_interval_can_be_open(&run->clock, last, 1) && zfi_interval_can_be_open(&run->clock, last, 2));
    ck_assert(!zfi_interval_can_be_open(&run->clock, last, 4)); /* after one too short */
    ck_assert(zfi_interval_can_be_open(&run->clock, last, 5));
    end();
}
END_TEST

START_TEST(first_windows_are_staggered) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    run = zt_bare_create(&rig, "[zenflow]\nupdate_interval = auto\nfull_warm_up_rounds = 1\n");
    for (uint32_t c = 0; c < 3; c++)
        run->clock.window_first[c] = 2;
    for (uint64_t t = 2; t <= 4; t++) {
        zfi_row(&run->rows, t)->t = t;
        zt_bare_pass(&run->engine->lines.decided);
        ck_assert_int_eq(
            zfi_interval_decide(run->engine, run->plan.n_cohorts, &run->clock, &run->sel, zfi_row(&run->rows, t)),
            ZF_OK);
        for (uint32_t c = 0; c < 3; c++) {
            ck_assert_int_eq(zfi_row(&run->rows, t)->closes[c], c + 2 == t);
            if (zfi_row(&run->rows, t)->closes[c])
                run->clock.window_first[c] = t + 1;
        }
    }
    end();
}
END_TEST

ZT_MAIN("interval", deferred_channels_catch_up, a_share_of_matrices_is_enough, a_close_starts_the_deferred_sums_anew,
        skipped_steps_and_holes_add_nothing, hooks_ask_between_the_bounds, windows_that_can_be_open,
        first_windows_are_staggered)
