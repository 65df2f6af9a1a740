/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.c - the device's pass over the gradient against a plain copy of device memory, in the same run.
 *
 * One launch of zf_statistics over a gradient [rows][cols], cut into matrices as the plugin cuts it, with importance of
 * columns or rows and the gradient of the selected channels gathered; its sums are compared bit for bit with the CPU's
 * kernels first. Bytes counted: the gradient once, what is gathered once read (it is part of the gradient: not counted
 * again) and once written. The copy's bytes: read and written. Times are medians of device events.
 *
 *   zf-bench-gpu [--rows N] [--cols N] [--k SHARE] [--repeats N] [--link-mib N] [--module FILE] [--json FILE] */
#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/images.h"
#include "cuda/params.h"
#include "lib/cuda_driver.h"

enum { MOST_REPEATS = 200 };

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxSynchronize)                                                                                                \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemcpyHtoD)                                                                                                    \
    X(cuMemcpyDtoH)                                                                                                    \
    X(cuMemcpyDtoDAsync)                                                                                               \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemsetD8)                                                                                                      \
    X(cuStreamCreate)                                                                                                  \
    X(cuEventCreate)                                                                                                   \
    X(cuEventRecord)                                                                                                   \
    X(cuEventElapsedTime)                                                                                              \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleGetFunction)                                                                                             \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                                     \
    X(cuLaunchKernel)

