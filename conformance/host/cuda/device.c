/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - compute.h's table on a CUDA device (device.h). */
#include "device.h"

#include "cublas.h"
#include "kernels.h"
#include "lib/cuda_driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_NON_BLOCKING = 1, DEVICE_NAME_NBYTES = 64 };

extern const char host_cuda_ptx[]; /* of kernels.cu, ends with a zero byte */

#define KERNELS(X)                                                                                                     \
    X(fill_rows)                                                                                                       \
    X(sum_rows)                                                                                                        \
    X(add)                                                                                                             \
    X(add_chosen_f32)                                                                                                  \
    X(add_chosen_bf16)                                                                                                 \
    X(take_chosen)                                                                                                     \
    X(add_to_chosen)                                                                                                   \
    X(widen_bf16)                                                                                                      \
    X(narrow_bf16)                                                                                                     \
    X(gelu_forward)                                                                                                    \
    X(gelu_backward)                                                                                                   \
    X(tanh_forward)                                                                                                    \
    X(tanh_backward)                                                                                                   \
    X(dropout)                                                                                                         \
    X(norm_forward)                                                                                                    \
    X(norm_sums)                                                                                                       \
    X(norm_backward)                                                                                                   \
    X(attention_scores)                                                                                                \
    X(attention_mix)                                                                                                   \
    X(attention_softmax)                                                                                               \
    X(attention_softmax_back)

enum {
#define NUMBER(name) K_##name,
    KERNELS(NUMBER)
#undef NUMBER
        N_KERNELS
};

static const char *const kernel_names[] = {
#define NAME(name) "host_" #name,
    KERNELS(NAME)
#undef NAME
};

/* Memory on the device that grows with what it is asked for, and its twin here. */
typedef struct growing {
    zf_cuda_address_t at;
    size_t nbytes;
    void *here; /* NULL: nothing is sent from here */
} growing_t;

typedef struct device {
    host_compute_t base;
    zf_cuda_driver_t cuda;
    int number, is_retained;
    void *context, *module;
    void *kernels[N_KERNELS];
    host_cublas_t *cublas;
    growing_t lists;   /* of rows, and places of tokens: each call sends its own */
    growing_t d_probs; /* scratch of attention's backward pass, of all heads at once */
} device_t;

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void fail(device_t *d, const char *what, int rc) {
    if (d->base.error.text[0] == '\0')
        (void)glue_fail(&d->base.error, "cuda: device %d: %s: CUDA error %d", d->number, what, rc);
}

static void check(device_t *d, const char *what, int rc) {
    if (rc != 0)
        fail(d, what, rc);
}

static int has_failed(const device_t *d) { return d->base.error.text[0] != '\0'; }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static zf_cuda_address_t address_of(const void *there) { return (zf_cuda_address_t)(uintptr_t)there; }

static void zero(host_compute_t *c, void *there, size_t nbytes) {
    device_t *d = (device_t *)c;
    if (nbytes > 0 && !has_failed(d))
        check(d, "cuMemsetD8Async", d->cuda.MemsetD8Async(address_of(there), 0, nbytes, d->base.stream));
}

static void *allocate(host_compute_t *c, size_t nbytes) {
    device_t *d = (device_t *)c;
    size_t n = nbytes > 0 ? nbytes : 1;
    zf_cuda_address_t at = 0;
    if (has_failed(d) || d->cuda.MemAlloc_v2(&at, n) != 0)
        return NULL;
    zero(c, (void *)(uintptr_t)at, n);
    return (void *)(uintptr_t)at;
}

/* What is enqueued may still use it. */
static void release(host_compute_t *c, void *there) {
    device_t *d = (device_t *)c;
    if (there == NULL)
        return;
    (void)d->cuda.StreamSynchronize(d->base.stream);
    (void)d->cuda.MemFree_v2(address_of(there));
}

static void copy_in(host_compute_t *c, void *there, const void *from, size_t nbytes) {
    device_t *d = (device_t *)c;
    if (nbytes > 0 && !has_failed(d)) /* pageable memory: it has been read when the call returns */
        check(d, "cuMemcpyHtoDAsync", d->cuda.MemcpyHtoDAsync_v2(address_of(there), from, nbytes, d->base.stream));
}

