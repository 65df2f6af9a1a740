/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_edits.c - exact where weights and state lie in the host's memory: what it takes, what the host
 * writes beside updates, and that the device's thread and the workers share a launch. That edits count by element is
 * zf-conform exact's. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "replay/workers.h"
#include "state_rig.h"
#include "suite.h"

/* The first is worth sharing among threads; elements are one, few, as many as fill no vector. */
static const zt_shape_t shapes[] = {
    {.rows = 500, .cols = 400},
    {.rows = 127},
    {.rows = 40, .cols = 30},
    {.rows = 64, .cols = 33, .is_bf16 = 1},
    {.rows = 127, .is_bf16 = 1},
    {.rows = 1, .is_bf16 = 1},
    {.rows = 1},
    {.rows = 9, .cols = 7, .home = ZF_HOME_HOST},
    {.rows = 20, .cols = 3, .group = 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;

#define EXACT "[zenflow]\nmode = exact\n[host]\nthreads = 3\n"

static void *element(const zt_param_t *param, size_t i) { return param->visible + i * param->elem_nbytes; }

/* The host writes an element without a word; the serial optimizer goes on from it, but where it stood there anyway. */
static void edit(uint32_t p, size_t i, float value) {
    zt_param_t *param = &rig.params[p];
    zo_narrow(param->visible, zt_dtype(param), i, value);
    if (zt_visible(param, i) != zt_rounded(param, param->serial.w[i]))
        param->serial.w[i] = zt_visible(param, i);
}

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

/* Bytes that each parameter more takes, of the arenas and of what hooks map. */
static double nbytes_of_each(int is_bf16) {
    double n[2], elems[2];
    for (int k = 0; k < 2; k++) {
        zt_shape_t many[8];
        for (int i = 0; i < 8; i++)
            many[i] = (zt_shape_t){.rows = 512, .cols = 1024, .is_bf16 = is_bf16};
        zt_rig_make(&rig, many, k ? 8 : 4, "", 0);
        for (uint32_t p = 0; p < rig.n_params; p++) {
            zt_rig_fill_grad(&rig, p, 1);
            ZT_OK(&rig, zt_rig_deliver(&rig, p, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ, NULL));
        }
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        n[k] = (double)(zt_rig_counter(&rig, "host_measured_nbytes") + zt_rig_counter(&rig, "device_measured_nbytes"));
        elems[k] = (double)rig.layout.n_elems;
        ck_assert_uint_eq(zt_rig_counter(&rig, "window_closes"), 0);
        ck_assert_uint_eq(zt_rig_counter(&rig, "down_grad_nbytes"), 0); /* read where it was lent */
        zt_rig_end(&rig);
    }
    return (n[1] - n[0]) / (elems[1] - elems[0]);
}

/* Moments alone beside fp32 weights, a master too beside bf16; nothing else grows with the parameters. */
ZT_TEST(state_is_all_that_there_is) {
    double f32 = nbytes_of_each(0), bf16 = nbytes_of_each(1);
    ck_assert_msg(f32 >= 8 && f32 < 8.05, "%g bytes per fp32 parameter", f32);
    ck_assert_msg(bf16 >= 12 && bf16 < 12.05, "%g bytes per bf16 parameter", bf16);
}

/* ---- edits ------------------------------------------------------------------------------------------------------- */

static float exported(uint32_t p, size_t i) {
    float *all = malloc(rig.params[p].n_elems * sizeof *all), out;
    ZT_OK(&rig, zt_try_export(&rig, p, all));
    out = all[i];
    free(all);
    return out;
}

/* Nothing takes an edit but an update: until then it is what everybody reads, and what stood there can be put back. */
ZT_TEST(where_there_is_no_update) {
    enum { P = 3, I = 5 };
    zt_param_t *param;
    uint16_t was;
    zt_rig_make(&rig, shapes, N_SHAPES, EXACT, 0);
    param = &rig.params[P];
    zt_rig_steps(&rig, 3);
    float master = param->serial.w[I];
    ck_assert(exported(P, I) == master && master != zt_visible(param, I)); /* it has more than the model shows */
    memcpy(&was, element(param, I), sizeof was);
    edit(P, I, 3.0f);
    for (int round = 0; round < 3; round++) {
        ck_assert(exported(P, I) == 3.0f && zt_visible(param, I) == 3.0f);
        if (round == 0)
            ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL)); /* a hole for every parameter */
        else
            ZT_OK(&rig, zt_quiesce(&rig, round == 1 ? ZF_QUIESCE_FLUSH : ZF_QUIESCE_DRAIN));
    }
    memcpy(element(param, I), &was, sizeof was);
    param->serial.w[I] = master;
    ck_assert(exported(P, I) == master);
    zt_rig_steps(&rig, 2);
    zt_rig_end_flushed(&rig);
}

