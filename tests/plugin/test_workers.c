/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_workers.c - what a replay and a copy wait for, with timelines moved by hand: a worker that starts
 * too early changes state that is still in use. Each "not yet" below can fail only if the engine does not wait. */
#define _GNU_SOURCE
#include "replay/workers.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"
#include "schedule/select.h"
#include "schedule/window.h"
#include "step/gradients.h"
#include "step/publish.h"
#include "step/scalars.h"
#include "suite.h"

enum { A_WHILE_US = 60000 };
static const uint64_t a_minute = 60000000000u;
static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};

static zt_rig_t rig;
static zfi_run_t *run;
static float before[48 * 40];

static void start(uint32_t n_workers) {
    zt_rig_start(&rig, shapes, 1);
    run = zt_bare_create(&rig, "[zenflow]\nupdate_interval = 1\n[host]\naffinity = none\n");
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        memcpy(run->hs.chunks->w + run->plan.matrices[i].state_base, rig.params[0].serial.w, sizeof before);
    ck_assert_uint_eq(run->plan.n_matrices, 1);
    memcpy(before, rig.params[0].serial.w, sizeof before);
    ck_assert_int_eq(zfi_workers_start(&run->replays, run->early, n_workers, &run->workers, NULL), ZF_OK);
}

static void end(void) {
    zf_error_t over = {.struct_size = sizeof over, .status = ZF_ERR_STATE, .message = "over"};
    zfi_poison(run->engine, &over);
    zt_bare_destroy(run);
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

static int is_untouched(void) {
    usleep(A_WHILE_US);
    return memcmp(run->hs.chunks->w + run->plan.matrices[0].state_base, before, sizeof before) == 0;
}

static void finishes(uint64_t job) {
    ck_assert_int_eq(zfi_timeline_wait(&run->engine->lines.jobs, job, a_minute, NULL), ZF_OK);
}

START_TEST(waits_for_slots) {
    start(2);
    push(1, 0);
    ck_assert(is_untouched());
    zfi_timeline_signal(&run->engine->lines.down, 1);
    finishes(run->plan.n_chunks);
    ck_assert(!is_untouched());
    end();
}
END_TEST

START_TEST(waits_for_entering_state_to_be_read) {
    start(2);
    zfi_timeline_signal(&run->engine->lines.down, 1);
    push(1, 9);
    ck_assert(is_untouched());
    zfi_timeline_signal(&run->engine->lines.host_sel, 9);
    finishes(run->plan.n_chunks);
    end();
}
END_TEST

START_TEST(waits_for_the_window_before) { /* which hangs; other workers are free */
    start(8);
    zt_bare_pass(&run->engine->lines.up);
    zfi_timeline_signal(&run->engine->lines.down, 2);
    push(1, 9);
    push(2, 0);
    ck_assert(is_untouched());
    zfi_timeline_signal(&run->engine->lines.host_sel, 9);
    finishes(2 * run->plan.n_chunks);
    ck_assert_uint_eq(run->hs.n[0], 2);
    end();
}
END_TEST

START_TEST(waits_for_the_ring) { /* values of the window before have not gone up yet */
    start(2);
    zfi_timeline_signal(&run->engine->lines.down, 2);
    push(1, 0);
    finishes(run->plan.n_chunks);
    memcpy(before, run->hs.chunks->w + run->plan.matrices[0].state_base, sizeof before);
    push(2, 0);
    ck_assert(is_untouched());
    zt_bare_pass(&run->engine->lines.up);
    finishes(2 * run->plan.n_chunks);
    end();
}
END_TEST

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static zfi_timeline_t gate; /* what a stream is held at */

/* What was collected goes to the streams. */
static void send(void) { ck_assert_int_eq(zfi_send(run->engine), ZF_OK); }

static void start_copies(const char *config) {
    zt_rig_start(&rig, shapes, 1);
    run = zt_bare_create(&rig, config);
    zfi_timeline_init(&gate, "gate");
}

static void end_copies(void) {
    zt_bare_destroy(run);
    zt_rig_end(&rig);
    zfi_timeline_free(&gate);
}

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

START_TEST(a_piece_is_not_written_before_its_replay_is_over) {
    zfi_batch_t *batch;
    uint64_t at = 0;
    start_copies("");
    take_slots();
    zt_rig_fill_grad(&rig, 0, 1);
    batch = &run->incoming.batch_ring[0];
    *batch = (zfi_batch_t){.n = 1, .step = 1, .needs_job = 5};
    batch->gradients[0] =
        (zfi_gradient_t){.flags = ZFI_GRADIENT_SHIP, .source = rig.params[0].grad, .grad = rig.params[0].grad};
    zt_bare_hold(run, run->engine->stream, &gate);
    zfi_gradients_ship(&run->side, &run->windows, &run->incoming.batch_ring[0 % ZFI_N_BATCHES], 0);
    send();
    zfi_timeline_signal(&run->engine->lines.jobs, 4);
    stays_at(&run->engine->lines.batches, 0); /* not shipped */
    zfi_timeline_signal(&gate, 1);
    reaches(&run->engine->lines.shipped, 1);
    stays_at(&run->engine->lines.batches, 0); /* still being replayed */
    zfi_timeline_signal(&run->engine->lines.jobs, 5);
    reaches(&run->engine->lines.batches, 1);
    ck_assert_uint_eq(atomic_load(&run->engine->count.down_grad_nbytes), sizeof before);
    for (uint32_t i = 0; i < run->plan.n_chunks; i++) { /* the chunks of one matrix hold its gradient in turn */
        uint64_t nbytes = run->plan.chunks[i].n_elems * sizeof(float);
        ck_assert_int_eq(memcmp(zfi_slot(&run->slots, &run->plan.chunks[i], 0, 0), rig.params[0].grad + at, nbytes), 0);
        at += nbytes;
    }
    ck_assert_uint_eq(at, sizeof before);
    end_copies();
}
END_TEST

START_TEST(staging_is_not_written_before_it_was_copied) { /* by the batch before, which reads the same memory */
    zfi_batch_t *batch;
    float staging[48 * 40] = {0};
    start_copies("");
    take_slots();
    zt_rig_fill_grad(&rig, 0, 1);
    batch = &run->incoming.batch_ring[1];
    *batch = (zfi_batch_t){.n = 1, .step = 1, .staging_batch = 1};
    batch->gradients[0] =
        (zfi_gradient_t){.flags = ZFI_GRADIENT_SHIP | ZFI_GRADIENT_KEEP, .source = rig.params[0].grad, .grad = staging};
    zfi_gradients_ship(&run->side, &run->windows, &run->incoming.batch_ring[1 % ZFI_N_BATCHES], 1);
    send();
    stays_at(&run->engine->lines.shipped, 0);
    ck_assert(staging[0] == 0.0f && staging[48 * 40 - 1] == 0.0f);
    zfi_timeline_signal(&run->engine->lines.batches, 1);
    reaches(&run->engine->lines.batches, 2);
    ck_assert_int_eq(memcmp(staging, rig.params[0].grad, sizeof staging), 0);
    end_copies();
}
END_TEST

/* Of what a publication waits for, all but one is there. */
static void publication_waits_for(int missing) {
    zfi_close_t close;
    uint64_t room, end;
    zfi_timeline_t *inputs[3];
    start_copies("[zenflow]\nupdate_interval = 1\n");
    inputs[0] = &run->engine->lines.jobs; /* its values are replayed */
    inputs[1] = &run->engine->lines.publish_due;
    inputs[2] = &run->engine->lines.merged; /* its place no longer holds an older chunk */
    room = run->plan.ring_chunks;
    run->clock.next_job = room;
    zfi_window_close(&run->windows, 0, 1, 0, &close);
    end = room + close.n_chunks;
    memset(run->hs.published, 7, (size_t)run->plan.max_close_chunks * run->plan.publish_piece_nbytes);
    for (int i = 0; i < 3; i++)
        if (i != missing)
            zfi_timeline_signal(inputs[i], end);
    zfi_publish_upload(&run->publishing, &close);
    send();
    stays_at(&run->engine->lines.up, 0);
    ck_assert_uint_eq(run->dev.ring[0], 0);
    zfi_timeline_signal(inputs[missing], end);
    reaches(&run->engine->lines.up, end);
    ck_assert_uint_eq(run->dev.ring[0], 7);
    end_copies();
}

START_TEST(a_published_chunk_waits_for_its_place) {
    for (int missing = 0; missing < 3; missing++)
        publication_waits_for(missing);
}
END_TEST

START_TEST(an_older_chunk_waits_for_the_host) { /* who may take all the time it likes to come to its next step */
    zfi_close_t close;
    uint64_t room, end;
    start_copies("[zenflow]\nupdate_interval = 1\n[host]\ndeadline_ms = 200\n");
    room = run->plan.ring_chunks;
    run->clock.next_job = room;
    zfi_window_close(&run->windows, 0, 1, 0, &close);
    end = room + close.n_chunks;
    zfi_timeline_signal(&run->engine->lines.jobs, end);
    zfi_timeline_signal(&run->engine->lines.merged, end);
    zfi_publish_upload(&run->publishing, &close);
    send();
    usleep(500000);
    ck_assert_int_eq(zfi_is_poisoned(run->engine), 0);
    ck_assert_uint_eq(zfi_timeline_now(&run->engine->lines.up), 0);
    zfi_timeline_signal(&run->engine->lines.publish_due, end);
    reaches(&run->engine->lines.up, end);
    end_copies();
}
END_TEST

START_TEST(values_wait_until_they_are_up) { /* and become visible then */
    zfi_close_t close;
    start_copies("[zenflow]\nupdate_interval = 1\n");
    zfi_window_close(&run->windows, 0, 1, 0, &close);
    memset(run->dev.ring, 0, (size_t)run->plan.ring_chunks * run->plan.publish_piece_nbytes);
    close.publishes_all = 1;
    zfi_publish_merge(&run->publishing, &close);
    send();
    stays_at(&run->engine->lines.merged, 0);
    ck_assert_int_eq(memcmp(rig.params[0].visible, rig.params[0].serial.w, sizeof before), 0);
    zfi_timeline_signal(&run->engine->lines.up, close.n_chunks);
    reaches(&run->engine->lines.merged, close.n_chunks);
    memset(before, 0, sizeof before);
    ck_assert_int_eq(memcmp(rig.params[0].visible, before, sizeof before), 0);
    end_copies();
}
END_TEST

/* ---- the programs of a step -------------------------------------------------------------------------------------- */

/* What follows on the device stream runs no earlier than `line` reaches value. */
static void device_waits_for(zfi_timeline_t *line, uint64_t value) {
    zfi_list_add(&run->engine->to_device, zfi_op_signal(&gate, 1));
    send();
    zfi_timeline_signal(line, value - 1);
    stays_at(&gate, 0);
    zfi_timeline_signal(line, value);
    reaches(&gate, 1);
}

START_TEST(statistics_wait_for_the_record_before) { /* they write what went down two steps before */
    start_copies("");
    zfi_timeline_signal(&run->engine->lines.recorded, 2);
    zfi_gradients_begin(run->engine, &run->plan, 4, 0);
    device_waits_for(&run->engine->lines.down, 2);
    end_copies();
    start_copies("");
    zfi_timeline_signal(&run->engine->lines.down, 2);
    zfi_gradients_begin(run->engine, &run->plan, 4, 0);
    device_waits_for(&run->engine->lines.recorded, 2);
    end_copies();
}
END_TEST

START_TEST(gradients_are_gathered_by_the_maps_chosen_last) {
    start_copies("");
    zfi_timeline_signal(&run->engine->lines.down, 3);
    zfi_timeline_signal(&run->engine->lines.recorded, 3);
    zfi_gradients_begin(run->engine, &run->plan, 4, 3);
    device_waits_for(&run->engine->lines.maps, 3);
    end_copies();
}
END_TEST

START_TEST(a_record_is_not_written_before_it_is_counted) { /* by the control thread, ZFI_RECORD_DEPTH steps before */
    uint64_t t = ZFI_RECORD_DEPTH + 2;
    start_copies("");
    zfi_timeline_signal(&run->engine->lines.finished, t);
    zfi_scalars_down(&run->side, &run->sel, begin_row(t));
    send();
    zfi_timeline_signal(&run->engine->lines.control, 1);
    stays_at(&run->engine->lines.down, 0);
    zfi_timeline_signal(&run->engine->lines.control, 2);
    reaches(&run->engine->lines.down, t);
    zfi_timeline_signal(&run->engine->lines.counted, 1);
    stays_at(&run->engine->lines.recorded, 0);
    zfi_timeline_signal(&run->engine->lines.counted, 2);
    reaches(&run->engine->lines.recorded, t);
    end_copies();
}
END_TEST

START_TEST(a_record_of_many_parts_comes_last) { /* each part where an older one was counted */
    uint64_t n_sums;
    start_copies("");
    n_sums = run->plan.n_sums;
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
    end_copies();
}
END_TEST

START_TEST(a_report_waits_for_gradients_that_the_host_lends) {
    zfi_step_row_t *row;
    start_copies("");
    row = begin_row(2);
    row->waits_for_down = 1;
    zfi_scalars_report(&run->side, row);
    device_waits_for(&run->engine->lines.down, 2);
    ck_assert_uint_eq(zfi_timeline_now(&run->engine->lines.stepped), 2);
    end_copies();
}
END_TEST

ZT_MAIN("workers", statistics_wait_for_the_record_before, gradients_are_gathered_by_the_maps_chosen_last,
        a_record_is_not_written_before_it_is_counted, a_record_of_many_parts_comes_last,
        a_report_waits_for_gradients_that_the_host_lends, waits_for_slots, waits_for_entering_state_to_be_read,
        waits_for_the_window_before, waits_for_the_ring, a_piece_is_not_written_before_its_replay_is_over,
        staging_is_not_written_before_it_was_copied, a_published_chunk_waits_for_its_place,
        an_older_chunk_waits_for_the_host, values_wait_until_they_are_up)
