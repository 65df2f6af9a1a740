/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - zf-host: trains the reference model once and writes a JSON report. --help lists the options. */
#include "matmul.h"
#include "report.h"

#include <stdio.h>

enum { EXIT_DONE = 0, EXIT_TRAINING_FAILED = 1, EXIT_NOT_STARTED = 2 };

static int complain(const glue_error_t *err, int status) {
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
    st = host_report_write(c, w, &result, &err);
    host_run_result_free(&result);
    return st == 0 ? EXIT_DONE : complain(&err, EXIT_NOT_STARTED);
}

int main(int argc, char **argv) {
    host_command_t command;
    host_workload_t workload;
    glue_error_t err = {""};
    const char *missing;
    int status;

    if (host_options_parse(argc, argv, &command, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    if (command.wants_help)
        return host_options_help();
    host_matmul_set_threads(command.n_threads);
    missing = command.has_bf16_products ? host_matmul_use_bf16() : NULL;
    if (missing != NULL) {
        (void)glue_fail(&err, "--products bf16: %s", missing);
        return complain(&err, EXIT_NOT_STARTED);
    }
    if (host_workload_load(&command.run, &workload, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    announce(&command, &workload);
    status = train_once(&command, &workload);
    host_workload_free(&workload);
    return status;
}