/* The last element of the last gradient: no element of any parameter has moved. */
ZT_TEST(nothing_is_written_before_all_gradients_were_finite) {
    zf_step_report_t report = {.struct_size = sizeof report};
    unsigned char *was[N_SHAPES];
    zt_rig_make(&rig, shapes, N_SHAPES, EXACT, 0);
    zt_rig_steps(&rig, 2);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        was[p] = malloc(zt_nbytes(&rig.params[p]));
        memcpy(was[p], rig.params[p].visible, zt_nbytes(&rig.params[p]));
        zt_rig_fill_grad(&rig, p, rig.step + 1);
        if (p == N_SHAPES - 1)
            ((float *)(void *)rig.params[p].grad)[rig.params[p].n_elems - 1] = NAN;
        ZT_OK(&rig, zt_rig_deliver(&rig, p, 0, NULL));
    }
    ck_assert_int_eq(zt_rig_submit(&rig, ZF_STEP_WAIT, &report), ZF_SKIPPED);
    ck_assert_uint_eq(report.nonfinite_param, rig.params[N_SHAPES - 1].id);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        ck_assert(zt_shows(&rig.params[p], was[p]));
        free(was[p]);
    }
    zt_rig_steps(&rig, 3); /* with the moments as they were */
    zt_rig_end_flushed(&rig);
}

/* What no weight can be ends the instance with its name, as if an update had made it. */
ZT_TEST(an_edit_to_infinity_is_named) {
    zt_rig_make(&rig, shapes, N_SHAPES, EXACT, 0);
    zt_rig_step(&rig);
    edit(2, 7, INFINITY);
    zt_rig_try_step(&rig);
    zt_refused(&rig.err, zt_quiesce(&rig, ZF_QUIESCE_DRAIN), ZF_ERR_NONFINITE, rig.params[2].name);
    zt_rig_end(&rig);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* A load that fails at any call of its store has written nothing where the model reads: in place, and beside a run. */
ZT_TEST(a_load_that_fails_leaves_the_model_alone) {
    zt_memory_store_t store;
    zt_rig_t other;
    for (int n = 0; n < 4; n += 3) {
        int has_failed = 0, fails = 1;
        zt_state_saved(&rig, &store, "mode = exact\n", 4, 0);
        zt_state_open_copy(&other, "mode = exact\n", 0);
        zt_state_steps(&other, n);
        zt_image_t was = zt_state_image(&other);
        for (int at = 1; fails; at++) {
            store.n_calls = 0;
            store.fail_at = at;
            fails = zt_load(&other, &store.table, NULL, 0, NULL) != ZF_OK;
            has_failed += fails;
            if (fails)
                zt_state_check_image(&other, &was, "after a load that failed");
        }
        ck_assert_int_gt(has_failed, 3);
        zt_state_check_equal(&rig, &other, "after the load");
        free(was.bytes);
        zt_state_end(&rig, &other, &store);
    }
}

/* ---- a launch that is shared ------------------------------------------------------------------------------------- */

enum { PARTS = 64 };
static atomic_int n_begun, n_over, n_of[PARTS];

static void slow_part(void *arg, uint32_t i) {
    (void)arg;
    atomic_fetch_add(&n_begun, 1);
    usleep(200 + 50 * (i % 7));
    atomic_fetch_add(&n_of[i], 1);
    atomic_fetch_add(&n_over, 1);
}

/* Each part is taken once, and all of them are over when the call is. */
ZT_TEST(parts_are_over) {
    zt_rig_make(&rig, shapes, N_SHAPES, EXACT, 0);
    for (int round = 1; round <= 20; round++) {
        zfi_workers_share(rig.inst->run->workers, PARTS, slow_part, NULL);
        ck_assert_int_eq(atomic_load(&n_begun), round * PARTS);
        ck_assert_int_eq(atomic_load(&n_over), round * PARTS);
        for (int i = 0; i < PARTS; i++)
            ck_assert_int_eq(atomic_load(&n_of[i]), round);
    }
    zt_rig_steps(&rig, 2);
    zt_rig_end_flushed(&rig);
}

ZT_SUITE("edits")
