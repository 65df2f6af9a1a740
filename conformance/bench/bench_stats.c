/* SPDX-License-Identifier: Apache-2.0 */
/* bench_stats.c - zf-bench-stats: the pass over the gradient (sum of squares, non-finite count, channel sums) against
 * the read bandwidth of the machine, measured in the same run.
 *
 * usage: zf-bench-stats [--isa NAME] [pairs]
 *
 * One row per instruction set, dtype, matrix shape and kind of channel; one thread. Reading and stats take pieces of 8
 * MiB in turn, each the next one, so that a piece comes from memory. Times are the thread's own: what other processes
 * take of the CPU does not count, and what they do to the memory meets both. Shown are the medians, and the median of
 * the pairs' ratios. A ratio near 1 means that the gradient comes from memory once and that nothing but memory is
 * waited for. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <kernels.h>

#include "streams.h"

enum { MAX_PAIRS = 401, N_NBYTES = 512 << 20, PIECE_NBYTES = 8 << 20 };

typedef struct bench {
    const zfi_kernels_t *kernels;
    const void *grad;
    double *abs_sums;
    zfi_dtype_t dtype;
    int channels_are_rows;
    uint64_t cols;
    size_t at;       /* the next piece */
    double checksum; /* keeps the work alive */
} bench_t;

static double thread_seconds(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes per second. */
static double take_piece(bench_t *bench, int is_stats) {
    const uint64_t row_nbytes = zfi_dtype_nbytes(bench->dtype) * bench->cols, rows = PIECE_NBYTES / row_nbytes;
    const zfi_stats_matrix_t matrix = {.rows = rows, .cols = bench->cols, .abs_sums = bench->abs_sums};
    const char *piece = (const char *)bench->grad + bench->at;
    const zfi_stats_t job = {piece, bench->dtype, bench->channels_are_rows, &matrix, 1};
    const double begin = thread_seconds();
    zfi_stats_result_t result = {0};

    if (is_stats)
        bench->kernels->stats(&job, &result);
    else
        bench->checksum += streams_read(piece, rows * row_nbytes);
    bench->checksum += result.sum_squares;
    bench->at = (bench->at + PIECE_NBYTES) % N_NBYTES;
    return (double)(rows * row_nbytes) / (thread_seconds() - begin);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static const char *const dtypes[ZFI_N_DTYPES] = {[ZFI_F32] = "fp32", [ZFI_BF16] = "bf16", [ZFI_F16] = "fp16"};

static void measure(bench_t *bench, int n_pairs) {
    double reading[MAX_PAIRS], stats[MAX_PAIRS], ratio[MAX_PAIRS];

    for (int r = 0; r < n_pairs; r++) {
        reading[r] = take_piece(bench, 0);
        stats[r] = take_piece(bench, 1);
        ratio[r] = stats[r] / reading[r];
    }
    qsort(reading, (size_t)n_pairs, sizeof reading[0], compare_doubles);
    qsort(stats, (size_t)n_pairs, sizeof stats[0], compare_doubles);
    qsort(ratio, (size_t)n_pairs, sizeof ratio[0], compare_doubles);
    printf("%-8s %5s %8llu %-8s | %7.1f | %9.1f | %6.3f\n", bench->kernels->name, dtypes[bench->dtype],
           (unsigned long long)bench->cols, bench->channels_are_rows ? "rows" : "columns", 1e-9 * stats[n_pairs / 2],
           1e-9 * reading[n_pairs / 2], ratio[n_pairs / 2]);
    fflush(stdout);
}

static float *new_gradient(void) {
    float *grad = mmap(NULL, N_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (grad == MAP_FAILED)
        return NULL;
    (void)madvise(grad, N_NBYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < N_NBYTES / sizeof *grad; i++)
        grad[i] = 0x1.02p-7f; /* the upper and the lower half are ordinary numbers as bf16 and fp16, too */
    return grad;
}

int main(int argc, char **argv) {
    static const uint64_t cols[] = {768, 4096, 28672};
    int n_pairs = 41, only_isa = -1, is_bad = 0;
    bench_t bench = {.grad = new_gradient(), .abs_sums = malloc(sizeof(double) << 20)};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            is_bad |= (only_isa = zfi_isa_parse(argv[++i])) < 0;
        else
            n_pairs = atoi(argv[i]);
    }
    if (is_bad || !bench.grad || !bench.abs_sums || n_pairs < 1 || n_pairs > MAX_PAIRS) {
        fprintf(stderr, "usage: zf-bench-stats [--isa NAME] [pairs 1..%d] (needs 600 MB)\n", MAX_PAIRS);
        return 2;
    }
    printf("stats: one thread, pieces of %d of %d MiB, medians of %d pairs\n", PIECE_NBYTES >> 20, N_NBYTES >> 20,
           n_pairs);
    printf("%-8s %5s %8s %-8s | %7s | %9s | %6s\n", "isa", "grads", "columns", "channels", "GB/s", "read GB/s",
           "ratio");
    for (int isa = ZFI_N_ISAS - 1; isa >= 0; isa--)
        for (int dtype = ZFI_N_DTYPES - 1; dtype >= 0; dtype--)
            for (int c = 0; c < 6; c++) {
                bench.kernels = zfi_kernels_of((zfi_isa_t)isa);
                bench.dtype = (zfi_dtype_t)dtype;
                bench.cols = cols[c / 2];
                bench.channels_are_rows = c % 2;
                if (bench.kernels && (only_isa < 0 || only_isa == isa))
                    measure(&bench, n_pairs);
            }
    return 0;
}
