/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/state_rig.c - see state_rig.h. */
#define _GNU_SOURCE
#include "state_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const zt_shape_t zt_state_shapes[] = {
    {.rows = 96, .cols = 80},
    {.rows = 17},
    {.rows = 64, .cols = 48, .is_bf16 = 1, .group = 1},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2},
    {.rows = 0, .cols = 5},
    {.rows = 31, .cols = 33, .home = ZF_HOME_HOST},
    {.rows = 12, .cols = 5, .flags = ZF_PARAM_FROZEN},
    {.rows = 6, .cols = 9, .home = ZF_HOME_RESIDENT, .is_bf16 = 1},
};
const uint32_t zt_n_state_shapes = sizeof zt_state_shapes / sizeof *zt_state_shapes;

const char *const zt_state_configs[] = {
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2",
    "topk_ratio = 0.3\nupdate_interval = 3\nselect_interval = 2\nfull_warm_up_rounds = 1",
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 5\nfull_warm_up_rounds = 3\npublish_lag = 0",
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\nmode = mean",
    "topk_ratio = 0.5\nupdate_interval = 1\nselect_interval = 4\nfull_warm_up_rounds = 2",
    "topk_ratio = 1\nupdate_interval = 5\nselect_interval = 1\nfull_warm_up_rounds = 1",
    "topk_ratio = 0.4\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\nselect_strategy = auto",
    "topk_ratio = 0.6\nupdate_interval = 3\nselect_interval = 2\nfull_warm_up_rounds = 3\nmode = mean",
    "topk_ratio = 0.2\nupdate_interval = 2\nfull_warm_up_rounds = 1\nselect_strategy = epoch",
    "topk_ratio = 0\nupdate_interval = 3\nfull_warm_up_rounds = 2",
    "topk_ratio = 0.2\nupdate_interval = auto\nselect_interval = 3\nfull_warm_up_rounds = 2",
    "topk_ratio = 0.2\nupdate_interval = auto\nselect_interval = 4\nfull_warm_up_rounds = 1",
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\n[device]\nstate_mib = all",
    "topk_ratio = 0.3\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\npredict = auto",
};
_Static_assert(sizeof zt_state_configs / sizeof *zt_state_configs == ZT_STATE_WITH_PREDICT + 1, "one text each");

const zf_state_ext_t *zt_state(const zt_rig_t *rig) {
    const zf_state_ext_t *state = rig->zf->get_extension(ZF_EXT_STATE);
    ck_assert_ptr_nonnull(state);
    return state;
}

zt_state_mode_t zt_state_mode = {.host = ""};

void zt_state_open_copy(zt_rig_t *rig, const char *zenflow, int is_garbage) {
    char config[1024];
    snprintf(config, sizeof config, "[zenflow]\n%s\n[host]\nthreads = 2\n%s\n", zenflow, zt_state_mode.host);
    zt_rig_start(rig, zt_state_shapes, zt_n_state_shapes);
    zt_rig_use_rule(rig, zt_state_mode.rule, zt_state_mode.callback);
    for (uint32_t i = 0; i < rig->n_params && is_garbage; i++)
        for (size_t k = 0; k < rig->params[i].n_elems * rig->params[i].elem_nbytes; k++)
            if (!(rig->params[i].shape.flags & ZF_PARAM_FROZEN))
                rig->params[i].visible[k] = (k * 7 + i) & 0x3F; /* of any type a finite number */
    zt_rig_open(rig, config, 0);
}

void zt_state_open(zt_rig_t *rig, const char *zenflow) { zt_state_open_copy(rig, zenflow, 0); }

void zt_state_steps(zt_rig_t *rig, int n) {
    for (int k = 0; k < n; k++) {
        uint64_t step = rig->step + 1;
        for (uint32_t i = 0; i < rig->n_params; i++) {
            zt_param_t *param = &rig->params[i];
            if ((param->shape.flags & ZF_PARAM_FROZEN) || (step + i) % 5 == 0)
                continue;
            zt_rig_fill_grad(rig, i, step);
            if (step % 7 == 0 && i == 2)
                memset(param->grad, 0xFF, 2); /* bfloat16 NaN */
            ZT_OK(rig, zt_rig_deliver(rig, i, 0, NULL));
        }
        for (int g = 0; g < ZT_MAX_GROUPS; g++)
            rig->groups[g].lr = 1e-3 * (g + 1) / (1 + 0.01 * (double)step);
        ZT_OK(rig, zt_rig_submit(rig, (step % 3 ? 0 : ZF_STEP_WAIT) | (step % 4 == 2 ? ZF_STEP_EPOCH_END : 0), NULL));
    }
}

/* ---- everything that can be read --------------------------------------------------------------------------------- */

/* The next n bytes of an image, at a multiple of eight. */
static void *take(zt_image_t *image, size_t n) {
    void *at = image->bytes + image->nbytes;
    image->nbytes += (n + 7) / 8 * 8;
    return at;
}