static void copy_out(host_compute_t *c, void *to, const void *there, size_t nbytes) {
    device_t *d = (device_t *)c;
    if (nbytes > 0 && !has_failed(d))
        check(d, "cuMemcpyDtoHAsync", d->cuda.MemcpyDtoHAsync_v2(to, address_of(there), nbytes, d->base.stream));
    if (!has_failed(d))
        check(d, "cuStreamSynchronize", d->cuda.StreamSynchronize(d->base.stream));
    if (has_failed(d))
        memset(to, 0, nbytes);
}

static void copy(host_compute_t *c, void *to, const void *from, size_t nbytes) {
    device_t *d = (device_t *)c;
    if (nbytes > 0 && !has_failed(d))
        check(d, "cuMemcpyDtoDAsync",
              d->cuda.MemcpyDtoDAsync_v2(address_of(to), address_of(from), nbytes, d->base.stream));
}

/* At least nbytes; 0, or -1 with the device's error set. */
static int grow(device_t *d, growing_t *memory, size_t nbytes, int has_twin) {
    size_t wanted = nbytes + nbytes / 2;
    if (has_failed(d))
        return -1;
    if (nbytes <= memory->nbytes)
        return 0;
    release(&d->base, (void *)(uintptr_t)memory->at);
    free(memory->here);
    *memory = (growing_t){.nbytes = wanted};
    memory->here = has_twin ? malloc(wanted) : NULL;
    if ((has_twin && memory->here == NULL) || d->cuda.MemAlloc_v2(&memory->at, wanted) != 0) {
        memory->nbytes = 0;
        (void)glue_fail(&d->base.error, "cuda: device %d: out of memory for %zu bytes", d->number, wanted);
        return -1;
    }
    return 0;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void launch(device_t *d, int kernel, uint64_t n_blocks, unsigned n_threads, void **args) {
    unsigned blocks = n_blocks < HOST_CUDA_MOST_BLOCKS ? (unsigned)n_blocks : HOST_CUDA_MOST_BLOCKS;
    if (blocks > 0 && !has_failed(d))
        check(d, kernel_names[kernel],
              d->cuda.LaunchKernel(d->kernels[kernel], blocks, 1, 1, n_threads, 1, 1, 0, d->base.stream, args, NULL));
}

/* The addresses of what follows are the kernel's arguments: variables of its parameters' types (size_t is uint64_t). */
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "kernels take 64-bit sizes");
#define LAUNCH(d, name, n_blocks, n_threads, ...) launch(d, K_##name, n_blocks, n_threads, (void *[]){__VA_ARGS__})
#define LAUNCH_EACH(d, name, n, ...)                                                                                   \
    LAUNCH(d, name, ((n) + HOST_CUDA_THREADS - 1) / HOST_CUDA_THREADS, HOST_CUDA_THREADS, __VA_ARGS__)

static void fill_rows(host_compute_t *c, host_real_t *y, const host_real_t *row, size_t n, size_t width) {
    LAUNCH_EACH((device_t *)c, fill_rows, n * width, &y, &row, &n, &width);
}

static void sum_rows(host_compute_t *c, const host_real_t *x, size_t n, size_t width, host_real_t *sum) {
    LAUNCH_EACH((device_t *)c, sum_rows, width, &x, &n, &width, &sum);
}

static void add(host_compute_t *c, host_real_t *x, const host_real_t *y, size_t n) {
    LAUNCH_EACH((device_t *)c, add, n, &x, &y, &n);
}

static void gelu_forward(host_compute_t *c, const host_real_t *x, size_t n, host_real_t *y, host_real_t *cdf) {
    LAUNCH_EACH((device_t *)c, gelu_forward, n, &x, &n, &y, &cdf);
}

static void gelu_backward(host_compute_t *c, const host_real_t *x, const host_real_t *cdf, size_t n, host_real_t *d) {
    LAUNCH_EACH((device_t *)c, gelu_backward, n, &x, &cdf, &n, &d);
}

static void tanh_forward(host_compute_t *c, host_real_t *x, size_t n) {
    LAUNCH_EACH((device_t *)c, tanh_forward, n, &x, &n);
}

static void tanh_backward(host_compute_t *c, const host_real_t *y, size_t n, host_real_t *d) {
    LAUNCH_EACH((device_t *)c, tanh_backward, n, &y, &n, &d);
}

