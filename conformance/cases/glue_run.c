/* SPDX-License-Identifier: Apache-2.0 */
/* glue_run.c - what a run is, where it is kept, and how a finished one is read (glue_run.h). */
#define _POSIX_C_SOURCE 200809L
#include "glue_run.h"

#include "glue_file.h"
#include "glue_jobs.h"
#include "host/run.h"
#include "json_file.h"

#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One run that has to be done: texts that its argument list points into. */
typedef struct pending {
    size_t arm, seed;
    char seed_text[24], steps_text[24], batch_text[24], ranks_text[24];
    char kept_path[ZG_MAX_PATH], part_path[ZG_MAX_PATH], log_path[ZG_MAX_PATH];
} pending_t;

typedef struct work {
    const zg_campaign_t *campaign;
    zg_result_t *results;
    pending_t *pending;
    zg_jobs_t jobs;
    zg_status_t status;
} work_t;

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int join(char *out, const char *folder, const char *name, glue_error_t *err) {
    int n = snprintf(out, ZG_MAX_PATH, "%s/%s", folder, name);

    return n > 0 && n < ZG_MAX_PATH ? 0 : glue_fail(err, "%s: the path is too long", folder);
}

int zg_make_folder(const char *path, glue_error_t *err) {
    char part[ZG_MAX_PATH];

    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return glue_fail(err, "%s: the path is too long", path);
    for (char *p = part + 1;; p++) {
        char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return glue_fail(err, "%s: cannot make this folder: %s", part, strerror(errno));
        *p = c;
        if (c == '\0')
            return 0;
    }
}

int zg_find_host(const char *path, char *out, size_t out_nbytes, glue_error_t *err) {
    static const char *const places[] = {"zf-host", "host/zf-host"};
    char self[ZG_MAX_PATH];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    if (path != NULL) {
        (void)snprintf(out, out_nbytes, "%s", path);
        return access(out, X_OK) == 0 ? 0 : glue_fail(err, "%s: no program: %s", path, strerror(errno));
    }
    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; slash != NULL && i < sizeof places / sizeof *places; i++)
        if (snprintf(out, out_nbytes, "%s/%s", self, places[i]) < (int)out_nbytes && access(out, X_OK) == 0)
            return 0;
    return glue_fail(err, "%s: no zf-host and no host/zf-host here; --host FILE names it", self);
}

/* ---- what decides a result --------------------------------------------------------------------------------------- */

static int hash_file(const char *path, char *out, glue_error_t *err) {
    return glue_sha256_file(path, out) == 0 ? 0 : glue_fail(err, "%s: cannot read: %s", path, strerror(errno));
}

/* The vocabulary where zf-host looks for it: the encoder's, or beside the task's files, else in the data folder. */
static int hash_vocabulary(zg_campaign_t *c, const char *data_dir, glue_error_t *err) {
    char path[ZG_MAX_PATH];

    if (c->model_dir != NULL)
        return join(path, c->model_dir, "vocab.txt", err) != 0 ? -1 : hash_file(path, c->vocab_hash, err);
    if (snprintf(path, sizeof path, "%s/%s/vocab.txt", data_dir, c->task->folder) >= (int)sizeof path)
        return glue_fail(err, "%s: the path is too long", data_dir);
    if (access(path, F_OK) != 0 && join(path, data_dir, "vocab.txt", err) != 0)
        return -1;
    return hash_file(path, c->vocab_hash, err);
}

static int hash_model(zg_campaign_t *c, glue_error_t *err) {
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer_config.json"};
    char path[ZG_MAX_PATH];

    for (size_t i = 0; c->model_dir != NULL && i < sizeof names / sizeof names[0]; i++) {
        int is_optional = i == 2;

        if (join(path, c->model_dir, names[i], err) != 0)
            return -1;
        if ((!is_optional || access(path, F_OK) == 0) && hash_file(path, c->model_hash[i], err) != 0)
            return -1;
    }
    return 0;
}

static int hash_split(const zg_campaign_t *c, const char *data_dir, glue_split_t split, char *out, glue_error_t *err) {
    char path[ZG_MAX_PATH];

    if (glue_find_split(c->task, data_dir, split, path, sizeof path, err) != 0)
        return -1;
    return hash_file(path, out, err);
}

