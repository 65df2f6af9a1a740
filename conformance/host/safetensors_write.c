/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c - writes a safetensors file in one pass (safetensors.h).
 *
 * The header is written first: every tensor's place follows from the types and shapes. It is padded with spaces so
 * that the data begins at a multiple of 8 bytes. The metadata says "pt", which Hugging Face's loaders ask for. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT_NBYTES = 8, PUT_NBYTES = 65536 };

struct host_safetensors_writer {
    char *path;
    FILE *file;
    uint64_t nbytes, n_due; /* of data: written, and in all by the header */
};

static int fail_write(const host_safetensors_writer_t *w, glue_error_t *err) {
    return glue_fail(err, "%s: cannot write: %s", w->path, strerror(errno));
}

static uint64_t elem_nbytes(const host_tensor_t *t) { return strcmp(t->dtype, "F32") == 0 ? 4 : 8; }

/* The header's entry of a tensor whose data begins at *end, which moves on. NULL: out of memory. */
static json_t *describe(const host_tensor_t *t, uint64_t *end) {
    json_t *shape = json_array();
    uint64_t begin = *end, nbytes = elem_nbytes(t);

    for (int i = 0; i < t->n_dims; i++) {
        nbytes *= t->shape[i];
        if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    *end = begin + nbytes;
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)*end);
}

static char *make_header(const host_tensor_t *tensors, size_t n, uint64_t *out_n_data) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text = NULL;

    *out_n_data = 0;
    for (size_t i = 0; header != NULL && i < n; i++)
        if (json_object_set_new(header, tensors[i].name, describe(&tensors[i], out_n_data)) != 0) {
            json_decref(header);
            header = NULL;
        }
    if (header != NULL)
        text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static int write_header(host_safetensors_writer_t *w, const char *text, glue_error_t *err) {
    size_t n = strlen(text), padding = (ALIGNMENT_NBYTES - n % ALIGNMENT_NBYTES) % ALIGNMENT_NBYTES;
    unsigned char length[ALIGNMENT_NBYTES];

    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)((uint64_t)(n + padding) >> 8 * i);
    if (fwrite(length, 1, sizeof length, w->file) != sizeof length || fwrite(text, 1, n, w->file) != n ||
        fwrite("        ", 1, padding, w->file) != padding)
        return fail_write(w, err);
    return 0;
}

int host_safetensors_create(const char *path, const host_tensor_t *tensors, size_t n, host_safetensors_writer_t **out,
                            glue_error_t *err) {
    host_safetensors_writer_t *w = calloc(1, sizeof *w);
    char *header = NULL;
    int st = -1;

    if (w == NULL || (w->path = strdup(path)) == NULL || (header = make_header(tensors, n, &w->n_due)) == NULL)
        (void)glue_fail(err, "%s: out of memory for a header of %zu tensors", path, n);
    else if ((w->file = fopen(path, "wb")) == NULL)
        (void)fail_write(w, err);
    else
        st = write_header(w, header, err);
    free(header);
    if (st == 0)
        *out = w;
    else
        host_safetensors_abandon(w);
    return st;
}

/* Elements of nbytes_each as little-endian bytes, whatever this machine's order. */
static int put(host_safetensors_writer_t *w, uint64_t (*get)(const void *, size_t), const void *elems, size_t n,
               size_t nbytes_each, glue_error_t *err) {
    unsigned char buffer[PUT_NBYTES];
    size_t used = 0;

    if (n > (w->n_due - w->nbytes) / nbytes_each)
        return glue_fail(err, "%s: more elements than the header's tensors have", w->path);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = get(elems, i);

        for (size_t k = 0; k < nbytes_each; k++)
            buffer[used++] = (unsigned char)(bits >> 8 * k);
        if (used == sizeof buffer || i + 1 == n) {
            if (fwrite(buffer, 1, used, w->file) != used)
                return fail_write(w, err);
            used = 0;
        }
    }
    w->nbytes += n * nbytes_each;
    return 0;
}

static uint64_t float_bits(const void *elems, size_t i) {
    uint32_t bits;

    memcpy(&bits, (const float *)elems + i, sizeof bits);
    return bits;
}

static uint64_t word_bits(const void *elems, size_t i) { return ((const uint64_t *)elems)[i]; }

int host_safetensors_put_floats(host_safetensors_writer_t *w, const float *elems, size_t n, glue_error_t *err) {
    return put(w, float_bits, elems, n, sizeof *elems, err);
}

int host_safetensors_put_words(host_safetensors_writer_t *w, const uint64_t *words, size_t n, glue_error_t *err) {
    return put(w, word_bits, words, n, sizeof *words, err);
}

int host_safetensors_finish(host_safetensors_writer_t *w, glue_error_t *err) {
    int st = 0;

    if (w->nbytes != w->n_due)
        st = glue_fail(err, "%s: %llu of the %llu bytes that the header claims were given", w->path,
                       (unsigned long long)w->nbytes, (unsigned long long)w->n_due);
    else if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0)
        st = fail_write(w, err);
    if (fclose(w->file) != 0 && st == 0)
        st = fail_write(w, err);
    w->file = NULL;
    host_safetensors_abandon(w);
    return st;
}

void host_safetensors_abandon(host_safetensors_writer_t *w) {
    if (w == NULL)
        return;
    if (w->file != NULL)
        (void)fclose(w->file);
    free(w->path);
    free(w);
}
