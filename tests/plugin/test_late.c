/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_late.c - one part of the engine falls behind the others: nothing that it has yet to read is written
 * again, and a hook waits for what it answers for.
 *
 * The part is wrapped (-Wl,--wrap): the replay of a chunk, the words of streams and workers (zfi_timeline_signal), the
 * kernels that take digests and list what is selected. It stands still until the host has come far enough and the
 * device had time for that, or for as long as the engine makes the host wait. What is compared with a run that is not
 * held does not depend on it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "kernels.h"
#include "launch.h"
#include "local_ranks.h"
#include "replay/replay.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"
#include "zf/ext/draft/digest.h"

enum { N_SHAPES = 3, MOST_STEPS = 60, MOST_ELEMS = 12 * 20, PATIENCE_MS = 600, DEVICE_MS = 250 };

static const zt_shape_t shapes[N_SHAPES] = {{.rows = 12, .cols = 20, .flags = ZF_PARAM_AVERAGE},
                                            {.rows = 20, .flags = ZF_PARAM_AVERAGE},
                                            {.rows = 8, .cols = 12, .flags = ZF_PARAM_AVERAGE}};
static zt_rig_t rig;

/* ---- what is held ------------------------------------------------------------------------------------------------ */

static _Atomic uint64_t n_submitted;
static _Atomic uint64_t held_replay, held_down; /* of the close of this step; after this word; 0: none */
static _Atomic int holds_control, holds_copies, holds_worker, holds_seal, is_edited;
static const zfi_data_t *_Atomic held_lists; /* of this device */

static int is_due(_Atomic uint64_t *held, uint64_t step) { return atomic_compare_exchange_strong(held, &step, 0); }

static void stand_still_until(uint64_t step) {
    for (int i = 0, late = 0; i < PATIENCE_MS && late < DEVICE_MS; i++, usleep(1000))
        late += atomic_load(&n_submitted) >= step;
}

ZT_WRAP(zf_status_t, zfi_replay_chunk, const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t chunk,
        const zfi_replay_target_t *target, zfi_replayed_t *out) {
    if (is_due(&held_replay, close->step))
        stand_still_until(close->step + 48);
    return __real_zfi_replay_chunk(view, close, chunk, target, out);
}

ZT_WRAP(void, zfi_timeline_signal, zfi_timeline_t *timeline, uint64_t value) {
    while ((strcmp(timeline->name, "control") == 0 && atomic_load(&holds_control)) ||
           (strcmp(timeline->name, "batches") == 0 && atomic_load(&holds_copies)))
        usleep(1000);
    if (strcmp(timeline->name, "jobs") == 0 && atomic_exchange(&holds_worker, 0))
        usleep(400000);
    __real_zfi_timeline_signal(timeline, value);
    if (strcmp(timeline->name, "down") == 0 && is_due(&held_down, value))
        stand_still_until(value + 6);
}

ZT_WRAP(void, zfi_cpu_check, const zfi_kernels_t *kernels, const void *raw) {
    const zfi_check_args_t *args = raw;
    if (args->seals && atomic_exchange(&holds_seal, 0))
        for (int ms = 0; ms < 300 && !atomic_load(&is_edited); ms++)
            usleep(1000);
    __real_zfi_cpu_check(kernels, raw);
}

ZT_WRAP(void, zfi_cpu_enter_maps, const zfi_kernels_t *kernels, const void *raw) {
    const zfi_enter_maps_args_t *args = raw;
    usleep(args->data == atomic_load(&held_lists) ? 1000 * DEVICE_MS : 0);
    __real_zfi_cpu_enter_maps(kernels, raw);
}

/* ---- a run that is held, and one that is not --------------------------------------------------------------------- */

/* How a run goes. */
typedef struct course {
    const char *config;
    uint32_t step_flags;
    uint64_t n_steps, held_replay, held_down;
    uint64_t loud_step;    /* its gradients have five large channels, which the next choice takes */
    int has_few;           /* gradients in the first four steps and the last, so that slots hold nobody up */
    int overwrites_behind; /* the host writes gradients again once their step is reported */
    int is_one_idle;       /* rank 0 has no gradients, and the lists of its selected channels are late */
    int has_gap;           /* no gradients in step 6, and in step 5 each rank lacks one, for either may be held */
} course_t;