static void dropout(host_compute_t *c, host_real_t *x, size_t n, double probability, glue_rng_t rng) {
    uint64_t key = rng.key;
    float scale = (float)(1.0 / (1.0 - probability));
    if (probability > 0.0)
        LAUNCH_EACH((device_t *)c, dropout, n, &x, &n, &probability, &scale, &key);
}

static void norm_forward(host_compute_t *c, host_affine_arrays_t p, size_t n, size_t width, double eps, host_real_t *x,
                         host_real_t *normal, host_real_t *inverse_deviation) {
    float small = (float)eps;
    LAUNCH((device_t *)c, norm_forward, n, HOST_CUDA_THREADS, &p.weight, &p.bias, &n, &width, &small, &x, &normal,
           &inverse_deviation);
}

static void norm_backward(host_compute_t *c, const host_real_t *weight, const host_real_t *normal,
                          const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                          host_affine_arrays_t grad) {
    LAUNCH_EACH((device_t *)c, norm_sums, width, &d, &normal, &n, &width, &grad.weight, &grad.bias);
    LAUNCH((device_t *)c, norm_backward, n, HOST_CUDA_THREADS, &weight, &normal, &inverse_deviation, &n, &width, &d);
}

static void widen(host_compute_t *c, const void *value, host_dtype_t type, size_t n, host_real_t *wide) {
    if (type == HOST_FLOAT32)
        copy(c, wide, value, n * sizeof *wide);
    else
        LAUNCH_EACH((device_t *)c, widen_bf16, n, &value, &n, &wide);
}

static void narrow(host_compute_t *c, const host_real_t *wide, host_dtype_t type, size_t n, void *value) {
    if (type == HOST_FLOAT32)
        copy(c, value, wide, n * sizeof *wide);
    else
        LAUNCH_EACH((device_t *)c, narrow_bf16, n, &wide, &n, &value);
}

/* ---- chosen rows ------------------------------------------------------------------------------------------------- */

static const int32_t *send_rows(device_t *d, const int32_t *rows, size_t n) {
    if (grow(d, &d->lists, n * sizeof *rows, 1) != 0)
        return NULL;
    copy_in(&d->base, (void *)(uintptr_t)d->lists.at, rows, n * sizeof *rows);
    return (const int32_t *)(uintptr_t)d->lists.at;
}

static void add_chosen(host_compute_t *c, const void *table, host_dtype_t type, const int32_t *rows, size_t n,
                       size_t width, host_real_t *x) {
    device_t *d = (device_t *)c;
    const int32_t *list = send_rows(d, rows, n);
    if (type == HOST_FLOAT32)
        LAUNCH_EACH(d, add_chosen_f32, n * width, &table, &list, &n, &width, &x);
    else
        LAUNCH_EACH(d, add_chosen_bf16, n * width, &table, &list, &n, &width, &x);
}

static void take_chosen(host_compute_t *c, const host_real_t *table, const int32_t *rows, size_t n, size_t width,
                        host_real_t *x) {
    const int32_t *list = send_rows((device_t *)c, rows, n);
    LAUNCH_EACH((device_t *)c, take_chosen, n * width, &table, &list, &n, &width, &x);
}

static int by_row_and_place(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Rows that are equal become one piece, which a thread sums in x's order: no two threads add to one element. */
static void add_to_chosen(host_compute_t *c, host_real_t *table, const int32_t *rows, size_t n, size_t width,
                          const host_real_t *x) {
    device_t *d = (device_t *)c;
    uint64_t *keys, n_pieces = 0;
    int32_t *order, *first, *piece_rows, *there;
    if (n == 0 || grow(d, &d->lists, n * sizeof *keys + (3 * n + 1) * sizeof *order, 1) != 0)
        return;
    keys = d->lists.here;
    order = (int32_t *)(keys + n); /* [n], then first [n + 1], then rows [n]: sent as one */
    first = order + n;
    piece_rows = first + n + 1;
    for (size_t i = 0; i < n; i++)
        keys[i] = (uint64_t)(uint32_t)rows[i] << 32 | i;
    qsort(keys, n, sizeof *keys, by_row_and_place);
    for (size_t i = 0; i < n; i++) {
        order[i] = (int32_t)(uint32_t)keys[i];
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32) {
            piece_rows[n_pieces] = (int32_t)(keys[i] >> 32);
            first[n_pieces++] = (int32_t)i;
        }
    }
    first[n_pieces] = (int32_t)n;
    there = (int32_t *)(uintptr_t)d->lists.at;
    copy_in(c, there, order, (3 * n + 1) * sizeof *order);
    order = there;
    first = there + n;
    piece_rows = first + n + 1;
    LAUNCH_EACH(d, add_to_chosen, n_pieces * width, &table, &piece_rows, &first, &order, &n_pieces, &width, &x);
}