zt_image_t zt_state_image(zt_rig_t *rig) {
    const zf_inspect_ext_t *inspect = rig->zf->get_extension(ZF_EXT_INSPECT);
    zf_step_report_t report = {.struct_size = sizeof report};
    size_t room = sizeof report.submitted_step + 8;
    zt_image_t image = {0};
    for (uint32_t i = 0; i < rig->n_params; i++)
        room += rig->params[i].n_elems * (4 + 4 * 5 + 1 + 8) + 8 * 8;
    image.bytes = calloc(1, room);
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_DRAIN));
    ZT_OK(rig, rig->zf->poll(rig->inst, &report, &rig->err));
    memcpy(take(&image, sizeof report.submitted_step), &report.submitted_step, sizeof report.submitted_step);
    for (uint32_t i = 0; i < rig->n_params; i++) {
        const zt_param_t *param = &rig->params[i];
        size_t n = param->n_elems;
        memcpy(take(&image, zt_nbytes(param)), param->visible, zt_nbytes(param));
        if (n == 0 || (param->shape.flags & ZF_PARAM_FROZEN))
            continue;
        zf_inspect_out_t state = {.struct_size = sizeof state,
                                  .n_elems = n,
                                  .w = take(&image, n * 4),
                                  .m = take(&image, n * 4),
                                  .v = take(&image, n * 4),
                                  .n = take(&image, n * 4),
                                  .selected = take(&image, n),
                                  .importance = take(&image, n * 8)};
        ZT_OK(rig, inspect->read(rig->inst, param->id, &state, &rig->err));
        ZT_OK(rig, zt_try_export(rig, i, take(&image, n * 4)));
    }
    return image;
}

void zt_state_check_image(zt_rig_t *rig, const zt_image_t *was, const char *when) {
    zt_image_t is = zt_state_image(rig);
    size_t at = 0;
    while (at < is.nbytes && at < was->nbytes && is.bytes[at] == was->bytes[at])
        at++;
    if (at < is.nbytes || is.nbytes != was->nbytes)
        ck_abort_msg("%s: images differ at byte %zu of %zu", when, at, is.nbytes);
    free(is.bytes);
}

void zt_state_check_equal(zt_rig_t *a, zt_rig_t *b, const char *when) {
    zt_image_t image = zt_state_image(a);
    zt_state_check_image(b, &image, when);
    free(image.bytes);
}

/* ---- saving and loading ------------------------------------------------------------------------------------------ */

static zf_state_args_t args_of(const zf_state_store_t *store, const char *path, uint32_t flags) {
    return (zf_state_args_t){.struct_size = sizeof(zf_state_args_t), .flags = flags, .path = path, .store = store};
}

zf_status_t zt_save(zt_rig_t *rig, const zf_state_store_t *store, const char *path, uint32_t flags,
                    zf_state_report_t *report) {
    zf_state_args_t args = args_of(store, path, flags | ZF_STATE_NO_SYNC);
    zf_state_report_t own = {.struct_size = sizeof own};
    return zt_state(rig)->save(rig->inst, &args, report ? report : &own, &rig->err);
}

zf_status_t zt_load(zt_rig_t *rig, const zf_state_store_t *store, const char *path, uint32_t flags,
                    zf_state_report_t *report) {
    zf_state_args_t args = args_of(store, path, flags);
    zf_state_report_t own = {.struct_size = sizeof own};
    zf_status_t st = zt_state(rig)->load(rig->inst, &args, report ? report : &own, &rig->err);
    if (!st)
        rig->step = report ? report->step : own.step;
    return st;
}

void zt_state_saved(zt_rig_t *rig, zt_memory_store_t *store, const char *zenflow, int n, uint32_t flags) {
    zt_memory_store_start(store);
    zt_state_open(rig, zenflow);
    zt_state_steps(rig, n);
    ZT_OK(rig, zt_save(rig, &store->table, NULL, flags, NULL));
}

void zt_state_end(zt_rig_t *rig, zt_rig_t *copy, zt_memory_store_t *store) {
    zt_rig_end(rig);
    if (copy)
        zt_rig_end(copy);
    zt_memory_store_clear(store);
}

/* Which store has a byte: each one, or one alone. An index of one part may be shorter than that of another. */
static uint32_t who_has(const zt_memory_store_t *stores, uint32_t n, int blob, uint64_t at, uint64_t *n_alone) {
    uint32_t n_there = 0, out = 0;
    for (uint32_t r = n; r-- > 0;) {
        const zt_blob_t *of = &stores[r].blobs[blob];
        int is_there = at < of->nbytes && of->is_there[at];
        n_there += (uint32_t)is_there;
        out = is_there ? r : out;
    }
    ck_assert_msg(n_there == 1 || n_there == n, "%s, byte %u: %u ranks have it", stores->blobs[blob].name, (unsigned)at,
                  n_there);
    *n_alone += n_there < n;
    return out;
}

uint64_t zt_memory_store_gather(zt_memory_store_t *out, const zt_memory_store_t *stores, uint32_t n) {
    uint64_t n_alone = 0;
    for (int i = 0; i < stores->n_blobs; i++) {
        zt_blob_t *blob = &out->blobs[out->n_blobs++];
        *blob = stores->blobs[i];
        blob->data = calloc(blob->nbytes + 1, 1);
        blob->is_there = calloc(blob->nbytes + 1, 1);
        for (uint64_t at = 0; at < blob->nbytes && n == 1; at++)
            blob->is_there[at] = stores->blobs[i].is_there[at];
        if (n > 1)
            memset(blob->is_there, 1, blob->nbytes);
        for (uint64_t at = 0; at < blob->nbytes; at++)
            blob->data[at] = stores[n > 1 ? who_has(stores, n, i, at, &n_alone) : 0].blobs[i].data[at];
    }
    return n_alone;
}
