/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan_bytes.c - the plugin's own memory plan (zf.plan/0) of a model that is nowhere: its tensors lie in
 * reserved address space, which nobody can read. What plan.py calls: for each line of JSON on stdin one on stdout.
 *
 *   in    config (text), overrides, fetches, is_cpu, carries (torch carries), n_ranks, expert_ranks (that have the same
 *         experts; 0: all do), space (bytes of all tensors), asks [{rank, overrides}], tensors [[name, type, 1 where
 *         rows are channels, axes that number matrices, 1 of experts that other ranks have others of, 1 where a rule
 *         takes it whole, shape, offset in the space]]
 *
 *   out   [zf_plan_t by member, or {error}: why it is refused], of each of asks; where these are none the keys,
 *         {section.key: what holds on a CPU} */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ask.h"
#include "zf/ext/config.h"
#include "zf/ext/draft/collectives.h"
#include "zf/ext/draft/matrix.h"
#include "zf/ext/draft/plan.h"

enum { MOST_OVERRIDES = 256, VALUE_NBYTES = 256, ALL_RANKS = 1, SAME_EXPERTS }; /* the last two: process groups */

typedef struct request {
    const zf_plugin_t *zf;
    const char *config;
    json_t *overrides, *tensors, *asks, *space;
    int fetches, is_cpu, carries, n_ranks, expert_ranks;
    uint32_t rank; /* whose plan is asked for now */
} request_t;

typedef struct decls {
    uint32_t n;
    unsigned char *memory;
    size_t nbytes;
    zf_tensor_t *tensors;
    int64_t (*shapes)[ZF_MAX_NDIM];
    zf_param_decl_t *all;
} decls_t;

static zf_dtype_t dtype_of(const char *name) {
    if (strcmp(name, "f32") == 0)
        return zf_dtype_float32();
    return strcmp(name, "f16") == 0 ? zf_dtype_float16() : zf_dtype_bfloat16();
}

/* 0: it is no tensor. */
static int declare(const request_t *request, uint32_t i, const decls_t *out) {
    json_t *shape;
    json_int_t offset;
    const char *name, *type;
    int are_rows, n_batch_axes, is_expert, is_whole;
    if (json_unpack(json_array_get(request->tensors, i), "[s,s,i,i,i,i,o,I]", &name, &type, &are_rows, &n_batch_axes,
                    &is_expert, &is_whole, &shape, &offset) ||
        json_array_size(shape) > ZF_MAX_NDIM)
        return 0;
    for (size_t k = 0; k < json_array_size(shape); k++)
        out->shapes[i][k] = json_integer_value(json_array_get(shape, k));
    zf_tensor_contiguous(out->memory + offset, dtype_of(type), (int32_t)json_array_size(shape), out->shapes[i],
                         &out->tensors[i]);
    out->tensors[i].dl.device_type = request->is_cpu ? ZF_DEVICE_CPU : ZF_DEVICE_CUDA;
    out->all[i] = (zf_param_decl_t){
        .struct_size = sizeof *out->all,
        .flags = (request->n_ranks > 1 ? ZF_PARAM_AVERAGE : 0) | (request->carries ? ZF_PARAM_CARRIES : 0),
        .name = name,
        .tensor = &out->tensors[i],
        .group = (uint32_t)is_whole,
        .reduce_group = is_expert ? SAME_EXPERTS : 0,
        .n_batch_axes = n_batch_axes,
        .channels = are_rows ? ZF_CHANNELS_ROWS : ZF_CHANNELS_COLUMNS,
        .home = request->carries && !is_whole ? ZF_HOME_HOST : ZF_HOME_PLUGIN,
    };
    return 1;
}

static void drop(decls_t *decls) {
    if (decls->memory != MAP_FAILED)
        munmap(decls->memory, decls->nbytes);
    free(decls->tensors);
    free(decls->shapes);
    free(decls->all);
}

