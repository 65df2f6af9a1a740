/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.c - the device's pass over the gradient against a plain copy of device memory, in the same run.
 *
 * One launch of zf_statistics over a gradient [rows][cols], cut into matrices as the plugin cuts it, with importance of
 * columns or rows and the gradient of the selected channels gathered; its sums are compared bit for bit with the CPU's
 * kernels first. Bytes counted: the gradient once, what is gathered once read (it is part of the gradient: not counted
 * again) and once written. The copy's bytes: read and written. Times are medians of device events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/images.h"
#include "cuda/params.h"
#include "harness/option_table.h"
#include "lib/cuda_driver.h"
#include "table.h"

enum { COMPUTE_CAPABILITY_MAJOR = 75, MULTIPROCESSOR_COUNT = 16 }; /* attributes of a device */

/* The driver, and what a benchmark alone needs of it. */
static struct driver {
    zf_cuda_driver_t base;
    int (*EventCreate)(void **out, unsigned flags);
    int (*EventRecord)(void *event, void *stream);
    int (*EventElapsedTime)(float *out_ms, void *begin, void *end);
    int (*OccupancyMaxActiveBlocksPerMultiprocessor)(int *out, void *function, int n_threads, size_t shared_nbytes);
} cu;

typedef struct options {
    uint32_t rows, cols, n_repeats;
    double k;
    int wants_help;
} options_t;

#define AT(member) offsetof(options_t, member)
static const zc_option_t option_table[] = {
    ZC_OPTION("rows", ZC_U32, AT(rows), "N", "of the gradient, default 32768", .least = 1, .most = UINT32_MAX),
    ZC_OPTION("cols", ZC_U32, AT(cols), "N", "of the gradient, default 4096", .least = 1, .most = UINT32_MAX),
    ZC_OPTION("k", ZC_REAL, AT(k), "SHARE", "of the channels that are selected, default 0.1"),
    ZC_OPTION("repeats", ZC_U32, AT(n_repeats), "N", "default 30", .least = 1, .most = SAMPLES_MAX),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};
enum { N_OPTIONS = sizeof option_table / sizeof option_table[0] };

typedef struct bench {
    options_t o;
    zfi_dtype_t dtype;
    int by_rows;
    uint64_t n_elems, rows_per_matrix;
    uint32_t n_matrices, n_selected;
    zfi_data_t host, *device_data;
    void *gradient; /* the host's */
    zf_cuda_address_t grad;
    void *module, *statistics, *norm;
    zf_cuda_address_t has_ended;
    unsigned n_blocks;
    void *stream;
} bench_t;

static void check(int rc, const char *what) {
    if (rc == 0)
        return;
    fprintf(stderr, "zf-bench-gpu: %s: CUDA error %d\n", what, rc);
    exit(2);
}

