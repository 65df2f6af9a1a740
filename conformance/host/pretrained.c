/* SPDX-License-Identifier: Apache-2.0 */
/* pretrained.c - config.json and model.safetensors to a model of ours (pretrained.h).
 *
 * What a file must have is not listed here: an outline of the model (host_model_outline) names every parameter and its
 * shape, and each is looked up under its possible names. */
#include "pretrained.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ------------------------------------------------------------------------------------------------- */

typedef struct count_key {
    const char *name;
    size_t offset; /* in host_model_config_t */
    size_t fallback, min, max;
} count_key_t;

#define AT(member) offsetof(host_model_config_t, member)
enum { REQUIRED = 0 };

static const count_key_t count_keys[] = {
    {"hidden_size", AT(hidden), REQUIRED, 1, 1 << 16},
    {"num_hidden_layers", AT(n_layers), REQUIRED, 1, 1000},
    {"num_attention_heads", AT(n_heads), REQUIRED, 1, 1 << 12},
    {"intermediate_size", AT(ffn), REQUIRED, 1, 1 << 18},
    {"vocab_size", AT(n_pieces), REQUIRED, 5, 1 << 24},
    {"max_position_embeddings", AT(max_positions), REQUIRED, 5, 1 << 20},
    {"type_vocab_size", AT(n_types), 2, 2, 1 << 10},
};
#undef AT

/* A key that must have one of these values; absent means the first. */
typedef struct choice_key {
    const char *name, *values[2];
} choice_key_t;

static const choice_key_t choice_keys[] = {
    {"model_type", {"bert", NULL}},
    {"hidden_act", {"gelu", "gelu_python"}}, /* both by the error function */
    {"position_embedding_type", {"absolute", NULL}},
};

/* Keys that may be there but must be false. */
static const char *const unsupported_keys[] = {"is_decoder", "add_cross_attention"};

static int read_json(const char *path, json_t **out, glue_error_t *err) {
    json_error_t where;
    FILE *file = fopen(path, "rb");

    if (file == NULL)
        return glue_fail(err,
                         "%s: cannot open: %s; a folder with config.json, model.safetensors and vocab.txt is needed",
                         path, strerror(errno));
    *out = json_loadf(file, JSON_REJECT_DUPLICATES, &where);
    (void)fclose(file);
    if (*out == NULL)
        return glue_fail(err, "%s:%d: no JSON: %s", path, where.line, where.text);
    if (json_is_object(*out))
        return 0;
    json_decref(*out);
    return glue_fail(err, "%s: found no JSON object", path);
}

static int read_count(const json_t *object, const char *path, const count_key_t *key, host_model_config_t *out,
                      glue_error_t *err) {
    const json_t *value = json_object_get(object, key->name);
    size_t *place = (size_t *)(void *)((char *)out + key->offset);
    json_int_t number = json_integer_value(value);

    if (value == NULL && key->fallback != REQUIRED) {
        *place = key->fallback;
        return 0;
    }
    if (!json_is_integer(value) || number < (json_int_t)key->min || number > (json_int_t)key->max)
        return glue_fail(err, "%s: \"%s\" is %s; a whole number from %zu to %zu is needed", path, key->name,
                         value == NULL ? "missing" : "something else", key->min, key->max);
    *place = (size_t)number;
    return 0;
}

static int check_choice(const json_t *object, const char *path, const choice_key_t *key, glue_error_t *err) {
    const json_t *value = json_object_get(object, key->name);
    const char *text = json_string_value(value);

    if (value == NULL || json_is_null(value))
        return 0;
    for (size_t i = 0; i < 2 && text != NULL && key->values[i] != NULL; i++)
        if (strcmp(text, key->values[i]) == 0)
            return 0;
    return glue_fail(err, "%s: \"%s\" is \"%.60s\"; this host has %s only", path, key->name,
                     text != NULL ? text : "(no text)", key->values[0]);
}

static int read_real(const json_t *object, const char *path, const char *name, double fallback, double max, double *out,
                     glue_error_t *err) {
    const json_t *value = json_object_get(object, name);
    double number = value == NULL ? fallback : json_number_value(value);

    if ((value != NULL && !json_is_number(value)) || !(number >= 0.0 && number <= max))
        return glue_fail(err, "%s: \"%s\" is not a number from 0 to %g", path, name, max);
    *out = number;
    return 0;
}

