/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - loads a workload and does one training run (run.h). */
#include "run.h"

#include "adamw.h"
#include "adamw_there.h"
#include "glue/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void host_run_defaults(host_run_options_t *out) {
    *out = (host_run_options_t){
        .task = glue_task_find("sst2"),
        .max_tokens = 128,
        .model = {.n_types = 2,
                  .hidden = 64,
                  .n_layers = 2,
                  .n_heads = 2,
                  .ffn = 256,
                  .layer_norm_eps = 1e-12,
                  .init_std = 0.05,
                  .dtype = HOST_FLOAT32},
        .train = {.seed = 1,
                  .n_steps = 2000,
                  .batch = 32,
                  .accumulation = 1,
                  .hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
                  .clip_norm = 1.0,
                  .warmup_share = 0.1},
    };
}

void host_run_fine_tune_defaults(host_run_options_t *o) {
    o->max_tokens = o->task->max_tokens;
    o->train.n_steps = o->task->fine_tune_steps;
    o->train.hyper.lr = 1e-4;
}

/* The vocabulary: the given file, else vocab.txt in the data directory or in the task's folder there. */
static void find_vocab(const host_run_options_t *o, const char *data_dir, char *out_path, size_t nbytes) {
    struct stat info;

    if (o->vocab_path != NULL) {
        (void)snprintf(out_path, nbytes, "%s", o->vocab_path);
        return;
    }
    (void)snprintf(out_path, nbytes, "%s/%s/vocab.txt", data_dir, o->task->folder);
    if (stat(out_path, &info) != 0)
        (void)snprintf(out_path, nbytes, "%s/vocab.txt", data_dir);
}

static int load_corpus(const host_run_options_t *o, const char *data_dir, glue_split_t split,
                       const host_tokenizer_t *tokenizer, host_corpus_t *out, glue_error_t *err) {
    glue_dataset_t dataset;
    int st;

    if (glue_read_split(o->task, data_dir, split, &dataset, err) != 0)
        return -1;
    st = host_corpus_encode(tokenizer, &dataset, o->max_tokens, out, err);
    glue_dataset_free(&dataset);
    return st;
}

/* The inverse of the map: which row of the vocabulary each kept piece was. */
static int32_t *list_kept(const host_piece_map_t *map) {
    int32_t *kept = malloc(map->n_new * sizeof *kept);

    for (size_t i = 0; kept != NULL && i < map->n_old; i++)
        if (map->new_of_old[i] >= 0)
            kept[map->new_of_old[i]] = (int32_t)i;
    return kept;
}

/* A pretrained table knows pieces that the training file lacks, so the dev files' pieces are kept as well: rows that no
 * file asks for are never read, and nothing but the table's size changes. */
static int renumber(const host_tokenizer_t *tokenizer, host_workload_t *w, glue_error_t *err) {
    const host_corpus_t *corpora[] = {&w->train, &w->dev, &w->second_dev};
    size_t n = !w->is_pretrained ? 1 : w->second_dev.n_rows > 0 ? 3 : 2;
    host_piece_map_t map;

    if (host_piece_map_init(tokenizer, corpora, n, &map, err) != 0)
        return -1;
    (void)host_piece_map_apply(&map, &w->train);
    w->n_unknown_dev = host_piece_map_apply(&map, &w->dev);
    if (w->second_dev.n_rows > 0)
        w->n_unknown_dev += host_piece_map_apply(&map, &w->second_dev);
    w->n_pieces = map.n_new;
    w->kept_pieces = list_kept(&map);
    host_piece_map_free(&map);
    return w->kept_pieces != NULL ? 0 : glue_fail(err, "corpus: out of memory for %zu pieces", w->n_pieces);
}

static int check_source(const host_run_options_t *o, glue_error_t *err) {
    enum { MIN_TOKENS = 5, MAX_TOKENS = 1024 };

    if ((o->data_dir != NULL) == (o->synthetic_dir != NULL))
        return glue_fail(err, "exactly one of --data DIR (GLUE files) and --synthetic DIR (generated) is needed");
    if (o->synthetic_dir != NULL && strcmp(o->task->name, "sst2") != 0)
        return glue_fail(err, "the generated corpus has the layout of sst2; task %s needs --data", o->task->name);
    if (o->max_tokens < MIN_TOKENS || o->max_tokens > MAX_TOKENS)
        return glue_fail(err, "max-tokens %zu; a number from %d to %d is needed", o->max_tokens, MIN_TOKENS,
                         MAX_TOKENS);
    return o->synthetic_dir != NULL ? glue_synthetic_ensure(o->synthetic_dir, err) : 0;
}

static int open_pretrained(const host_run_options_t *o, host_workload_t *w, glue_error_t *err) {
    if (o->model_dir == NULL)
        return 0;
    if (host_pretrained_open(o->model_dir, &w->pretrained, err) != 0)
        return -1;
    w->is_pretrained = 1;
    if (o->max_tokens > w->pretrained.config.max_positions)
        return glue_fail(err, "max-tokens %zu; %s has %zu positions", o->max_tokens, o->model_dir,
                         w->pretrained.config.max_positions);
    return 0;
}

static int load_tokenizer(const host_run_options_t *o, const char *data_dir, host_workload_t *w, host_tokenizer_t **out,
                          glue_error_t *err) {
    char vocab[HOST_PRETRAINED_PATH_NBYTES];

    if (w->is_pretrained && o->vocab_path == NULL)
        (void)snprintf(vocab, sizeof vocab, "%s", w->pretrained.vocab_path);
    else
        find_vocab(o, data_dir, vocab, sizeof vocab);
    if (host_tokenizer_load(vocab, out, err) != 0)
        return -1;
    w->n_pieces = w->n_vocabulary_pieces = host_tokenizer_n_pieces(*out);
    if (!w->is_pretrained)
        return 0;
    if (w->n_pieces > w->pretrained.config.n_pieces) {
        host_tokenizer_free(*out);
        return glue_fail(err, "%s: has %zu pieces; the encoder of %s knows %zu", vocab, w->n_vocabulary_pieces,
                         o->model_dir, w->pretrained.config.n_pieces);
    }
    if (w->pretrained.keeps_case)
        host_tokenizer_keep_case(*out);
    return 0;
}