/* ---- products and attention -------------------------------------------------------------------------------------- */

static void matmul(host_compute_t *c, size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep,
                   host_real_t *out) {
    device_t *d = (device_t *)c;
    if (m > 0 && n > 0 && !has_failed(d))
        check(d, "cublasGemmEx (its status)", host_cublas_matmul(d->cublas, m, n, k, a, b, keep, out));
}

typedef struct attention {
    const host_cuda_place_t *places;
    uint64_t n_tokens, n_heads, width, n_rows, n_probs;
} attention_t;

static int send_places(device_t *d, const host_attention_shape_t *shape, attention_t *out) {
    size_t n_tokens = (size_t)shape->starts[shape->n_sequences];
    host_cuda_place_t *places;
    *out = (attention_t){.n_tokens = n_tokens,
                         .n_heads = shape->n_heads,
                         .width = shape->head_width,
                         .n_rows = n_tokens * shape->n_heads};
    if (grow(d, &d->lists, n_tokens * sizeof *places, 1) != 0)
        return -1;
    places = d->lists.here;
    for (size_t s = 0; s < shape->n_sequences; s++) {
        int32_t first = shape->starts[s], length = shape->starts[s + 1] - first;
        for (int32_t t = first; t < first + length; t++)
            places[t] = (host_cuda_place_t){first, length, out->n_probs};
        out->n_probs += shape->n_heads * (uint64_t)length * (uint64_t)length;
    }
    out->places = (const host_cuda_place_t *)(uintptr_t)d->lists.at;
    copy_in(&d->base, (void *)(uintptr_t)d->lists.at, places, n_tokens * sizeof *places);
    return 0;
}

#define LAUNCH_ROWS(d, name, a, ...)                                                                                   \
    LAUNCH(d, name, (a).n_rows, HOST_CUDA_ROW_THREADS, &(a).places, &(a).n_tokens, &(a).n_heads, &(a).width,           \
           __VA_ARGS__)

static void attention_forward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                              const host_real_t *k, const host_real_t *v, host_real_t *probs, host_real_t *context) {
    device_t *d = (device_t *)c;
    float scale = (float)(1.0 / sqrt((double)shape->head_width)), one = 1.0f;
    uint32_t no = 0;
    attention_t a;
    if (send_places(d, shape, &a) != 0)
        return;
    LAUNCH_ROWS(d, attention_scores, a, &scale, &q, &k, &probs);
    LAUNCH_ROWS(d, attention_softmax, a, &probs);
    LAUNCH_ROWS(d, attention_mix, a, &one, &no, &probs, &v, &context);
}