static int parse_config(const json_t *object, const char *path, host_model_config_t *out, glue_error_t *err) {
    for (size_t i = 0; i < sizeof choice_keys / sizeof choice_keys[0]; i++)
        if (check_choice(object, path, &choice_keys[i], err) != 0)
            return -1;
    for (size_t i = 0; i < sizeof unsupported_keys / sizeof unsupported_keys[0]; i++)
        if (json_is_true(json_object_get(object, unsupported_keys[i])))
            return glue_fail(err, "%s: \"%s\" is true; this host has encoders only", path, unsupported_keys[i]);
    for (size_t i = 0; i < sizeof count_keys / sizeof count_keys[0]; i++)
        if (read_count(object, path, &count_keys[i], out, err) != 0)
            return -1;
    if (out->hidden % out->n_heads != 0)
        return glue_fail(err, "%s: \"hidden_size\" %zu is not a multiple of \"num_attention_heads\" %zu", path,
                         out->hidden, out->n_heads);
    out->n_labels = 1;
    return read_real(object, path, "layer_norm_eps", 1e-12, 1.0, &out->layer_norm_eps, err) != 0
               ? -1
               : read_real(object, path, "initializer_range", 0.02, 10.0, &out->init_std, err);
}

/* Folding and splitting as this host's tokenizer does them. BERT's default, without a file, is to fold. */
static int parse_tokenizer(const json_t *object, const char *path, int *out_keeps_case, glue_error_t *err) {
    const json_t *fold = json_object_get(object, "do_lower_case"), *strip = json_object_get(object, "strip_accents");

    if (json_is_false(json_object_get(object, "tokenize_chinese_chars")) ||
        json_is_false(json_object_get(object, "do_basic_tokenize")))
        return glue_fail(err,
                         "%s: \"tokenize_chinese_chars\" or \"do_basic_tokenize\" is false; this host has BERT's "
                         "basic tokenizer only",
                         path);
    *out_keeps_case = json_is_false(fold);
    if (json_is_boolean(strip) && json_is_false(strip) != *out_keeps_case)
        return glue_fail(err,
                         "%s: \"strip_accents\" is %s and \"do_lower_case\" is %s; this host folds both or neither",
                         path, json_is_true(strip) ? "true" : "false", *out_keeps_case ? "false" : "true");
    return 0;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static int starts_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

static int is_of_head(const char *name) { return starts_with(name, "classifier."); }
static int is_of_pooler(const char *name) { return starts_with(name, "bert.pooler."); }

/* "....LayerNorm.weight" as the first releases called it; returns 0 where name is no such thing. */
static int old_name(const char *name, char *out, size_t nbytes) {
    const char *norm = strstr(name, "LayerNorm.");

    if (norm == NULL)
        return 0;
    (void)snprintf(out, nbytes, "%.*sLayerNorm.%s", (int)(norm - name), name,
                   strcmp(norm, "LayerNorm.weight") == 0 ? "gamma" : "beta");
    return 1;
}

static const host_tensor_t *find_tensor(const host_safetensors_t *file, const char *name) {
    char old[HOST_NAME_NBYTES + 8];
    int has_old = old_name(name, old, sizeof old);
    size_t prefixes[] = {0, strlen("bert.")};

    for (size_t i = 0; i < 2; i++) {
        const host_tensor_t *t = host_safetensors_find(file, name + prefixes[i]);

        t = t == NULL && has_old ? host_safetensors_find(file, old + prefixes[i]) : t;
        if (t != NULL)
            return t;
    }
    return NULL;
}

static int check_tensor(const host_safetensors_t *file, const host_param_t *param, const host_tensor_t *t,
                        glue_error_t *err) {
    int has_shape = t->n_dims == param->n_dims && t->shape[0] == (uint64_t)param->shape[0] &&
                    (t->n_dims == 1 || t->shape[1] == (uint64_t)param->shape[1]);
    char found[80] = "no dimension";
    size_t n = 0;

    for (int i = 0; i < t->n_dims && n < sizeof found; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, "%s%llu", i > 0 ? " x " : "",
                              (unsigned long long)t->shape[i]);
    if (!has_shape && param->n_dims == 1)
        return glue_fail(err, "%s: tensor %s is %s; config.json makes it %lld", host_safetensors_path(file), t->name,
                         found, (long long)param->shape[0]);
    if (!has_shape)
        return glue_fail(err, "%s: tensor %s is %s; config.json makes it %lld x %lld", host_safetensors_path(file),
                         t->name, found, (long long)param->shape[0], (long long)param->shape[1]);
    if (!host_tensor_is_float(t))
        return glue_fail(err, "%s: tensor %s has type %s; F32, F16 or BF16 is needed", host_safetensors_path(file),
                         t->name, t->dtype);
    return 0;
}

static int check_tensors(const host_safetensors_t *file, const host_params_t *params, int *out_has_pooler,
                         glue_error_t *err) {
    const char *first_missing = NULL;
    size_t n_missing = 0;

    *out_has_pooler = find_tensor(file, "bert.pooler.dense.weight") != NULL;
    for (size_t i = 0; i < params->n; i++) {
        const host_param_t *param = &params->list[i];
        const host_tensor_t *t = find_tensor(file, param->name);

        if (is_of_head(param->name) || (is_of_pooler(param->name) && !*out_has_pooler))
            continue;
        if (t == NULL) {
            first_missing = n_missing++ == 0 ? param->name : first_missing;
            continue;
        }
        if (check_tensor(file, param, t, err) != 0)
            return -1;
    }
    if (n_missing > 0)
        return glue_fail(err,
                         "%s: %zu tensors of a BERT encoder are missing, the first is %s (also looked for without "
                         "\"bert.\"); %zu are there",
                         host_safetensors_path(file), n_missing, first_missing, host_safetensors_n(file));
    return 0;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static int join(char *out, const char *folder, const char *name, glue_error_t *err) {
    int n = snprintf(out, HOST_PRETRAINED_PATH_NBYTES, "%s/%s", folder, name);

    return n > 0 && n < HOST_PRETRAINED_PATH_NBYTES ? 0 : glue_fail(err, "%.60s...: the path is too long", folder);
}

static int read_config(const char *folder, host_pretrained_t *p, glue_error_t *err) {
    char path[HOST_PRETRAINED_PATH_NBYTES];
    json_t *object = NULL;
    int st;

    if (join(path, folder, "config.json", err) != 0 || read_json(path, &object, err) != 0)
        return -1;
    st = parse_config(object, path, &p->config, err);
    json_decref(object);
    return st;
}

static int read_tokenizer_config(const char *folder, host_pretrained_t *p, glue_error_t *err) {
    char path[HOST_PRETRAINED_PATH_NBYTES];
    json_t *object = NULL;
    FILE *file;
    int st;

    if (join(path, folder, "tokenizer_config.json", err) != 0)
        return -1;
    file = fopen(path, "rb");
    if (file == NULL && errno == ENOENT)
        return 0;
    if (file != NULL)
        (void)fclose(file);
    if (read_json(path, &object, err) != 0)
        return -1;
    st = parse_tokenizer(object, path, &p->keeps_case, err);
    json_decref(object);
    return st;
}

int host_pretrained_open(const char *folder, host_pretrained_t *out, glue_error_t *err) {
    host_pretrained_t p = {.weights = NULL};
    char path[HOST_PRETRAINED_PATH_NBYTES];
    host_model_t outline;
    int st;

    if (read_config(folder, &p, err) != 0 || read_tokenizer_config(folder, &p, err) != 0 ||
        join(p.vocab_path, folder, "vocab.txt", err) != 0 || join(path, folder, "model.safetensors", err) != 0 ||
        host_model_outline(&outline, &p.config, err) != 0)
        return -1;
    st = host_safetensors_open(path, &p.weights, err);
    if (st == 0)
        st = check_tensors(p.weights, &outline.params, &p.has_pooler, err);
    host_model_free(&outline);
    if (st != 0)
        host_pretrained_free(&p);
    else
        *out = p;
    return st;
}

void host_pretrained_free(host_pretrained_t *p) {
    host_safetensors_close(p->weights);
    p->weights = NULL;
}

/* Elements first .. first+n-1 of the tensor to elements `place` .. of the parameter. */
static int copy_elems(const host_pretrained_t *p, const host_tensor_t *t, uint64_t first, size_t n, size_t place,
                      host_param_t *param, float *scratch, glue_error_t *err) {
    if (host_safetensors_read(p->weights, t, first, n, scratch, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        host_param_set(param, place + i, scratch[i]);
    return 0;
}

/* A table row by row, since the model may have fewer rows in another order; anything else at once. */
static int fill_param(const host_pretrained_t *p, const int32_t *rows, host_param_t *param, glue_error_t *err) {
    const host_tensor_t *t = find_tensor(p->weights, param->name);
    size_t width = param->is_table ? (size_t)param->shape[1] : param->n_elems;
    size_t n_rows = param->is_table ? (size_t)param->shape[0] : 1;
    float *scratch = malloc((width > 0 ? width : 1) * sizeof *scratch);
    int st = scratch != NULL ? 0 : glue_fail(err, "pretrained: out of memory for %s", param->name);

    for (size_t i = 0; st == 0 && i < n_rows; i++) {
        uint64_t row = rows != NULL ? (uint64_t)rows[i] : i;

        st = copy_elems(p, t, row * width, width, i * width, param, scratch, err);
    }
    free(scratch);
    return st;
}

int host_pretrained_fill(const host_pretrained_t *p, const int32_t *pieces, host_model_t *model, glue_error_t *err) {
    for (size_t i = 0; i < model->params.n; i++) {
        host_param_t *param = &model->params.list[i];

        if (is_of_head(param->name) || (is_of_pooler(param->name) && !p->has_pooler))
            continue;
        if (fill_param(p, param == model->word_table ? pieces : NULL, param, err) != 0)
            return -1;
    }
    return 0;
}
