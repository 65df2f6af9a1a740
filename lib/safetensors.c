/* SPDX-License-Identifier: Apache-2.0 */
/* lib/safetensors.c - header by jansson, data by pread (contract in safetensors.h).
 *
 * Every number of the header is checked before it is used: lengths against what the file has, products for overflow,
 * byte ranges against each other. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_NBYTES = 8, MAX_HEADER_NBYTES = 100 * 1000 * 1000, MAX_ELEMENT_NBYTES = 8 };

/* Says the reason to a caller that wants it. */
typedef struct why {
    char *text;
    size_t nbytes;
} why_t;

__attribute__((format(printf, 2, 3))) static int fail(const why_t *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, why->nbytes, format, args);
    va_end(args);
    return -1;
}

typedef struct dtype {
    const char *name;
    size_t nbytes;
} dtype_t;

static const dtype_t dtypes[] = {
    {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
    {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

static const dtype_t *find_dtype(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

static int read_at(const zf_safetensors_t *f, uint64_t offset, void *out, size_t nbytes, const why_t *why) {
    char *place = out;
    while (nbytes > 0) {
        ssize_t n = pread(f->fd, place, nbytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(why, "cannot read %zu bytes at byte %llu: %s", nbytes, (unsigned long long)offset,
                        n < 0 ? strerror(errno) : "the file has become shorter");
        place += n;
        offset += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return 0;
}

/* A JSON number that is whole and not negative. */
static int get_count(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return -1;
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

static int parse_shape(const json_t *shape, zf_safetensors_tensor_t *t, const why_t *why) {
    if (!json_is_array(shape) || json_array_size(shape) > ZF_SAFETENSORS_MAX_DIMS)
        return fail(why, "tensor %.80s: \"shape\" must be a list of at most %d numbers", t->name,
                    ZF_SAFETENSORS_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    t->n_elems = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (get_count(json_array_get(shape, (size_t)i), &t->shape[i]) != 0)
            return fail(why, "tensor %.80s: dimension %d of its shape is not a whole number from 0", t->name, i);
        if (t->shape[i] != 0 && t->n_elems > UINT64_MAX / MAX_ELEMENT_NBYTES / t->shape[i])
            return fail(why, "tensor %.80s: its shape has more elements than can be counted", t->name);
        t->n_elems *= t->shape[i];
    }
    return 0;
}

static int parse_range(const zf_safetensors_t *f, const json_t *range, size_t elem_nbytes, zf_safetensors_tensor_t *t,
                       const why_t *why) {
    uint64_t begin, end, n_data = f->nbytes - f->data_offset;
    if (!json_is_array(range) || json_array_size(range) != 2 || get_count(json_array_get(range, 0), &begin) != 0 ||
        get_count(json_array_get(range, 1), &end) != 0)
        return fail(why, "tensor %.80s: \"data_offsets\" must be two whole numbers", t->name);
    if (begin > end || end > n_data)
        return fail(why,
                    "tensor %.80s: bytes %llu to %llu are claimed; the file has %llu bytes of data: it is cut short",
                    t->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)n_data);
    if (end - begin != t->n_elems * elem_nbytes)
        return fail(why, "tensor %.80s: has %llu bytes; its shape in %s needs %llu", t->name,
                    (unsigned long long)(end - begin), t->dtype, (unsigned long long)(t->n_elems * elem_nbytes));
    t->offset = f->data_offset + begin;
    t->nbytes = end - begin;
    return 0;
}

static int parse_tensor(const zf_safetensors_t *f, const char *name, const json_t *entry, zf_safetensors_tensor_t *out,
                        const why_t *why) {
    zf_safetensors_tensor_t t = {.name = name};
    const dtype_t *dtype = find_dtype(json_string_value(json_object_get(entry, "dtype")));
    if (!json_is_object(entry))
        return fail(why, "tensor %.80s: found no JSON object in the header", name);
    if (dtype == NULL)
        return fail(why, "tensor %.80s: found \"dtype\" %.20s; F32, F16, BF16 or another type of the format is needed",
                    name,
                    json_is_string(json_object_get(entry, "dtype")) ? json_string_value(json_object_get(entry, "dtype"))
                                                                    : "that is no text");
    t.dtype = dtype->name;
    t.elem_nbytes = dtype->nbytes;
    if (parse_shape(json_object_get(entry, "shape"), &t, why) != 0 ||
        parse_range(f, json_object_get(entry, "data_offsets"), dtype->nbytes, &t, why) != 0)
        return -1;
    *out = t;
    return 0;
}

static int compare_offsets(const void *a, const void *b) {
    const zf_safetensors_tensor_t *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes;
}

/* The tensors cover the data from its first byte to its last, each byte once. */
static int check_cover(const zf_safetensors_t *f, const why_t *why) {
    uint64_t end = f->data_offset;
    for (size_t i = 0; i < f->n; i++) {
        const zf_safetensors_tensor_t *t = &f->tensors[i];

        if (t->offset < end)
            return fail(why, "tensors %.80s and %.80s overlap at byte %llu", f->tensors[i - 1].name, t->name,
                        (unsigned long long)t->offset);
        if (t->offset > end)
            break;
        end = t->offset + t->nbytes;
    }
    if (end != f->nbytes)
        return fail(why, "byte %llu of %llu belongs to no tensor", (unsigned long long)end,
                    (unsigned long long)f->nbytes);
    return 0;
}

static int parse_header(zf_safetensors_t *f, const why_t *why) {
    const char *name;
    json_t *entry;
    f->tensors = calloc(json_object_size(f->header) + 1, sizeof *f->tensors);
    if (f->tensors == NULL)
        return fail(why, "out of memory for %zu tensors", json_object_size(f->header));
    json_object_foreach(f->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (parse_tensor(f, name, entry, &f->tensors[f->n], why) != 0)
            return -1;
        f->n++;
    }
    qsort(f->tensors, f->n, sizeof *f->tensors, compare_offsets);
    return check_cover(f, why);
}

/* The header's JSON; repeated names are refused. */
static int load_header(zf_safetensors_t *f, size_t nbytes, const why_t *why) {
    char *text = malloc(nbytes + 1);
    json_error_t where;
    if (text == NULL)
        return fail(why, "out of memory for a header of %zu bytes", nbytes);
    if (read_at(f, LENGTH_NBYTES, text, nbytes, why) != 0) {
        free(text);
        return -1;
    }
    f->header = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &where);
    free(text);
    for (char *c = where.text; f->header == NULL && *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c; /* it quotes the file */
    if (!json_is_object(f->header))
        return fail(why, "the header is no JSON object: %s (byte %d)", f->header == NULL ? where.text : "another value",
                    f->header == NULL ? where.position : 0);
    return parse_header(f, why);
}

static int open_file(const char *path, zf_safetensors_t *f, const why_t *why) {
    unsigned char length[LENGTH_NBYTES];
    uint64_t n_header = 0;
    struct stat info;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &info) != 0)
        return fail(why, "cannot open: %s; a safetensors file is needed", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return fail(why, "is no regular file; a safetensors file is needed");
    f->nbytes = (uint64_t)info.st_size;
    if (f->nbytes < LENGTH_NBYTES)
        return fail(why, "has %llu bytes; a safetensors file begins with 8 bytes of length",
                    (unsigned long long)f->nbytes);
    if (read_at(f, 0, length, LENGTH_NBYTES, why) != 0)
        return -1;
    for (int i = LENGTH_NBYTES; i-- > 0;)
        n_header = n_header << 8 | length[i];
    if (n_header > f->nbytes - LENGTH_NBYTES || n_header > MAX_HEADER_NBYTES)
        return fail(why,
                    "claims a header of %llu bytes; the file has %llu and at most %d are read: it is cut short or no "
                    "safetensors file",
                    (unsigned long long)n_header, (unsigned long long)f->nbytes, MAX_HEADER_NBYTES);
    f->data_offset = LENGTH_NBYTES + n_header;
    return load_header(f, (size_t)n_header, why);
}

int zf_safetensors_open(const char *path, zf_safetensors_t *out, char *why, size_t why_nbytes) {
    zf_safetensors_t f = {.fd = -1};
    if (open_file(path, &f, &(why_t){why, why_nbytes}) != 0) {
        zf_safetensors_close(&f);
        return -1;
    }
    *out = f;
    return 0;
}

int zf_safetensors_read(const zf_safetensors_t *f, uint64_t offset, void *out, size_t nbytes, char *why,
                        size_t why_nbytes) {
    return read_at(f, offset, out, nbytes, &(why_t){why, why_nbytes});
}

void zf_safetensors_close(zf_safetensors_t *f) {
    if (f->fd >= 0)
        (void)close(f->fd);
    json_decref(f->header);
    free(f->tensors);
}
