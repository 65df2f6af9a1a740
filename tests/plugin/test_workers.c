/* tests/plugin/test_workers.c - what a replay and a copy wait for, with timelines moved by hand: a worker that starts
 * too early changes state that is still in use. Each "not yet" below can fail only if the engine does not wait. */
#define _GNU_SOURCE
#include "offload/workers.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"
#include "offload/transfer.h"
#include "suite.h"
#include "window.h"

enum { A_WHILE_US = 60000 };
static const uint64_t a_minute = 60000000000u;
static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};

static zt_rig_t rig;
static zf_instance_t *inst;
static float before[48 * 40];

static void start(uint32_t n_workers) {
    zt_rig_start(&rig, shapes, 1);
    inst = zt_bare_create(&rig, "[zenflow]\nupdate_interval = 1\n[host]\naffinity = none\n");
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        memcpy(inst->hs.w + inst->plan.matrices[i].state_base, rig.params[0].serial.w, sizeof before);
    ck_assert_uint_eq(inst->plan.n_matrices, 1);
    memcpy(before, rig.params[0].serial.w, sizeof before);
    ck_assert_int_eq(zfi_workers_start(inst, n_workers, NULL), ZF_OK);
}

static void end(void) {
    zf_error_t over = {.struct_size = sizeof over, .status = ZF_ERR_STATE, .message = "over"};
    zfi_poison(inst, &over);
    zfi_workers_stop(inst->workers);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}

/* Closes step t, whose gradients are in slots; the selection in force is of choice_step. */
static void push(uint64_t t, uint64_t choice_step) {
    zfi_step_row_t *row = zfi_row(inst, t);
    zfi_close_t close;
    row->t = t;
    row->scalars.applied = row->present[0] = 1;
    row->scalars.s = 1.0f;
    row->hyper[0] = (zfi_hyper_t){1e-3, 0.9, 0.999, 1e-8, 0.5};
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++) {
        uint64_t needs_job = 0;
        ck_assert_int_eq(zfi_window_slot(inst, i, &needs_job), ZF_OK);
    }
    inst->last_choice[0] = choice_step;
    zfi_window_close(inst, 0, t, 0, &close);
    inst->t = t;
    zfi_window_prepare(inst);
    zfi_workers_push(inst, &close);
}

static int is_untouched(void) {
    usleep(A_WHILE_US);
    return memcmp(inst->hs.w + inst->plan.matrices[0].state_base, before, sizeof before) == 0;
}

static void finishes(uint64_t job) { ck_assert_int_eq(zfi_timeline_wait(&inst->jobs, job, a_minute, NULL), ZF_OK); }

START_TEST(waits_for_slots) {
    start(2);
    push(1, 0);
    ck_assert(is_untouched());
    zfi_timeline_signal(&inst->down, 1);
    finishes(inst->plan.n_chunks);
    ck_assert(!is_untouched());
    end();
}
END_TEST

START_TEST(waits_for_entering_state_to_be_read) {
    start(2);
    zfi_timeline_signal(&inst->down, 1);
    push(1, 9);
    ck_assert(is_untouched());
    zfi_timeline_signal(&inst->host_sel, 9);
    finishes(inst->plan.n_chunks);
    end();
}
END_TEST

START_TEST(waits_for_the_window_before) { /* which hangs; other workers are free */
    start(8);
    zt_bare_pass(&inst->up);
    zfi_timeline_signal(&inst->down, 2);
    push(1, 9);
    push(2, 0);
    ck_assert(is_untouched());
    zfi_timeline_signal(&inst->host_sel, 9);
    finishes(2 * inst->plan.n_chunks);
    ck_assert_uint_eq(inst->hs.n[0], 2);
    end();
}
END_TEST

START_TEST(waits_for_the_ring) { /* values of the window before have not gone up yet */
    start(2);
    zfi_timeline_signal(&inst->down, 2);
    push(1, 0);
    finishes(inst->plan.n_chunks);
    memcpy(before, inst->hs.w + inst->plan.matrices[0].state_base, sizeof before);
    push(2, 0);
    ck_assert(is_untouched());
    zt_bare_pass(&inst->up);
    finishes(2 * inst->plan.n_chunks);
    end();
}
END_TEST

START_TEST(stops_when_poisoned) {
    start(3);
    push(1, 0);
    end();
}
END_TEST

/* ---- copies ------------------------------------------------------------------------------------------------------ */

