/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/model.h - the parameters of a model: names, shapes and data types, from a file that anybody may have
 * made. Nothing of a weight is read. */
#ifndef ZF_CLI_MODEL_H
#define ZF_CLI_MODEL_H

#include "cli.h"

enum { MODEL_MAX_NDIM = 8, MODEL_NAME_NBYTES = 200 };

typedef enum model_dtype { MODEL_BF16, MODEL_F16, MODEL_F32, MODEL_ANY_DTYPE } model_dtype_t;

typedef struct model_param {
    char name[MODEL_NAME_NBYTES];
    model_dtype_t dtype;
    int ndim;
    int64_t shape[MODEL_MAX_NDIM];
    int channels_are_rows; /* GPT-2's Conv1D: [in, out] */
    uint64_t n_elems;
} model_param_t;

typedef struct model {
    const char *path;       /* for messages */
    model_dtype_t dtype;    /* of all of them; MODEL_ANY_DTYPE: what the file says, bfloat16 where it says nothing */
    const char *dtype_said; /* the member of a config.json that says it, or NULL */
    model_param_t *params;  /* in the order in which a forward pass uses them, as far as the file tells */
    uint32_t n, capacity;
    uint64_t n_elems, nbytes;
    uint32_t n_assumed;     /* of which the file does not say the type */
    uint32_t n_not_trained; /* tensors of other data types, left out */
    /* of a config.json, else 0; for the work of attention */
    uint64_t n_layers, hidden;
} model_t;

/* Reads a safetensors file (its header), a *.index.json beside several, a config.json, or a list of shapes; the content
 * decides. 0, or 1 after a message that says what is wrong and where. model->dtype is set by the caller. */
int model_read(const char *path, model_t *model);
void model_free(model_t *model);

uint32_t model_dtype_nbytes(model_dtype_t dtype);
/* "bfloat16", "bf16", "BF16" and so on; MODEL_ANY_DTYPE: no such type. */
model_dtype_t model_dtype_of(const char *name);

/* [for readers] Adds one; 0, or 1 after a message: a negative or huge size, too many of them. */
int model_add(model_t *model, const char *name, model_dtype_t dtype, int ndim, const int64_t *shape);

/* model_safetensors.c: of one file; of an index ("weight_map") the files beside it, each once. */
int model_read_safetensors(const char *path, model_t *model);
int model_read_index(const char *path, const json_t *index, model_t *model);
/* model_config.c: of the families that it knows. */
int model_read_config(const char *path, const json_t *config, model_t *model);

#endif
