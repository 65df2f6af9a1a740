/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - zf-host: trains the reference model once and writes a JSON report. --help lists the options. */
#include "cuda/device.h"
#include "report.h"

#include <stdio.h>

enum { EXIT_DONE = 0, EXIT_TRAINING_FAILED = 1, EXIT_NOT_STARTED = 2 };

static int complain(const glue_error_t *err, int status) {
    (void)fprintf(stderr, "zf-host: %s\n", err->text);
    return status;
}

static void announce(const host_command_t *c, const host_examples_t *e) {
    if (!c->is_quiet)
        (void)fprintf(stderr, "%s: %zu train and %zu dev rows of %zu pieces; %s\n", e->task, e->train.n_rows,
                      e->dev.n_rows + e->second_dev.n_rows, e->shape.n_pieces,
                      e->is_pretrained ? "a pretrained encoder, the classifier is new" : "an encoder from scratch");
}

static void summarise(const host_command_t *c, const host_examples_t *e, const host_run_result_t *r) {
    if (!c->is_quiet)
        (void)fprintf(stderr, "%s, %s, seed %llu: dev loss %.4f, %.1f s\n", e->task, r->optimizer_name,
                      (unsigned long long)c->run.train.seed, r->dev.loss, r->train.seconds);
}

static int train_once(const host_command_t *c, const host_examples_t *e) {
    glue_error_t err = {""};
    host_run_result_t result;
    if (host_run(e, &c->run, &result, &err) != 0)
        return complain(&err, EXIT_TRAINING_FAILED);
    summarise(c, e, &result);
    int st = host_report_write(c, e, &result, &err);
    host_run_result_free(&result);
    return st == 0 ? EXIT_DONE : complain(&err, EXIT_NOT_STARTED);
}

static int load_and_train(const host_command_t *c) {
    host_examples_t examples;
    glue_error_t err = {""};
    if (host_examples_open(c->examples_path, &examples, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    if (examples.is_pretrained && c->shape_option != NULL) {
        host_examples_close(&examples);
        (void)glue_fail(&err, "%s: the encoder of %s decides it; leave it out", c->shape_option, c->examples_path);
        return complain(&err, EXIT_NOT_STARTED);
    }
    announce(c, &examples);
    int status = train_once(c, &examples);
    host_examples_close(&examples);
    return status;
}

int main(int argc, char **argv) {
    host_command_t command;
    glue_error_t err = {""};
    if (host_options_parse(argc, argv, &command, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    if (command.wants_help)
        return host_options_help();
    if (command.has_device && host_cuda_open(0, command.has_bf16_products, &command.run.compute, &err) != 0)
        return complain(&err, EXIT_NOT_STARTED);
    int status = load_and_train(&command);
    host_compute_close(command.run.compute);
    return status;
}
