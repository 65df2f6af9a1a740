/* SPDX-License-Identifier: Apache-2.0 */
/* lib/safetensors.h - reads a safetensors file.
 *
 * The format: 8 bytes, the header's length as a little-endian number; a JSON object, name -> {"dtype", "shape",
 * "data_offsets": [begin, end]}; the tensors' bytes, row-major and little-endian, without gap or overlap. Opening
 * checks all of that against the file's length, so that a read of an opened file can only fail for input or output.
 * Nothing is mapped: a file that is cut short while it is read is an error, not a signal. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { ZF_SAFETENSORS_MAX_DIMS = 8, ZF_SAFETENSORS_WHY = 400 };

typedef struct zf_safetensors_tensor {
    const char *name;  /* owned by the file */
    const char *dtype; /* as in the header: "F32", "BF16", "I64", ... */
    int n_dims;
    uint64_t shape[ZF_SAFETENSORS_MAX_DIMS];
    uint64_t n_elems;
    uint64_t offset, nbytes; /* offset from the file's start */
    size_t elem_nbytes;
} zf_safetensors_tensor_t;

typedef struct zf_safetensors {
    int fd;
    uint64_t nbytes, data_offset;     /* of the file; where the tensors' bytes begin */
    struct json_t *header;            /* owns names */
    zf_safetensors_tensor_t *tensors; /* [n] sorted by offset */
    size_t n;
} zf_safetensors_t;

/* [any-thread] *out is written on success only; release it with zf_safetensors_close. -1: `why`, of which
 * ZF_SAFETENSORS_WHY bytes are enough, says what is wrong, without the path. */
int zf_safetensors_open(const char *path, zf_safetensors_t *out, char *why, size_t why_nbytes);
void zf_safetensors_close(zf_safetensors_t *file);

/* [any-thread] nbytes at an offset from the file's start, as they are. */
int zf_safetensors_read(const zf_safetensors_t *file, uint64_t offset, void *out, size_t nbytes, char *why,
                        size_t why_nbytes);
