/* SPDX-License-Identifier: Apache-2.0 */
/* train_arrays.c - a small C trainer that calls the table of the ABI itself. (train_zf.c does it in a few lines.)
 *
 *     train_arrays [--check] [CONFIG.ini [PLUGIN.so]]         defaults: built-in configuration, ZFPLUGIN_PATH
 *
 * The model (mlp.h) is raw float arrays: all parameters in one allocation, layers stacked in [layer, out, in] tensors.
 * What concerns the plugin is marked (1) to (7); the rest is a plain training loop.
 *
 * --check keeps a plain AdamW beside the plugin and feeds it the same gradients: after FLUSH both must hold the same
 * bits, whatever the configuration (but mode = mean). It also trains once with that AdamW alone and compares the
 * final losses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adamw.h"
#include "mlp.h"
#include "zf/ext/stats.h"
#include "zf_loader.h"

#define FENCE_TIMEOUT_NS UINT64_C(60000000000)

static void set_hyper(int step, zf_group_hyper_t groups[N_GROUPS]) {
    for (int g = 0; g < N_GROUPS; ++g) {
        memset(&groups[g], 0, sizeof groups[g]);
        groups[g].struct_size = sizeof groups[g];
        groups[g].lr = learning_rate(step);
        groups[g].beta1 = 0.9;
        groups[g].beta2 = 0.999;
        groups[g].eps = 1e-8;
        groups[g].weight_decay = g == DECAY ? 0.01 : 0.0;
    }
}

/* ---- the plugin -------------------------------------------------------------------------------------------------- */

typedef struct session {
    zf_loader_t *loader;
    const zf_plugin_t *zf;
    zf_host_t host; /* must outlive the instance */
    zf_instance_t *instance;
    zf_stream_t stream;
    zf_tensor_t params[N_TENSORS], grads[N_TENSORS];
    uint32_t ids[N_TENSORS];
    zf_error_t err;
} session_t;

/* 1 and a line on stderr if the call failed. Messages are made to be shown to the user as they are. */
static int has_failed(zf_status_t st, const session_t *s) {
    if (st < 0)
        fprintf(stderr, "error %d (%s): %s\n", (int)st, s->err.origin, s->err.message);
    return st < 0;
}

/* (1) Open the library, (2) make an instance, (3) tell it where the parameters lie. */
static int start(session_t *s, const model_t *model, const char *config_path, const char *plugin_path) {
    s->err.struct_size = sizeof s->err;
    if (has_failed(zf_loader_open(plugin_path, &s->loader, &s->err), s))
        return 1;
    s->zf = zf_loader_plugin(s->loader);
    zf_host_stderr("train_arrays", "1.0", ZF_LOG_WARN, &s->host);
    zf_stream_host_thread(&s->stream); /* forward and backward run on this thread */

    zf_create_args_t args = {0};
    args.struct_size = sizeof args;
    args.flags = ZF_CREATE_CAP_FETCH; /* we call param_fetch before we read parameters: see (4) */
    args.host = &s->host;
    args.config_path = config_path;
    args.device_type = ZF_DEVICE_CPU;
    if (has_failed(s->zf->create(&args, &s->instance, &s->err), s))
        return 1;

    zf_param_decl_t decls[N_TENSORS] = {{0}};
    for (int t = 0; t < N_TENSORS; ++t) {
        const spec_t *spec = &specs[t];
        zf_tensor_contiguous(model->params + model->offset[t], zf_dtype_float32(), spec->ndim, spec->shape,
                             &s->params[t]);
        zf_tensor_contiguous(model->grads + model->offset[t], zf_dtype_float32(), spec->ndim, spec->shape,
                             &s->grads[t]);
        decls[t].struct_size = sizeof decls[t];
        decls[t].name = spec->name;
        decls[t].tensor = &s->params[t];
        decls[t].group = spec->group;
        decls[t].n_batch_axes = spec->n_batch_axes;
    }
    zf_layout_t layout = {0};
    layout.struct_size = sizeof layout;
    if (has_failed(s->zf->bind_params(s->instance,
                                      &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                        .decls = decls,
                                                        .n_decls = N_TENSORS,
                                                        .decl_size = sizeof decls[0]},
                                      s->ids, &layout, &s->err),
                   s))
        return 1;
    printf("%s: %llu elements, %llu bytes of host memory\n", zf_loader_file(s->loader),
           (unsigned long long)layout.n_elems, (unsigned long long)layout.host_nbytes);
    return 0;
}

/* (4) Before parameters are read: wait until the newest values are in place. */
static int fetch(session_t *s) {
    zf_fence_t ready = {0};
    ready.struct_size = sizeof ready;
    if (has_failed(s->zf->param_fetch(s->instance, NULL, 0, 0, &s->stream, &ready, &s->err), s))
        return 1;
    return has_failed(zf_loader_fence_wait(s->loader, &ready, FENCE_TIMEOUT_NS, &s->err), s);
}

/* (5) After backward: hand over the gradients (a trainer with slow layers does it layer by layer), then step. Without
 * ASYNC_READ the plugin has read them when grads_ready returns, so there is no fence to wait for. */
