/* report.c - the JSON report of one run (report.h). Numbers are finite by the time they get here. */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A JSON string; bytes outside printable ASCII that JSON would not take are escaped. */
static void put_text(FILE *file, const char *text) {
    (void)fputc('"', file);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            (void)fprintf(file, "\\%c", c);
        else if (c < 0x20)
            (void)fprintf(file, "\\u%04x", c);
        else
            (void)fputc(c, file);
    }
    (void)fputc('"', file);
}

static void put_source(FILE *file, const host_run_options_t *o, const host_workload_t *w) {
    (void)fprintf(file, "  \"task\": \"%s\",\n  \"data\": ", w->task->name);
    put_text(file, w->is_synthetic ? o->synthetic_dir : o->data_dir);
    (void)fprintf(file, ",\n  \"is_synthetic\": %s,\n", w->is_synthetic ? "true" : "false");
    (void)fprintf(file, "  \"rows\": {\"train\": %zu, \"dev\": %zu, \"second_dev\": %zu, \"skipped\": %zu},\n",
                  w->train.n_rows, w->dev.n_rows, w->second_dev.n_rows, w->train.n_skipped + w->dev.n_skipped);
    (void)fputs("  \"pretrained\": ", file);
    put_text(file, o->model_dir != NULL ? o->model_dir : "");
    (void)fputs(",\n", file);
    (void)fprintf(file, "  \"vocabulary\": {\"file\": %zu, \"used\": %zu, \"dev_pieces_made_unknown\": %zu},\n",
                  w->n_vocabulary_pieces, w->n_pieces, w->n_unknown_dev);
}

static void put_settings(FILE *file, const host_run_options_t *o, const host_run_result_t *r) {
    const host_model_config_t *m = &r->model;
    const host_train_options_t *t = &o->train;

    (void)fprintf(file, "  \"max_tokens\": %zu,\n", o->max_tokens);
    (void)fprintf(file,
                  "  \"model\": {\"layers\": %zu, \"hidden\": %zu, \"heads\": %zu, \"ffn\": %zu, \"dropout\": %.9g, "
                  "\"dtype\": \"%s\", \"parameters\": %zu},\n",
                  m->n_layers, m->hidden, m->n_heads, m->ffn, m->dropout, host_dtype_name(m->dtype), r->n_param_elems);
    (void)fprintf(file,
                  "  \"training\": {\"seed\": %llu, \"steps\": %zu, \"batch\": %zu, \"accumulation\": %zu, "
                  "\"parts\": %s, \"lr\": %.9g, \"weight_decay\": %.9g, \"clip\": %.9g, \"warmup\": %.9g},\n",
                  (unsigned long long)t->seed, t->n_steps, t->batch, t->accumulation,
                  t->deliver_parts ? "true" : "false", t->hyper.lr, t->hyper.weight_decay, t->clip_norm,
                  t->warmup_share);
}

static void put_optimizer(FILE *file, const host_run_options_t *o, const host_run_result_t *r) {
    (void)fputs("  \"optimizer\": ", file);
    put_text(file, r->optimizer_name);
    if (o->optimizer == HOST_OPTIMIZER_PLUGIN) {
        (void)fputs(",\n  \"config\": ", file);
        put_text(file, o->plugin.config_path != NULL ? o->plugin.config_path : "");
        (void)fputs(",\n  \"overrides\": [", file);
        for (size_t i = 0; i < o->plugin.n_overrides; i++) {
            (void)fputs(i == 0 ? "" : ", ", file);
            put_text(file, o->plugin.overrides[i]);
        }
        (void)fputs("]", file);
    }
    (void)fputs(",\n", file);
}

static void put_scores(FILE *file, const host_workload_t *w, const host_run_result_t *r) {
    const host_scores_t *s = &r->scores;
    double second;
    const char *name = host_run_second_score(w, r, &second);

    (void)fprintf(file, "  \"metric\": {\"name\": \"%s\", \"value\": %.9g},\n", glue_metric_name(w->task->metric),
                  s->main);
    if (name != NULL)
        (void)fprintf(file, "  \"second\": {\"name\": \"%s\", \"value\": %.9g},\n", name, second);
    if (w->task->n_labels == 0)
        (void)fprintf(file, "  \"scores\": {\"pearson\": %.9g, \"spearman\": %.9g, \"loss\": %.9g},\n", s->pearson,
                      s->spearman, s->loss);
    else if (w->task->n_labels > 2)
        (void)fprintf(file, "  \"scores\": {\"accuracy\": %.9g, \"loss\": %.9g},\n", s->accuracy, s->loss);
    else
        (void)fprintf(file, "  \"scores\": {\"accuracy\": %.9g, \"f1\": %.9g, \"matthews\": %.9g, \"loss\": %.9g},\n",
                      s->accuracy, s->f1, s->matthews, s->loss);
}

static void put_counters(FILE *file, const host_run_result_t *r) {
    (void)fputs("  \"counters\": {", file);
    for (size_t i = 0; i < r->n_counters; i++)
        (void)fprintf(file, "%s\"%s\": %.9g", i == 0 ? "" : ", ", r->counters[i].name, r->counters[i].value);
    (void)fputs("},\n", file);
}

static void put_losses(FILE *file, const host_train_result_t *t) {
    (void)fputs("  \"losses\": [", file);
    for (size_t i = 0; i < t->n_steps; i++)
        (void)fprintf(file, "%s%.9g", i == 0 ? "" : i % 16 == 0 ? ",\n    " : ", ", t->losses[i]);
    (void)fputs("]\n", file);
}

static void put_report(FILE *file, const host_command_t *c, const host_workload_t *w, const host_run_result_t *r) {
    (void)fputs("{\n", file);
    put_source(file, &c->run, w);
    put_settings(file, &c->run, r);
    put_optimizer(file, &c->run, r);
    put_scores(file, w, r);
    (void)fprintf(file, "  \"resumed_after_step\": %zu,\n  \"seconds\": %.3f,\n", r->first_step, r->train.seconds);
    put_counters(file, r);
    put_losses(file, &r->train);
    (void)fputs("}\n", file);
}

int host_report_write(const host_command_t *c, const host_workload_t *w, const host_run_result_t *r,
                      glue_error_t *err) {
    FILE *file = c->out_path != NULL ? fopen(c->out_path, "w") : stdout;
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", c->out_path, strerror(errno));
    put_report(file, c, w, r);
    has_failed = ferror(file) != 0;
    if ((c->out_path != NULL ? fclose(file) : fflush(file)) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", c->out_path != NULL ? c->out_path : "standard output",
                         strerror(errno));
    return 0;
}
