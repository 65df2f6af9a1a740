/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/model.c - which reader takes a file, the list that all of them fill, and lists of shapes (contract in
 * model.h).
 *
 * A list of shapes has one tensor or several alike per line: [COUNT *] [NAME] SIZE x SIZE ... [DTYPE], "#" begins a
 * comment:
 *
 *     embedding 32000x4096
 *     32 * mlp.up 11008x4096 bf16
 *     4096 */
#include "model.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t MOST_ELEMS = (uint64_t)1 << 41; /* of a model: its plan stays within a few GB of memory */
enum { MOST_PARAMS = 1000000, MOST_JSON_NBYTES = 1 << 26, MOST_LIST_NBYTES = 1 << 22, LINE_NBYTES = 512 };

uint32_t model_dtype_nbytes(model_dtype_t dtype) { return dtype == MODEL_F32 ? 4 : 2; }

model_dtype_t model_dtype_of(const char *name) {
    static const struct {
        const char *name;
        model_dtype_t dtype;
    } all[] = {{"bfloat16", MODEL_BF16}, {"bf16", MODEL_BF16}, {"float16", MODEL_F16}, {"f16", MODEL_F16},
               {"fp16", MODEL_F16},      {"half", MODEL_F16},  {"float32", MODEL_F32}, {"f32", MODEL_F32},
               {"fp32", MODEL_F32},      {"float", MODEL_F32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcasecmp(name, all[i].name) == 0)
            return all[i].dtype;
    return MODEL_ANY_DTYPE;
}

static int count_elems(const model_t *model, int ndim, const int64_t *shape, uint64_t *out) {
    *out = 1;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(*out, (uint64_t)shape[i], out) || *out > MOST_ELEMS)
            return 0;
    return model->n_elems + *out <= MOST_ELEMS;
}

static int grow(model_t *model) {
    uint32_t capacity = model->capacity ? 2 * model->capacity : 256;
    model_param_t *params = realloc(model->params, capacity * sizeof *params);
    if (!params)
        return zf_cli_complain(model->path, "no memory for %u tensors", capacity);
    model->params = params;
    model->capacity = capacity;
    return 0;
}

int model_add(model_t *model, const char *name, model_dtype_t dtype, int ndim, const int64_t *shape) {
    model_param_t *param;
    uint64_t n_elems;
    if (ndim > MODEL_MAX_NDIM)
        return zf_cli_complain(model->path, "tensor \"%.100s\" has %d axes; at most %d", name, ndim, MODEL_MAX_NDIM);
    if (strlen(name) >= MODEL_NAME_NBYTES || !*name)
        return zf_cli_complain(model->path, "tensor \"%.100s...\": need a name of 1 to %d bytes", name,
                               MODEL_NAME_NBYTES - 1);
    if (!count_elems(model, ndim, shape, &n_elems))
        return zf_cli_complain(model->path,
                               "tensor \"%.100s\": a size is negative, or the model has more than 2^41 elements", name);
    if (model->n == MOST_PARAMS)
        return zf_cli_complain(model->path, "more than %d tensors", MOST_PARAMS);
    if (model->n == model->capacity && grow(model))
        return 1;
    param = &model->params[model->n++];
    *param = (model_param_t){.ndim = ndim, .n_elems = n_elems};
    param->dtype = model->dtype != MODEL_ANY_DTYPE ? model->dtype : dtype == MODEL_ANY_DTYPE ? MODEL_BF16 : dtype;
    memcpy(param->name, name, strlen(name) + 1);
    memcpy(param->shape, shape, (size_t)ndim * sizeof *shape);
    model->n_elems += n_elems;
    model->n_assumed += model->dtype == MODEL_ANY_DTYPE && dtype == MODEL_ANY_DTYPE;
    model->nbytes += n_elems * model_dtype_nbytes(param->dtype);
    return 0;
}

void model_free(model_t *model) {
    free(model->params);
    model->params = NULL;
    model->n = model->capacity = 0;
}

/* ---- lists of shapes --------------------------------------------------------------------------------------------- */

/* Decimal digits at *at; 0: none, or more than 2^62. */
static int read_size(const char **at, int64_t *out) {
    char *end;
    long long n;
    if (!isdigit((unsigned char)**at))
        return 0;
    errno = 0;
    n = strtoll(*at, &end, 10);
    if (errno || n > (long long)1 << 62)
        return 0;
    *out = n;
    *at = end;
    return 1;
}

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t\r"); }