static int load_files(const host_run_options_t *o, const char *data_dir, const host_tokenizer_t *tokenizer,
                      host_workload_t *w, glue_error_t *err) {
    if (load_corpus(o, data_dir, GLUE_TRAIN, tokenizer, &w->train, err) != 0 ||
        load_corpus(o, data_dir, GLUE_DEV, tokenizer, &w->dev, err) != 0)
        return -1;
    if (o->task->second_dev_file != NULL &&
        load_corpus(o, data_dir, GLUE_SECOND_DEV, tokenizer, &w->second_dev, err) != 0)
        return -1;
    return o->keeps_vocabulary ? 0 : renumber(tokenizer, w, err);
}

int host_workload_load(const host_run_options_t *o, host_workload_t *out, glue_error_t *err) {
    const char *data_dir = o->synthetic_dir != NULL ? o->synthetic_dir : o->data_dir;
    host_workload_t w = {.task = o->task, .is_synthetic = o->synthetic_dir != NULL};
    host_tokenizer_t *tokenizer = NULL;
    int st = -1;

    if (check_source(o, err) == 0 && open_pretrained(o, &w, err) == 0 &&
        load_tokenizer(o, data_dir, &w, &tokenizer, err) == 0) {
        st = load_files(o, data_dir, tokenizer, &w, err);
        host_tokenizer_free(tokenizer);
    }
    if (st != 0)
        host_workload_free(&w);
    else
        *out = w;
    return st;
}

void host_workload_free(host_workload_t *w) {
    host_corpus_free(&w->train);
    host_corpus_free(&w->dev);
    host_corpus_free(&w->second_dev);
    host_pretrained_free(&w->pretrained);
    free(w->kept_pieces);
    w->kept_pieces = NULL;
}

static int make_model(const host_workload_t *w, const host_run_options_t *o, host_model_t *out, glue_error_t *err) {
    host_model_config_t config = o->model;

    if (w->is_pretrained) {
        config = w->pretrained.config;
        config.dropout = o->model.dropout;
        config.dtype = o->model.dtype;
    }
    config.n_pieces = w->n_pieces;
    config.max_positions = o->max_tokens;
    config.is_regression = w->task->n_labels == 0;
    config.n_labels = config.is_regression ? 1 : (size_t)w->task->n_labels;
    if (host_model_init(out, &config, err) != 0)
        return -1;
    host_model_randomise(out, o->train.seed);
    if (w->is_pretrained && host_pretrained_fill(&w->pretrained, w->kept_pieces, out, err) != 0) {
        host_model_free(out);
        return -1;
    }
    return 0;
}

static int make_optimizer(const host_run_options_t *o, host_model_t *model, host_optimizer_t **out, glue_error_t *err) {
    host_plugin_options_t plugin = o->plugin;

    plugin.compute = o->compute;
    if (o->optimizer == HOST_OPTIMIZER_PLUGIN)
        return host_plugin_create(&model->params, &plugin, out, err);
    return o->compute != NULL ? host_adamw_there_create(&model->params, out, err)
                              : host_adamw_create(&model->params, out, err);
}

static void describe_optimizer(host_optimizer_t *optimizer, host_run_result_t *out) {
    int is_plugin = strcmp(optimizer->ops->name, "plugin") == 0;

    (void)snprintf(out->optimizer_name, sizeof out->optimizer_name, "%s%s%s", optimizer->ops->name,
                   is_plugin ? " " : "", is_plugin ? host_plugin_version(optimizer) : "");
    out->n_counters = optimizer->ops->counters(optimizer, out->counters);
}

int host_run(const host_workload_t *w, const host_run_options_t *o, host_run_result_t *out, glue_error_t *err) {
    host_run_result_t result = {.n_counters = 0};
    host_optimizer_t *optimizer = NULL;
    host_model_t model;
    int st = -1;

    if (make_model(w, o, &model, err) != 0)
        return -1;
    result.model = model.config;
    result.n_param_elems = host_params_n_elems(&model.params);
    if (o->compute != NULL && host_params_move(&model.params, o->compute, err) != 0)
        goto err_model;
    if (make_optimizer(o, &model, &optimizer, err) != 0)
        goto err_model;
    if (host_train(&model, optimizer, &w->train, &o->train, &result.train, err) != 0)
        goto err_optimizer;
    st = host_evaluate(&model, optimizer, &w->dev, &result.scores, err);
    if (st == 0 && w->second_dev.n_rows > 0)
        st = host_evaluate(&model, optimizer, &w->second_dev, &result.second_scores, err);
    describe_optimizer(optimizer, &result);
    if (st == 0)
        *out = result;
    else
        host_run_result_free(&result);
err_optimizer:
    optimizer->ops->destroy(optimizer);
err_model:
    host_model_free(&model);
    return st;
}

void host_run_result_free(host_run_result_t *result) { host_train_result_free(&result->train); }

const char *host_run_second_score(const host_workload_t *w, const host_run_result_t *r, double *out_value) {
    if (w->second_dev.n_rows > 0) {
        *out_value = r->second_scores.main;
        return w->task->second_dev_file;
    }
    *out_value = r->scores.second;
    return w->task->second_metric != GLUE_NO_METRIC ? glue_metric_name(w->task->second_metric) : NULL;
}
