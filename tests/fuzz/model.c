/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/model.c - see model.h. */
#include "model.h"

#include <string.h>

#include "fuzz.h"

static const int64_t shape_matrix[] = {3, 4}, shape_vector[] = {5};

/* Behind "[zenflow]": short windows, so that few steps leave slots, due publications and entering channels. */
static const char *const configs[FUZZ_N_MODELS] = {
    "topk_ratio=0.5\nupdate_interval=3\nselect_interval=2\nfull_warm_up_rounds=1",
    "topk_ratio=0.5\nupdate_interval=2\nselect_interval=2\nfull_warm_up_rounds=1\nmode=mean",
    "topk_ratio=0.5\nupdate_interval=auto\nselect_interval=3\n"
    "full_warm_up_rounds=1",
    "topk_ratio=0.5\nupdate_interval=2\nselect_interval=2\nfull_warm_up_rounds=1\npublish_lag=0\n"
    "select_strategy=epoch",
    "topk_ratio=0.5\nupdate_interval=2\nselect_interval=2\nfull_warm_up_rounds=1\npredict=auto",
    "[device]\nstate_mib=all",
};

const zf_plugin_t *fuzz_plugin(void) {
    static const uint32_t abis[] = {ZF_ABI_0_16};
    zf_bootstrap_t bootstrap = {
        .struct_size = sizeof bootstrap, .magic = ZF_BOOTSTRAP_MAGIC, .abis = abis, .n_abis = 1};
    FUZZ_CHECK(zf_plugin_negotiate(&bootstrap) == ZF_OK, "negotiate");
    return bootstrap.plugin;
}

static void describe(zf_tensor_t *out, void *data, uint64_t nbytes, const int64_t *shape, int ndim, int is_bf16) {
    *out = (zf_tensor_t){.struct_size = sizeof *out, .nbytes = nbytes};
    out->dl.data = data;
    out->dl.device_type = ZF_DEVICE_CPU;
    out->dl.ndim = ndim;
    out->dl.shape = shape;
    out->dl.dtype = is_bf16 ? (zf_dtype_t){ZF_DTYPE_CODE_BFLOAT, 16, 1} : (zf_dtype_t){ZF_DTYPE_CODE_FLOAT, 32, 1};
}

static void bind(fuzz_model_t *model) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_param_decl_t decls[FUZZ_N_PARAMS] = {
        {.struct_size = sizeof decls[0], .name = "a", .tensor = &model->tensors[0]},
        {.struct_size = sizeof decls[0], .name = "b", .tensor = &model->tensors[1]}};
    uint32_t ids[FUZZ_N_PARAMS];
    zf_status_t st = model->zf->bind_params(model->instance,
                                            &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                              .decls = decls,
                                                              .n_decls = FUZZ_N_PARAMS,
                                                              .decl_size = sizeof decls[0]},
                                            ids, NULL, &err);
    FUZZ_CHECK(st == ZF_OK, "%s", err.message);
}

void fuzz_model_start(fuzz_model_t *model, uint32_t config) {
    static const zf_host_t host = {.struct_size = sizeof host, .name = "fuzz", .version = "1"};
    zf_error_t err = {.struct_size = sizeof err};
    char text[512];
    zf_create_args_t args = {
        .struct_size = sizeof args, .host = &host, .config_text = text, .device_type = ZF_DEVICE_CPU};
    *model = (fuzz_model_t){.zf = fuzz_plugin()};
    model->state = model->zf->get_extension(ZF_EXT_STATE);
    snprintf(text, sizeof text, "[zenflow]\n%s\n[host]\nthreads=1\n", configs[config]);
    FUZZ_CHECK(model->zf->create(&args, &model->instance, &err) == ZF_OK, "%s", err.message);
    for (int i = 0; i < 12; i++)
        model->matrix[i] = (float)(i - 5) / 8;
    for (int i = 0; i < 5; i++)
        model->vector[i] = (uint16_t)(0x3F00 + 16 * i);
    describe(&model->tensors[0], model->matrix, sizeof model->matrix, shape_matrix, 2, 0);
    describe(&model->grads[0], model->matrix_grad, sizeof model->matrix_grad, shape_matrix, 2, 0);
    describe(&model->tensors[1], model->vector, sizeof model->vector, shape_vector, 1, 1);
    describe(&model->grads[1], model->vector_grad, sizeof model->vector_grad, shape_vector, 1, 1);
    bind(model);
}

static zf_status_t one_step(fuzz_model_t *model, uint32_t k) {
    static const zf_stream_t stream = {
        .struct_size = sizeof stream, .kind = ZF_STREAM_HOST_THREAD, .device_type = ZF_DEVICE_CPU};
    zf_group_hyper_t group = {
        .struct_size = sizeof group, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01};
    zf_step_args_t step = {.struct_size = sizeof step,
                           .flags = k % 2 ? ZF_STEP_EPOCH_END : 0,
                           .groups = &group,
                           .n_groups = 1,
                           .elem_size = sizeof group,
                           .stream = &stream};
    zf_status_t st = ZF_OK;
    for (int i = 0; i < 12; i++)
        model->matrix_grad[i] = (float)((i * 7 + (int)k * 5) % 11 - 5) / 16;
    for (int i = 0; i < 5; i++)
        model->vector_grad[i] = (uint16_t)(0x3D00 + 8 * i + 32 * (int)(k % 4));
    for (uint32_t i = 0; i < FUZZ_N_PARAMS && st >= 0; i++) {
        zf_grad_item_t item = {.struct_size = sizeof item,
                               .id = i,
                               .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_REPLACE,
                               .tensor = &model->grads[i]};
        if (i == 0 || k % 4 != 2)
            st = model->zf->grads_ready(model->instance, &item, 1, sizeof item, &stream, NULL, NULL);
    }
    return st < 0 ? st : model->zf->step(model->instance, &step, NULL, NULL);
}

zf_status_t fuzz_model_steps(fuzz_model_t *model, uint32_t n) {
    zf_status_t st = ZF_OK;
    for (uint32_t k = 0; k < n && st >= 0; k++)
        st = one_step(model, k);
    return st;
}

void fuzz_model_end(fuzz_model_t *model) { model->zf->destroy(model->instance, NULL); }
