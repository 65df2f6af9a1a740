/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/replay_speed.c - the replay of the plugin itself, and its own passes (contract in ask.h).
 *
 * Replay: one matrix, nothing selected, one cohort and lag 0: the closing step waits for its replay, and nothing else
 * of the plugin works meanwhile. Own passes: one matrix with the defaults in windows of OWN_STEPS steps, so that most
 * steps close none; the median of all. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ask.h"

enum { COLUMNS = 4096, OWN_STEPS = 8, ONE_BF16 = 0x3f80, SMALL_BF16 = 0x3a83 };

typedef struct run {
    const zf_plugin_t *zf;
    zf_instance_t *inst;
    uint16_t *weights, *grads;
    uint64_t n_elems;
    zf_stream_t stream;
    zf_tensor_t weight_tensor, grad_tensor;
    uint32_t id;
    zf_replay_speed_t *out;
    double own_ns;
} run_t;

typedef int (*measure_t)(run_t *run, uint32_t interval, zf_error_t *err);

/* "...; kernels avx512, 2 worker(s); ..." is in the one line that bind_params logs. */
static void take_log(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *text,
                     uint64_t nbytes) {
    zf_replay_speed_t *out = ctx;
    char copy[512];
    (void)level, (void)component, (void)file, (void)line;
    snprintf(copy, sizeof copy, "%.*s", (int)(nbytes < sizeof copy ? nbytes : sizeof copy - 1), text);
    const char *at = strstr(copy, "kernels ");
    if (at)
        snprintf(out->kernels, sizeof out->kernels, "%.*s", (int)strcspn(at + 8, ",;"), at + 8);
}

static int train(run_t *run, uint32_t n_steps, zf_error_t *err) {
    zf_grad_item_t item = {.struct_size = sizeof item,
                           .id = run->id,
                           .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ,
                           .tensor = &run->grad_tensor};
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {.struct_size = sizeof step,
                           .flags = ZF_STEP_WAIT,
                           .groups = &hyper,
                           .n_groups = 1,
                           .elem_size = sizeof hyper,
                           .stream = &run->stream};
    const zf_quiesce_args_t drain = {.struct_size = sizeof drain, .mode = ZF_QUIESCE_DRAIN};
    for (uint32_t i = 0; i < n_steps; i++)
        if (run->zf->grads_ready(run->inst, &item, 1, sizeof item, &run->stream, NULL, err) < 0 ||
            run->zf->step(run->inst, &step, NULL, err) < 0)
            return 0;
    return run->zf->quiesce(run->inst, &drain, err) >= 0;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

typedef struct counters {
    uint64_t elems, ns, n_workers;
} counters_t;

static int count(const run_t *run, counters_t *out, zf_error_t *err) {
    return zf_counter_value(run->zf, run->inst, "replay_elems", &out->elems, err) >= 0 &&
           zf_counter_value(run->zf, run->inst, "replay_ns", &out->ns, err) >= 0 &&
           zf_counter_value(run->zf, run->inst, "n_workers", &out->n_workers, err) >= 0;
}

/* The first window after warm-up is not counted. */
static int measure(run_t *run, uint32_t interval, zf_error_t *err) {
    counters_t before, after = {0};
    if (!train(run, 1 + interval, err) || !count(run, &before, err) || !train(run, interval, err) ||
        !count(run, &after, err))
        return 0;
    run->out->n_workers = (uint32_t)after.n_workers;
    run->out->elems_per_s =
        (double)(after.elems - before.elems) / ((double)(after.ns - before.ns) + 1) * 1e9 * (double)after.n_workers;
    return run->out->elems_per_s > 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each step is drained before the next begins. */
static int measure_own(run_t *run, uint32_t interval, zf_error_t *err) {
    double all[OWN_STEPS];
    if (!train(run, 1 + interval, err))
        return 0;
    for (int i = 0; i < OWN_STEPS; i++) {
        double began = now_ns();
        if (!train(run, 1, err))
            return 0;
        all[i] = now_ns() - began;
    }
    qsort(all, OWN_STEPS, sizeof *all, by_size);
    run->own_ns = all[OWN_STEPS / 2] / (double)run->n_elems;
    return 1;
}

static int open_and_measure(run_t *run, uint32_t interval, const char *keys, measure_t take, zf_error_t *err) {
    const int64_t shape[2] = {(int64_t)(run->n_elems / COLUMNS), COLUMNS};
    char config[256];
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1", .ctx = run->out, .log = take_log};
    zf_create_args_t args = {
        .struct_size = sizeof args, .host = &host, .config_text = config, .device_type = ZF_DEVICE_CPU};
    zf_param_decl_t decl = {.struct_size = sizeof decl, .name = "w", .tensor = &run->weight_tensor};
    int is_done = 0;
    snprintf(config, sizeof config, "[zenflow]\nupdate_interval = %u\npublish_lag = 0\nfull_warm_up_rounds = 1\n%s",
             interval, keys);
    zf_tensor_contiguous(run->weights, zf_dtype_bfloat16(), 2, shape, &run->weight_tensor);
    zf_tensor_contiguous(run->grads, zf_dtype_bfloat16(), 2, shape, &run->grad_tensor);
    zf_stream_host_thread(&run->stream);
    if (run->zf->create(&args, &run->inst, err) < 0)
        return 0;
    if (run->zf->bind_params(
            run->inst,
            &(zf_bind_args_t){
                .struct_size = sizeof(zf_bind_args_t), .decls = &decl, .n_decls = 1, .decl_size = sizeof decl},
            &run->id, NULL, err) >= 0)
        is_done = take(run, interval, err);
    run->zf->destroy(run->inst, NULL);
    return is_done;
}

/* Memory of weights and gradients for the time of it. */
static int measure_with(zf_cli_t *cli, run_t *run, uint32_t interval, const char *keys, measure_t take) {
    zf_error_t err = {.struct_size = sizeof err, .message = "nothing was replayed"};
    *run->out = (zf_replay_speed_t){.n_workers = 0};
    run->zf = zf_loader_plugin(cli->loader);
    run->weights = malloc(run->n_elems * sizeof *run->weights);
    run->grads = malloc(run->n_elems * sizeof *run->grads);
    for (uint64_t i = 0; run->weights && run->grads && i < run->n_elems; i++) {
        run->weights[i] = ONE_BF16;
        run->grads[i] = SMALL_BF16;
    }
    int is_done = run->weights && run->grads && open_and_measure(run, interval, keys, take, &err);
    if (!is_done)
        zf_cli_fail(&err);
    free(run->weights);
    free(run->grads);
    return is_done;
}

int zf_speed_replay(zf_cli_t *cli, uint32_t interval, uint64_t n_elems, zf_replay_speed_t *out) {
    run_t run = {.n_elems = n_elems / COLUMNS * COLUMNS, .out = out};
    return measure_with(cli, &run, interval, "topk_ratio = 0\non_overwrite = off\n", measure);
}

int zf_speed_own(zf_cli_t *cli, uint64_t n_elems, double *out_ns) {
    zf_replay_speed_t unused;
    run_t run = {.n_elems = n_elems / COLUMNS * COLUMNS, .out = &unused};
    int is_done = measure_with(cli, &run, OWN_STEPS, "", measure_own);
    *out_ns = run.own_ns;
    return is_done;
}
