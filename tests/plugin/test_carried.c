/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_carried.c - memory that carries a gradient to the plugin and the value back (ZF_PARAM_CARRIES): the
 * bits are those of memory apart, the gradient is there until its update is confirmed, and there is no other copy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "replay/early.h"
#include "state_rig.h"
#include "suite.h"

/* Chunks of one matrix, of several, and of blocks of one. */
static const zt_shape_t shapes[] = {
    {.rows = 500, .cols = 400},
    {.rows = 300, .cols = 400, .is_bf16 = 1},
    {.rows = 127},
    {.rows = 40, .cols = 30},
    {.rows = 17},
    {.rows = 64, .cols = 33, .is_bf16 = 1},
    {.rows = 5},
    {.rows = 1, .is_bf16 = 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST_SHAPES = 16, N_STEPS = 3, ASK_AGAIN_US = 200 };

/* Where its values are made, and who reads them. */
static const struct way {
    int32_t home;
    uint32_t flags;
} ways[] = {{ZF_HOME_PLUGIN, 0}, {ZF_HOME_HOST, 0}, {ZF_HOME_HOST, ZF_CREATE_CAP_FETCH}};
enum { N_WAYS = sizeof ways / sizeof *ways, IN_PLACE = 0, AT_STEP, AT_FETCH };

#define HOST "[host]\nthreads = 2\ndeadline_ms = 60000\n"
#define ASKED "[zenflow]\nmode = exact\non_overwrite = ask\n" HOST
static const char *const configs[] = {ASKED, "[zenflow]\nmode = exact\n" HOST};

static zt_rig_t rig;
static unsigned char *apart[MOST_SHAPES]; /* memory of gradients that the rig has, and does not use */
static const struct way *way;

/* Gradients are made in the memory of their parameters from now on. */
static void carry(void) {
    for (uint32_t i = 0; i < rig.n_params; i++) {
        apart[i] = rig.params[i].grad;
        rig.params[i].grad = rig.params[i].visible;
        rig.params[i].grad_tensor.dl.data = rig.params[i].visible;
    }
}

static void leave(void) {
    for (uint32_t i = 0; i < rig.n_params && apart[i]; i++) {
        rig.params[i].grad = apart[i];
        rig.params[i].grad_tensor.dl.data = apart[i];
        apart[i] = NULL;
    }
}

static void start(int n_way, const zt_shape_t *all, uint32_t n) {
    zt_shape_t carried[MOST_SHAPES];
    way = &ways[n_way];
    for (uint32_t i = 0; i < n; i++) {
        carried[i] = all[i];
        carried[i].flags |= ZF_PARAM_CARRIES;
        carried[i].home = way->home;
    }
    zt_rig_start(&rig, carried, n);
    carry();
}

static void open_way(int n_way, const char *config) {
    start(n_way, shapes, N_SHAPES);
    zt_rig_open(&rig, config, ways[n_way].flags);
}

static void end(void) {
    leave();
    zt_rig_end(&rig);
}

static void fetch(uint32_t i) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    if (!(way->flags & ZF_CREATE_CAP_FETCH))
        return;
    ZT_OK(&rig, zt_fetch(&rig, rig.params[i].id, &fence));
    zt_rig_wait(&rig, &fence);
}

static void fetch_all(void) {
    for (uint32_t i = rig.n_params; i-- > 0;) /* in no order of the plugin's */
        fetch(i);
}

static void deliver(uint32_t i) {
    fetch(i);
    zt_rig_fill_grad(&rig, i, rig.step + 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, i, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_LENT, NULL));
}

static void deliver_all(void) {
    for (uint32_t i = rig.n_params; i-- > 0;)
        deliver(i);
}

static void update(uint32_t i) {
    zt_serial_update(&rig.params[i].serial, &rig.groups[rig.params[i].shape.group], rig.params[i].grad_values,
                     (float)rig.unscale);
}

static void step(void) {
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    for (uint32_t i = 0; i < rig.n_params; i++)
        update(i);
}

static void check(void) {
    fetch_all();
    zt_rig_check_visible(&rig);
    zt_rig_check_export(&rig);
}

ZT_TEST(bits_are_those_of_memory_apart) {
    for (int w = 0; w < N_WAYS; w++)
        for (int c = 0; c < 2; c++) {
            open_way(w, configs[c]);
            for (int i = 0; i < N_STEPS; i++) {
                deliver_all();
                step();
                check();
            }
            zt_rig_check_flushed(&rig);
            end();
        }
}

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

static uint64_t measured(void) {
    return zt_rig_counter(&rig, "host_measured_nbytes") + zt_rig_counter(&rig, "device_measured_nbytes");
}

