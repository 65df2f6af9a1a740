/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_behind.c - a worker that falls many steps behind: nothing that it still needs is used again.
 *
 * zfi_replay_chunk is wrapped (-Wl,--wrap): one job is held until the host has submitted many steps more, or does not
 * come on because the engine makes it wait. Both are given a second; what is compared does not depend on it. */
#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "replay/replay.h"
#include "rig.h"
#include "suite.h"

enum { N_STEPS = 60, HELD_STEP = 2, UNTIL_STEP = 50, N_SHAPES = 2, MOST_ELEMS = 12 * 20 };

static const zt_shape_t shapes[N_SHAPES] = {{.rows = 12, .cols = 20}, {.rows = 20}};
static _Atomic uint64_t n_submitted;
static _Atomic int holds;

zf_status_t __real_zfi_replay_chunk(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t chunk,
                                    const zfi_replay_target_t *target, zfi_replayed_t *out);
zf_status_t __wrap_zfi_replay_chunk(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t chunk,
                                    const zfi_replay_target_t *target, zfi_replayed_t *out);

zf_status_t __wrap_zfi_replay_chunk(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t chunk,
                                    const zfi_replay_target_t *target, zfi_replayed_t *out) {
    if (close->step == HELD_STEP && atomic_exchange(&holds, 0))
        for (int i = 0; i < 1000 && atomic_load(&n_submitted) < UNTIL_STEP; i++)
            usleep(1000);
    return __real_zfi_replay_chunk(view, close, chunk, target, out);
}

/* Gradients come in the first steps and the last one; between them nothing takes a slot, so that slots hold nobody up.
 */
static int has_gradients(uint64_t step) { return step <= 4 || step == N_STEPS; }

static void train(const char *config, int is_held, unsigned char visible[N_SHAPES][4 * MOST_ELEMS]) {
    static zt_rig_t rig;
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
    atomic_store(&n_submitted, 0);
    atomic_store(&holds, is_held);
    for (uint64_t t = 1; t <= N_STEPS; t++) {
        for (uint32_t i = 0; i < N_SHAPES && has_gradients(t); i++) {
            zt_rig_fill_grad(&rig, i, t);
            ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, NULL));
        }
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        atomic_store(&n_submitted, t);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
    ck_assert_int_eq(atomic_load(&holds), 0);
    for (uint32_t i = 0; i < N_SHAPES; i++)
        memcpy(visible[i], rig.params[i].visible, rig.params[i].n_elems * rig.params[i].elem_nbytes);
    zt_rig_end(&rig);
}

static void same_whether_held_or_not(const char *config) {
    static unsigned char free_run[N_SHAPES][4 * MOST_ELEMS], held[N_SHAPES][4 * MOST_ELEMS];
    memset(free_run, 0, sizeof free_run);
    memset(held, 0, sizeof held);
    train(config, 0, free_run);
    train(config, 1, held);
    ck_assert_int_eq(memcmp(free_run, held, sizeof held), 0);
}

START_TEST(replays) { /* publishes hold the device up there */
    same_whether_held_or_not("[zenflow]\ntopk_ratio = 0.25\nupdate_interval = 8\nfull_warm_up_rounds = 1\n"
                             "[host]\nthreads = 1\n");
}
END_TEST

ZT_MAIN("behind", replays)
