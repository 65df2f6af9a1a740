/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan_bytes.c - the plugin's own memory plan (zf.plan/0) of a model that is nowhere: its tensors lie in
 * reserved address space, which nobody can read (contract in plan.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plan.h"

enum { GAP_NBYTES = 64 };

typedef struct decls {
    unsigned char *memory;
    uint64_t nbytes;
    zf_tensor_t *tensors;
    zf_param_decl_t *all;
} decls_t;

static zf_dtype_t dtype_of(model_dtype_t dtype) {
    return dtype == MODEL_F32 ? zf_dtype_float32() : dtype == MODEL_F16 ? zf_dtype_float16() : zf_dtype_bfloat16();
}

static uint64_t place_nbytes(const model_param_t *param) {
    return (param->n_elems * model_dtype_nbytes(param->dtype) + GAP_NBYTES) / GAP_NBYTES * GAP_NBYTES;
}

static void fill(const plan_options_t *options, const model_t *model, decls_t *out) {
    unsigned char *at = out->memory;
    for (uint32_t i = 0; i < model->n; i++) {
        const model_param_t *param = &model->params[i];
        zf_tensor_contiguous(at, dtype_of(param->dtype), param->ndim, param->shape, &out->tensors[i]);
        out->tensors[i].dl.device_type = options->is_cpu ? ZF_DEVICE_CPU : ZF_DEVICE_CUDA;
        out->all[i] = (zf_param_decl_t){
            .struct_size = sizeof *out->all,
            .flags = options->n_ranks > 1 ? ZF_PARAM_AVERAGE : 0,
            .name = param->name,
            .tensor = &out->tensors[i],
            .channels = param->channels_are_rows ? ZF_CHANNELS_ROWS : ZF_CHANNELS_COLUMNS,
        };
        at += place_nbytes(param);
    }
}

static void drop(decls_t *decls) {
    if (decls->memory && decls->memory != MAP_FAILED)
        munmap(decls->memory, decls->nbytes);
    free(decls->tensors);
    free(decls->all);
}

static int declare(const plan_options_t *options, const model_t *model, decls_t *out) {
    *out = (decls_t){.nbytes = 0};
    for (uint32_t i = 0; i < model->n; i++)
        out->nbytes += place_nbytes(&model->params[i]);
    out->memory = mmap(NULL, out->nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    out->tensors = calloc(model->n, sizeof *out->tensors);
    out->all = calloc(model->n, sizeof *out->all);
    if (out->memory == MAP_FAILED || !out->tensors || !out->all) {
        drop(out);
        return zf_cli_complain(model->path, "no address space for %.1f GiB of tensors: %s (ulimit -v)",
                               (double)out->nbytes / (1 << 30), strerror(errno));
    }
    fill(options, model, out);
    return 0;
}

int plan_ask(zf_cli_t *cli, const plan_options_t *options, const model_t *model, uint32_t rank, const char *config_text,
             const char *const *overrides, int is_quiet, zf_plan_t *out) {
    const zf_plan_ext_t *plan = zf_cli_extension(cli, ZF_EXT_PLAN);
    const char *all[PLAN_MAX_OVERRIDES + 8];
    uint32_t n = 0;
    zf_error_t err = {.struct_size = sizeof err};
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1"};
    zf_create_args_t create = {.struct_size = sizeof create,
                               .flags = options->has_no_fetch ? 0 : ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS,
                               .host = &host,
                               .config_text = config_text,
                               .overrides = all,
                               .device_type = options->is_cpu ? ZF_DEVICE_CPU : ZF_DEVICE_CUDA};
    zf_bind_args_t bind = {.struct_size = sizeof bind, .n_decls = model->n, .decl_size = sizeof(zf_param_decl_t)};
    zf_plan_args_t args = {
        .struct_size = sizeof args, .n_ranks = options->n_ranks, .rank = rank, .create = &create, .bind = &bind};
    decls_t decls;
    zf_status_t st;
    if (!plan || declare(options, model, &decls))
        return 1;
    bind.decls = decls.all;
    for (uint32_t i = 0; i < options->n_overrides; i++)
        all[n++] = options->overrides[i];
    for (; *overrides && n < PLAN_MAX_OVERRIDES + 8; overrides++)
        all[n++] = *overrides;
    create.n_overrides = n;
    *out = (zf_plan_t){.struct_size = sizeof *out};
    st = plan->plan(&args, out, &err);
    drop(&decls);
    if (st < 0 && !is_quiet)
        zf_cli_fail(&err);
    return st < 0;
}