START_TEST(a_piece_is_not_written_before_its_replay_is_over) {
    zfi_batch_t *batch;
    uint64_t needs_job = 0;
    zt_rig_start(&rig, shapes, 1);
    inst = zt_bare_create(&rig, "");
    ck_assert_int_eq(zfi_queue_create(&inst->down_stream, "down", NULL), ZF_OK);
    for (uint32_t i = 0; i < inst->plan.n_chunks; i++)
        zfi_window_slot(inst, i, &needs_job);
    zt_rig_fill_grad(&rig, 0, 1);
    batch = &inst->batch_ring[0];
    *batch = (zfi_batch_t){.n = 1, .step = 1, .needs_job = 5};
    batch->entries[0] = (zfi_delivery_t){.flags = ZFI_DELIVER_SHIP, .grad = rig.params[0].grad};
    ck_assert_int_eq(zfi_transfer_gradients(inst, 0), ZF_OK);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->batches), 0); /* not shipped */
    zfi_timeline_signal(&inst->shipped, 1);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->batches), 0); /* still being replayed */
    zfi_timeline_signal(&inst->jobs, 5);
    ck_assert_int_eq(zfi_timeline_wait(&inst->batches, 1, a_minute, NULL), ZF_OK);
    ck_assert_uint_eq(atomic_load(&inst->count.down_grad_nbytes), sizeof before);
    zfi_queue_destroy(inst->down_stream);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(sums_wait_for_their_rounding_and_pieces) {
    zfi_close_t close;
    zt_rig_start(&rig, shapes, 1);
    inst = zt_bare_create(&rig, "[zenflow]\nfull_warm_up_rounds = 1\ndeferred = moments\naccumulate_on = device\n"
                                "update_interval = 2\nstagger = false\n");
    ck_assert_int_eq(zfi_queue_create(&inst->down_stream, "down", NULL), ZF_OK);
    inst->window_first[0] = 2;
    inst->cohort_sums[0] = inst->n_sums = 1;
    zfi_row(inst, 2)->present[0] = 1;
    zfi_window_close(inst, 0, 3, 0, &close);
    close.needs_job = 5;
    for (uint64_t i = 0; i < inst->plan.n_state_elems; i++) {
        inst->dev.sum1[i] = 1.0f;
        inst->dev.sum2[i] = 2.0f;
    }
    ck_assert_int_eq(zfi_transfer_sums(inst, &close), ZF_OK);
    zfi_timeline_signal(&inst->jobs, 5);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->sums), 0); /* not rounded */
    zfi_timeline_signal(&inst->rounded, 1);
    ck_assert_int_eq(zfi_timeline_wait(&inst->sums, 1, a_minute, NULL), ZF_OK);
    ck_assert_uint_eq(atomic_load(&inst->count.down_grad_nbytes), 2 * sizeof before);
    for (int k = 0; k < 2; k++)
        ck_assert(*(const float *)(const void *)zfi_piece(inst, zfi_slot_table(inst, 0, close.table)[k]) ==
                  (float)(k + 1));
    close.sums = 2;
    close.needs_job = 6;
    ck_assert_int_eq(zfi_transfer_sums(inst, &close), ZF_OK);
    zfi_timeline_signal(&inst->rounded, 2);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->sums), 1); /* the pieces are still being read */
    zfi_timeline_signal(&inst->jobs, 6);
    ck_assert_int_eq(zfi_timeline_wait(&inst->sums, 2, a_minute, NULL), ZF_OK);
    zfi_queue_destroy(inst->down_stream);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(a_published_chunk_waits_for_its_place) {
    zfi_close_t close;
    zt_rig_start(&rig, shapes, 1);
    inst = zt_bare_create(&rig, "[zenflow]\nupdate_interval = 1\n");
    ck_assert_int_eq(zfi_queue_create(&inst->up_stream, "up", NULL), ZF_OK);
    inst->next_job = inst->next_publish = ZFI_RING_CHUNKS;
    zfi_window_close(inst, 0, 1, 0, &close);
    ck_assert_int_eq(zfi_transfer_publish(inst, &close), ZF_OK);
    zt_bare_pass(&inst->publish_due);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->up), 0); /* not replayed */
    zt_bare_pass(&inst->jobs);
    usleep(A_WHILE_US);
    ck_assert_uint_eq(zfi_timeline_now(&inst->up), 0); /* the place holds an older chunk */
    zt_bare_pass(&inst->merged);
    ck_assert_int_eq(zfi_timeline_wait(&inst->up, ZFI_RING_CHUNKS + close.n_chunks, a_minute, NULL), ZF_OK);
    zfi_queue_destroy(inst->up_stream);
    zt_bare_destroy(inst);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("workers", waits_for_slots, waits_for_entering_state_to_be_read, waits_for_the_window_before,
        waits_for_the_ring, stops_when_poisoned, a_piece_is_not_written_before_its_replay_is_over,
        sums_wait_for_their_rounding_and_pieces, a_published_chunk_waits_for_its_place)
