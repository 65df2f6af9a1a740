/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - elements of a file's tensors as numbers of this machine (safetensors.h). */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include "bfloat16.h"

#include <stdlib.h>
#include <string.h>

enum { READ_ELEMS = 65536 };

struct host_safetensors {
    char *path;
    zf_safetensors_t file;
};

static int read_at(const host_safetensors_t *f, uint64_t offset, void *out, size_t nbytes, glue_error_t *err) {
    char why[ZF_SAFETENSORS_WHY];

    return zf_safetensors_read(&f->file, offset, out, nbytes, why, sizeof why) != 0
               ? glue_fail(err, "%s: %s", f->path, why)
               : 0;
}

int host_safetensors_open(const char *path, host_safetensors_t **out, glue_error_t *err) {
    host_safetensors_t *f = calloc(1, sizeof *f);
    char why[ZF_SAFETENSORS_WHY];

    if (f != NULL)
        f->path = strdup(path);
    if (f == NULL || f->path == NULL) {
        free(f);
        return glue_fail(err, "%s: out of memory", path);
    }
    if (zf_safetensors_open(path, &f->file, why, sizeof why) != 0) {
        free(f->path);
        free(f);
        return glue_fail(err, "%s: %s", path, why);
    }
    *out = f;
    return 0;
}

void host_safetensors_close(host_safetensors_t *f) {
    if (f == NULL)
        return;
    zf_safetensors_close(&f->file);
    free(f->path);
    free(f);
}

size_t host_safetensors_n(const host_safetensors_t *f) { return f->file.n; }

const char *host_safetensors_path(const host_safetensors_t *f) { return f->path; }

const host_tensor_t *host_safetensors_find(const host_safetensors_t *f, const char *name) {
    for (size_t i = 0; i < f->file.n; i++)
        if (strcmp(f->file.tensors[i].name, name) == 0)
            return &f->file.tensors[i];
    return NULL;
}

int host_tensor_is_float(const host_tensor_t *t) {
    return strcmp(t->dtype, "F32") == 0 || strcmp(t->dtype, "F16") == 0 || strcmp(t->dtype, "BF16") == 0;
}

/* IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. */
static float float_from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31u, fraction = half & 1023u, bits;
    float value;

    if (exponent == 0) { /* zero and denormals: fraction * 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Bytes of the file to floats; the file's byte order is little-endian whatever this machine's is. */
static void convert(const char *dtype, const unsigned char *bytes, size_t n, float *out) {
    int is_half = strcmp(dtype, "F16") == 0, is_wide = strcmp(dtype, "F32") == 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char *b = bytes + (is_wide ? 4 : 2) * i;
        uint16_t narrow = (uint16_t)(b[0] | b[1] << 8);
        uint32_t wide = is_wide ? (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | narrow : 0;

        if (is_wide)
            memcpy(&out[i], &wide, sizeof wide);
        else
            out[i] = is_half ? float_from_half(narrow) : host_float_from_bfloat16(narrow);
    }
}

int host_safetensors_read(const host_safetensors_t *f, const host_tensor_t *t, uint64_t first, size_t n, float *out,
                          glue_error_t *err) {
    size_t elem_nbytes = t->elem_nbytes;
    unsigned char *bytes;
    int st = 0;

    if (!host_tensor_is_float(t))
        return glue_fail(err, "%s: tensor %.80s has type %s; F32, F16 or BF16 is needed", f->path, t->name, t->dtype);
    if (first > t->n_elems || n > t->n_elems - first)
        return glue_fail(err, "%s: tensor %.80s has %llu elements; %zu from %llu on are asked", f->path, t->name,
                         (unsigned long long)t->n_elems, n, (unsigned long long)first);
    bytes = malloc((n < READ_ELEMS ? n + 1 : READ_ELEMS) * elem_nbytes);
    if (bytes == NULL)
        return glue_fail(err, "%s: out of memory", f->path);
    for (size_t done = 0, part; st == 0 && done < n; done += part) {
        part = n - done < READ_ELEMS ? n - done : READ_ELEMS;
        st = read_at(f, t->offset + (first + done) * elem_nbytes, bytes, part * elem_nbytes, err);
        if (st == 0)
            convert(t->dtype, bytes, part, out + done);
    }
    free(bytes);
    return st;
}
