/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bindings/run_bytes.c [SECTION.KEY=VALUE ...] - trains the tensors of test_cli_plan.sh for a few steps and
 * prints the bytes that the plugin has mapped: "HOST DEVICE", with gradients that stay where they are until the step.
 */
#include <stdio.h>
#include <stdlib.h>

#include "zf/ext/state.h"
#include "zf_loader.h"

enum { N = 5, STEPS = 7 };
static const struct {
    const char *name;
    int ndim, is_bf16;
    int64_t shape[3];
} shapes[N] = {{"embedding", 2, 0, {1500, 200}},
               {"layer.0", 2, 1, {700, 300}},
               {"layer.1", 2, 1, {700, 300}},
               {"conv", 3, 0, {64, 32, 9}},
               {"bias", 1, 0, {777}}};

static int fail(const zf_error_t *err) { return fprintf(stderr, "run_bytes: %s\n", err->message), 1; }

static int save(const zf_plugin_t *zf, zf_instance_t *inst, const char *dir, uint32_t flags) {
    const zf_state_ext_t *state = zf->get_extension(ZF_EXT_STATE);
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args = {.struct_size = sizeof args, .path = dir, .flags = flags};
    if (state->save(inst, &args, &report, &err) < 0)
        return fail(&err);
    printf(" %llu", (unsigned long long)report.nbytes);
    return 0;
}

int main(int argc, char **argv) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zf_host_t host;
    zf_stream_t stream;
    zf_tensor_t weights[N], grads[N];
    zf_param_decl_t decls[N];
    zf_grad_item_t items[N];
    uint32_t ids[N];
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .overrides = (const char *const *)(argv + 2),
                               .n_overrides = argc > 2 ? (uint32_t)(argc - 2) : 0,
                               .device_type = ZF_DEVICE_CPU};
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {.struct_size = sizeof step,
                           .flags = ZF_STEP_WAIT,
                           .groups = &hyper,
                           .n_groups = 1,
                           .elem_size = sizeof hyper,
                           .stream = &stream};
    uint64_t host_nbytes, device_nbytes;
    const zf_plugin_t *zf;
    zf_instance_t *inst;
    if (argc < 2)
        return 2;
    if (zf_loader_open(NULL, &loader, &err) < 0)
        return fail(&err);
    zf = zf_loader_plugin(loader);
    zf_host_stderr("run_bytes", "1", ZF_LOG_ERROR, &host);
    zf_stream_host_thread(&stream);
    for (int i = 0; i < N; i++) {
        zf_dtype_t dtype = shapes[i].is_bf16 ? zf_dtype_bfloat16() : zf_dtype_float32();
        size_t n = 4;
        for (int k = 0; k < shapes[i].ndim; k++)
            n *= (size_t)shapes[i].shape[k];
        zf_tensor_contiguous(calloc(1, n), dtype, shapes[i].ndim, shapes[i].shape, &weights[i]);
        zf_tensor_contiguous(calloc(1, n), dtype, shapes[i].ndim, shapes[i].shape, &grads[i]);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i], .name = shapes[i].name, .tensor = &weights[i]};
        items[i] = (zf_grad_item_t){.struct_size = sizeof items[i],
                                    .id = (uint32_t)i,
                                    .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ,
                                    .tensor = &grads[i]};
    }
    if (zf->create(&create, &inst, &err) < 0 || zf->bind_params(inst,
                                                                &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                                                  .decls = decls,
                                                                                  .n_decls = N,
                                                                                  .decl_size = sizeof *decls},
                                                                ids, NULL, &err) < 0)
        return fail(&err);
    for (int t = 0; t < STEPS; t++)
        if (zf->grads_ready(inst, items, N, sizeof *items, &stream, NULL, &err) < 0 ||
            zf->step(inst, &step, NULL, &err) < 0)
            return fail(&err);
    if (zf_counter_value(zf, inst, "host_measured_nbytes", &host_nbytes, &err) < 0 ||
        zf_counter_value(zf, inst, "device_measured_nbytes", &device_nbytes, &err) < 0)
        return fail(&err);
    printf("%llu %llu", (unsigned long long)host_nbytes, (unsigned long long)device_nbytes);
    if (save(zf, inst, argv[1], ZF_STATE_COMPACT) || save(zf, inst, argv[1], 0))
        return 1;
    printf("\n");
    zf->destroy(inst, NULL);
    for (int i = 0; i < N; i++) {
        free(weights[i].dl.data);
        free(grads[i].dl.data);
    }
    zf_loader_close(loader);
    return 0;
}
