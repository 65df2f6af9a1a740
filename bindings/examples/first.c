/* SPDX-License-Identifier: Apache-2.0 */
/* first.c - the smallest whole program with libzfplugin as its optimizer: it pulls a matrix towards another one.
 *
 *     cc first.c $(pkg-config --cflags --libs zfplugin) -o first && ./first [PLUGIN.so] */
#include <stdio.h>
#include <stdlib.h>

#include "zf_loader.h"

enum { N = 32, N_STEPS = 600 };

static float w[N][N], grad[N][N];
static zf_error_t err = {.struct_size = sizeof err};

/* A call that fails returns a negative status and leaves a message that is made to be shown. */
static void check(zf_status_t st) {
    if (st < 0) {
        fprintf(stderr, "%s: %s\n", err.origin, err.message);
        exit(1);
    }
}

/* Half the squared distance between w and its target; its gradient goes to grad. */
static double forward_and_backward(void) {
    double loss = 0.0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            grad[i][j] = w[i][j] - 0.02f * (float)(i - j);
            loss += 0.5 * grad[i][j] * grad[i][j];
        }
    return loss;
}

int main(int argc, char **argv) {
    const int64_t shape[] = {N, N};
    zf_loader_t *loader;
    zf_host_t host; /* create copies it */
    zf_stream_t here;
    zf_instance_t *opt;
    zf_tensor_t weights, gradient;
    uint32_t id;
    check(zf_loader_open(argc > 1 ? argv[1] : NULL, &loader, &err)); /* NULL: $ZFPLUGIN_PATH, or the linker's search */
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    zf_host_stderr("first", "1.0", ZF_LOG_WARN, &host);
    zf_stream_host_thread(&here); /* this program computes on its own thread */
    zf_tensor_contiguous(w, zf_dtype_float32(), 2, shape, &weights);
    zf_tensor_contiguous(grad, zf_dtype_float32(), 2, shape, &gradient);

    zf_create_args_t create = {.struct_size = sizeof create, .host = &host, .device_type = ZF_DEVICE_CPU};
    check(zf->create(&create, &opt, &err)); /* .config_path = "zf.ini" for other settings than the defaults */
    zf_param_decl_t decl = {.struct_size = sizeof decl, .name = "w", .tensor = &weights};
    check(zf->bind_params(
        opt,
        &(zf_bind_args_t){
            .struct_size = sizeof(zf_bind_args_t), .decls = &decl, .n_decls = 1, .decl_size = sizeof decl},
        &id, NULL, &err));

    for (int i = 0; i < N_STEPS; i++) {
        double loss = forward_and_backward();
        zf_grad_item_t item = {
            .struct_size = sizeof item, .id = id, .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .tensor = &gradient};
        check(zf->grads_ready(opt, &item, 1, sizeof item, &here, NULL, &err)); /* any order, any number of calls */
        zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
        zf_step_args_t step = {
            .struct_size = sizeof step, .groups = &hyper, .n_groups = 1, .elem_size = sizeof hyper, .stream = &here};
        check(zf->step(opt, &step, NULL, &err));
        if (i % 100 == 0)
            printf("step %3d  loss %.6f\n", i, loss);
    }
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    check(zf->quiesce(opt, &flush, &err)); /* the last updates arrive: w is final */
    printf("at the end loss %.6f\n", forward_and_backward());
    zf->destroy(opt, NULL);
    zf_loader_close(loader);
    return 0;
}
