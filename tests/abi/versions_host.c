/* SPDX-License-Identifier: Apache-2.0 */
/* versions_host.c PLUGIN - a host that versions.py compiles from the headers of several minors. Trains three steps and
 * prints the ABI that was chosen and the weights. With ZF_APPENDED (the later minor) it also says what the plugin does
 * with what is new. */
#include <stdio.h>
#include <string.h>

#include "zf_loader.h"

static zf_error_t err;
static float w[4] = {1, 2, 3, 4}, g[4] = {0.5f, -0.25f, 0.125f, 1};
static const int64_t shape[1] = {4};

static int fail(const char *what) {
    printf("%s: %s\n", what, err.message);
    return 1;
}

static zf_status_t train(const zf_plugin_t *zf, zf_instance_t *instance, const zf_tensor_t *grad, uint32_t id,
                         uint64_t appended) {
    zf_stream_t stream;
    zf_grad_item_t item = {0};
    zf_group_hyper_t hyper = {0};
    zf_step_args_t args = {0};
    zf_step_report_t report = {0};
    zf_status_t st;
    zf_stream_host_thread(&stream);
    report.struct_size = sizeof report;
    item.struct_size = sizeof item, item.id = id, item.tensor = grad;
    item.flags = ZF_GRAD_PART | ZF_GRAD_LAST;
    hyper.struct_size = sizeof hyper;
    hyper.lr = 0.5, hyper.beta1 = 0.5, hyper.beta2 = 0.9, hyper.eps = 1e-8;
    args.struct_size = sizeof args, args.flags = ZF_STEP_WAIT;
    args.groups = &hyper, args.n_groups = 1, args.elem_size = sizeof hyper, args.stream = &stream;
#ifdef ZF_APPENDED
    args.appended = appended;
#endif
    (void)appended;
    st = zf->grads_ready(instance, &item, 1, sizeof item, &stream, NULL, &err);
    return st < 0 ? st : zf->step(instance, &args, &report, &err);
}

/* What a later host finds out, and what an earlier plugin refuses by name. */
static int ask_for_new(const zf_loader_t *loader, zf_instance_t *instance, const zf_tensor_t *grad, uint32_t id) {
#ifdef ZF_APPENDED
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    int has = zf_loader_has(loader, ZF_LOADER_SLOT(appended));
    zf_status_t st = train(zf, instance, grad, id, 1);
    int is_refused = st == ZF_ERR_UNSUPPORTED_FIELD;
    printf("new slot %d, new member %s\n", has ? zf->appended() : 0, is_refused ? "refused" : st < 0 ? "?" : "taken");
#else
    (void)loader, (void)instance, (void)grad, (void)id;
    printf("nothing new\n");
#endif
    return 0;
}

int main(int argc, char **argv) {
    zf_loader_t *loader = NULL;
    zf_instance_t *instance = NULL;
    const zf_plugin_t *zf;
    zf_host_t host;
    zf_create_args_t create = {0};
    zf_tensor_t tensors[2];
    zf_param_decl_t decl = {0};
    uint32_t id = 0;
    err.struct_size = sizeof err;
    if (argc < 2 || zf_loader_open(argv[1], &loader, &err) < 0)
        return fail("open");
    zf = zf_loader_plugin(loader);
    zf_host_stderr("versions", "1", ZF_LOG_WARN, &host);
    create.struct_size = sizeof create, create.host = &host, create.device_type = ZF_DEVICE_CPU;
    if (zf->create(&create, &instance, &err) < 0)
        return fail("create");
    zf_tensor_contiguous(w, zf_dtype_float32(), 1, shape, &tensors[0]);
    zf_tensor_contiguous(g, zf_dtype_float32(), 1, shape, &tensors[1]);
    decl.struct_size = sizeof decl, decl.name = "w", decl.tensor = &tensors[0];
    if (zf->bind_params(
            instance,
            &(zf_bind_args_t){
                .struct_size = sizeof(zf_bind_args_t), .decls = &decl, .n_decls = 1, .decl_size = sizeof decl},
            &id, NULL, &err) < 0)
        return fail("bind_params");
    for (int s = 0; s < 3; s++)
        if (train(zf, instance, &tensors[1], id, 0) < 0)
            return fail("step");
    printf("ABI %u.%u, weights %.9g %.9g %.9g %.9g, ", ZF_ABI_MAJOR(zf->abi), ZF_ABI_MINOR(zf->abi), (double)w[0],
           (double)w[1], (double)w[2], (double)w[3]);
    return ask_for_new(loader, instance, &tensors[1], id);
}