/* Reads everything that zf-host will read, so that a bad file is found before hours of training. */
static int check_workload(zg_campaign_t *c, glue_error_t *err) {
    host_run_options_t options;
    host_workload_t workload;

    host_run_defaults(&options);
    options.task = c->task;
    options.data_dir = c->data_dir;
    options.synthetic_dir = c->data_dir == NULL ? c->synthetic_dir : NULL;
    options.model_dir = c->model_dir;
    if (c->model_dir != NULL)
        host_run_fine_tune_defaults(&options);
    if (c->max_tokens != NULL)
        options.max_tokens = strtoul(c->max_tokens, NULL, 10);
    if (host_workload_load(&options, &workload, err) != 0)
        return -1;
    c->n_train = workload.train.n_rows;
    c->n_dev = workload.dev.n_rows;
    c->n_second_dev = workload.second_dev.n_rows;
    c->n_skipped = workload.train.n_skipped + workload.dev.n_skipped;
    host_workload_free(&workload);
    return 0;
}

static int hash_data(zg_campaign_t *c, glue_error_t *err) {
    const char *data_dir = c->data_dir != NULL ? c->data_dir : c->synthetic_dir;

    if (hash_split(c, data_dir, GLUE_TRAIN, c->train_hash, err) != 0 ||
        hash_split(c, data_dir, GLUE_DEV, c->dev_hash, err) != 0 || hash_vocabulary(c, data_dir, err) != 0)
        return -1;
    return c->task->second_dev_file == NULL ? 0 : hash_split(c, data_dir, GLUE_SECOND_DEV, c->second_dev_hash, err);
}

int zg_campaign_prepare(zg_campaign_t *c, glue_error_t *err) {
    if (zg_make_folder(c->out_dir, err) != 0 || join(c->synthetic_dir, c->out_dir, "synthetic", err) != 0 ||
        check_workload(c, err) != 0 || hash_data(c, err) != 0 || hash_model(c, err) != 0 ||
        hash_file(c->plugin_path, c->plugin_hash, err) != 0 || hash_file(c->host_path, c->host_hash, err) != 0)
        return -1;
    c->config_hash[0] = c->mpi_hash[0] = '\0';
    if (c->n_ranks != 0 && hash_file(c->mpi_path, c->mpi_hash, err) != 0)
        return -1;
    return c->config_path == NULL ? 0 : hash_file(c->config_path, c->config_hash, err);
}

static void hash_text(glue_sha256_t *hash, const char *text) { glue_sha256_update(hash, text, strlen(text) + 1); }

/* The first line of a file that begins with `key`; nothing where there is none. */
static void hash_line(glue_sha256_t *hash, const char *path, const char *key) {
    char line[256];
    FILE *file = fopen(path, "r");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0) {
            glue_sha256_update(hash, line, strlen(line));
            break;
        }
    if (file != NULL)
        (void)fclose(file);
}

static void hash_devices(glue_sha256_t *hash) {
    glob_t found;

    if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            hash_line(hash, found.gl_pathv[i], "Model");
        globfree(&found);
    }
}

/* The processor's name, and what OpenBLAS is told to take it for: sums of matrix products are ordered by it. With a
 * device, what devices there are. */
static void hash_machine(const zg_campaign_t *c, glue_sha256_t *hash) {
    const char *core = getenv("OPENBLAS_CORETYPE");

    hash_line(hash, "/proc/cpuinfo", "model name");
    hash_text(hash, core != NULL ? core : "");
    if (c->device != NULL)
        hash_devices(hash);
}

/* Where the run is kept. arguments: those that decide it. */
static int name_run(const zg_campaign_t *c, const zg_arm_t *arm, pending_t *p, const char *const *arguments,
                    glue_error_t *err) {
    char hex[GLUE_SHA256_HEX_NBYTES], name[256];
    glue_sha256_t hash;

    glue_sha256_init(&hash);
    for (size_t i = 0; arguments[i] != NULL; i++)
        hash_text(&hash, arguments[i]);
    hash_text(&hash, c->train_hash);
    hash_text(&hash, c->dev_hash);
    hash_text(&hash, c->second_dev_hash);
    hash_text(&hash, c->vocab_hash);
    for (size_t i = 0; i < sizeof c->model_hash / sizeof c->model_hash[0]; i++)
        hash_text(&hash, c->model_hash[i]);
    hash_text(&hash, c->host_hash);
    hash_text(&hash, arm->is_plugin ? c->plugin_hash : "");
    hash_text(&hash, arm->is_plugin ? c->config_hash : "");
    if (arm->is_plugin && c->n_ranks != 0) {
        hash_text(&hash, p->ranks_text);
        hash_text(&hash, c->mpi_hash);
    }
    hash_machine(c, &hash);
    glue_sha256_hex(&hash, hex);
    (void)snprintf(name, sizeof name, "runs/%s-%s-seed%zu-%.16s.json", c->task->name, arm->name, p->seed, hex);
    return join(p->kept_path, c->out_dir, name, err);
}

