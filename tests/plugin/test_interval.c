/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_interval.c - update_interval = auto: when hooks ask for decisions, and what a checkpoint may say of
 * windows. The decisions are compared by zf-conform exact. */
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
static uint32_t cohort; /* of the two matrices, which are small beside the vector */

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

ZT_MAIN("interval", hooks_ask_between_the_bounds, windows_that_can_be_open)
