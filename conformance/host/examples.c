/* SPDX-License-Identifier: Apache-2.0 */
/* examples.c - see examples.h. */
#include "examples.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metadata: texts --------------------------------------------------------------------------------------------- */

typedef enum requirement { ALWAYS, PRETRAINED } requirement_t;

typedef struct number_key {
    const char *name;
    size_t offset; /* in host_model_config_t */
    requirement_t needed;
    int is_real;
} number_key_t;

#define AT(member) offsetof(host_model_config_t, member)
static const number_key_t number_keys[] = {
    {"pieces", AT(n_pieces), ALWAYS, 0},       {"positions", AT(max_positions), ALWAYS, 0},
    {"hidden", AT(hidden), PRETRAINED, 0},     {"layers", AT(n_layers), PRETRAINED, 0},
    {"heads", AT(n_heads), PRETRAINED, 0},     {"ffn", AT(ffn), PRETRAINED, 0},
    {"types", AT(n_types), PRETRAINED, 0},     {"layer_norm_eps", AT(layer_norm_eps), PRETRAINED, 1},
    {"init_std", AT(init_std), PRETRAINED, 1},
};
#undef AT

static const char *text_of(const json_t *metadata, const char *name) {
    return json_string_value(json_object_get(metadata, name));
}

static int read_number(const json_t *metadata, const char *name, double *out, glue_error_t *err) {
    const char *text = text_of(metadata, name);
    char *end = NULL;
    *out = text != NULL ? strtod(text, &end) : 0.0;
    if (text == NULL || end == text || *end != '\0' || !(*out >= 0.0 && *out <= 1e9))
        return glue_fail(err, "\"%s\" is missing in the metadata, or no number: \"zf-conform examples\" writes it",
                         name);
    return 0;
}

static int read_count(const json_t *metadata, const char *name, size_t *out, glue_error_t *err) {
    double value;
    if (read_number(metadata, name, &value, err) != 0)
        return -1;
    *out = (size_t)value;
    return 0;
}

static int read_shape(const json_t *metadata, int is_pretrained, host_model_config_t *out, glue_error_t *err) {
    size_t n_labels;
    for (size_t i = 0; i < sizeof number_keys / sizeof *number_keys; i++) {
        const number_key_t *key = &number_keys[i];
        void *place = (char *)out + key->offset;
        if (key->needed == PRETRAINED && !is_pretrained)
            continue;
        if ((key->is_real ? read_number(metadata, key->name, place, err)
                          : read_count(metadata, key->name, place, err)) != 0)
            return -1;
    }
    if (read_count(metadata, "labels", &n_labels, err) != 0)
        return -1;
    out->is_regression = n_labels == 0;
    out->n_labels = n_labels == 0 ? 1 : n_labels;
    return 0;
}

