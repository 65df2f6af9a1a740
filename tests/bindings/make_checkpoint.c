/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bindings/make_checkpoint.c DIR FILE - trains a few steps, saves an exact checkpoint in mid-window to DIR, and
 * writes the weights that export_params gives to FILE, one parameter after another. For test_cli.sh. */
#include <stdio.h>
#include <string.h>

#include "zf/ext/state.h"
#include "zf_loader.h"

enum { N = 3, MOST = 64 * 48 };
static const int64_t shapes[N][2] = {{64, 48}, {17, 1}, {40, 33}};
static float params[N][MOST], grads[N][MOST], weights[N][MOST];

static int fail(const zf_error_t *err) { return fprintf(stderr, "make_checkpoint: %s\n", err->message), 1; }

int main(int argc, char **argv) {
    static const char config[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 2\ntopk_ratio = 0.2\n";
    static const char *const names[N] = {"encoder.weight", "encoder.bias \xc3\xa9", "head/weight"};
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zf_host_t host;
    zf_stream_t stream = {.struct_size = sizeof stream};
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .config_text = config,
                               .config_text_nbytes = sizeof config - 1,
                               .device_type = ZF_DEVICE_CPU};
    zf_tensor_t tensors[N], grad_tensors[N];
    zf_param_decl_t decls[N];
    zf_grad_item_t items[N];
    zf_export_item_t exports[N];
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {
        .struct_size = sizeof step, .groups = &hyper, .n_groups = 1, .elem_size = sizeof hyper, .stream = &stream};
    zf_state_args_t args = {.struct_size = sizeof args, .note = "made by a test"};
    const zf_state_ext_t *state;
    const zf_plugin_t *zf;
    zf_instance_t *inst;
    uint32_t ids[N];
    FILE *out;
    if (argc != 3)
        return 2;
    if (zf_loader_open(NULL, &loader, &err) < 0)
        return fail(&err);
    zf = zf_loader_plugin(loader);
    zf_host_stderr("make_checkpoint", "1", ZF_LOG_WARN, &host);
    zf_stream_host_thread(&stream);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < MOST; k++)
            params[i][k] = (float)((k * 7919 + i) % 1000) / 1000.0f - 0.5f;
        zf_tensor_contiguous(params[i], zf_dtype_float32(), 2, shapes[i], &tensors[i]);
        zf_tensor_contiguous(grads[i], zf_dtype_float32(), 2, shapes[i], &grad_tensors[i]);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i], .name = names[i], .tensor = &tensors[i]};
        items[i] = (zf_grad_item_t){.struct_size = sizeof items[i],
                                    .id = (uint32_t)i,
                                    .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST,
                                    .tensor = &grad_tensors[i]};
        exports[i] = (zf_export_item_t){.struct_size = sizeof exports[i],
                                        .id = (uint32_t)i,
                                        .dst = weights[i],
                                        .dst_nbytes = (uint64_t)(shapes[i][0] * shapes[i][1]) * 4};
    }
    if (zf->create(&create, &inst, &err) < 0 || zf->bind_params(inst,
                                                                &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                                                  .decls = decls,
                                                                                  .n_decls = N,
                                                                                  .decl_size = sizeof *decls},
                                                                ids, NULL, &err) < 0)
        return fail(&err);
    for (int t = 1; t <= 9; t++) {
        for (int i = 0; i < N; i++)
            for (int k = 0; k < MOST; k++)
                grads[i][k] = (float)((k * 31 + t * 17 + i) % 200) / 100.0f - 1.0f;
        if (zf->grads_ready(inst, items, N, sizeof *items, &stream, NULL, &err) < 0 ||
            zf->step(inst, &step, NULL, &err) < 0)
            return fail(&err);
    }
    state = zf->get_extension(ZF_EXT_STATE);
    args.path = argv[1];
    if (state->save(inst, &args, NULL, &err) < 0 || zf->export_params(inst, exports, N, sizeof *exports, &err) < 0)
        return fail(&err);
    out = fopen(argv[2], "wb");
    for (int i = 0; i < N && out; i++)
        fwrite(weights[i], 1, exports[i].dst_nbytes, out);
    if (!out || fclose(out) != 0)
        return perror(argv[2]), 1;
    zf->destroy(inst, NULL);
    zf_loader_close(loader);
    return 0;
}
