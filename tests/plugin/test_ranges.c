/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_ranges.c - stacked gradients that are delivered by ranges of their matrices: every wrong order is
 * refused without a trace, and a load drops ranges. That the bits are those of whole ones is zf-conform exact's. */
#include <check.h>
#include <string.h>

#include "rig.h"
#include "state_rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 30, .cols = 20, .is_bf16 = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char replay[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";

static zt_rig_t rig;

/* Parameters 0 and 2 are stacks of vectors. */
static void open_stacked(int is_queue) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.decls[0].n_batch_axes = rig.decls[2].n_batch_axes = 1;
    if (is_queue)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, replay, 0);
}

static zf_status_t deliver(uint32_t param, uint32_t first, uint32_t n, uint32_t flags, zf_fence_t *fence) {
    zf_grad_item_t item = {.struct_size = sizeof item,
                           .id = rig.params[param].id,
                           .flags = flags,
                           .tensor = &rig.params[param].grad_tensor,
                           .first_batch = first,
                           .n_batches = n};
    return rig.zf->grads_ready(rig.inst, &item, 1, sizeof item, &rig.stream, fence, &rig.err);
}

/* Delivers a range; when it may be used again, its memory is made useless. */
static void hand_over(uint32_t param, uint32_t first, uint32_t n, uint32_t extra) {
    zt_param_t *p = &rig.params[param];
    size_t row = p->n_elems / (size_t)p->sizes[0] * p->elem_nbytes;
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(&rig, deliver(param, first, n, ZF_GRAD_TOTAL | ZF_GRAD_LAST | extra, &fence));
    if (rig.queue || (extra & ZF_GRAD_ASYNC_READ))
        zt_rig_wait(&rig, &fence);
    memset(p->grad + first * row, 0xFF, n * row); /* NaN */
}

static void update_serial(void) {
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_serial_update(&rig.params[i].serial, &rig.groups[0], rig.params[i].grad_values, (float)rig.unscale);
}

static void step_by_ranges(uint32_t extra, int is_upward) {
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_rig_fill_grad(&rig, i, rig.step + 1);
    for (uint32_t k = 0; k < 3; k++) {
        static const uint32_t first[] = {0, 8, 20}, n[] = {8, 12, 4};
        uint32_t at = is_upward ? k : 2 - k;
        hand_over(0, first[at], n[at], extra);
    }
    hand_over(2, 7, 10, extra);
    ZT_OK(&rig, zt_rig_deliver(&rig, 1, 0, NULL));
    hand_over(2, 17, 13, extra);
    hand_over(2, 0, 7, extra);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    update_serial();
    if (rig.queue)
        zt_rig_sync(&rig);
}

static void refused(zf_status_t st, zf_status_t want, const char *part) {
    ck_assert_int_eq(st, want);
    ck_assert_int_eq(rig.err.status, want);
    ck_assert_msg(strstr(rig.err.message, part) != NULL, "\"%s\" is not in \"%s\"", part, rig.err.message);
}

START_TEST(wrong_ranges) {
    const uint32_t last = ZF_GRAD_TOTAL | ZF_GRAD_LAST;
    open_stacked(0);
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_rig_fill_grad(&rig, i, 1);
    refused(deliver(0, 20, 5, last, NULL), ZF_ERR_SHAPE, "\"layer.0.weight\"");
    refused(deliver(0, 0xFFFFFFFFu, 2, last, NULL), ZF_ERR_SHAPE, "has 24");
    refused(deliver(0, 3, 0, last, NULL), ZF_ERR_SHAPE, "has 24");
    refused(deliver(1, 0, 2, last, NULL), ZF_ERR_SHAPE, "has 1");
    refused(deliver(0, 0, 8, ZF_GRAD_TOTAL, NULL), ZF_ERR_ARGUMENT, "LAST");
    ZT_OK(&rig, deliver(0, 8, 8, last, NULL));
    refused(deliver(0, 20, 4, last, NULL), ZF_ERR_STATE, "20..23 do not adjoin");
    refused(deliver(0, 8, 4, last, NULL), ZF_ERR_STATE, "8..11 do not adjoin");
    refused(deliver(0, 0, 0, last, NULL), ZF_ERR_STATE, "all matrices after a range");
    refused(zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE, "matrices 8..15 of 24");
    ck_assert_uint_eq(zt_rig_counter(&rig, "steps"), 0);
    ZT_OK(&rig, deliver(0, 16, 8, last, NULL));
    ZT_OK(&rig, deliver(0, 0, 8, last, NULL));
    refused(deliver(0, 0, 8, last, NULL), ZF_ERR_STATE, "with LAST before");
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    ZT_OK(&rig, deliver(0, 8, 8, last, NULL)); /* dropped with the step */
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    zt_rig_steps(&rig, 6);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* A load drops what was delivered before it, also where nothing was trained yet. */
START_TEST(a_load_drops_ranges) {
    static zt_memory_store_t store;
    zf_state_report_t report = {.struct_size = sizeof report};
    zt_memory_store_start(&store);
    open_stacked(0);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_fill_grad(&rig, 0, 1);
    hand_over(0, 0, 8, 0);
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, &report));
    zt_rig_fill_grad(&rig, 0, 1);
    hand_over(0, 8, 16, 0);
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE);
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    for (int i = 0; i < 5; i++)
        step_by_ranges(0, i & 1);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
    zt_memory_store_end(&store);
}
END_TEST

ZT_MAIN("ranges", wrong_ranges, a_load_drops_ranges)