/* Of one rank: what it comes to. */
typedef struct outcome {
    ZT_JOB;
    course_t course;
    int is_held;
    unsigned char visible[N_SHAPES][4 * MOST_ELEMS];
    float weights[N_SHAPES][MOST_ELEMS];
} outcome_t;

/* From memory of its own, so that nothing else makes the device wait; NULL: as hosts do that do not lend theirs. Where
 * a fence is asked for, the report of a step waits for no copy of its gradients. */
static zf_status_t deliver(zt_rig_t *to, uint32_t i, uint64_t loud_step, unsigned char *memory, int has_fence) {
    zf_fence_t read = {.struct_size = sizeof read};
    zt_param_t *param = &to->params[i];
    zt_rig_fill_grad(to, i, to->step + 1);
    for (size_t k = 0; k < param->n_elems && to->step + 1 == loud_step; k++)
        ((float *)(void *)param->grad)[k] *= k % 4 == 1 ? 1000 : 1;
    if (!memory)
        return zt_rig_deliver(to, i, 0, NULL);
    memcpy(memory, param->grad, zt_nbytes(param));
    param->grad_tensor.dl.data = memory;
    return zt_rig_deliver(to, i, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ, has_fence ? &read : NULL);
}

static int has_gradient(const outcome_t *out, uint64_t step, uint32_t i) {
    const course_t *course = &out->course;
    int lacks_one = step == 5 && i == out->rank->rank;
    if (course->is_one_idle) /* rank 0 */
        return out->rank->rank != 0;
    return course->has_few ? step <= 4 || step == course->n_steps : !course->has_gap || (step != 6 && !lacks_one);
}

static zf_status_t train(outcome_t *out) {
    static unsigned char memory[2][MOST_STEPS][N_SHAPES][4 * MOST_ELEMS];
    const course_t *course = &out->course;
    unsigned char(*own)[N_SHAPES][4 * MOST_ELEMS] = memory[out->rank->rank];
    zf_status_t st = ZF_OK;
    for (uint64_t t = 1; t <= course->n_steps && st >= 0; t++) {
        for (uint32_t i = N_SHAPES; i-- > 0 && st >= 0;)
            if (has_gradient(out, t, i))
                st = deliver(&out->rig, i, course->loud_step, course->has_gap ? NULL : own[t - 1][i],
                             !course->overwrites_behind);
        if (st >= 0)
            st = zt_rig_submit(&out->rig, course->step_flags, NULL);
        if (course->overwrites_behind)
            memset(own[t - 1], 0x3F, sizeof own[t - 1]);
        atomic_store(&n_submitted, t);
    }
    return st < 0 ? st : zt_quiesce(&out->rig, ZF_QUIESCE_DRAIN); /* selected channels show by themselves */
}

static void *run(void *raw) {
    outcome_t *out = raw;
    zt_rig_start(&out->rig, shapes, N_SHAPES);
    if (out->rank->all->size == 1)
        zt_rig_open(&out->rig, out->config, ZF_CREATE_CAP_FETCH);
    else
        out->st = zt_ranks_try_open(out->rank, &out->rig, out->config, 0);
    if (out->st >= 0 && out->is_held && out->course.is_one_idle && out->rank->rank == 0)
        atomic_store(&held_lists, out->rig.inst->run->dev.data);
    if (out->st >= 0)
        out->st = train(out);
    for (uint32_t i = 0; i < N_SHAPES && out->st >= 0; i++) {
        out->st = zt_try_export(&out->rig, i, out->weights[i]);
        memcpy(out->visible[i], out->rig.params[i].visible, zt_nbytes(&out->rig.params[i]));
    }
    return NULL;
}

static void run_all(outcome_t *out, uint32_t n, const course_t *course, int is_held) {
    static zt_ranks_t ranks;
    zt_jobs_start(&ranks, n, out, sizeof *out,
                  &(outcome_t){.config = course->config, .course = *course, .is_held = is_held});
    atomic_store(&n_submitted, 0);
    atomic_store(&held_replay, is_held ? course->held_replay : 0);
    atomic_store(&held_down, is_held ? course->held_down : 0);
    zt_jobs_run(&ranks, run, 0);
    zt_jobs_end(&ranks);
    atomic_store(&held_lists, NULL);
    ck_assert(atomic_load(&held_replay) == 0 && atomic_load(&held_down) == 0); /* it did happen */
}