/* The program and what stands before zf-host's own arguments. Ranks may be more than processors, and talk through
 * shared memory and loopback only; mpirun is found in PATH. Returns the number of words. */
static size_t list_program(const zg_campaign_t *c, const zg_arm_t *arm, const pending_t *p, const char **out) {
    const char *const words[] = {"/usr/bin/env",
                                 "mpirun",
                                 "-q",
                                 "--allow-run-as-root",
                                 "--oversubscribe",
                                 "--mca",
                                 "btl",
                                 "self,vader,tcp",
                                 "--mca",
                                 "btl_tcp_if_include",
                                 "lo",
                                 "--mca",
                                 "btl_vader_single_copy_mechanism",
                                 "none",
                                 "-n",
                                 p->ranks_text};
    size_t n = 0;

    if (arm->is_plugin && c->n_ranks != 0)
        for (; n < sizeof words / sizeof words[0]; n++)
            out[n] = words[n];
    out[n++] = c->host_path;
    return n;
}

/* Arguments of zf-host. These decide the result; add_places adds those that say where. Returns their number. */
static size_t list_arguments(const zg_campaign_t *c, const zg_arm_t *arm, const pending_t *p, const char **out) {
    size_t n = 0;

#define ADD(option, value) (out[n++] = (option), out[n++] = (value))
    ADD("--task", c->task->name);
    ADD("--seed", p->seed_text);
    ADD("--steps", p->steps_text);
    ADD("--batch", p->batch_text);
    ADD("--lr", arm->lr != NULL ? arm->lr : c->lr);
    ADD("--dtype", c->dtype);
    ADD("--products", c->products);
    if (c->max_tokens != NULL)
        ADD("--max-tokens", c->max_tokens);
    if (c->warmup != NULL)
        ADD("--warmup", c->warmup);
    if (c->dropout != NULL)
        ADD("--dropout", c->dropout);
    if (c->device != NULL)
        ADD("--device", c->device);
    if (c->blas != NULL)
        ADD("--blas", c->blas);
    ADD("--optimizer", arm->is_plugin ? "plugin" : "adamw");
    for (size_t i = 0; arm->is_plugin && i < arm->n_sets; i++)
        ADD("--set", arm->sets[i]);
    out[n] = NULL;
    return n;
}

static void add_places(const zg_campaign_t *c, const zg_arm_t *arm, const pending_t *p, size_t n, const char **out) {
    if (c->data_dir != NULL)
        ADD("--data", c->data_dir);
    else
        ADD("--synthetic", c->synthetic_dir);
    if (c->model_dir != NULL)
        ADD("--model", c->model_dir);
    if (arm->is_plugin)
        ADD("--plugin", c->plugin_path);
    if (arm->is_plugin && c->config_path != NULL)
        ADD("--config", c->config_path);
    if (arm->is_plugin && c->n_ranks != 0)
        ADD("--mpi", c->mpi_path);
    ADD("--out", p->part_path);
#undef ADD
    out[n++] = "--quiet";
    out[n] = NULL;
}

/* ---- a finished run ---------------------------------------------------------------------------------------------- */

static double mean_of(const double *x, size_t n) {
    double sum = 0.0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n > 0 ? sum / (double)n : NAN;
}

/* Takes over json, the contents of a kept file. Returns -1 where it is not one of this campaign. */
static int take_result(const zg_campaign_t *c, json_t *json, zg_result_t *out) {
    size_t n = c->n_steps, quarter = n / 4 > 0 ? n / 4 : 1;
    zg_result_t r = {.json = json,
                     .metric = zj_number(json, "report.metric.value", NAN),
                     .second = zj_number(json, "report.second.value", NAN),
                     .dev_loss = zj_number(json, "report.scores.loss", NAN),
                     .seconds = zj_number(json, "report.seconds", NAN),
                     .n_params = zj_number(json, "report.model.parameters", NAN),
                     .peak_rss_nbytes = zj_number(json, "peak_rss_bytes", NAN),
                     .losses = calloc(n, sizeof(double))};

    if (r.losses == NULL || zj_numbers(json, "report.losses", r.losses, n) != n || isnan(r.metric)) {
        free(r.losses);
        json_decref(json);
        return -1;
    }
    r.last_quarter = mean_of(r.losses + n - quarter, quarter);
    *out = r;
    return 0;
}

static int load_kept(const zg_campaign_t *c, const char *path, zg_result_t *out) {
    return take_result(c, zj_read(path), out);
}

