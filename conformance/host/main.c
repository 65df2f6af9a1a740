/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - zf-host: trains the reference model once and writes a JSON report. --help lists the options. */
#include "cuda/device.h"
#include "report.h"

#include <stdio.h>
#include <unistd.h>

enum { EXIT_DONE = 0, EXIT_TRAINING_FAILED = 1, EXIT_NOT_STARTED = 2 };

static const host_ranks_t *here; /* NULL: one process */

static int complain(const glue_error_t *err, int status) {
    if (here != NULL)
        (void)fprintf(stderr, "zf-host: rank %zu of %zu: %s\n", host_ranks_rank(here), host_ranks_size(here),
                      err->text);
    else
        (void)fprintf(stderr, "zf-host: %s\n", err->text);
    return status;
}

static void announce(const host_command_t *c, const host_workload_t *w) {
    if (c->is_quiet)
        return;
    (void)fprintf(stderr, "%s%s: %zu train and %zu dev rows; %zu of %zu vocabulary rows occur in %s and are kept\n",
                  w->task->folder, w->is_synthetic ? " layout, SYNTHETIC corpus" : "", w->train.n_rows,
                  w->dev.n_rows + w->second_dev.n_rows, w->n_pieces, w->n_vocabulary_pieces,
                  c->run.keeps_vocabulary ? "the file"
                  : w->is_pretrained      ? "train or dev"
                                          : "train");
    if (w->train.n_skipped + w->dev.n_skipped > 0)
        (void)fprintf(stderr, "%s: SKIPPED %zu lines of train and %zu of dev that lack columns\n", w->task->folder,
                      w->train.n_skipped, w->dev.n_skipped);
    if (w->is_pretrained)
        (void)fprintf(stderr, "encoder from %s, %s; the classifier is new\n", c->run.model_dir,
                      w->pretrained.has_pooler ? "with its pooler" : "which has no pooler: it is new too");
}

static void summarise(const host_command_t *c, const host_workload_t *w, const host_run_result_t *r) {
    if (!c->is_quiet)
        (void)fprintf(stderr, "%s%s, %s, seed %llu: %s %.2f, dev loss %.4f, %.1f s\n", w->task->name,
                      w->is_synthetic ? " (synthetic)" : "", r->optimizer_name, (unsigned long long)c->run.train.seed,
                      glue_metric_name(w->task->metric), r->scores.main, r->scores.loss, r->train.seconds);
}

static int train_once(const host_command_t *c, const host_workload_t *w) {
    glue_error_t err = {""};
    host_run_result_t result;
    int st;

    if (host_run(w, &c->run, &result, &err) != 0)
        return complain(&err, EXIT_TRAINING_FAILED);
    summarise(c, w, &result);
    st = host_ranks_rank(c->run.train.ranks) == 0 ? host_report_write(c, w, &result, &err) : 0;
    host_run_result_free(&result);
    return st == 0 ? EXIT_DONE : complain(&err, EXIT_NOT_STARTED);
}

/* Rank 0 speaks for all of them, but for warnings and errors. */
static int open_ranks(host_command_t *c, host_ranks_t **out, glue_error_t *err) {
    if (host_ranks_open(c->mpi_path, out, err) != 0)
        return -1;
    c->run.train.ranks = *out;
    c->run.plugin.ranks = *out;
    here = *out;
    if (host_ranks_rank(*out) > 0) {
        c->is_quiet = 1;
        c->run.plugin.is_verbose = 0;
        c->run.train.progress = NULL;
    }
    return 0;
}

/* The other ranks may be gone after a failure: MPI is not ended then, and mpirun ends who is left. */
static int close_ranks(host_ranks_t *ranks, int status) {
    if (ranks != NULL && status != EXIT_DONE) {
        (void)fflush(NULL);
        _exit(status);
    }
    host_ranks_close(ranks);
    return status;
}

/* With --device cuda the products' type is the device's. */
static int open_device(host_command_t *c, glue_error_t *err) {
    host_cuda_options_t options = {
        .device = (int)c->device, .products = (host_products_t)c->products_by, .is_bf16 = c->has_bf16_products};

    if (c->device > INT32_MAX)
        return glue_fail(err, "--device-number %llu: no machine has as many", (unsigned long long)c->device);
    return c->has_device ? host_cuda_open(&options, &c->run.compute, err) : 0;
}

static int load_and_train(const host_command_t *c) {
    host_workload_t workload;
    glue_error_t err = {""};
    int status;

    if (host_workload_load(&c->run, &workload, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    announce(c, &workload);
    status = train_once(c, &workload);
    host_workload_free(&workload);
    return status;
}

int main(int argc, char **argv) {
    host_command_t command;
    host_ranks_t *ranks = NULL;
    glue_error_t err = {""};
    const char *missing;
    int status;

    if (host_options_parse(argc, argv, &command, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    if (command.wants_help)
        return host_options_help();
    host_matmul_set_threads(command.n_threads);
    missing = command.has_bf16_products && !command.has_device ? host_matmul_use_bf16() : NULL;
    if (missing != NULL) {
        (void)glue_fail(&err, "--products bf16: %s", missing);
        return complain(&err, EXIT_NOT_STARTED);
    }
    if (command.mpi_path != NULL && open_ranks(&command, &ranks, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    if (open_device(&command, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    status = close_ranks(ranks, load_and_train(&command));
    host_compute_close(command.run.compute);
    return status;
}
