/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - reads tensors from a safetensors file (lib/safetensors.h). */
#ifndef ZF_CONFORMANCE_HOST_SAFETENSORS_H
#define ZF_CONFORMANCE_HOST_SAFETENSORS_H

#include "glue/error.h"
#include "lib/safetensors.h"

#include <stddef.h>
#include <stdint.h>

enum { HOST_TENSOR_MAX_DIMS = ZF_SAFETENSORS_MAX_DIMS };

typedef zf_safetensors_tensor_t host_tensor_t;

typedef struct host_safetensors host_safetensors_t;

/* *out is written on success only; release with host_safetensors_close. path is copied. */
int host_safetensors_open(const char *path, host_safetensors_t **out, glue_error_t *err);
void host_safetensors_close(host_safetensors_t *file);

size_t host_safetensors_n(const host_safetensors_t *file);
const char *host_safetensors_path(const host_safetensors_t *file);

/* The tensor of a name, or NULL. */
const host_tensor_t *host_safetensors_find(const host_safetensors_t *file, const char *name);

/* Whether host_safetensors_read can convert it: F32, F16 or BF16. */
int host_tensor_is_float(const host_tensor_t *tensor);

/* Elements first .. first+n-1 as float, exactly. */
int host_safetensors_read(const host_safetensors_t *file, const host_tensor_t *tensor, uint64_t first, size_t n,
                          float *out, glue_error_t *err);

#endif