static void open_driver(void) {
    char why[256];
    const struct function {
        const char *name;
        void *at;
    } functions[] = {{"cuEventCreate", &cu.EventCreate},
                     {"cuEventRecord", &cu.EventRecord},
                     {"cuEventElapsedTime", &cu.EventElapsedTime},
                     {"cuOccupancyMaxActiveBlocksPerMultiprocessor", &cu.OccupancyMaxActiveBlocksPerMultiprocessor}};
    if (zf_cuda_driver_open(&cu.base, why, sizeof why) != 0) {
        fprintf(stderr, "zf-bench-gpu: %s\n", why);
        exit(77);
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        check(cu.base.GetProcAddress_v2(functions[i].name, functions[i].at, 12000, 0, NULL), functions[i].name);
}

static void wait_for(const bench_t *b, const char *what) { check(cu.base.StreamSynchronize(b->stream), what); }

/* from NULL: zeros. */
static void *upload(const bench_t *b, const void *from, uint64_t nbytes) {
    zf_cuda_address_t to = 0;
    check(cu.base.MemAlloc_v2(&to, nbytes ? nbytes : 1), "memory");
    check(from ? cu.base.MemcpyHtoDAsync_v2(to, from, nbytes, b->stream)
               : cu.base.MemsetD8Async(to, 0, nbytes ? nbytes : 1, b->stream),
          "a copy");
    wait_for(b, "a copy");
    return (void *)(uintptr_t)to;
}

static void download(const bench_t *b, void *to, const void *from, uint64_t nbytes) {
    check(cu.base.MemcpyDtoHAsync_v2(to, (uintptr_t)from, nbytes, b->stream), "a copy");
    wait_for(b, "a copy");
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
    b->host.params = upload(b, &param, sizeof param);
    b->host.matrices = upload(b, matrices, b->n_matrices * sizeof *matrices);
    b->host.index = upload(b, index, ((uint64_t)b->n_matrices * k + 1) * sizeof *index);
    b->host.grad = upload(b, NULL, (uint64_t)b->n_matrices * k * other * elem);
    b->host.sums[0] = b->host.sums[1] = upload(b, NULL, b->n_matrices * channels * sizeof(double));
    b->host.sum_squares = upload(b, NULL, sizeof(double));
    b->host.has_nonfinite = upload(b, NULL, 1);
    b->host.unit_squares = upload(b, NULL, b->n_matrices * units * sizeof(double));
    b->device_data = upload(b, &b->host, sizeof b->host);
    free(matrices);
    free(index);
}

static void load(bench_t *b, int device) {
    int n_at_once = 0, n_processors, major;
    const void *image = zfi_cuda_ptx;
    check(cu.base.DeviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device), "attribute");
    for (uint32_t i = 0; i < zfi_cuda_n_images; i++)
        if (zfi_cuda_images[i].major == major)
            image = zfi_cuda_images[i].begin;
    check(cu.base.ModuleLoadData(&b->module, image), "module");
    check(cu.base.ModuleGetFunction(&b->statistics, b->module, "zf_statistics"), "zf_statistics");
    check(cu.base.ModuleGetFunction(&b->norm, b->module, "zf_norm_params"), "zf_norm_params");
    check(cu.OccupancyMaxActiveBlocksPerMultiprocessor(&n_at_once, b->statistics, ZFI_CUDA_THREADS, 0), "occupancy");
    check(cu.base.DeviceGetAttribute(&n_processors, MULTIPROCESSOR_COUNT, device), "attribute");
    b->n_blocks = (unsigned)(n_at_once < 1 ? 1 : n_at_once) * (unsigned)n_processors;
}

