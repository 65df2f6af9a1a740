/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/model_safetensors.c - the header of a safetensors file: eight bytes of length, then JSON that gives each
 * tensor's data type, shape and place. What it says is checked against the file's own length. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model.h"

static const uint64_t MOST_HEADER_NBYTES = 100000000; /* as the format's own library has it */

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Names with numbers by value: layers.2 before layers.10. */
static int compare_names(const char *a, const char *b) {
    while (*a && *b) {
        if (*a >= '0' && *a <= '9' && *b >= '0' && *b <= '9') {
            char *after_a, *after_b;
            unsigned long long x = strtoull(a, &after_a, 10), y = strtoull(b, &after_b, 10);
            if (x != y)
                return x < y ? -1 : 1;
            a = after_a;
            b = after_b;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != 0) - (*b != 0);
}

/* 0: what comes first, 1: layers, 2: what comes last in a forward pass. */
static int place_of(const char *name) {
    if (strstr(name, "embed") || strstr(name, "wte") || strstr(name, "wpe"))
        return 0;
    if (strstr(name, "lm_head") || strstr(name, "classifier") || strstr(name, "pooler"))
        return 2;
    return 1;
}

static int by_use(const void *a, const void *b) {
    const model_param_t *x = a, *y = b;
    int difference = place_of(x->name) - place_of(y->name);
    return difference ? difference : compare_names(x->name, y->name);
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static uint64_t nbytes_of_type(const char *type) {
    static const struct {
        const char *type;
        uint64_t nbytes;
    } all[] = {{"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4},     {"I32", 4},     {"U32", 4}, {"F16", 2}, {"BF16", 2},
               {"I16", 2}, {"U16", 2}, {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1},  {"BOOL", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(type, all[i].type) == 0)
            return all[i].nbytes;
    return 0;
}

static int take_tensor(model_t *model, const char *path, const char *name, const json_t *tensor, uint64_t data_nbytes) {
    const json_t *shape = json_object_get(tensor, "shape"), *range = json_object_get(tensor, "data_offsets");
    const char *type = json_string_value(json_object_get(tensor, "dtype"));
    json_int_t first = json_integer_value(json_array_get(range, 0)), end = json_integer_value(json_array_get(range, 1));
    int64_t sizes[MODEL_MAX_NDIM];
    uint64_t nbytes = type ? nbytes_of_type(type) : 0;
    int ndim = (int)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > MODEL_MAX_NDIM || !type || json_array_size(range) != 2 ||
        first < 0 || end < first)
        return zf_cli_complain(path, "tensor \"%.100s\": need dtype, shape (at most %d axes) and data_offsets", name,
                               MODEL_MAX_NDIM);
    if ((uint64_t)end > data_nbytes)
        return zf_cli_complain(path,
                               "tensor \"%.100s\" ends at byte %lld of the data, the file has %llu: it is cut short; "
                               "load it again",
                               name, (long long)end, (unsigned long long)data_nbytes);
    for (int i = 0; i < ndim; i++) {
        if (!json_is_integer(json_array_get(shape, (size_t)i)))
            return zf_cli_complain(path, "tensor \"%.100s\": axis %d of its shape is no whole number", name, i);
        sizes[i] = json_integer_value(json_array_get(shape, (size_t)i));
        if (sizes[i] < 0 || __builtin_mul_overflow(nbytes, (uint64_t)sizes[i], &nbytes))
            return zf_cli_complain(path, "tensor \"%.100s\": axis %d is %lld, which no tensor has", name, i,
                                   (long long)sizes[i]);
    }
    if (nbytes_of_type(type) && nbytes != (uint64_t)(end - first))
        return zf_cli_complain(path, "tensor \"%.100s\": shape and data type make %llu bytes, data_offsets %lld", name,
                               (unsigned long long)nbytes, (long long)(end - first));
    if (model_dtype_of(type) == MODEL_ANY_DTYPE) {
        model->n_not_trained++;
        return 0;
    }
    return model_add(model, name, model_dtype_of(type), ndim, sizes);
}

static int take_header(model_t *model, const char *path, const char *text, uint64_t nbytes, uint64_t data_nbytes) {
    json_error_t problem;
    json_t *header = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &problem), *tensor;
    const char *name;
    int status = 0;
    if (!json_is_object(header)) {
        status = zf_cli_complain(path, "its header is no JSON object: %s", header ? "another value" : problem.text);
        json_decref(header);
        return status;
    }
    json_object_foreach(header, name, tensor) {
        if (strcmp(name, "__metadata__") != 0)
            status = take_tensor(model, path, name, tensor, data_nbytes);
        if (status)
            break;
    }
    json_decref(header);
    return status;
}

static int read_file(const char *path, model_t *model) {
    uint64_t file_nbytes, nbytes = 0;
    unsigned char head[8];
    char *text;
    int fd = zf_cli_open_file(path, &file_nbytes), status;
    if (fd < 0)
        return 1;
    if (read(fd, head, sizeof head) != (ssize_t)sizeof head) {
        close(fd);
        return zf_cli_complain(path, "has %llu bytes: no safetensors file is so short",
                               (unsigned long long)file_nbytes);
    }
    for (int i = 7; i >= 0; i--)
        nbytes = nbytes << 8 | head[i];
    if (nbytes > MOST_HEADER_NBYTES || nbytes > file_nbytes - 8) {
        close(fd);
        return zf_cli_complain(path,
                               "its header says that it has %llu bytes, the file has %llu (at most %llu are read): it "
                               "is cut short, or no safetensors file",
                               (unsigned long long)nbytes, (unsigned long long)file_nbytes,
                               (unsigned long long)MOST_HEADER_NBYTES);
    }
    text = zf_cli_read_fd(fd, (size_t)nbytes);
    close(fd);
    if (!text)
        return zf_cli_complain(path, "%s", strerror(errno));
    status = take_header(model, path, text, nbytes, file_nbytes - 8 - nbytes);
    free(text);
    return status;
}

int model_read_safetensors(const char *path, model_t *model) {
    int status = read_file(path, model);
    if (!status && model->n)
        qsort(model->params, model->n, sizeof *model->params, by_use);
    return status;
}

/* ---- several files ----------------------------------------------------------------------------------------------- */

int model_read_index(const char *path, const json_t *index, model_t *model) {
    const char *slash = strrchr(path, '/'), *name;
    json_t *files = json_object(), *file;
    int status = files == NULL;
    json_object_foreach(json_object_get(index, "weight_map"), name, file) {
        const char *text = json_string_value(file);
        char whole[4096];
        if (!text || strchr(text, '/') || !*text) {
            status = zf_cli_complain(path, "weight_map[\"%.100s\"] is no name of a file beside it", name);
            break;
        }
        if (json_object_get(files, text))
            continue;
        json_object_set_new(files, text, json_true());
        snprintf(whole, sizeof whole, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, text);
        status = read_file(whole, model);
        if (status)
            break;
    }
    json_decref(files);
    if (!status && model->n)
        qsort(model->params, model->n, sizeof *model->params, by_use);
    return status;
}