static struct driver {
#define MEMBER(name) __typeof__(name) *name##_;
    FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

typedef struct options {
    uint64_t rows, cols, link_nbytes;
    double k;
    int n_repeats;
    const char *module, *json;
} options_t;

typedef struct bench {
    options_t o;
    zfi_dtype_t dtype;
    int by_rows;
    uint64_t n_elems, rows_per_matrix;
    uint32_t n_matrices, n_selected;
    zfi_data_t host, *device_data;
    void *gradient; /* the host's */
    CUdeviceptr grad;
    CUmodule module;
    CUfunction statistics, norm;
    CUdeviceptr has_ended;
    unsigned n_blocks;
    CUstream stream;
} bench_t;

static void check(CUresult rc, const char *what) {
    if (rc == CUDA_SUCCESS)
        return;
    fprintf(stderr, "zf-bench-gpu: %s: CUDA error %d\n", what, (int)rc);
    exit(2);
}

static void open_driver(void) {
    zf_cuda_driver_t driver;
    char why[256];
    const struct function {
        const char *name;
        void *at;
    } functions[] = {
#define ROW(name) {#name, &cu.name##_},
        FUNCTIONS(ROW)
#undef ROW
    };
    if (zf_cuda_driver_open(&driver, why, sizeof why) != 0) {
        fprintf(stderr, "zf-bench-gpu: %s\n", why);
        exit(77);
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        check((CUresult)driver.GetProcAddress_v2(functions[i].name, functions[i].at, 12000, 0, NULL),
              functions[i].name);
}

static void *upload(const void *from, uint64_t nbytes) {
    CUdeviceptr to = 0;
    check(cu.cuMemAlloc_(&to, nbytes ? nbytes : 1), "memory");
    check(from ? cu.cuMemcpyHtoD_(to, from, nbytes) : cu.cuMemsetD8_(to, 0, nbytes ? nbytes : 1), "a copy");
    return (void *)(uintptr_t)to;
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void fill_gradient(bench_t *b) {
    uint64_t state = 7;
    b->gradient = malloc(b->n_elems * zfi_dtype_nbytes(b->dtype));
    for (uint64_t i = 0; i < b->n_elems; i++) {
        float x = ((float)(int32_t)next_random(&state) - 1073741824.0f) * 0x1p-40f;
        uint16_t half = b->dtype == ZFI_BF16 ? zfi_f32_to_bf16(x) : zfi_f32_to_f16(x);
        if (b->dtype == ZFI_F32)
            ((float *)b->gradient)[i] = x;
        else
            ((uint16_t *)b->gradient)[i] = half;
    }
}

static void make_tables(bench_t *b) {
    const uint64_t units = zfi_sum_units(b->rows_per_matrix, b->o.cols, b->by_rows);
    zfi_data_param_t param = {.n_elems = b->n_elems,
                              .n_units = b->n_matrices * units,
                              .grad_dtype = b->dtype,
                              .n_matrices = b->n_matrices,
                              .channels_are_rows = b->by_rows,
                              .counts_in_norm = 1};
    zfi_data_matrix_t *matrices = calloc(b->n_matrices, sizeof *matrices);
    uint64_t channels = b->by_rows ? b->rows_per_matrix : b->o.cols, other = b->n_elems / b->n_matrices / channels;
    uint32_t k = (uint32_t)(b->o.k * (double)channels + 0.5);
    uint32_t *index = calloc((uint64_t)b->n_matrices * k + 1, sizeof *index);
    uint64_t elem = zfi_dtype_nbytes(b->dtype);
    for (uint32_t i = 0; i < b->n_matrices; i++) {
        matrices[i] = (zfi_data_matrix_t){.k = k,
                                          .n_channels = (uint32_t)channels,
                                          .channels_are_rows = b->by_rows,
                                          .has_sums = 1,
                                          .rows = b->rows_per_matrix,
                                          .cols = b->o.cols,
                                          .param_offset = i * b->rows_per_matrix * b->o.cols,
                                          .grad_offset = i * b->rows_per_matrix * b->o.cols,
                                          .grad_base = (uint64_t)i * k * other * elem,
                                          .index_base = (uint64_t)i * k,
                                          .sum_base = i * channels,
                                          .unit_base = i * units};
        for (uint32_t j = 0; j < k; j++)
            index[i * k + j] = (uint32_t)((uint64_t)j * channels / k);
    }
    b->n_selected = k;
    b->host = (zfi_data_t){.n_params = 1, .n_matrices = b->n_matrices};
    b->host.params = upload(&param, sizeof param);
    b->host.matrices = upload(matrices, b->n_matrices * sizeof *matrices);
    b->host.index = upload(index, ((uint64_t)b->n_matrices * k + 1) * sizeof *index);
    b->host.grad = upload(NULL, (uint64_t)b->n_matrices * k * other * elem);
    b->host.sums[0] = b->host.sums[1] = upload(NULL, b->n_matrices * channels * sizeof(double));
    b->host.sum_squares = upload(NULL, sizeof(double));
    b->host.has_nonfinite = upload(NULL, 1);
    b->host.unit_squares = upload(NULL, b->n_matrices * units * sizeof(double));
    b->device_data = upload(&b->host, sizeof b->host);
    free(matrices);
    free(index);
}

static void load(bench_t *b, CUdevice device) {
    int n_at_once = 0, n_processors, major;
    char *file = NULL;
    const void *image = zfi_cuda_ptx;
    check(cu.cuDeviceGetAttribute_(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), "attribute");
    for (uint32_t i = 0; i < zfi_cuda_n_images; i++)
        if (zfi_cuda_images[i].major == major)
            image = zfi_cuda_images[i].begin;
    if (b->o.module) {
        FILE *in = fopen(b->o.module, "rb");
        file = calloc(1, 8 << 20);
        if (!in || fread(file, 1, (8 << 20) - 1, in) == 0)
            exit(2);
        fclose(in);
        image = file;
    }
    check(cu.cuModuleLoadData_(&b->module, image), "module");
    check(cu.cuModuleGetFunction_(&b->statistics, b->module, "zf_statistics"), "zf_statistics");
    check(cu.cuModuleGetFunction_(&b->norm, b->module, "zf_norm_params"), "zf_norm_params");
    check(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor_(&n_at_once, b->statistics, ZFI_CUDA_THREADS, 0), "occupancy");
    check(cu.cuDeviceGetAttribute_(&n_processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "attribute");
    b->n_blocks = (unsigned)(n_at_once < 1 ? 1 : n_at_once) * (unsigned)n_processors;
    free(file);
}

static void launch(const bench_t *b, CUfunction function, const void *args, unsigned n_blocks) {
    CUdeviceptr ended = b->has_ended;
    void *parameters[] = {(void *)(uintptr_t)args, &ended};
    check(cu.cuLaunchKernel_(function, n_blocks, 1, 1, ZFI_CUDA_THREADS, 1, 1, 0, b->stream, parameters, NULL),
          "launch");
}

static void pass(const bench_t *b) {
    zfi_cuda_statistics_t args = {.data = b->device_data, .n = 1, .gathers = b->o.k > 0};
    args.list[0].grad = (const void *)(uintptr_t)b->grad;
    launch(b, b->statistics, &args, b->n_blocks);
}

static void finish_norm(const bench_t *b) {
    zfi_cuda_statistics_t args = {.data = b->device_data, .n = 1};
    launch(b, b->norm, &args, b->n_blocks);
}

/* ---- the CPU's bits ---------------------------------------------------------------------------------------------- */

static uint64_t count_different(const bench_t *b) {
    uint64_t channels = b->by_rows ? b->rows_per_matrix : b->o.cols, n = 0, n_sums = b->n_matrices * channels;
    double *found = calloc(n_sums, sizeof *found), *expected = calloc(n_sums, sizeof *expected), squares = 0;
    zfi_stats_matrix_t *matrices = calloc(b->n_matrices, sizeof *matrices);
    zfi_stats_t job = {b->gradient, b->dtype, b->by_rows, matrices, b->n_matrices};
    zfi_stats_result_t result;
    for (uint32_t i = 0; i < b->n_matrices; i++)
        matrices[i] = (zfi_stats_matrix_t){b->rows_per_matrix, b->o.cols, expected + i * channels};
    zfi_kernels_of(zfi_isa_best())->stats(&job, &result);
    check(cu.cuMemcpyDtoH_(found, (CUdeviceptr)(uintptr_t)b->host.sums[0], n_sums * sizeof *found), "a copy");
    check(cu.cuMemcpyDtoH_(&squares, (CUdeviceptr)(uintptr_t)b->host.sum_squares, sizeof squares), "a copy");
    for (uint64_t i = 0; i < n_sums; i++)
        n += memcmp(&found[i], &expected[i], sizeof *found) != 0;
    n += memcmp(&squares, &result.sum_squares, sizeof squares) != 0;
    free(found);
    free(expected);
    free(matrices);
    return n;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

typedef void (*work_fn)(const bench_t *b);

static double median_ms(const bench_t *b, work_fn work) {
    float ms[MOST_REPEATS];
    CUevent begin, end;
    check(cu.cuEventCreate_(&begin, 0), "event");
    check(cu.cuEventCreate_(&end, 0), "event");
    for (int i = -3; i < b->o.n_repeats; i++) {
        check(cu.cuEventRecord_(begin, b->stream), "event");
        work(b);
        check(cu.cuEventRecord_(end, b->stream), "event");
        check(cu.cuCtxSynchronize_(), "work");
        if (i >= 0)
            check(cu.cuEventElapsedTime_(&ms[i], begin, end), "event");
    }
    qsort(ms, (size_t)b->o.n_repeats, sizeof *ms, by_value);
    return ms[b->o.n_repeats / 2];
}

static CUdeviceptr copy_target;

static void copy(const bench_t *b) {
    check(cu.cuMemcpyDtoDAsync_(copy_target, b->grad, b->n_elems * zfi_dtype_nbytes(b->dtype), b->stream), "copy");
}

static void run(bench_t *b, FILE *json, int is_first) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    uint64_t elem = zfi_dtype_nbytes(b->dtype), nbytes, written;
    double pass_ms, copy_ms, norm_ms, rate, limit;
    uint64_t different;
    b->n_elems = b->o.rows * b->o.cols;
    b->rows_per_matrix = b->o.rows;
    while (b->rows_per_matrix % 2 == 0 && b->rows_per_matrix * b->o.cols > 1u << 20)
        b->rows_per_matrix /= 2;
    b->n_matrices = (uint32_t)(b->o.rows / b->rows_per_matrix);
    nbytes = b->n_elems * elem;
    fill_gradient(b);
    make_tables(b);
    b->grad = (CUdeviceptr)(uintptr_t)upload(b->gradient, nbytes);
    copy_target = (CUdeviceptr)(uintptr_t)upload(NULL, nbytes);
    pass(b);
    finish_norm(b);
    check(cu.cuCtxSynchronize_(), "the pass");
    different = count_different(b);
    pass_ms = median_ms(b, pass);
    norm_ms = median_ms(b, finish_norm);
    copy_ms = median_ms(b, copy);
    written =
        b->o.k > 0 ? (uint64_t)b->n_matrices * b->n_selected * (b->by_rows ? b->o.cols : b->rows_per_matrix) * elem : 0;
    rate = (double)(nbytes + written) / pass_ms * 1e-6;
    limit = 2.0 * (double)nbytes / copy_ms * 1e-6;
    printf("%-5s %-8s %9llu x %-6llu %5.2f %10.3f %9.1f %9.1f %7.3f %9.3f %10llu\n", dtypes[b->dtype],
           b->by_rows ? "rows" : "columns", (unsigned long long)b->o.rows, (unsigned long long)b->o.cols, b->o.k,
           pass_ms, rate, limit, rate / limit, norm_ms, (unsigned long long)different);
    fflush(stdout);
    if (json)
        fprintf(
            json,
            "%s\n  {\"dtype\": \"%s\", \"channels\": \"%s\", \"rows\": %llu, \"cols\": %llu, \"k\": %g, \"pass_ms\": "
            "%.4f, \"pass_gb_s\": %.1f, \"copy_gb_s\": %.1f, \"ratio\": %.3f, \"norm_ms\": %.4f, \"different\": %llu}",
            is_first ? "" : ",", dtypes[b->dtype], b->by_rows ? "rows" : "columns", (unsigned long long)b->o.rows,
            (unsigned long long)b->o.cols, b->o.k, pass_ms, rate, limit, rate / limit, norm_ms,
            (unsigned long long)different);
    cu.cuMemFree_(b->grad);
    cu.cuMemFree_(copy_target);
    free(b->gradient);
}

/* ---- link -------------------------------------------------------------------------------------------------------- */

static void measure_link(const bench_t *b) {
    uint64_t nbytes = b->o.link_nbytes;
    void *up = NULL, *down = NULL;
    CUdeviceptr to = 0, from = 0;
    CUstream other;
    CUevent e[4];
    float ms;
    check(cu.cuMemHostAlloc_(&up, nbytes, 0), "memory");
    check(cu.cuMemHostAlloc_(&down, nbytes, 0), "memory");
    memset(up, 1, nbytes);
    memset(down, 1, nbytes);
    check(cu.cuMemAlloc_(&to, nbytes), "memory");
    check(cu.cuMemAlloc_(&from, nbytes), "memory");
    check(cu.cuStreamCreate_(&other, CU_STREAM_NON_BLOCKING), "stream");
    for (int i = 0; i < 4; i++)
        check(cu.cuEventCreate_(&e[i], 0), "event");
    for (int way = 1; way <= 3; way++)
        for (int i = 0; i < 3; i++) {
            check(cu.cuEventRecord_(e[0], b->stream), "event");
            check(cu.cuEventRecord_(e[2], other), "event");
            for (int k = 0; k < 4; k++) {
                if (way & 1)
                    check(cu.cuMemcpyHtoDAsync_(to, up, nbytes, b->stream), "copy");
                if (way & 2)
                    check(cu.cuMemcpyDtoHAsync_(down, from, nbytes, other), "copy");
            }
            check(cu.cuEventRecord_(e[1], b->stream), "event");
            check(cu.cuEventRecord_(e[3], other), "event");
            check(cu.cuCtxSynchronize_(), "copies");
            if (i < 2)
                continue;
            if (way & 1) {
                check(cu.cuEventElapsedTime_(&ms, e[0], e[1]), "event");
                printf("link: host to device%s %.1f GB/s\n", way == 3 ? ", both at once" : "",
                       4e-6 * (double)nbytes / ms);
            }
            if (way & 2) {
                check(cu.cuEventElapsedTime_(&ms, e[2], e[3]), "event");
                printf("link: device to host%s %.1f GB/s\n", way == 3 ? ", both at once" : "",
                       4e-6 * (double)nbytes / ms);
            }
        }
}

static void parse(int argc, char **argv, options_t *o) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rows"))
            o->rows = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--cols"))
            o->cols = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--k"))
            o->k = strtod(argv[i + 1], NULL);
        else if (!strcmp(argv[i], "--repeats"))
            o->n_repeats = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--link-mib"))
            o->link_nbytes = strtoull(argv[i + 1], NULL, 10) << 20;
        else if (!strcmp(argv[i], "--module"))
            o->module = argv[i + 1];
        else if (!strcmp(argv[i], "--json"))
            o->json = argv[i + 1];
    }
    if (o->n_repeats > MOST_REPEATS)
        o->n_repeats = MOST_REPEATS;
}

int main(int argc, char **argv) {
    options_t o = {.rows = 32768, .cols = 4096, .link_nbytes = 256u << 20, .k = 0.1, .n_repeats = 30};
    bench_t base = {0};
    CUdevice device;
    CUcontext context;
    char name[128];
    FILE *json;
    parse(argc, argv, &o);
    open_driver();
    check(cu.cuInit_(0), "cuInit");
    check(cu.cuDeviceGet_(&device, 0), "device");
    check(cu.cuDeviceGetName_(name, sizeof name, device), "name");
    check(cu.cuDevicePrimaryCtxRetain_(&context, device), "context");
    check(cu.cuCtxSetCurrent_(context), "context");
    base.o = o;
    check(cu.cuStreamCreate_(&base.stream, CU_STREAM_NON_BLOCKING), "stream");
    load(&base, device);
    base.has_ended = (CUdeviceptr)(uintptr_t)upload(NULL, 8);
    json = o.json ? fopen(o.json, "w") : NULL;
    if (json)
        fprintf(json, "{\"device\": \"%s\", \"pass\": [", name);
    printf("device %s, %u blocks of %d threads\n", name, base.n_blocks, ZFI_CUDA_THREADS);
    printf("%-5s %-8s %18s %5s %10s %9s %9s %7s %9s %10s\n", "type", "channels", "gradient", "k", "pass ms", "GB/s",
           "copy GB/s", "ratio", "norm ms", "different");
    for (int i = 0; i < 6; i++) {
        bench_t b = base;
        b.dtype = i / 2 == 0 ? ZFI_BF16 : i / 2 == 1 ? ZFI_F32 : ZFI_F16;
        b.by_rows = i % 2;
        run(&b, json, i == 0);
    }
    if (json) {
        fprintf(json, "]}\n");
        fclose(json);
    }
    measure_link(&base);
    return 0;
}
