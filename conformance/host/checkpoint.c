/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - one checkpoint: its index, its files, the run that it is of (checkpoint.h).
 *
 * The index carries its own digest: the SHA-256 of its compact form with sorted keys, without the member "sha256".
 * Doubles are written with 17 digits, which is exact. */
#define _POSIX_C_SOURCE 200809L
#include "checkpoint.h"

#include "glue/sha256.h"
#include "matmul.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "zf-host.checkpoint/1"
#define CONFIG_FILE "config.json"

enum { N_FILES = 3 };

static void list_files(const host_checkpoint_t *c, const char *out[N_FILES]) {
    out[0] = CONFIG_FILE;
    out[1] = HOST_WEIGHTS_FILE;
    out[2] = c->optimizer->ops->state_file;
}

static int file_path(const char *folder, const char *name, char out[HOST_CHECKPOINT_PATH_NBYTES], glue_error_t *err) {
    int n = snprintf(out, HOST_CHECKPOINT_PATH_NBYTES, "%s/%s", folder, name);

    return n > 0 && n < HOST_CHECKPOINT_PATH_NBYTES ? 0 : glue_fail(err, "%.200s: the path is too long", folder);
}

static int out_of_memory(const char *folder, glue_error_t *err) {
    return glue_fail(err, "%s: out of memory for its index", folder);
}

/* ---- what decides a run -------------------------------------------------------------------------------------------
 */

/* The training rows as the model sees them. */
static void hash_corpus(const host_corpus_t *c, char out[GLUE_SHA256_HEX_NBYTES]) {
    size_t n_ids = c->starts[c->n_rows];
    glue_sha256_t hash;

    glue_sha256_init(&hash);
    glue_sha256_update(&hash, c->starts, (c->n_rows + 1) * sizeof *c->starts);
    glue_sha256_update(&hash, c->ids, n_ids * sizeof *c->ids);
    glue_sha256_update(&hash, c->types, n_ids * sizeof *c->types);
    glue_sha256_update(&hash, c->targets, c->n_rows * sizeof *c->targets);
    glue_sha256_hex(&hash, out);
}

/* Named as the options are where there is one. What the optimizer was configured with is its own state's to check. */
static json_t *describe_run(const host_checkpoint_t *c) {
    const host_train_options_t *t = &c->options->train;
    const host_model_config_t *m = &c->model->config;
    const host_compute_t *device = c->options->compute;
    char corpus[GLUE_SHA256_HEX_NBYTES], seed[24], products[200];
    json_t *run, *more;

    hash_corpus(&c->workload->train, corpus);
    (void)snprintf(seed, sizeof seed, "%llu", (unsigned long long)t->seed);
    (void)snprintf(products, sizeof products, "%s%s%s", host_matmul_is_bf16() ? "bf16" : "fp32",
                   device != NULL ? ", on " : "", device != NULL ? device->what : "");
    run = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:I, s:s}", "task", c->workload->task->name,
                    "training rows (SHA-256)", corpus, "optimizer", c->optimizer->ops->name, "seed", seed, "steps",
                    (json_int_t)t->n_steps, "batch", (json_int_t)t->batch, "accumulation", (json_int_t)t->accumulation,
                    "parts", t->deliver_parts, "threads", (json_int_t)host_matmul_threads(), "products", products);
    more =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "lr", t->hyper.lr, "beta1", t->hyper.beta1, "beta2",
                  t->hyper.beta2, "eps", t->hyper.eps, "weight-decay", t->hyper.weight_decay, "clip", t->clip_norm,
                  "warmup", t->warmup_share, "dropout", m->dropout, "LayerNorm's eps", m->layer_norm_eps);
    if (run == NULL || more == NULL || json_object_update_new(run, more) != 0 ||
        json_object_update_new(
            run, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "dtype", host_dtype_name(m->dtype), "layers",
                           (json_int_t)m->n_layers, "hidden", (json_int_t)m->hidden, "heads", (json_int_t)m->n_heads,
                           "ffn", (json_int_t)m->ffn, "max-tokens", (json_int_t)m->max_positions, "vocabulary rows",
                           (json_int_t)m->n_pieces, "labels", (json_int_t)m->n_labels)) != 0) {
        json_decref(run);
        return NULL;
    }
    return run;
}

