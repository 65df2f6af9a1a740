/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - header by jansson, data by pread (safetensors.h).
 *
 * Every number of the header is checked before it is used: lengths against what the file has, products for overflow,
 * byte ranges against each other. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include "bfloat16.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_NBYTES = 8, MAX_HEADER_NBYTES = 100 * 1000 * 1000, MAX_ELEMENT_NBYTES = 8, READ_ELEMS = 65536 };

struct host_safetensors {
    char *path;
    int fd;
    uint64_t nbytes, data_offset; /* of the file; where the tensors' bytes begin */
    json_t *header;               /* owns names */
    host_tensor_t *tensors;       /* sorted by offset */
    size_t n;
};

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

static int read_at(const host_safetensors_t *f, uint64_t offset, void *out, size_t nbytes, glue_error_t *err) {
    char *place = out;

    while (nbytes > 0) {
        ssize_t n = pread(f->fd, place, nbytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return glue_fail(err, "%s: cannot read %zu bytes at byte %llu: %s", f->path, nbytes,
                             (unsigned long long)offset, n < 0 ? strerror(errno) : "the file has become shorter");
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

static int parse_shape(const host_safetensors_t *f, const json_t *shape, host_tensor_t *t, glue_error_t *err) {
    if (!json_is_array(shape) || json_array_size(shape) > HOST_TENSOR_MAX_DIMS)
        return glue_fail(err, "%s: tensor %.80s: \"shape\" must be a list of at most %d numbers", f->path, t->name,
                         HOST_TENSOR_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    t->n_elems = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (get_count(json_array_get(shape, (size_t)i), &t->shape[i]) != 0)
            return glue_fail(err, "%s: tensor %.80s: dimension %d of its shape is not a whole number from 0", f->path,
                             t->name, i);
        if (t->shape[i] != 0 && t->n_elems > UINT64_MAX / MAX_ELEMENT_NBYTES / t->shape[i])
            return glue_fail(err, "%s: tensor %.80s: its shape has more elements than can be counted", f->path,
                             t->name);
        t->n_elems *= t->shape[i];
    }
    return 0;
}

static int parse_range(const host_safetensors_t *f, const json_t *range, size_t elem_nbytes, host_tensor_t *t,
                       glue_error_t *err) {
    uint64_t begin, end, n_data = f->nbytes - f->data_offset;

    if (!json_is_array(range) || json_array_size(range) != 2 || get_count(json_array_get(range, 0), &begin) != 0 ||
        get_count(json_array_get(range, 1), &end) != 0)
        return glue_fail(err, "%s: tensor %.80s: \"data_offsets\" must be two whole numbers", f->path, t->name);
    if (begin > end || end > n_data)
        return glue_fail(err, "%s: tensor %.80s: bytes %llu to %llu are claimed; the file has %llu bytes of data",
                         f->path, t->name, (unsigned long long)begin, (unsigned long long)end,
                         (unsigned long long)n_data);
    if (end - begin != t->n_elems * elem_nbytes)
        return glue_fail(err, "%s: tensor %.80s: has %llu bytes; its shape in %s needs %llu", f->path, t->name,
                         (unsigned long long)(end - begin), t->dtype, (unsigned long long)(t->n_elems * elem_nbytes));
    t->offset = f->data_offset + begin;
    t->nbytes = end - begin;
    return 0;
}

static int parse_tensor(const host_safetensors_t *f, const char *name, const json_t *entry, host_tensor_t *out,
                        glue_error_t *err) {
    host_tensor_t t = {.name = name};
    const dtype_t *dtype = find_dtype(json_string_value(json_object_get(entry, "dtype")));

    if (!json_is_object(entry))
        return glue_fail(err, "%s: tensor %.80s: found no JSON object in the header", f->path, name);
    if (dtype == NULL)
        return glue_fail(err,
                         "%s: tensor %.80s: found \"dtype\" %.20s; F32, F16, BF16 or another type of the format is "
                         "needed",
                         f->path, name,
                         json_is_string(json_object_get(entry, "dtype"))
                             ? json_string_value(json_object_get(entry, "dtype"))
                             : "that is no text");
    t.dtype = dtype->name;
    if (parse_shape(f, json_object_get(entry, "shape"), &t, err) != 0 ||
        parse_range(f, json_object_get(entry, "data_offsets"), dtype->nbytes, &t, err) != 0)
        return -1;
    *out = t;
    return 0;
}

static int compare_offsets(const void *a, const void *b) {
    const host_tensor_t *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes;
}

/* The tensors cover the data from its first byte to its last, each byte once. */
static int check_cover(const host_safetensors_t *f, glue_error_t *err) {
    uint64_t end = f->data_offset;

    for (size_t i = 0; i < f->n; i++) {
        const host_tensor_t *t = &f->tensors[i];

        if (t->offset < end)
            return glue_fail(err, "%s: tensors %.80s and %.80s overlap at byte %llu", f->path, f->tensors[i - 1].name,
                             t->name, (unsigned long long)t->offset);
        if (t->offset > end)
            break;
        end = t->offset + t->nbytes;
    }
    if (end != f->nbytes)
        return glue_fail(err, "%s: byte %llu of %llu belongs to no tensor", f->path, (unsigned long long)end,
                         (unsigned long long)f->nbytes);
    return 0;
}

static int parse_header(host_safetensors_t *f, glue_error_t *err) {
    const char *name;
    json_t *entry;

    f->tensors = calloc(json_object_size(f->header) + 1, sizeof *f->tensors);
    if (f->tensors == NULL)
        return glue_fail(err, "%s: out of memory for %zu tensors", f->path, json_object_size(f->header));
    json_object_foreach(f->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (parse_tensor(f, name, entry, &f->tensors[f->n], err) != 0)
            return -1;
        f->n++;
    }
    qsort(f->tensors, f->n, sizeof *f->tensors, compare_offsets);
    return check_cover(f, err);
}

/* The header's JSON; repeated names are refused. */
static int load_header(host_safetensors_t *f, size_t nbytes, glue_error_t *err) {
    char *text = malloc(nbytes + 1);
    json_error_t where;

    if (text == NULL)
        return glue_fail(err, "%s: out of memory for a header of %zu bytes", f->path, nbytes);
    if (read_at(f, LENGTH_NBYTES, text, nbytes, err) != 0) {
        free(text);
        return -1;
    }
    f->header = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &where);
    free(text);
    if (!json_is_object(f->header))
        return glue_fail(err, "%s: the header is no JSON object: %s (byte %d)", f->path,
                         f->header == NULL ? where.text : "another value", f->header == NULL ? where.position : 0);
    return parse_header(f, err);
}

static int open_file(host_safetensors_t *f, glue_error_t *err) {
    unsigned char length[LENGTH_NBYTES];
    uint64_t n_header = 0;
    struct stat info;

    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &info) != 0)
        return glue_fail(err, "%s: cannot open: %s; a safetensors file is needed", f->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return glue_fail(err, "%s: is no regular file; a safetensors file is needed", f->path);
    f->nbytes = (uint64_t)info.st_size;
    if (f->nbytes < LENGTH_NBYTES)
        return glue_fail(err, "%s: has %llu bytes; a safetensors file begins with 8 bytes of length", f->path,
                         (unsigned long long)f->nbytes);
    if (read_at(f, 0, length, LENGTH_NBYTES, err) != 0)
        return -1;
    for (int i = LENGTH_NBYTES; i-- > 0;)
        n_header = n_header << 8 | length[i];
    if (n_header > f->nbytes - LENGTH_NBYTES || n_header > MAX_HEADER_NBYTES)
        return glue_fail(err,
                         "%s: claims a header of %llu bytes; the file has %llu and at most %d are read: it is cut "
                         "short or no safetensors file",
                         f->path, (unsigned long long)n_header, (unsigned long long)f->nbytes, MAX_HEADER_NBYTES);
    f->data_offset = LENGTH_NBYTES + n_header;
    return load_header(f, (size_t)n_header, err);
}

int host_safetensors_open(const char *path, host_safetensors_t **out, glue_error_t *err) {
    host_safetensors_t *f = calloc(1, sizeof *f);

    if (f != NULL) {
        f->fd = -1;
        f->path = strdup(path);
    }
    if (f == NULL || f->path == NULL) {
        free(f);
        return glue_fail(err, "%s: out of memory", path);
    }
    if (open_file(f, err) != 0) {
        host_safetensors_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

void host_safetensors_close(host_safetensors_t *f) {
    if (f == NULL)
        return;
    if (f->fd >= 0)
        (void)close(f->fd);
    json_decref(f->header);
    free(f->tensors);
    free(f->path);
    free(f);
}

size_t host_safetensors_n(const host_safetensors_t *f) { return f->n; }

const char *host_safetensors_path(const host_safetensors_t *f) { return f->path; }

const host_tensor_t *host_safetensors_find(const host_safetensors_t *f, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
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
    size_t elem_nbytes = find_dtype(t->dtype)->nbytes;
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

int host_safetensors_read_words(const host_safetensors_t *f, const host_tensor_t *t, size_t n, uint64_t *out,
                                glue_error_t *err) {
    if (find_dtype(t->dtype)->nbytes != sizeof *out || t->n_elems != n)
        return glue_fail(err, "%s: tensor %.80s has %llu elements of %s; %zu of 8 bytes are needed", f->path, t->name,
                         (unsigned long long)t->n_elems, t->dtype, n);
    if (read_at(f, t->offset, out, n * sizeof *out, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        unsigned char b[sizeof *out];
        uint64_t word = 0;

        memcpy(b, &out[i], sizeof b);
        for (int k = (int)sizeof b; k-- > 0;)
            word = word << 8 | b[k];
        out[i] = word;
    }
    return 0;
}
