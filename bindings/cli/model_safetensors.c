/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/model_safetensors.c - a model as safetensors files describe it, in the order of a forward pass. */
#include <stdlib.h>
#include <string.h>

#include "lib/safetensors.h"
#include "model.h"

_Static_assert((int)MODEL_MAX_NDIM >= (int)ZF_SAFETENSORS_MAX_DIMS, "room for each axis");

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

static int take_tensor(model_t *model, const zf_safetensors_tensor_t *tensor) {
    int64_t sizes[MODEL_MAX_NDIM];
    if (model_dtype_of(tensor->dtype) == MODEL_ANY_DTYPE) {
        model->n_not_trained++;
        return 0;
    }
    for (int i = 0; i < tensor->n_dims; i++)
        sizes[i] = (int64_t)tensor->shape[i];
    return model_add(model, tensor->name, model_dtype_of(tensor->dtype), tensor->n_dims, sizes);
}

static int read_file(const char *path, model_t *model) {
    char why[ZF_SAFETENSORS_WHY];
    zf_safetensors_t file;
    int status = 0;
    if (zf_safetensors_open(path, &file, why, sizeof why) != 0)
        return zf_cli_complain(path, "%s", why);
    for (size_t i = 0; i < file.n && !status; i++)
        status = take_tensor(model, &file.tensors[i]);
    zf_safetensors_close(&file);
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
