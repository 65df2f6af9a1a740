/* run.c - loads a workload and does one training run (run.h). */
#include "run.h"

#include "adamw.h"
#include "glue/synthetic.h"

#include <stdio.h>
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

static int renumber(const host_tokenizer_t *tokenizer, host_workload_t *w, glue_error_t *err) {
    host_piece_map_t map;

    if (host_piece_map_init(tokenizer, &w->train, &map, err) != 0)
        return -1;
    (void)host_piece_map_apply(&map, &w->train);
    w->n_unknown_dev = host_piece_map_apply(&map, &w->dev);
    w->n_pieces = map.n_new;
    host_piece_map_free(&map);
    return 0;
}

static int check_source(const host_run_options_t *o, glue_error_t *err) {
    enum { MIN_TOKENS = 5, MAX_TOKENS = 1024 };

    if ((o->data_dir != NULL) == (o->synthetic_dir != NULL))
        return glue_fail(err, "exactly one of --data DIR (GLUE files) and --synthetic DIR (generated) is needed");
    if (!o->task->is_enabled)
        return glue_fail(err, "task %s is not enabled in this version", o->task->name);
    if (o->synthetic_dir != NULL && strcmp(o->task->name, "sst2") != 0)
        return glue_fail(err, "the generated corpus has the layout of sst2; task %s needs --data", o->task->name);
    if (o->max_tokens < MIN_TOKENS || o->max_tokens > MAX_TOKENS)
        return glue_fail(err, "max-tokens %zu; a number from %d to %d is needed", o->max_tokens, MIN_TOKENS,
                         MAX_TOKENS);
    return o->synthetic_dir != NULL ? glue_synthetic_ensure(o->synthetic_dir, err) : 0;
}

int host_workload_load(const host_run_options_t *o, host_workload_t *out, glue_error_t *err) {
    const char *data_dir = o->synthetic_dir != NULL ? o->synthetic_dir : o->data_dir;
    host_workload_t w = {.task = o->task, .is_synthetic = o->synthetic_dir != NULL};
    host_tokenizer_t *tokenizer = NULL;
    char vocab[4096];
    int st = -1;

    if (check_source(o, err) != 0)
        return -1;
    find_vocab(o, data_dir, vocab, sizeof vocab);
    if (host_tokenizer_load(vocab, &tokenizer, err) != 0)
        return -1;
    w.n_pieces = w.n_vocabulary_pieces = host_tokenizer_n_pieces(tokenizer);
    if (load_corpus(o, data_dir, GLUE_TRAIN, tokenizer, &w.train, err) == 0 &&
        load_corpus(o, data_dir, GLUE_DEV, tokenizer, &w.dev, err) == 0)
        st = o->keeps_vocabulary ? 0 : renumber(tokenizer, &w, err);
    host_tokenizer_free(tokenizer);
    if (st != 0)
        host_workload_free(&w);
    else
        *out = w;
    return st;
}

void host_workload_free(host_workload_t *w) {
    host_corpus_free(&w->train);
    host_corpus_free(&w->dev);
}

static int make_model(const host_workload_t *w, const host_run_options_t *o, host_model_t *out, glue_error_t *err) {
    host_model_config_t config = o->model;

    config.n_pieces = w->n_pieces;
    config.max_positions = o->max_tokens;
    config.is_regression = w->task->n_labels == 0;
    config.n_labels = config.is_regression ? 1 : (size_t)w->task->n_labels;
    if (host_model_init(out, &config, err) != 0)
        return -1;
    host_model_randomise(out, o->train.seed);
    return 0;
}

static int make_optimizer(const host_run_options_t *o, host_model_t *model, host_optimizer_t **out, glue_error_t *err) {
    return o->optimizer == HOST_OPTIMIZER_PLUGIN ? host_plugin_create(&model->params, &o->plugin, out, err)
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
    result.n_param_elems = host_params_n_elems(&model.params);
    if (make_optimizer(o, &model, &optimizer, err) != 0)
        goto err_model;
    if (host_train(&model, optimizer, &w->train, &o->train, &result.train, err) != 0)
        goto err_optimizer;
    st = host_evaluate(&model, optimizer, &w->dev, &result.scores, err);
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