static void same_whether_held_or_not(uint32_t n_ranks, const course_t *course) {
    static outcome_t free_run[2], held[2];
    run_all(free_run, n_ranks, course, 0);
    run_all(held, n_ranks, course, 1);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ck_assert_int_eq(memcmp(free_run[r].visible, held[r].visible, sizeof held[r].visible), 0);
        ck_assert_int_eq(memcmp(free_run[r].weights, held[r].weights, sizeof held[r].weights), 0);
    }
}

#define WINDOWS "[zenflow]\nupdate_interval = 4\npublish_lag = 1\nfull_warm_up_rounds = 1\n"

/* A worker, while publishes hold the device up. */
ZT_TEST(a_replay) {
    same_whether_held_or_not(1, &(course_t){.config = "[zenflow]\ntopk_ratio = 0.25\nupdate_interval = 8\n"
                                                      "full_warm_up_rounds = 1\n[host]\nthreads = 1\n",
                                            .n_steps = 60,
                                            .has_few = 1,
                                            .held_replay = 2});
}

/* Sums of channels, of which the device has two: those of a step are copied behind the word about it. The next choice
 * counts them. */
ZT_TEST(records) {
    same_whether_held_or_not(
        1, &(course_t){.config = WINDOWS "topk_ratio = 0.25\nselect_interval = 12\n[host]\nthreads = 1\n",
                       .n_steps = 16,
                       .loud_step = 4,
                       .held_down = 4});
}

/* Gradients that the host lent until their step is reported. */
ZT_TEST(gradients_until_the_report) {
    same_whether_held_or_not(1, &(course_t){.config = WINDOWS "topk_ratio = 0.25\n[host]\nthreads = 1\n",
                                            .step_flags = ZF_STEP_WAIT,
                                            .n_steps = 16,
                                            .loud_step = 4,
                                            .held_down = 6,
                                            .overwrites_behind = 1});
}

/* A whole gradient in strides, which the device packs, is given up for ranges of its matrices while it is copied down:
 * the next range is packed once that is over. */
ZT_TEST(ranges_in_place_of_a_whole) {
    enum { HALF = 6, STRIDE = 24 };
    static float memory[12 * STRIDE];
    static const int64_t strides[2] = {STRIDE, 1};
    const uint32_t again = ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_REPLACE;
    zf_fence_t read = {.struct_size = sizeof read};
    zt_rig_start(&rig, shapes, 1);
    rig.decls[0].n_batch_axes = 1;
    zt_rig_use_queue(&rig);
    zt_rig_open(&rig, WINDOWS "topk_ratio = 0\n", 0);
    rig.params[0].grad_tensor.dl.data = memory;
    rig.params[0].grad_tensor.dl.strides = strides;
    rig.params[0].grad_tensor.nbytes = sizeof memory;
    zfi_timeline_t *packed = &rig.inst->engine.lines.shipped;
    atomic_store(&holds_copies, 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, NULL));
    ZT_OK(&rig, zt_rig_deliver_range(&rig, 0, 0, HALF, again, &read)); /* of the same batch, which ends here */
    ck_assert_int_eq(zfi_timeline_wait(packed, 1, UINT64_C(60000000000), NULL), ZF_OK);
    ZT_OK(&rig, zt_rig_deliver_range(&rig, 0, HALF, HALF, 0, &read));
    usleep(1000 * DEVICE_MS);
    ck_assert_uint_eq(zfi_timeline_now(packed), 1);
    atomic_store(&holds_copies, 0);
    ck_assert_int_eq(zfi_timeline_wait(packed, 2, UINT64_C(60000000000), NULL), ZF_OK);
    zt_rig_end(&rig);
}

/* The memory that gradients go to the other ranks from is filled with zeros in the step after, once what it holds has
 * been copied down. Where a rank lacked a gradient, its sums did not land in memory of their own. */
ZT_TEST(gradients_of_ranks) {
    same_whether_held_or_not(2, &(course_t){.config = WINDOWS "topk_ratio = 0\npredict = off\n[host]\nthreads = 1\n"
                                                              "",
                                            .n_steps = 16,
                                            .has_gap = 1,
                                            .held_down = 4});
}

/* Buckets that hold no gradient here are handed over as soon as the step comes. What is selected in them is gathered by
 * the last choice all the same. */