static void attention_backward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                               const host_real_t *k, const host_real_t *v, const host_real_t *probs,
                               const host_real_t *d_context, host_real_t *d_probs, host_real_t *dq, host_real_t *dk,
                               host_real_t *dv) {
    device_t *d = (device_t *)c;
    float scale = (float)(1.0 / sqrt((double)shape->head_width)), one = 1.0f;
    uint32_t no = 0, yes = 1;
    float *d_scores;
    attention_t a;
    (void)d_probs; /* of one head; here all of them are in work */
    if (send_places(d, shape, &a) != 0 || grow(d, &d->d_probs, a.n_probs * sizeof *d_scores, 0) != 0)
        return;
    d_scores = (float *)(uintptr_t)d->d_probs.at;
    LAUNCH_ROWS(d, attention_mix, a, &one, &yes, &probs, &d_context, &dv);
    LAUNCH_ROWS(d, attention_scores, a, &one, &d_context, &v, &d_scores);
    LAUNCH_ROWS(d, attention_softmax_back, a, &probs, &d_scores);
    LAUNCH_ROWS(d, attention_mix, a, &scale, &no, &d_scores, &k, &dq);
    LAUNCH_ROWS(d, attention_mix, a, &scale, &yes, &d_scores, &q, &dk);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static void close_device(host_compute_t *c) {
    device_t *d = (device_t *)c;
    if (d->is_retained) /* another device may be current since */
        (void)d->cuda.CtxSetCurrent(d->context);
    host_cublas_close(d->cublas);
    if (d->base.stream != NULL) {
        release(c, (void *)(uintptr_t)d->lists.at);
        release(c, (void *)(uintptr_t)d->d_probs.at);
        (void)d->cuda.StreamDestroy_v2(d->base.stream);
    }
    free(d->lists.here);
    if (d->module != NULL)
        (void)d->cuda.ModuleUnload(d->module);
    if (d->is_retained) {
        (void)d->cuda.CtxSetCurrent(NULL);
        (void)d->cuda.DevicePrimaryCtxRelease_v2(d->number);
    }
    free(d);
}

static const host_compute_ops_t cuda_ops = {
    .name = "cuda", .copy_in = copy_in, .copy_out = copy_out, HOST_COMPUTE_OWN, .close = close_device};

static int find_device(device_t *d, char name[DEVICE_NAME_NBYTES], glue_error_t *err) {
    int n = 0, device, rc = d->cuda.Init(0);
    if (rc == 0)
        rc = d->cuda.DeviceGetCount(&n);
    if (rc != 0 || d->number < 0 || d->number >= n)
        return glue_fail(err, "cuda: found %d devices (CUDA error %d); device %d is asked for", n, rc, d->number);
    check(d, "cuDeviceGet", d->cuda.DeviceGet(&device, d->number));
    check(d, "cuDeviceGetName", d->cuda.DeviceGetName(name, DEVICE_NAME_NBYTES, device));
    rc = d->cuda.DevicePrimaryCtxRetain(&d->context, device);
    d->is_retained = rc == 0;
    check(d, "cuDevicePrimaryCtxRetain", rc);
    if (!has_failed(d))
        check(d, "cuCtxSetCurrent", d->cuda.CtxSetCurrent(d->context));
    if (!has_failed(d))
        check(d, "cuStreamCreate", d->cuda.StreamCreate(&d->base.stream, STREAM_NON_BLOCKING));
    return host_compute_check(&d->base, err);
}

static int load_kernels(device_t *d, glue_error_t *err) {
    check(d, "cuModuleLoadData", d->cuda.ModuleLoadData(&d->module, host_cuda_ptx));
    for (int i = 0; i < N_KERNELS && !has_failed(d); i++)
        check(d, kernel_names[i], d->cuda.ModuleGetFunction(&d->kernels[i], d->module, kernel_names[i]));
    return host_compute_check(&d->base, err);
}

static int open_products(device_t *d, int is_bf16, const char *device, glue_error_t *err) {
    if (host_cublas_open(d->base.stream, is_bf16, &d->cublas, err) != 0)
        return -1;
    (void)snprintf(d->base.what, sizeof d->base.what, "%s, products by cuBLAS %d%s", device,
                   host_cublas_version(d->cublas), is_bf16 ? " in bf16" : "");
    return 0;
}

static int open_driver(device_t *d, glue_error_t *err) {
    char why[256];
    return zf_cuda_driver_open(&d->cuda, why, sizeof why) != 0 ? glue_fail(err, "cuda: %s", why) : 0;
}

int host_cuda_open(int device, int is_bf16, host_compute_t **out, glue_error_t *err) {
    device_t *d = calloc(1, sizeof *d);
    char name[DEVICE_NAME_NBYTES] = "";
    *out = NULL;
    if (d == NULL)
        return glue_fail(err, "cuda: out of memory");
    d->base = (host_compute_t){.ops = &cuda_ops, .device_type = 2 /* ZF_DEVICE_CUDA */};
    d->base.device_id = d->number = device;
    if (open_driver(d, err) != 0 || find_device(d, name, err) != 0 || load_kernels(d, err) != 0 ||
        open_products(d, is_bf16, name, err) != 0) {
        close_device(&d->base);
        return -1;
    }
    *out = &d->base;
    return 0;
}