static int step(session_t *s, const zf_group_hyper_t *groups, zf_step_report_t *out_report) {
    zf_grad_item_t items[N_TENSORS] = {{0}};
    for (int t = 0; t < N_TENSORS; ++t) {
        items[t].struct_size = sizeof items[t];
        items[t].id = s->ids[t];
        items[t].flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST;
        items[t].tensor = &s->grads[t];
    }
    if (has_failed(s->zf->grads_ready(s->instance, items, N_TENSORS, sizeof items[0], &s->stream, NULL, &s->err), s))
        return 1;
    zf_step_args_t args = {0};
    args.struct_size = sizeof args;
    args.groups = groups;
    args.n_groups = N_GROUPS;
    args.elem_size = sizeof groups[0];
    args.stream = &s->stream;
    memset(out_report, 0, sizeof *out_report);
    out_report->struct_size = sizeof *out_report;
    return has_failed(s->zf->step(s->instance, &args, out_report, &s->err), s);
}

/* Counters of zf.stats/1, by name; 0 where the plugin has none of that name. */
static unsigned long long counter(const session_t *s, const char *name) {
    uint64_t value = 0;
    zf_counter_value(s->zf, s->instance, name, &value, NULL);
    return value;
}

static void print_stats(session_t *s) {
    const zf_stats_ext_t *ext = s->zf->get_extension(ZF_EXT_STATS);
    zf_step_record_t record = {0};
    record.struct_size = sizeof record;
    printf("steps %llu (%llu skipped), windows closed %llu, link bytes down %llu up %llu, waited %.3f ms\n",
           counter(s, "steps"), counter(s, "steps_skipped"), counter(s, "window_closes"),
           counter(s, "down_grad_nbytes"), counter(s, "up_publish_nbytes"), (double)counter(s, "host_wait_ns") / 1e6);
    if (ext == NULL || has_failed(ext->step_record(s->instance, 0, &record, &s->err), s))
        return;
    printf("step %llu: %.3f ms\n", (unsigned long long)record.step, (double)record.step_ns / 1e6);
}

/* Trains with the plugin (s), or with plain AdamW alone (s NULL); beside the plugin, plain only follows. */
static int train(model_t *model, session_t *s, adamw_t *plain, double *out_loss) {
    uint64_t data = 1, test = 2;
    size_t nbytes = model->offset[N_TENSORS] * sizeof(float);
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_group_hyper_t groups[N_GROUPS];
    zf_step_report_t report;
    if (plain != NULL)
        memcpy(plain->w, model->params, nbytes); /* a copy: plain->w is not the model's */
    for (int i = 1; i <= N_STEPS; ++i) {
        if (s != NULL && fetch(s))
            return 1;
        double loss = run_samples(model, &data, BATCH, 1);
        set_hyper(i, groups);
        if (plain != NULL)
            adamw_step(plain, model, learning_rate(i));
        if (s != NULL && step(s, groups, &report))
            return 1;
        if (s == NULL)
            memcpy(model->params, plain->w, nbytes);
        else if (i % 100 == 0) /* the report is of the newest finished step, which may be an earlier one */
            printf("step %4d  loss %.4f  grad norm of step %llu: %.4f\n", i, loss, (unsigned long long)report.step,
                   report.grad_norm);
    }
    /* (6) The end: every update that is still on its way arrives, and the parameters are the final ones. */
    if (s != NULL && has_failed(s->zf->quiesce(s->instance, &flush, &s->err), s))
        return 1;
    *out_loss = run_samples(model, &test, N_TEST, 0);
    return 0;
}

/* 0 if the plugin's weights are those of plain AdamW on the same gradients, and training alone gives a similar loss. */
static int check(model_t *model, const adamw_t *plain, double loss) {
    size_t n_elems = model->offset[N_TENSORS], n_differ = 0;
    for (size_t i = 0; i < n_elems; ++i)
        n_differ += memcmp(&model->params[i], &plain->w[i], sizeof(float)) != 0;
    static model_t alone;
    init_model(&alone);
    adamw_t opt = {allocate(n_elems), allocate(n_elems), allocate(n_elems), 0};
    double alone_loss = 0.0;
    train(&alone, NULL, &opt, &alone_loss);
    printf("check: %zu of %zu weights differ from AdamW on the same gradients\n", n_differ, n_elems);
    printf("check: final loss %.4f, plain AdamW alone %.4f\n", loss, alone_loss);
    free(alone.params), free(alone.grads), free(opt.w), free(opt.m), free(opt.v);
    return n_differ > 0 || !(loss < alone_loss + 0.1);
}

int main(int argc, char **argv) {
    int is_check = argc > 1 && strcmp(argv[1], "--check") == 0;
    const char *config_path = argc > 1 + is_check ? argv[1 + is_check] : NULL;
    const char *plugin_path = argc > 2 + is_check ? argv[2 + is_check] : NULL;
    static model_t model;
    session_t session;
    memset(&session, 0, sizeof session);
    init_model(&model);
    size_t n_elems = model.offset[N_TENSORS];
    adamw_t plain = {allocate(n_elems), allocate(n_elems), allocate(n_elems), 0};
    double loss = 0.0;

    int status =
        start(&session, &model, config_path, plugin_path) || train(&model, &session, is_check ? &plain : NULL, &loss);
    if (status == 0) {
        print_stats(&session);
        printf("final loss %.4f\n", loss);
        status = is_check && check(&model, &plain, loss);
    }
    /* (7) The instance before the loader, both before the memory that it was bound to. */
    if (session.instance != NULL)
        session.zf->destroy(session.instance, NULL);
    zf_loader_close(session.loader);
    free(model.params), free(model.grads), free(plain.w), free(plain.m), free(plain.v);
    return status;
}