/* Bytes that each parameter more takes, early replays' room left out; what was planned is mapped, before a step and
 * after. */
static double nbytes_of_each(int n_way, const char *config) {
    double n[2], elems[2];
    for (int k = 0; k < 2; k++) {
        zt_shape_t many[MOST_SHAPES];
        for (int i = 0; i < MOST_SHAPES; i++)
            many[i] = (zt_shape_t){.rows = 256, .cols = 512, .is_bf16 = 1};
        start(n_way, many, k ? MOST_SHAPES : MOST_SHAPES / 2);
        zf_plan_t plan = zt_rig_plan(&rig, config, way->flags, 0, 1);
        zt_rig_open(&rig, config, way->flags);
        deliver_all();
        step();
        fetch_all();
        n[k] = (double)measured();
        elems[k] = (double)rig.layout.n_elems;
        ck_assert_uint_eq(plan.host_nbytes + plan.device_nbytes, measured());
        ck_assert_uint_eq(plan.host_slots_nbytes + plan.host_publish_nbytes, 0);
        ck_assert_uint_eq(zt_rig_counter(&rig, "down_grad_nbytes"), 0);
        end();
    }
    return (n[1] - n[0]) / (elems[1] - elems[0]);
}

#define LEAN "[zenflow]\nmode = exact\non_overwrite = ask\n[host]\nthreads = 2\nearly_mib = 0\n"

/* The state, beside the two bytes that carry: 14 in all, and 8 in 8 bits. */
ZT_TEST(the_state_is_all_that_there_is) {
    for (int w = 0; w < N_WAYS; w++) {
        double f32 = nbytes_of_each(w, LEAN), int8 = nbytes_of_each(w, LEAN "moments_dtype = int8\n");
        ck_assert_msg(f32 >= 12 && f32 < 12.1, "way %d: %g bytes per parameter", w, f32);
        ck_assert_msg(int8 >= 6.06 && int8 < 6.2, "way %d: %g bytes per parameter in 8 bits", w, int8);
    }
}

/* ---- the gradient is there until its update is confirmed ----------------------------------------------------------
 */

/* The memory of each parameter has what was delivered. */
static void check_delivered(void) {
    for (uint32_t i = 0; i < rig.n_params; i++)
        for (size_t e = 0; e < rig.params[i].n_elems; e++)
            ck_assert_msg(zt_visible(&rig.params[i], e) == rig.params[i].grad_values[e],
                          "%s[%zu] has %g, not the gradient %g that was delivered", rig.params[i].name, e,
                          (double)zt_visible(&rig.params[i], e), (double)rig.params[i].grad_values[e]);
}

static void wait_for_early(void) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    ZT_OK(&rig,
          zt_rig_deliver(&rig, 0, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_REPLACE, &fence)); /* all are on their way */
    while (zfi_early_has_work(rig.inst->run->early))
        usleep(ASK_AGAIN_US);
}

/* Updates that begin before their step write no value, whether they are of use or, since the rate is another, not. */
ZT_TEST(no_value_before_its_gradient_was_confirmed) {
    for (int w = AT_STEP; w < N_WAYS; w++) {
        open_way(w, ASKED);
        for (int i = 0; i < N_STEPS; i++) {
            ZT_OK(&rig, zt_rig_announce(&rig));
            for (uint32_t p = rig.n_params; p-- > 1;)
                deliver(p);
            fetch(0);
            wait_for_early();
            check_delivered();
            if (i % 2)
                rig.groups[0].lr *= 0.5;
            step();
            check();
        }
        ck_assert_uint_gt(zt_rig_counter(&rig, "early_taken"), 0);
        ck_assert_uint_gt(zt_rig_counter(&rig, "early_lost"), 0);
        end();
    }
}

/* FLUSH, DRAIN and an export show nothing over a gradient that waits for its step. */
ZT_TEST(nothing_is_shown_over_a_gradient) {
    for (int w = 0; w < N_WAYS; w++) {
        open_way(w, ASKED);
        deliver_all();
        step();
        fetch_all();
        deliver_all();
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        zt_rig_check_export(&rig);
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
        check_delivered();
        step();
        check();
        end();
    }
}

/* ---- a place is emptied ------------------------------------------------------------------------------------------ */

