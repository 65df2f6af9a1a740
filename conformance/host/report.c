/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - the JSON report of one run (report.h), by jansson. */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* null where it is not finite. */
static json_t *number_json(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *numbers_json(const double *values, size_t n) {
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(out, number_json(values[i]));
    return out;
}

/* NULL is an empty one; where a text is no UTF-8, "?" stands for every byte beyond ASCII. */
static json_t *text_json(const char *text) {
    json_t *out = json_string(text != NULL ? text : "");
    char *copy = out == NULL ? strdup(text) : NULL;
    for (char *c = copy; c != NULL && *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    if (copy != NULL)
        out = json_string(copy);
    free(copy);
    return out;
}

static json_t *source_json(const host_command_t *c, const host_examples_t *e) {
    json_t *rows =
        json_pack("{s:I, s:I, s:I, s:I}", "train", (json_int_t)e->train.n_rows, "dev", (json_int_t)e->dev.n_rows,
                  "second_dev", (json_int_t)e->second_dev.n_rows, "skipped", (json_int_t)e->n_skipped);
    return json_pack("{s:o, s:o, s:o, s:b, s:I, s:I}", "task", text_json(e->task), "examples",
                     text_json(c->examples_path), "rows", rows, "is_pretrained", e->is_pretrained, "pieces",
                     (json_int_t)e->shape.n_pieces, "max_tokens", (json_int_t)e->shape.max_positions);
}

static json_t *model_json(const host_run_result_t *r) {
    const host_model_config_t *m = &r->model;
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:s, s:I}", "layers", (json_int_t)m->n_layers, "hidden",
                     (json_int_t)m->hidden, "heads", (json_int_t)m->n_heads, "ffn", (json_int_t)m->ffn, "dropout",
                     (double)m->dropout, "dtype", host_dtype_name(m->dtype), "parameters",
                     (json_int_t)r->n_param_elems);
}

/* Of each dev set; what they are worth is for whoever has the answers to say. */
static json_t *predictions_json(const host_run_result_t *r) {
    json_t *out = json_array();
    (void)json_array_append_new(out, numbers_json(r->dev.values, r->dev.n_rows));
    if (r->second_dev.n_rows > 0)
        (void)json_array_append_new(out, numbers_json(r->second_dev.values, r->second_dev.n_rows));
    return out;
}

static json_t *counters_json(const host_run_result_t *r) {
    json_t *out = json_object();
    for (size_t i = 0; i < r->n_counters; i++)
        (void)json_object_set_new(out, r->counters[i].name, number_json((double)r->counters[i].value));
    return out;
}

/* The most that this process has had in memory, as the kernel counts it from the start of the program on (VmHWM), in
 * bytes; NAN where the system does not tell. getrusage() would tell more: the process that started this one counts. */
static double peak_rss_nbytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    unsigned long long kib = 0;
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1)
            break;
    if (file != NULL)
        (void)fclose(file);
    return kib != 0 ? 1024.0 * (double)kib : (double)NAN;
}

/* Of every parameter: what the model ended with. */
static json_t *digests_json(const host_run_result_t *r) {
    json_t *out = json_array();
    char text[17];
    for (size_t i = 0; i < r->n_digests; i++) {
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)r->digests[i]);
        (void)json_array_append_new(out, json_string(text));
    }
    return out;
}

static json_t *report_json(const host_command_t *c, const host_examples_t *e, const host_run_result_t *r) {
    json_t *out = source_json(c, e);
    (void)json_object_set_new(out, "model", model_json(r));
    (void)json_object_set_new(out, "optimizer", text_json(r->optimizer_name));
    (void)json_object_set_new(out, "dev_loss", number_json(r->dev.loss));
    (void)json_object_set_new(out, "predictions", predictions_json(r));
    if (c->run.compute != NULL)
        (void)json_object_set_new(out, "device", json_string(c->run.compute->what));
    (void)json_object_set_new(out, "seconds", json_real(r->train.seconds));
    (void)json_object_set_new(out, "step_seconds", json_real(r->train.step_seconds));
    (void)json_object_set_new(out, "peak_rss_bytes", number_json(peak_rss_nbytes()));
    (void)json_object_set_new(out, "counters", counters_json(r));
    (void)json_object_set_new(out, "digests", digests_json(r));
    (void)json_object_set_new(out, "losses", numbers_json(r->train.losses, r->train.n_steps));
    return out;
}

int host_report_write(const host_command_t *c, const host_examples_t *e, const host_run_result_t *r,
                      glue_error_t *err) {
    json_t *report = report_json(c, e, r);
    FILE *file = c->out_path != NULL ? fopen(c->out_path, "w") : stdout;
    const char *where = c->out_path != NULL ? c->out_path : "standard output";
    int st = file != NULL ? json_dumpf(report, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : -1;
    json_decref(report);
    if (file == NULL || (file == stdout ? fflush(file) : fclose(file)) != 0 || st != 0)
        return glue_fail(err, "%s: cannot write the report: %s", where, strerror(errno));
    return 0;
}
