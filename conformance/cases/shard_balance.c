/* SPDX-License-Identifier: Apache-2.0 */
/* shard_balance.c - work of each rank and cohort, as it ran (model in shard_balance.h). */
#include "shard_balance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/progress.h"
#include "shard_mirror.h"
#include "shard_model.h"
#include "zf_loader.h"

enum { S = 4, WARM_UP = 2, BEFORE = WARM_UP + 2 * S /* every cohort has closed a whole window */, MOST_RANKS = 64 };

typedef struct host {
    zs_mirror_t mirror;
    zf_host_t table;
    zf_stream_t stream;
    const zf_plugin_t *zf;
    zf_instance_t *instance;
    zs_model_t model;
    zf_tensor_t *params, *grads;
} host_t;

static void check(zf_status_t st, const char *what, const zf_error_t *err) {
    if (st >= 0)
        return;
    fprintf(stderr, "zf-conform shard --balance: %s: status %d: %.300s\n", what, st, err->message);
    exit(2);
}

static const void *get_extension(void *ctx, const char *id) {
    host_t *host = ctx;

    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &host->mirror.table : NULL;
}

static void bind(host_t *host) {
    const zs_model_t *model = &host->model;
    zf_param_decl_t *decls = calloc(model->n, sizeof *decls);
    zf_error_t err = {.struct_size = sizeof err};

    host->params = calloc(model->n, sizeof *host->params);
    host->grads = calloc(model->n, sizeof *host->grads);
    if (!decls || !host->params || !host->grads)
        exit(2);
    for (size_t i = 0; i < model->n; i++) {
        const zs_tensor_t *t = &model->list[i];

        zf_tensor_contiguous(t->value, zf_dtype_bfloat16(), t->n_dims, t->shape, &host->params[i]);
        zf_tensor_contiguous(t->grad, zf_dtype_bfloat16(), t->n_dims, t->shape, &host->grads[i]);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof *decls, .name = t->name, .tensor = &host->params[i]};
    }
    check(host->zf->bind_params(host->instance,
                                &(zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                                                  .decls = decls,
                                                  .n_decls = (uint32_t)model->n,
                                                  .decl_size = sizeof *decls},
                                NULL, NULL, &err),
          "bind_params", &err);
    free(decls);
}

static void open_host(host_t *host, const zf_loader_t *loader, uint32_t rank, uint32_t n_ranks, double millions) {
    char config[256];
    zf_error_t err = {.struct_size = sizeof err};
    zf_create_args_t args = {.struct_size = sizeof args,
                             .flags = ZF_CREATE_CAP_FETCH,
                             .host = &host->table,
                             .config_text = config,
                             .device_type = ZF_DEVICE_CPU};

    memset(host, 0, sizeof *host);
    zs_mirror_init(&host->mirror, rank, n_ranks, 0);
    if (zs_model_init(&host->model, millions) != 0)
        exit(2);
    host->zf = zf_loader_plugin(loader);
    args.config_text_nbytes =
        (size_t)snprintf(config, sizeof config,
                         "[zenflow]\ntopk_ratio = 0\nupdate_interval = %d\nfull_warm_up_rounds = %d\n"
                         "[host]\naffinity = none\n[log]\nlevel = error\nlateness = 0\n[shard]\nstage = 1\n",
                         S, WARM_UP);
    zf_host_stderr("zf-conform", "1", 0, &host->table);
    host->table.get_extension = get_extension;
    host->table.ctx = host;
    zf_stream_host_thread(&host->stream);
    check(host->zf->create(&args, &host->instance, &err), "create", &err);
    bind(host);
}

static void close_host(host_t *host) {
    host->zf->destroy(host->instance, NULL);
    zs_model_free(&host->model);
    free(host->params);
    free(host->grads);
}