/* Wraps what zf-host wrote and moves it to its name at once. */
static int keep(const pending_t *p, double peak_rss_nbytes, glue_error_t *err) {
    char *report = zg_read_whole(p->part_path), whole_path[ZG_MAX_PATH + 8];
    FILE *file = NULL;
    int has_failed = 1;

    (void)snprintf(whole_path, sizeof whole_path, "%s.whole", p->part_path);
    if (report != NULL && (file = fopen(whole_path, "w")) != NULL) {
        has_failed = fprintf(file, "{\"peak_rss_bytes\": %.0f, \"report\": %s}\n", peak_rss_nbytes, report) < 0;
        has_failed |= fclose(file) != 0;
    }
    free(report);
    if (has_failed || rename(whole_path, p->kept_path) != 0)
        return glue_fail(err, "%s: cannot write: %s", p->kept_path, strerror(errno));
    (void)unlink(p->part_path);
    (void)unlink(p->log_path);
    return 0;
}

/* The last line of a log, without its line end. */
static void last_line(const char *path, char *out, size_t nbytes) {
    char *text = zg_read_whole(path), *line;

    out[0] = '\0';
    if (text == NULL)
        return;

    for (size_t n = strlen(text); n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '); n--)
        text[n - 1] = '\0';
    line = strrchr(text, '\n');
    (void)snprintf(out, nbytes, "%s", line != NULL ? line + 1 : text);
    free(text);
}

static int fail_run(work_t *w, const pending_t *p, const zg_job_t *job, glue_error_t *err) {
    const zg_arm_t *arm = &w->campaign->arms[p->arm];
    char line[320];

    last_line(p->log_path, line, sizeof line);
    if (job->exit_status == 127)
        w->status = ZG_NOT_RUN;
    else
        w->status = arm->is_plugin ? ZG_PLUGIN_FAILED : ZG_NOT_RUN;
    if (job->exit_status > 128)
        return glue_fail(err, "%s, seed %zu: the process ended by signal %d; %s", arm->title, p->seed,
                         job->exit_status - 128, line);
    return glue_fail(err, "%s, seed %zu: exit status %d: %s", arm->title, p->seed, job->exit_status, line);
}

static int end_run(void *ctx, size_t index, char *out_line, size_t nbytes, glue_error_t *err) {
    work_t *w = ctx;
    const pending_t *p = &w->pending[index];
    const zg_job_t *job = &w->jobs.list[index];
    const zg_arm_t *arm = &w->campaign->arms[p->arm];
    zg_result_t *r = &w->results[p->arm * zg_campaign_max_seeds(w->campaign) + p->seed - 1];

    if (job->exit_status != 0) {
        (void)fail_run(w, p, job, err);
        if (!w->campaign->goes_on || w->status != ZG_PLUGIN_FAILED || (r->failure = strdup(err->text)) == NULL)
            return -1;
        (void)snprintf(out_line, nbytes, "FAILED: %s", err->text);
        w->status = ZG_NOT_RUN;
        return 0;
    }
    if (keep(p, job->peak_rss_nbytes, err) != 0)
        return -1;
    if (load_kept(w->campaign, p->kept_path, r) != 0)
        return glue_fail(err, "%s: not the report of %zu steps that was expected", p->kept_path, w->campaign->n_steps);
    (void)snprintf(out_line, nbytes, "%s%s%s, seed %zu: %s %.2f, loss of the last quarter %.4f, %.1f s", arm->title,
                   arm->lr != NULL ? ", rate " : "", arm->lr != NULL ? arm->lr : "", p->seed,
                   glue_metric_name(w->campaign->task->metric), r->metric, r->last_quarter, r->seconds);
    return 0;
}

/* ---- the campaign ------------------------------------------------------------------------------------------------ */

size_t zg_campaign_max_seeds(const zg_campaign_t *c) {
    size_t most = 0;

    for (size_t i = 0; i < c->n_arms; i++)
        most = c->arms[i].n_seeds > most ? c->arms[i].n_seeds : most;
    return most;
}

const zg_result_t *zg_result_of(const zg_campaign_t *c, const zg_result_t *results, size_t arm, size_t seed) {
    return &results[arm * zg_campaign_max_seeds(c) + seed - 1];
}

/* Takes the run from what is kept, or adds it to the jobs. */
static int plan_run(work_t *w, size_t arm_index, size_t seed, glue_error_t *err) {
    const zg_campaign_t *c = w->campaign;
    const zg_arm_t *arm = &c->arms[arm_index];
    pending_t *p = &w->pending[w->jobs.n];
    zg_job_t *job = &w->jobs.list[w->jobs.n];
    zg_result_t *r = &w->results[arm_index * zg_campaign_max_seeds(c) + seed - 1];
    const char **own; /* zf-host's arguments */
    size_t n;

    *p = (pending_t){.arm = arm_index, .seed = seed};
    *job = (zg_job_t){.log_path = p->log_path};
    (void)snprintf(p->seed_text, sizeof p->seed_text, "%zu", seed);
    (void)snprintf(p->steps_text, sizeof p->steps_text, "%zu", c->n_steps);
    (void)snprintf(p->batch_text, sizeof p->batch_text, "%zu", c->batch);
    (void)snprintf(p->ranks_text, sizeof p->ranks_text, "%zu", c->n_ranks);
    own = job->arguments + list_program(c, arm, p, job->arguments);
    n = list_arguments(c, arm, p, own);
    if (name_run(c, arm, p, own, err) != 0)
        return -1;
    if (load_kept(c, p->kept_path, r) == 0) {
        r->is_kept = 1;
        w->jobs.n_kept++;
        return 0;
    }
    if (snprintf(p->part_path, ZG_MAX_PATH, "%s.part", p->kept_path) >= ZG_MAX_PATH ||
        snprintf(p->log_path, ZG_MAX_PATH, "%s.log", p->kept_path) >= ZG_MAX_PATH)
        return glue_fail(err, "%s: the path is too long", c->out_dir);
    add_places(c, arm, p, n, own);
    w->jobs.n++;
    return 0;
}

static int plan_all(work_t *w, glue_error_t *err) {
    const zg_campaign_t *c = w->campaign;
    char runs[ZG_MAX_PATH];

    if (join(runs, c->out_dir, "runs", err) != 0 || zg_make_folder(runs, err) != 0)
        return -1;
    for (size_t seed = 1; seed <= zg_campaign_max_seeds(c); seed++)
        for (size_t arm = 0; arm < c->n_arms; arm++)
            if (seed <= c->arms[arm].n_seeds && plan_run(w, arm, seed, err) != 0)
                return -1;
    return 0;
}

zg_status_t zg_campaign_run(const zg_campaign_t *c, zg_result_t **out_results, glue_error_t *err) {
    size_t n_all = c->n_arms * zg_campaign_max_seeds(c);
    work_t w = {.campaign = c,
                .results = calloc(n_all, sizeof *w.results),
                .pending = calloc(n_all, sizeof *w.pending),
                .jobs = {.list = calloc(n_all, sizeof *w.jobs.list), .n_at_once = c->n_jobs, .on_end = end_run},
                .status = ZG_NOT_RUN};

    w.jobs.ctx = &w;
    if (w.results == NULL || w.pending == NULL || w.jobs.list == NULL)
        (void)glue_fail(err, "out of memory for %zu runs", n_all);
    else if (plan_all(&w, err) == 0) {
        if (w.jobs.n_kept > 0)
            (void)fprintf(stderr, "  %zu of %zu runs are kept from before, %zu to do\n", w.jobs.n_kept,
                          w.jobs.n_kept + w.jobs.n, w.jobs.n);
        if (zg_jobs_run(&w.jobs, err) == 0)
            w.status = ZG_DONE;
    }
    free(w.jobs.list);
    free(w.pending);
    if (w.status == ZG_DONE)
        *out_results = w.results;
    else
        zg_results_free(c, w.results);
    return w.status;
}

int zg_exit_status(zg_status_t status) { return status == ZG_DONE ? 0 : status == ZG_PLUGIN_FAILED ? 1 : 2; }

void zg_results_free(const zg_campaign_t *c, zg_result_t *results) {
    for (size_t i = 0; results != NULL && i < c->n_arms * zg_campaign_max_seeds(c); i++) {
        free(results[i].losses);
        json_decref(results[i].json);
        free(results[i].failure);
    }
    free(results);
}

double zg_mean(const zg_campaign_t *c, const zg_result_t *results, size_t arm, size_t n_seeds, size_t member) {
    double sum = 0.0;

    for (size_t seed = 1; seed <= n_seeds; seed++)
        sum += *(const double *)(const void *)((const char *)zg_result_of(c, results, arm, seed) + member);
    return n_seeds > 0 ? sum / (double)n_seeds : NAN;
}

double zg_mean_counter(const zg_campaign_t *c, const zg_result_t *results, size_t arm, const char *name) {
    char path[128];
    double sum = 0.0;

    (void)snprintf(path, sizeof path, "report.counters.%s", name);
    for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++)
        sum += zj_number(zg_result_of(c, results, arm, seed)->json, path, NAN);
    return c->arms[arm].n_seeds > 0 ? sum / (double)c->arms[arm].n_seeds : NAN;
}