static int read_metadata(host_examples_t *e, glue_error_t *err) {
    const json_t *metadata = json_object_get(e->file.header, "__metadata__");
    const char *task = text_of(metadata, "task");
    (void)snprintf(e->task, sizeof e->task, "%s", task != NULL ? task : "");
    e->is_pretrained = text_of(metadata, "hidden") != NULL;
    return read_shape(metadata, e->is_pretrained, &e->shape, err) != 0
               ? -1
               : read_count(metadata, "skipped", &e->n_skipped, err);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const zf_safetensors_tensor_t *find(const zf_safetensors_t *file, const char *name) {
    for (size_t i = 0; i < file->n; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

static int read_tensor(const zf_safetensors_t *file, const zf_safetensors_tensor_t *t, void *out, glue_error_t *err) {
    char why[ZF_SAFETENSORS_WHY];
    return zf_safetensors_read(file, t->offset, out, t->nbytes, why, sizeof why) != 0 ? glue_fail(err, "%s", why) : 0;
}

/* All elements of split.name, in memory of their own. */
static void *load(const zf_safetensors_t *file, const char *split, const char *name, const char *dtype, size_t *out_n,
                  glue_error_t *err) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s.%s", split, name);
    const zf_safetensors_tensor_t *t = find(file, full);
    if (t == NULL || strcmp(t->dtype, dtype) != 0) {
        (void)glue_fail(err, "tensor %s is missing or not %s: \"zf-conform examples\" writes it", full, dtype);
        return NULL;
    }
    void *out = malloc(t->nbytes + 1);
    if (out == NULL || read_tensor(file, t, out, err) != 0) {
        if (out == NULL)
            (void)glue_fail(err, "out of memory for tensor %s", full);
        free(out);
        return NULL;
    }
    *out_n = (size_t)t->n_elems;
    return out;
}

static int is_row(const host_corpus_t *c, const host_model_config_t *shape, size_t row) {
    double target = c->targets[row];
    if (shape->is_regression ? !isfinite(target) : !(target >= 0.0 && target < (double)shape->n_labels))
        return 0;
    for (size_t i = c->starts[row]; i < c->starts[row + 1]; i++)
        if (c->ids[i] < 0 || (size_t)c->ids[i] >= shape->n_pieces || c->types[i] < 0 ||
            (size_t)c->types[i] >= (shape->n_types != 0 ? shape->n_types : 2))
            return 0;
    return 1;
}

/* Where rows start, from their lengths; 0 where these do not fit the pieces and the positions. */
static int place_rows(host_corpus_t *c, const int32_t *lengths, size_t n_pieces, size_t max_positions) {
    c->starts = malloc((c->n_rows + 1) * sizeof *c->starts);
    if (c->starts == NULL)
        return 0;
    c->starts[0] = 0;
    for (size_t i = 0; i < c->n_rows; i++) {
        if (lengths[i] < 1 || (size_t)lengths[i] > max_positions)
            return 0;
        c->starts[i + 1] = c->starts[i] + (size_t)lengths[i];
    }
    return c->starts[c->n_rows] == n_pieces;
}

static int read_split(const host_examples_t *e, const char *split, host_corpus_t *out, glue_error_t *err) {
    host_corpus_t c = {.n_rows = 0};
    size_t n_ids = 0, n_types = 0, n_lengths = 0;
    int32_t *lengths = load(&e->file, split, "lengths", "I32", &n_lengths, err);
    int is_whole = lengths != NULL && (c.ids = load(&e->file, split, "ids", "I32", &n_ids, err)) != NULL &&
                   (c.types = load(&e->file, split, "types", "I32", &n_types, err)) != NULL &&
                   (c.targets = load(&e->file, split, "targets", "F64", &c.n_rows, err)) != NULL;
    size_t row = 0;
    if (is_whole) {
        is_whole = n_lengths == c.n_rows && n_types == n_ids && place_rows(&c, lengths, n_ids, e->shape.max_positions);
        while (is_whole && row < c.n_rows && is_row(&c, &e->shape, row))
            row++;
        if (!is_whole || row < c.n_rows)
            (void)glue_fail(err, "%s: row %zu of %zu does not fit its pieces, the positions or the labels", split, row,
                            c.n_rows);
    }
    free(lengths);
    if (!is_whole || row < c.n_rows) {
        host_corpus_free(&c);
        return -1;
    }
    *out = c;
    return 0;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static int read_all(host_examples_t *e, glue_error_t *err) {
    if (read_metadata(e, err) != 0 || read_split(e, "train", &e->train, err) != 0 ||
        read_split(e, "dev", &e->dev, err) != 0)
        return -1;
    return find(&e->file, "second_dev.ids") == NULL ? 0 : read_split(e, "second_dev", &e->second_dev, err);
}

int host_examples_open(const char *path, host_examples_t *out, glue_error_t *err) {
    host_examples_t e = {.is_pretrained = 0};
    char why[ZF_SAFETENSORS_WHY];
    glue_error_t own = {""};
    if (zf_safetensors_open(path, &e.file, why, sizeof why) != 0)
        return glue_fail(err, "%s: %s", path, why);
    if (read_all(&e, &own) != 0) {
        host_examples_close(&e);
        return glue_fail(err, "%s: %s", path, own.text);
    }
    *out = e;
    return 0;
}

void host_examples_close(host_examples_t *e) {
    host_corpus_free(&e->train);
    host_corpus_free(&e->dev);
    host_corpus_free(&e->second_dev);
    zf_safetensors_close(&e->file);
    e->file = (zf_safetensors_t){.fd = -1};
}

static int starts_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

static int fill_param(const host_examples_t *e, host_param_t *param, glue_error_t *err) {
    const zf_safetensors_tensor_t *t = find(&e->file, param->name);
    int st;
    if (t == NULL && (starts_with(param->name, "classifier.") || starts_with(param->name, "bert.pooler.")))
        return 0;
    if (t == NULL || strcmp(t->dtype, "F32") != 0 || t->n_elems != param->n_elems)
        return glue_fail(err, "examples: tensor %s is missing, not F32, or has not %zu elements", param->name,
                         param->n_elems);
    float *values = malloc(t->nbytes + 1);
    st = values != NULL ? read_tensor(&e->file, t, values, err) : glue_fail(err, "out of memory for %s", param->name);
    for (size_t i = 0; st == 0 && i < param->n_elems; i++)
        host_param_set(param, i, values[i]);
    free(values);
    return st;
}

int host_examples_fill(const host_examples_t *e, host_model_t *model, glue_error_t *err) {
    for (size_t i = 0; i < model->params.n; i++)
        if (fill_param(e, &model->params.list[i], err) != 0)
            return -1;
    return 0;
}