static int declare_all(const request_t *request, decls_t *out) {
    uint32_t n = (uint32_t)json_array_size(request->tensors), i = 0;
    *out = (decls_t){.n = n, .nbytes = (size_t)json_integer_value(request->space)};
    out->memory = mmap(NULL, out->nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    out->tensors = calloc(n, sizeof *out->tensors);
    out->shapes = calloc(n, sizeof *out->shapes);
    out->all = calloc(n, sizeof *out->all);
    if (out->memory == MAP_FAILED || !out->tensors || !out->shapes || !out->all) {
        zf_cli_complain("plan", "no address space for %.1f GiB of tensors: %s (ulimit -v)",
                        (double)out->nbytes / (1 << 30), strerror(errno));
    } else {
        while (i < n && declare(request, i, out))
            i++;
        if (i == n)
            return 0;
        zf_cli_complain("ask plan", "tensor %u makes no sense", i);
    }
    drop(out);
    return 1;
}

/* Texts of a list, behind those that are there; how many there are then. */
static uint32_t take_texts(const json_t *list, const char **out, uint32_t n) {
    for (size_t i = 0; i < json_array_size(list) && n < MOST_OVERRIDES; i++)
        out[n++] = json_string_value(json_array_get(list, i));
    return n;
}

/* The value of each key: an instance on the CPU says it. NULL after a message. */
static json_t *read_keys(zf_cli_t *cli, const request_t *request) {
    const zf_config_ext_t *config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    const char *overrides[MOST_OVERRIDES];
    zf_error_t err = {.struct_size = sizeof err};
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1"};
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .config_text = request->config,
                               .overrides = overrides,
                               .n_overrides = take_texts(request->overrides, overrides, 0),
                               .device_type = ZF_DEVICE_CPU};
    zf_instance_t *inst;
    json_t *out = json_object();
    if (!config || request->zf->create(&create, &inst, &err) < 0) {
        if (config)
            zf_cli_fail(&err);
        json_decref(out);
        return NULL;
    }
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_config_key_t key = {.struct_size = sizeof key};
        char name[VALUE_NBYTES], value[VALUE_NBYTES] = "";
        (void)config->key(i, &key, NULL);
        (void)config->value(inst, i, value, sizeof value, NULL);
        snprintf(name, sizeof name, "%s.%s", key.section, key.key);
        json_object_set_new(out, name, json_string(value));
    }
    request->zf->destroy(inst, NULL);
    return out;
}

static json_t *show(const zf_plan_t *plan) {
    const struct {
        const char *name;
        uint64_t value;
    } members[] = {
        {"n_buckets", plan->n_buckets},
        {"update_interval", plan->update_interval},
        {"publish_lag", plan->publish_lag},
        {"host_nbytes", plan->host_nbytes},
        {"host_state_nbytes", plan->host_state_nbytes},
        {"host_slots_nbytes", plan->host_slots_nbytes},
        {"host_publish_nbytes", plan->host_publish_nbytes},
        {"host_exchange_nbytes", plan->host_exchange_nbytes},
        {"device_nbytes", plan->device_nbytes},
        {"staging_nbytes", plan->staging_nbytes},
        {"sums_nbytes", plan->sums_nbytes},
        {"n_elems", plan->n_elems},
        {"n_owned_elems", plan->n_owned_elems},
        {"n_selected_elems", plan->n_selected_elems},
        {"least_close_elems", plan->least_close_elems},
        {"most_close_elems", plan->most_close_elems},
    };
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        json_object_set_new(out, members[i].name, json_integer((json_int_t)members[i].value));
    return out;
}

/* ---- process groups: a plan asks for their sizes, and exchanges nothing ---- */

static zf_status_t find_group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    const request_t *request = ctx;
    uint32_t n_ranks = (uint32_t)request->n_ranks, n_same = (uint32_t)request->expert_ranks;
    (void)err;
    *out_size = number == SAME_EXPERTS ? n_same : n_ranks;
    *out_rank = number == SAME_EXPERTS ? request->rank / (n_ranks / n_same) : request->rank;
    return ZF_OK;
}
static zf_status_t no_start(void *ctx, const zf_collective_t *what, uint64_t *out_request, zf_error_t *err) {
    (void)ctx, (void)what, (void)out_request, (void)err;
    return ZF_ERR_STATE;
}
static zf_status_t no_request(void *ctx, uint64_t request, zf_error_t *err) {
    (void)ctx, (void)request, (void)err;
    return ZF_ERR_STATE;
}

static const void *find_groups(void *ctx, const char *id) {
    static zf_collectives_ext_t table;
    table = (zf_collectives_ext_t){.struct_size = sizeof table,
                                   .ctx = ctx,
                                   .group = find_group,
                                   .start = no_start,
                                   .test = no_request,
                                   .abort = no_request};
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &table : NULL;
}

