/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_workers.c - what a replay and a publication wait for, with timelines moved by hand: a worker that
 * starts too early changes state that is still in use. Each "not yet" below can fail only if the engine does not wait.
 * Here is what the order of work on a shuffling device (exact_shuffle) and late threads (test_late) do not show. */
#define _GNU_SOURCE
#include "replay/workers.h"

#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "rig.h"
#include "schedule/select.h"
#include "schedule/window.h"
#include "step/publish.h"
#include "step/scalars.h"
#include "step/updater.h"
#include "suite.h"

enum { A_WHILE_US = 60000 };
static const uint64_t a_minute = 60000000000u;
static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};

static zt_rig_t rig;
static zfi_run_t *run;
static float before[48 * 40];

/* An instance at rest: its workers and streams have nothing to do but what the test gives them, and modules can be
 * called one by one on the test's own thread. */
static void start(const char *config) {
    zt_rig_make(&rig, shapes, 1, config, 0);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    run = rig.inst->run;
    ck_assert_uint_eq(run->plan.n_matrices, 1);
    memcpy(before, rig.params[0].serial.w, sizeof before);
}

static void end(void) {
    zf_error_t over = {.struct_size = sizeof over, .status = ZF_ERR_STATE, .message = "over"};
    zfi_poison(run->engine, &over);
    zt_rig_end(&rig);
}

/* Of all chunks, in the step that is being filled. */
static void take_slots(void) {
    uint64_t needs_job = 0;
    for (uint32_t i = 0; i < run->n_params; i++)
        ck_assert_int_eq(zfi_window_slots(&run->windows, &run->params[i], &needs_job), ZF_OK);
}

/* Closes step t, whose gradients are in slots; the selection in force is of choice_step. */
static void push(uint64_t t, uint64_t choice_step) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    zfi_close_t close;
    row->t = t;
    row->scalars.applied = row->present[0] = 1;
    row->scalars.s = 1.0f;
    row->hyper[0] = (zfi_hyper_t){1e-3, 0.9, 0.999, 1e-8, 0.5};
    take_slots();
    run->clock.last_choice[0] = choice_step;
    zfi_window_close(&run->windows, 0, t, 0, &close);
    run->clock.t = t;
    zfi_window_prepare(&run->windows);
    zfi_workers_push(run->workers, &close);
}

#define CLOSES "[zenflow]\nupdate_interval = 1\n[host]\n"

static int is_untouched(void) {
    usleep(A_WHILE_US);
    return memcmp(run->hs.chunks->w + run->plan.matrices[0].state_base, before, sizeof before) == 0;
}

static void finishes(uint64_t job) {
    ck_assert_int_eq(zfi_timeline_wait(&run->engine->lines.jobs, job, a_minute, NULL), ZF_OK);
}

ZT_TEST(waits_for_entering_state_to_be_read) {
    start(CLOSES "threads = 2\n");
    zfi_timeline_signal(&run->engine->lines.down, 1);
    push(1, 9);
    ck_assert(is_untouched());
    zfi_timeline_signal(&run->engine->lines.host_sel, 9);
    finishes(run->plan.n_chunks);
    end();
}

ZT_TEST(waits_for_the_window_before) { /* which hangs; other workers are free */
    start(CLOSES "threads = 8\n");
    zfi_timeline_signal(&run->engine->lines.up, 1 << 30);
    zfi_timeline_signal(&run->engine->lines.down, 2);
    push(1, 9);
    push(2, 0);
    ck_assert(is_untouched());
    zfi_timeline_signal(&run->engine->lines.host_sel, 9);
    finishes(2 * run->plan.n_chunks);
    ck_assert_uint_eq(run->hs.n[0], 2);
    end();
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* What was collected goes to the streams. */
static void send(void) { ck_assert_int_eq(zfi_send(run->engine), ZF_OK); }

/* The row of step t, begun. */
static zfi_step_row_t *begin_row(uint64_t t) {
    zfi_step_row_t *row = zfi_row(&run->rows, t);
    row->t = t;
    return row;
}

/* After a while, the timeline is still there. */
static void stays_at(const zfi_timeline_t *timeline, uint64_t value) {
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(timeline), value);
}

static void reaches(zfi_timeline_t *timeline, uint64_t value) {
    ck_assert_int_eq(zfi_timeline_wait(timeline, value, a_minute, NULL), ZF_OK);
}

/* Of what a publication waits for, all but one is there: its values are replayed, the host has come to its next step
 * (which may take longer than a deadline), its place no longer holds an older chunk. */
static void publication_waits_for(int missing) {
    enum { HOST = 1 };
    zfi_close_t close;
    start("[zenflow]\nupdate_interval = 1\n[host]\ndeadline_ms = 200\n");
    zfi_timeline_t *inputs[] = {&run->engine->lines.jobs, &run->engine->lines.publish_due, &run->engine->lines.merged};
    uint64_t room = run->plan.ring_chunks;
    run->clock.next_job = room;
    zfi_window_close(&run->windows, 0, 1, 0, &close);
    uint64_t last = room + close.n_chunks;
    memset(run->hs.published, 7, (size_t)run->plan.max_close_chunks * run->plan.publish_piece_nbytes);
    for (int i = 0; i < 3; i++)
        if (i != missing)
            zfi_timeline_signal(inputs[i], last);
    zfi_publish_upload(&run->publishing, &close);
    send();
    usleep(missing == HOST ? 500000 : 0);
    stays_at(&run->engine->lines.up, 0);
    ck_assert_int_eq(zfi_is_poisoned(run->engine), 0);
    ck_assert_uint_eq(run->dev.ring[0], 0);
    zfi_timeline_signal(inputs[missing], last);
    reaches(&run->engine->lines.up, last);
    ck_assert_uint_eq(run->dev.ring[0], 7);
    end();
}

ZT_TEST(a_published_chunk_waits_for_its_place) {
    for (int missing = 0; missing < 3; missing++)
        publication_waits_for(missing);
}

ZT_TEST(a_record_of_many_parts_comes_last) { /* each part where an older one was counted */
    start("[zenflow]\nmode = windows\n");
    uint64_t n_sums = run->plan.n_sums;
    run->plan.record_sums = (n_sums + 5) / 6;
    run->plan.n_record_parts = 6;
    for (uint64_t i = 0; i < n_sums; i++)
        run->dev.head.sums[1][i] = (double)i;
    zfi_timeline_signal(&run->engine->lines.finished, 1);
    zfi_scalars_down(&run->side, &run->sel, begin_row(1));
    send();
    reaches(&run->engine->lines.down, 1);
    ck_assert_uint_eq(zfi_timeline_now(&run->engine->lines.recorded), 0);
    zfi_scalars_record(&run->side, &run->sel, 1);
    send();
    reaches(&run->engine->lines.recorded, 4);
    stays_at(&run->engine->lines.recorded, 4);
    zfi_row(&run->rows, 1)->present[0] = 1;
    zfi_row(&run->rows, 1)->scalars.applied = 1;
    zfi_row(&run->rows, 1)->scalars.s_exact = 2.0;
    for (uint32_t part = 0; part < 6; part++) {
        reaches(&run->engine->lines.recorded, part + 1);
        zfi_select_add_record(&run->plan, &run->sel, zfi_row(&run->rows, 1), part);
        zfi_timeline_signal(&run->engine->lines.counted, part + 1);
    }
    for (uint64_t i = 0; i < n_sums; i++)
        ck_assert(run->sel.importance[i] == 2.0 * (double)i);
    end();
}

ZT_SUITE("workers")