/* A step that is skipped gives the values back; holes show what they showed. */
ZT_TEST(a_skipped_step_gives_values_back) {
    for (int w = 0; w < N_WAYS; w++) {
        open_way(w, ASKED);
        deliver_all();
        step();
        fetch_all();
        for (uint32_t i = 0; i < rig.n_params; i += 2)
            deliver(i);
        fetch(1);
        zt_rig_fill_grad(&rig, 1, rig.step + 1);
        zo_narrow(rig.params[1].grad, zt_dtype(&rig.params[1]), 7, NAN);
        ZT_OK(&rig, zt_rig_deliver(&rig, 1, 0, NULL));
        ck_assert_int_eq(zt_rig_submit(&rig, ZF_STEP_WAIT, NULL), ZF_SKIPPED);
        check();
        deliver_all();
        step();
        check();
        end();
    }
}

/* A gradient that is dropped is published by nobody; what comes in its place counts, delivered there or elsewhere. */
ZT_TEST(discarded_replaced_and_delivered_elsewhere) {
    for (int w = 0; w < N_WAYS; w++) {
        open_way(w, ASKED);
        for (int i = 0; i < N_STEPS; i++) {
            rig.step += 100; /* other gradients */
            deliver_all();
            rig.step -= 100;
            if (i % 2) {
                ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
                check_delivered();
                deliver_all();
            } else {
                zf_fence_t fence = {.struct_size = sizeof fence};
                leave();
                for (uint32_t p = 0; p < rig.n_params; p++) {
                    zt_rig_fill_grad(&rig, p, rig.step + 1);
                    ZT_OK(&rig, zt_rig_deliver(&rig, p, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_REPLACE, &fence));
                }
                zt_rig_wait(&rig, &fence);
                for (uint32_t p = 0; p < rig.n_params; p++) /* the host's again */
                    memset(rig.params[p].grad, 0x7F, zt_nbytes(&rig.params[p]));
                carry();
            }
            step();
            check();
        }
        end();
    }
}

/* Values that the host wrote count by element once they are announced, and no check takes gradients for edits. */
ZT_TEST(announced_edits_count) {
    for (int w = 0; w < N_WAYS; w++) {
        open_way(w, configs[1]);
        for (int i = 0; i < N_STEPS; i++) {
            deliver_all();
            step();
            check();
            zt_param_t *param = &rig.params[i % 2];
            zo_narrow(param->visible, zt_dtype(param), 11, 3.5f + (float)i);
            ZT_OK(&rig, zt_changed(&rig, param->id, 0));
            param->serial.w[11] = 3.5f + (float)i;
        }
        zt_rig_check_flushed(&rig);
        end();
    }
}

/* ---- other memory, a load ---------------------------------------------------------------------------------------- */

ZT_TEST(moved_and_loaded) {
    for (int w = 0; w < N_WAYS; w++) {
        zt_memory_store_t store;
        zf_bind_args_t args;
        unsigned char *before[N_SHAPES];
        zt_memory_store_start(&store);
        open_way(w, ASKED);
        deliver_all();
        step();
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        for (uint32_t i = 0; i < rig.n_params; i++) {
            before[i] = rig.params[i].visible;
            rig.params[i].visible = rig.params[i].grad = malloc(zt_nbytes(&rig.params[i]) + 1);
            rig.params[i].tensor.dl.data = rig.params[i].grad_tensor.dl.data = rig.params[i].visible;
        }
        args = zt_rig_bind_args(&rig);
        ZT_OK(&rig, rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err));
        for (uint32_t i = 0; i < rig.n_params; i++)
            free(before[i]);
        check();
        deliver_all();
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        fetch_all();
        deliver_all(); /* the load drops it */
        ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
        check();
        zt_memory_store_clear(&store);
        end();
    }
}

/* ---- refused ------------------------------------------------------------------------------------------------------
 */

static void refuse(const char *config, const char *words) {
    zt_refused(&rig.err, zt_rig_try_create(&rig, config, 0) < 0 ? ZF_ERR_INTERNAL : zt_rig_try_bind(&rig), ZF_ERR_PARAM,
               words);
    end();
}

ZT_TEST(refused_by_name) {
    start(IN_PLACE, shapes, N_SHAPES);
    refuse("[zenflow]\nmode = windows\n", "mode = exact");
    start(IN_PLACE, shapes, N_SHAPES);
    rig.decls[3].flags = 0;
    refuse(ASKED, "of all that are trained, or of none");
    start(IN_PLACE, shapes, N_SHAPES);
    rig.decls[0].grad_dtype = (zf_dtype_t){ZF_DTYPE_CODE_BFLOAT, 16, 1};
    refuse(ASKED, "as wide as its values");
    open_way(AT_STEP, ASKED); /* it lies there, but not as the values do */
    rig.params[0].grad_tensor.dl.data = rig.params[0].visible + 4;
    zt_refused(&rig.err, zt_rig_deliver(&rig, 0, 0, NULL), ZF_ERR_PARAM, "in the memory of the parameter itself");
    end();
}

ZT_SUITE("carried")