ZT_TEST(lists_of_selected_channels) {
    same_whether_held_or_not(2, &(course_t){.config = WINDOWS "topk_ratio = 0.25\nselect_interval = 4\npredict = off\n"
                                                              "[host]\nthreads = 1\n[shard]\n"
                                                              "stage = 1\nbucket_bytes = 64\n",
                                            .n_steps = 8,
                                            .is_one_idle = 1});
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* The control thread reads what a step is in a ring of rows. Nothing is selected: no record keeps the others near. */
ZT_TEST(the_control_thread) {
    enum { AHEAD = 6 };
    static unsigned char memory[AHEAD][N_SHAPES][4 * MOST_ELEMS];
    zt_rig_make(&rig, shapes, N_SHAPES, WINDOWS "topk_ratio = 0\n", ZF_CREATE_CAP_FETCH);
    zfi_timeline_t *down = &rig.inst->engine.lines.down;
    atomic_store(&holds_control, 1);
    for (int t = 0; t < AHEAD; t++) {
        for (uint32_t i = N_SHAPES; i-- > 0;)
            ZT_OK(&rig, deliver(&rig, i, 0, memory[t][i], 1));
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    }
    for (int i = 0; i < 10000 && zfi_timeline_now(down) < ZFI_RECORD_DEPTH; i++)
        usleep(1000);
    usleep(1000 * DEVICE_MS);
    ck_assert_uint_eq(zfi_timeline_now(down), ZFI_RECORD_DEPTH);
    atomic_store(&holds_control, 0);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    ck_assert_uint_eq(zfi_timeline_now(down), AHEAD);
    zt_rig_end(&rig);
}

/* A worker is slow to say that its chunk is replayed, while another one has said it for both: a load in between is of
 * another clock, which the late word must not move. */
ZT_TEST(a_worker_s_word) {
    static zt_memory_store_t store;
    zt_state_saved(&rig, &store, zt_state_configs[0], 1, 0);
    zt_state_steps(&rig, 9);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    atomic_store(&holds_worker, 1);
    zt_state_steps(&rig, 1);
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    ck_assert_int_eq(atomic_load(&holds_worker), 0);
    ck_assert_uint_eq(zfi_timeline_now(&rig.inst->engine.lines.jobs), rig.inst->run->clock.next_job);
    zt_state_end(&rig, NULL, &store);
}

/* ---- digests of weights that are accepted ------------------------------------------------------------------------ */

static const char asks[] = "[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 3\non_overwrite = ask\n";

static uint8_t is_written(uint32_t flags) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    uint8_t found = 0;
    ZT_OK(&rig, ext->written(rig.inst, flags, &rig.params[0].id, 1, &found, &rig.err));
    return found;
}

static void hold_next(void) {
    atomic_store(&is_edited, 0);
    atomic_store(&holds_seal, 1);
}

/* The hook has returned: a host that writes one bit now must be found. */
static void edit_and_ask(void) {
    rig.params[0].visible[0] ^= 1;
    atomic_store(&is_edited, 1);
    ck_assert_int_eq(atomic_load(&holds_seal), 0);
    ck_assert_uint_eq(is_written(ZF_WRITTEN_LOOK), 1);
}

static void accept(void) { ck_assert_uint_eq(is_written(ZF_WRITTEN_ACCEPT), 0); }
static void change(void) { ZT_OK(&rig, zt_changed(&rig, rig.params[0].id, 0)); }
static void load(void) { ZT_OK(&rig, zt_load(&rig, NULL, zt_dir(), 0, NULL)); }

static void end_of(void (*hook)(void), int has_queue) {
    zt_rig_make(&rig, shapes, N_SHAPES, asks, has_queue ? ZT_ON_QUEUE : ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    zt_rig_sync(&rig);
    ZT_OK(&rig, zt_save(&rig, NULL, zt_dir(), 0, NULL));
    hold_next();
    hook();
    edit_and_ask();
    zt_rig_end(&rig);
}

ZT_TEST(digests_at_the_end_of_a_hook) {
    end_of(accept, 0);
    end_of(accept, 1);
    end_of(change, 0);
    end_of(load, 0);
}

/* The first set, and another one. */
ZT_TEST(digests_at_the_end_of_bind_params) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, asks, ZF_CREATE_CAP_FETCH);
    hold_next();
    zt_rig_bind(&rig);
    edit_and_ask();
    ck_assert_uint_eq(is_written(ZF_WRITTEN_ACCEPT), 1);
    rig.decls[1].home = ZF_HOME_HOST;
    hold_next();
    zt_rig_bind(&rig);
    edit_and_ask();
    zt_rig_end(&rig);
}

ZT_SUITE("late")