/* Elements that the step has replayed, each as often as its window has steps. */
static uint64_t step(host_t *host, uint32_t number) {
    const zf_group_hyper_t hyper = {
        .struct_size = sizeof hyper, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    const zf_step_args_t args = {.struct_size = sizeof args,
                                 .groups = &hyper,
                                 .n_groups = 1,
                                 .elem_size = sizeof hyper,
                                 .stream = &host->stream};
    const zf_quiesce_args_t drain = {.struct_size = sizeof drain, .mode = ZF_QUIESCE_DRAIN};
    uint64_t before, after;
    zf_error_t err = {.struct_size = sizeof err};

    zs_model_fill_gradients(&host->model, number);
    check(zf_counter_value(host->zf, host->instance, "replay_elems", &before, &err), "zf_counter_value", &err);
    for (uint32_t i = (uint32_t)host->model.n; i-- > 0;) {
        const zf_grad_item_t item = {
            .struct_size = sizeof item, .id = i, .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .tensor = &host->grads[i]};

        check(host->zf->grads_ready(host->instance, &item, 1, sizeof item, &host->stream, NULL, &err), "grads_ready",
              &err);
    }
    check(host->zf->step(host->instance, &args, NULL, &err), "step", &err);
    check(host->zf->quiesce(host->instance, &drain, &err), "quiesce", &err);
    check(zf_counter_value(host->zf, host->instance, "replay_elems", &after, &err), "zf_counter_value", &err);
    return after - before;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Work of a row's ranks: the most, and their sum. */
static uint64_t most_of(const uint64_t *row, uint32_t n, uint64_t *out_sum) {
    uint64_t most = 0;

    *out_sum = 0;
    for (uint32_t r = 0; r < n; r++) {
        most = row[r] > most ? row[r] : most;
        *out_sum += row[r];
    }
    return most;
}

static void print_row(const uint64_t *row, uint32_t n, const char *name) {
    uint64_t sum, most = most_of(row, n, &sum);

    printf("  | %s |", name);
    for (uint32_t r = 0; r < n; r++)
        printf(" %.3f |", 1e-6 * (double)row[r]);
    printf(" %.3f |\n", sum ? (double)most * n / (double)sum : 1.0);
}

static int print_table(uint64_t work[S + 1][MOST_RANKS], uint32_t n_ranks, uint64_t n_elems) {
    uint64_t lot = n_elems / 1024 > 65536 ? n_elems / 1024 : 65536, most = 0, all;
    double even = (double)n_elems / S / n_ranks, bound = even + 3 * (double)lot;

    (void)most_of(work[S], n_ranks, &all);
    printf(
        "%u ranks, stage 1, windows of %d steps, %.1f million parameters: millions of elements replayed in a step\n\n"
        "  | cohort |",
        n_ranks, S, 1e-6 * (double)n_elems);
    for (uint32_t r = 0; r < n_ranks; r++)
        printf(" rank %u |", r);
    printf(" most / mean |\n  |---|");
    for (uint32_t r = 0; r <= n_ranks; r++)
        printf("---|");
    printf("\n");
    for (uint32_t c = 0; c <= S; c++) {
        char name[16];
        uint64_t sum, row_most = most_of(work[c], n_ranks, &sum);

        (void)snprintf(name, sizeof name, "%u", c);
        print_row(work[c], n_ranks, c == S ? "all" : name);
        most = c < S && row_most > most ? row_most : most;
    }
    printf("\n  imbalance: %.3f, may be %.3f (of a rank and cohort: %.3f million, even would be %.3f): %s\n",
           (double)most / even, bound / even, 1e-6 * (double)most, 1e-6 * even,
           all != n_elems         ? "not every element was replayed once per window"
           : (double)most > bound ? "missed"
                                  : "held");
    fflush(stdout);
    return all != n_elems || (double)most > bound;
}

int zs_balance(const zf_loader_t *loader, uint32_t n_ranks, double millions) {
    uint64_t work[S + 1][MOST_RANKS] = {{0}}, n_elems = 0;
    zc_progress_t progress = {.area = "shard", .n_all = n_ranks};

    for (uint32_t r = 0; r < n_ranks && r < MOST_RANKS; r++) {
        host_t host;

        progress.n_done = r;
        zc_progress_show(&progress, "ranks, each by itself");
        open_host(&host, loader, r, n_ranks, millions);
        n_elems = host.model.n_elems;
        for (uint32_t i = 0; i < BEFORE + S; i++) {
            uint64_t replayed = step(&host, i + 1);

            if (i >= BEFORE) {
                work[(i - BEFORE) % S][r] = replayed / S;
                work[S][r] += replayed / S;
            }
        }
        close_host(&host);
    }
    zc_progress_end(&progress);
    return print_table(work, n_ranks, n_elems);
}