static int compare_run(const char *path, const json_t *saved, json_t *run, glue_error_t *err) {
    const char *key;
    json_t *value;

    json_object_foreach(run, key, value) {
        const json_t *other = json_object_get(saved, key);
        char *here, *there;

        if (other != NULL && json_equal(other, value))
            continue;
        here = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        there = other != NULL ? json_dumps(other, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
        (void)glue_fail(err,
                        "%s: is of another run: %s is %.100s there and %.100s here; give the options that it was "
                        "begun with",
                        path, key, there != NULL ? there : "missing", here != NULL ? here : "something else");
        free(there);
        free(here);
        return -1;
    }
    return 0;
}

/* ---- the index ----------------------------------------------------------------------------------------------------
 */

/* Of an index without "sha256". */
static int hash_index(const json_t *index, char out[GLUE_SHA256_HEX_NBYTES]) {
    char *text = json_dumps(index, JSON_COMPACT | JSON_SORT_KEYS);
    glue_sha256_t hash;

    if (text == NULL)
        return -1;
    glue_sha256_init(&hash);
    glue_sha256_update(&hash, text, strlen(text));
    glue_sha256_hex(&hash, out);
    free(text);
    return 0;
}

/* {"nbytes", "sha256"} of a file. NULL: with a message. */
static json_t *describe_file(const char *path, glue_error_t *err) {
    char digest[GLUE_SHA256_HEX_NBYTES];
    struct stat info;
    json_t *entry;

    if (stat(path, &info) != 0 || glue_sha256_file(path, digest) != 0) {
        (void)glue_fail(err, "%s: cannot read: %s", path, strerror(errno));
        return NULL;
    }
    entry = json_pack("{s:I, s:s}", "nbytes", (json_int_t)info.st_size, "sha256", digest);
    if (entry == NULL)
        (void)out_of_memory(path, err);
    return entry;
}

static int check_file(const char *path, const json_t *expected, glue_error_t *err) {
    json_t *found;
    int st = 0;

    if (!json_is_object(expected))
        return glue_fail(err, "%s: the checkpoint's index does not name this file; it is of another optimizer", path);
    found = describe_file(path, err);
    if (found == NULL)
        return -1;
    if (!json_equal(json_object_get(found, "nbytes"), json_object_get(expected, "nbytes")))
        st = glue_fail(err, "%s: damaged: has %lld bytes; the index says %lld", path,
                       (long long)json_integer_value(json_object_get(found, "nbytes")),
                       (long long)json_integer_value(json_object_get(expected, "nbytes")));
    else if (!json_equal(found, expected))
        st = glue_fail(err, "%s: damaged: its SHA-256 begins with %.8s; the index says %.8s", path,
                       json_string_value(json_object_get(found, "sha256")),
                       json_is_string(json_object_get(expected, "sha256"))
                           ? json_string_value(json_object_get(expected, "sha256"))
                           : "nothing");
    json_decref(found);
    return st;
}

static int write_json(const char *path, const json_t *value, glue_error_t *err) {
    FILE *file = fopen(path, "wb");
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    has_failed = json_dumpf(value, file, JSON_INDENT(1)) != 0 || fputc('\n', file) == EOF || fflush(file) != 0 ||
                 fsync(fileno(file)) != 0;
    if (fclose(file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

/* Of the files that lie in folder. NULL: with a message. */
static json_t *describe_files(const host_checkpoint_t *c, const char *folder, glue_error_t *err) {
    const char *names[N_FILES];
    char path[HOST_CHECKPOINT_PATH_NBYTES];
    json_t *files = json_object();

    list_files(c, names);
    for (size_t i = 0; i < N_FILES; i++) {
        json_t *entry = file_path(folder, names[i], path, err) == 0 ? describe_file(path, err) : NULL;

        if (entry == NULL || json_object_set_new(files, names[i], entry) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

static json_t *list_losses(const double *losses, size_t n) {
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_real(losses[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static int write_index(const host_checkpoint_t *c, const char *folder, size_t n_done, const double *losses,
                       glue_error_t *err) {
    char path[HOST_CHECKPOINT_PATH_NBYTES], digest[GLUE_SHA256_HEX_NBYTES];
    json_t *files = describe_files(c, folder, err), *index;
    int st = -1;

    if (files == NULL)
        return -1;
    index = json_pack("{s:s, s:I, s:o, s:o, s:o}", "format", FORMAT, "step", (json_int_t)n_done, "run", describe_run(c),
                      "files", files, "losses", list_losses(losses, n_done));
    if (index == NULL || hash_index(index, digest) != 0 ||
        json_object_set_new(index, "sha256", json_string(digest)) != 0)
        (void)out_of_memory(folder, err);
    else if (file_path(folder, HOST_CHECKPOINT_INDEX, path, err) == 0)
        st = write_json(path, index, err);
    json_decref(index);
    return st;
}

static int check_digest(const char *path, json_t *index, glue_error_t *err) {
    char found[GLUE_SHA256_HEX_NBYTES], expected[GLUE_SHA256_HEX_NBYTES] = "";
    const json_t *digest = json_object_get(index, "sha256");

    if (json_is_string(digest))
        (void)snprintf(expected, sizeof expected, "%s", json_string_value(digest));
    (void)json_object_del(index, "sha256");
    if (hash_index(index, found) != 0)
        return out_of_memory(path, err);
    return strcmp(found, expected) == 0 ? 0
                                        : glue_fail(err, "%s: damaged: its SHA-256 begins with %.8s; it says %.8s",
                                                    path, found, expected[0] != '\0' ? expected : "nothing");
}

static int check_index(const host_checkpoint_t *c, const char *path, json_t *index, glue_error_t *err) {
    const json_t *format = json_object_get(index, "format"), *step = json_object_get(index, "step");
    json_t *run;
    int st;

    if (!json_is_string(format) || strcmp(json_string_value(format), FORMAT) != 0)
        return glue_fail(err, "%s: has format %.60s; " FORMAT " is needed", path,
                         json_is_string(format) ? json_string_value(format) : "nothing");
    if (check_digest(path, index, err) != 0)
        return -1;
    run = describe_run(c);
    st = run != NULL ? compare_run(path, json_object_get(index, "run"), run, err) : out_of_memory(path, err);
    json_decref(run);
    if (st == 0 && (!json_is_integer(step) || json_integer_value(step) < 1 ||
                    (size_t)json_integer_value(step) > c->options->train.n_steps ||
                    json_array_size(json_object_get(index, "losses")) != (size_t)json_integer_value(step)))
        st = glue_fail(err, "%s: its step is not one of 1 to %zu, or it has not a loss for each", path,
                       c->options->train.n_steps);
    return st;
}

static json_t *read_index(const host_checkpoint_t *c, const char *folder, glue_error_t *err) {
    char path[HOST_CHECKPOINT_PATH_NBYTES];
    json_error_t where;
    json_t *index;
    FILE *file;

    if (file_path(folder, HOST_CHECKPOINT_INDEX, path, err) != 0)
        return NULL;
    file = fopen(path, "rb");
    if (file == NULL) {
        (void)glue_fail(err, "%s: cannot open: %s; a checkpoint of zf-host is needed", path, strerror(errno));
        return NULL;
    }
    index = json_loadf(file, JSON_REJECT_DUPLICATES, &where);
    (void)fclose(file);
    if (index == NULL)
        (void)glue_fail(err, "%s:%d: damaged: no JSON: %s", path, where.line, where.text);
    else if (check_index(c, path, index, err) == 0)
        return index;
    json_decref(index);
    return NULL;
}

/* ---- the files ----------------------------------------------------------------------------------------------------
 */

static int write_tensors(const host_checkpoint_t *c, host_safetensors_writer_t *writer, float *scratch,
                         glue_error_t *err) {
    for (size_t i = 0; i < c->model->params.n; i++)
        if (c->optimizer->ops->weights(c->optimizer, i, scratch, err) != 0 ||
            host_safetensors_put_floats(writer, scratch, c->model->params.list[i].n_elems, err) != 0)
            return -1;
    return 0;
}

/* One tensor's memory and one header. */
static int write_weights(const host_checkpoint_t *c, const char *folder, glue_error_t *err) {
    const host_params_t *params = &c->model->params;
    host_tensor_t *tensors = calloc(params->n, sizeof *tensors);
    char path[HOST_CHECKPOINT_PATH_NBYTES];
    host_safetensors_writer_t *writer;
    size_t largest = 1;
    float *scratch;
    int st;

    for (size_t i = 0; tensors != NULL && i < params->n; i++) {
        const host_param_t *p = &params->list[i];

        tensors[i] = (host_tensor_t){.name = p->name, .dtype = "F32", .n_dims = p->n_dims};
        for (int k = 0; k < p->n_dims; k++)
            tensors[i].shape[k] = (uint64_t)p->shape[k];
        largest = p->n_elems > largest ? p->n_elems : largest;
    }
    scratch = malloc(largest * sizeof *scratch);
    if (tensors == NULL || scratch == NULL)
        st = glue_fail(err, "%s: out of memory for a tensor of %zu elements", folder, largest);
    else
        st = file_path(folder, HOST_WEIGHTS_FILE, path, err);
    if (st == 0)
        st = host_safetensors_create(path, tensors, params->n, &writer, err);
    if (st == 0 && write_tensors(c, writer, scratch, err) == 0)
        st = host_safetensors_finish(writer, err);
    else if (st == 0) {
        host_safetensors_abandon(writer);
        st = -1;
    }
    free(scratch);
    free(tensors);
    return st;
}

/* What Hugging Face's BertForSequenceClassification needs to know to load the weights. */
static int write_config(const host_checkpoint_t *c, const char *folder, glue_error_t *err) {
    const host_model_config_t *m = &c->model->config;
    char path[HOST_CHECKPOINT_PATH_NBYTES], label[24];
    json_t *names = json_object(), *config;
    int st;

    for (size_t i = 0; i < m->n_labels; i++) {
        (void)snprintf(label, sizeof label, "%zu", i);
        (void)json_object_set_new(names, label, json_sprintf("LABEL_%zu", i));
    }
    config = json_pack("{s:s, s:[s], s:s, s:s, s:f, s:f, s:f, s:f, s:s, s:o}", "model_type", "bert", "architectures",
                       "BertForSequenceClassification", "hidden_act", "gelu", "position_embedding_type", "absolute",
                       "layer_norm_eps", m->layer_norm_eps, "initializer_range", m->init_std, "hidden_dropout_prob",
                       m->dropout, "attention_probs_dropout_prob", 0.0, "problem_type",
                       m->is_regression ? "regression" : "single_label_classification", "id2label", names);
    st = config == NULL
             ? -1
             : json_object_update_new(
                   config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "hidden_size", (json_int_t)m->hidden,
                                     "num_hidden_layers", (json_int_t)m->n_layers, "num_attention_heads",
                                     (json_int_t)m->n_heads, "intermediate_size", (json_int_t)m->ffn, "vocab_size",
                                     (json_int_t)m->n_pieces, "max_position_embeddings", (json_int_t)m->max_positions,
                                     "type_vocab_size", (json_int_t)m->n_types));
    if (st != 0)
        (void)out_of_memory(folder, err);
    else if ((st = file_path(folder, CONFIG_FILE, path, err)) == 0)
        st = write_json(path, config, err);
    json_decref(config);
    return st;
}

int host_checkpoint_save(const host_checkpoint_t *c, size_t n_done, const double *losses, glue_error_t *err) {
    const char *dir = c->options->save_dir;
    char part[HOST_CHECKPOINT_PATH_NBYTES];

    if (host_checkpoint_folder_begin(dir, n_done, part, err) != 0)
        return -1;
    if (c->optimizer->ops->save(c->optimizer, part, err) != 0 || write_weights(c, part, err) != 0 ||
        write_config(c, part, err) != 0 || write_index(c, part, n_done, losses, err) != 0 ||
        host_checkpoint_folder_commit(dir, n_done, err) != 0) {
        (void)host_checkpoint_folder_remove(part, NULL);
        return -1;
    }
    return host_checkpoint_folder_drop(dir, c->options->keep > 0 ? c->options->keep : 1, err);
}

static int check_files(const host_checkpoint_t *c, const char *folder, const json_t *index, glue_error_t *err) {
    char path[HOST_CHECKPOINT_PATH_NBYTES];
    const char *names[N_FILES];

    list_files(c, names);
    for (size_t i = 0; i < N_FILES; i++)
        if (file_path(folder, names[i], path, err) != 0 ||
            check_file(path, json_object_get(json_object_get(index, "files"), names[i]), err) != 0)
            return -1;
    return 0;
}

int host_checkpoint_load(const host_checkpoint_t *c, const char *folder, size_t *out_n_done, double *losses,
                         glue_error_t *err) {
    json_t *index = read_index(c, folder, err);
    int st = -1;

    if (index == NULL)
        return -1;
    if (check_files(c, folder, index, err) == 0)
        st = c->optimizer->ops->load(c->optimizer, folder, err);
    if (st == 0) {
        *out_n_done = (size_t)json_integer_value(json_object_get(index, "step"));
        for (size_t i = 0; i < *out_n_done; i++)
            losses[i] = json_real_value(json_array_get(json_object_get(index, "losses"), i));
    }
    json_decref(index);
    return st;
}