static void launch(const bench_t *b, void *function, const void *args, unsigned n_blocks) {
    zf_cuda_address_t ended = b->has_ended;
    void *parameters[] = {(void *)(uintptr_t)args, &ended};
    check(cu.base.LaunchKernel(function, n_blocks, 1, 1, ZFI_CUDA_THREADS, 1, 1, 0, b->stream, parameters, NULL),
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
    zfi_stats_t job = {b->gradient, b->dtype, b->by_rows, matrices, b->n_matrices, NULL};
    zfi_stats_result_t result;
    for (uint32_t i = 0; i < b->n_matrices; i++)
        matrices[i] = (zfi_stats_matrix_t){b->rows_per_matrix, b->o.cols, expected + i * channels};
    zfi_kernels_of(zfi_isa_best())->stats(&job, &result);
    download(b, found, b->host.sums[0], n_sums * sizeof *found);
    download(b, &squares, b->host.sum_squares, sizeof squares);
    for (uint64_t i = 0; i < n_sums; i++)
        n += memcmp(&found[i], &expected[i], sizeof *found) != 0;
    n += memcmp(&squares, &result.sum_squares, sizeof squares) != 0;
    free(found);
    free(expected);
    free(matrices);
    return n;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

typedef void (*work_fn)(const bench_t *b);

static double median_ms(const bench_t *b, work_fn work) {
    samples_t samples = {0};
    float ms;
    void *begin, *end;
    check(cu.EventCreate(&begin, 0), "event");
    check(cu.EventCreate(&end, 0), "event");
    for (int i = -3; i < (int)b->o.n_repeats; i++) {
        check(cu.EventRecord(begin, b->stream), "event");
        work(b);
        check(cu.EventRecord(end, b->stream), "event");
        wait_for(b, "work");
        check(cu.EventElapsedTime(&ms, begin, end), "event");
        if (i >= 0)
            samples_add(&samples, (double)ms);
    }
    return samples_median(&samples);
}

static zf_cuda_address_t copy_target;

static void copy(const bench_t *b) {
    check(cu.base.MemcpyDtoDAsync_v2(copy_target, b->grad, b->n_elems * zfi_dtype_nbytes(b->dtype), b->stream), "copy");
}

static void run(bench_t *b, table_t *table) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    uint64_t elem = zfi_dtype_nbytes(b->dtype), nbytes, written;
    b->n_elems = (uint64_t)b->o.rows * b->o.cols;
    b->rows_per_matrix = b->o.rows;
    while (b->rows_per_matrix % 2 == 0 && b->rows_per_matrix * b->o.cols > 1u << 20)
        b->rows_per_matrix /= 2;
    b->n_matrices = (uint32_t)(b->o.rows / b->rows_per_matrix);
    nbytes = b->n_elems * elem;
    fill_gradient(b);
    make_tables(b);
    b->grad = (zf_cuda_address_t)(uintptr_t)upload(b, b->gradient, nbytes);
    copy_target = (zf_cuda_address_t)(uintptr_t)upload(b, NULL, nbytes);
    pass(b);
    finish_norm(b);
    wait_for(b, "the pass");
    uint64_t different = count_different(b);
    double pass_ms = median_ms(b, pass);
    double norm_ms = median_ms(b, finish_norm);
    double copy_ms = median_ms(b, copy);
    written =
        b->o.k > 0 ? (uint64_t)b->n_matrices * b->n_selected * (b->by_rows ? b->o.cols : b->rows_per_matrix) * elem : 0;
    double rate = (double)(nbytes + written) / pass_ms * 1e-6;
    double limit = 2.0 * (double)nbytes / copy_ms * 1e-6;
    table_row(
        table, (const char *[]){dtypes[b->dtype], b->by_rows ? "rows" : "columns"},
        (const double[]){b->o.rows, b->o.cols, b->o.k, pass_ms, rate, limit, rate / limit, norm_ms, (double)different},
        NULL);
    cu.base.MemFree_v2(b->grad);
    cu.base.MemFree_v2(copy_target);
    free(b->gradient);
}

int main(int argc, char **argv) {
    static const column_t columns[] = {{"dtype", -1}, {"channels", -1}, {"rows", 0},      {"cols", 0},
                                       {"k", 2},      {"pass_ms", 4},   {"pass_gb_s", 1}, {"copy_gb_s", 1},
                                       {"ratio", 3},  {"norm_ms", 4},   {"different", 0}, {NULL, 0}};
    bench_t base = {.o = {.rows = 32768, .cols = 4096, .k = 0.1, .n_repeats = 30}};
    int device;
    void *context;
    char name[128];
    glue_error_t err;
    if (zc_options_parse(option_table, N_OPTIONS, argc, argv, &base.o, &err) != 0)
        return fprintf(stderr, "zf-bench-gpu: %s\n", err.text), 2;
    if (base.o.wants_help)
        return zc_options_help("zf-bench-gpu - the device's pass over a gradient against a copy of it", option_table,
                               N_OPTIONS, "0 measured, 2 could not run, 77 no driver");
    open_driver();
    check(cu.base.Init(0), "cuInit");
    check(cu.base.DeviceGet(&device, 0), "device");
    check(cu.base.DeviceGetName(name, sizeof name, device), "name");
    check(cu.base.DevicePrimaryCtxRetain(&context, device), "context");
    check(cu.base.CtxSetCurrent(context), "context");
    check(cu.base.StreamCreate(&base.stream, ZF_CUDA_STREAM_NON_BLOCKING), "stream");
    load(&base, device);
    base.has_ended = (zf_cuda_address_t)(uintptr_t)upload(&base, NULL, 8);
    printf("device %s, %u blocks of %d threads\n", name, base.n_blocks, ZFI_CUDA_THREADS);
    table_t table = table_begin(NULL, "pass", "statistics of a gradient; different: from the CPU's bits", columns);
    for (int i = 0; i < 6; i++) {
        bench_t b = base;
        b.dtype = i / 2 == 0 ? ZFI_BF16 : i / 2 == 1 ? ZFI_F32 : ZFI_F16;
        b.by_rows = i % 2;
        run(&b, &table);
    }
    table_end(&table, (const figure_t[]){{NULL, 0}});
    return 0;
}