/* ---- group 1: a rule of whole matrices with one moment, as Muon; a plan updates nothing ---- */

static int32_t no_update(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    (void)ctx, (void)updates, (void)n, (void)elem_size;
    return 1;
}

static const zf_matrix_rules_t whole_rules = {
    .struct_size = sizeof whole_rules, .flags = ZF_CHAINED_REQUIRED, .id = ZF_EXT_MATRIX, .update = no_update};
static const zf_rule_callback_t whole = {.struct_size = sizeof whole, .n_moments = 1, .name = "muon"};
static const zf_group_decl_t groups[] = {{sizeof *groups, ZF_RULE_ADAMW, NULL},
                                         {sizeof *groups, ZF_RULE_CALLBACK, &whole}};

static json_t *ask(const zf_plan_ext_t *ext, request_t *request, const decls_t *decls, const json_t *one) {
    zf_error_t err = {.struct_size = sizeof err};
    const char *overrides[MOST_OVERRIDES];
    uint32_t n = take_texts(request->overrides, overrides, 0);
    request->rank = (uint32_t)json_integer_value(json_object_get(one, "rank"));
    zf_host_t host = {
        .struct_size = sizeof host, .name = "zf", .version = "1", .ctx = request, .get_extension = find_groups};
    zf_create_args_t create = {.struct_size = sizeof create,
                               .flags = request->fetches ? ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS : 0,
                               .host = &host,
                               .config_text = request->config,
                               .overrides = overrides,
                               .n_overrides = take_texts(json_object_get(one, "overrides"), overrides, n),
                               .norm_group = request->expert_ranks ? ALL_RANKS : 0,
                               .device_type = request->is_cpu ? ZF_DEVICE_CPU : ZF_DEVICE_CUDA};
    zf_bind_args_t bind = {.struct_size = sizeof bind,
                           .decls = decls->all,
                           .n_decls = decls->n,
                           .decl_size = sizeof(zf_param_decl_t),
                           .groups = groups,
                           .n_groups = 2,
                           .group_size = sizeof *groups,
                           .next = &whole_rules};
    zf_plan_args_t args = {.struct_size = sizeof args,
                           .n_ranks = (uint32_t)request->n_ranks,
                           .rank = request->rank,
                           .create = &create,
                           .bind = &bind};
    zf_plan_t plan = {.struct_size = sizeof plan};
    return ext->plan(&args, &plan, &err) < 0 ? json_pack("{s:s}", "error", err.message) : show(&plan);
}

static json_t *plans_of(const zf_plan_ext_t *ext, request_t *request) {
    json_t *plans = NULL, *one;
    decls_t decls;
    size_t i;
    if (declare_all(request, &decls))
        return NULL;
    plans = json_array();
    json_array_foreach(request->asks, i, one) json_array_append_new(plans, ask(ext, request, &decls, one));
    drop(&decls);
    return plans;
}

/* One line of stdin; the answer is one of stdout. */
static int answer(zf_cli_t *cli, const zf_plan_ext_t *ext, const json_t *asked) {
    request_t request = {.zf = zf_loader_plugin(cli->loader)};
    json_error_t problem;
    if (json_unpack_ex((json_t *)asked, &problem, 0, "{s:s, s:o, s:b, s:b, s:b, s:i, s:i, s:o, s:o, s:o}", "config",
                       &request.config, "overrides", &request.overrides, "fetches", &request.fetches, "is_cpu",
                       &request.is_cpu, "carries", &request.carries, "n_ranks", &request.n_ranks, "expert_ranks",
                       &request.expert_ranks, "tensors", &request.tensors, "asks", &request.asks, "space",
                       &request.space)) {
        zf_cli_complain("ask plan", "%s", problem.text);
        return 1;
    }
    json_t *out = json_array_size(request.asks) ? plans_of(ext, &request) : read_keys(cli, &request);
    if (!out)
        return 1;
    json_dumpf(out, stdout, JSON_COMPACT);
    json_decref(out);
    return puts("") < 0 || fflush(stdout) != 0;
}

int zf_ask_plan(zf_cli_t *cli, char **words) {
    const zf_plan_ext_t *ext = zf_cli_extension(cli, ZF_EXT_PLAN);
    int status = !ext;
    json_t *asked;
    (void)words;
    while (!status && (asked = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL))) {
        status = answer(cli, ext, asked);
        json_decref(asked);
    }
    return status;
}