/* A size, then "x" and another one, ... Returns the axes; 0: no shape stands here. */
static int read_shape(const char **at, int64_t *shape) {
    int ndim = 0;
    const char *next = *at;
    do {
        if (ndim == MODEL_MAX_NDIM || !read_size(&next, &shape[ndim]))
            return 0;
        ndim++;
        *at = next;
        next = skip_blanks(next);
    } while ((*next == 'x' || *next == 'X' || *next == ',') && *(next = skip_blanks(next + 1)));
    return ndim;
}

static int take_line(model_t *model, const char *line, unsigned number) {
    const char *at = skip_blanks(line), *rest = at;
    char name[MODEL_NAME_NBYTES] = "", all[MODEL_NAME_NBYTES + 64], word[32] = "";
    int64_t shape[MODEL_MAX_NDIM], count = 1;
    model_dtype_t dtype = MODEL_ANY_DTYPE;
    int ndim, status = 0;
    if (read_size(&rest, &count) && *(rest = skip_blanks(rest)) == '*')
        at = skip_blanks(rest + 1);
    else
        count = 1;
    if (!isdigit((unsigned char)*at)) {
        size_t n = strcspn(at, " \t\r");
        snprintf(name, sizeof name - 32, "%.*s", (int)n, at);
        at = skip_blanks(at + n);
    }
    ndim = read_shape(&at, shape);
    at = skip_blanks(at);
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " \t\r"), at);
    if (*word)
        dtype = model_dtype_of(word);
    if (!ndim || (*word && (dtype == MODEL_ANY_DTYPE || *skip_blanks(at + strlen(word)))))
        return zf_cli_complain(
            model->path, "line %u: \"%.60s\" is no tensor; need [COUNT *] [NAME] SIZE x SIZE ... [bf16 | f16 | f32]",
            number, line);
    for (int64_t i = 0; i < count && !status; i++) {
        snprintf(all, sizeof all, count > 1 ? "%s.%u.%lld" : "%s.%u", *name ? name : "tensor", number, (long long)i);
        status = model_add(model, count > 1 || !*name ? all : name, dtype, ndim, shape);
    }
    return status;
}

static int read_list(model_t *model, char *text) {
    unsigned number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        line[strcspn(line, "#")] = '\0';
        if (*skip_blanks(line) && take_line(model, line, number))
            return 1;
    }
    return 0;
}

/* ---- which reader ------------------------------------------------------------------------------------------------ */

static int read_json(model_t *model, const char *text, size_t nbytes) {
    json_error_t problem;
    json_t *object = json_loadb(text, nbytes, 0, &problem);
    int status;
    if (!object)
        return zf_cli_complain(model->path, "line %d: %s", problem.line, problem.text);
    if (json_is_object(json_object_get(object, "weight_map")))
        status = model_read_index(model->path, object, model);
    else if (json_is_string(json_object_get(object, "model_type")))
        status = model_read_config(model->path, object, model);
    else
        status = zf_cli_complain(model->path, "has neither \"weight_map\" (an index of safetensors files) nor "
                                              "\"model_type\" (a config.json): give one of those");
    json_decref(object);
    return status;
}

/* A safetensors file begins with the length of its header and with '{', a text does not have the zeros of that. */
static int is_safetensors(const char *path) {
    uint64_t nbytes;
    unsigned char head[9];
    int fd = zf_cli_open_file(path, &nbytes);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    if (fd < 0)
        return -1;
    close(fd);
    return n == (ssize_t)sizeof head ? head[6] == 0 && head[7] == 0 && head[8] == '{' : 0;
}

int model_read(const char *path, model_t *model) {
    size_t n_path = strlen(path), nbytes = 0;
    int is_named = n_path > 12 && strcmp(path + n_path - 12, ".safetensors") == 0, has_head = is_safetensors(path),
        status;
    char *text;
    model->path = path;
    if (has_head < 0)
        return 1;
    if (is_named || has_head) {
        status = model_read_safetensors(path, model);
    } else {
        text = zf_cli_read_file(
            path, n_path > 5 && strcmp(path + n_path - 5, ".json") == 0 ? MOST_JSON_NBYTES : MOST_LIST_NBYTES, &nbytes);
        if (!text)
            return 1;
        if (strlen(text) != nbytes)
            status = zf_cli_complain(path, "has bytes of value 0: this is no text");
        else
            status = *(text + strspn(text, " \t\r\n")) == '{' ? read_json(model, text, nbytes) : read_list(model, text);
        free(text);
    }
    if (!status && model->n_elems == 0)
        status = zf_cli_complain(path, "has no tensor to train");
    return status;
}
