/* SPDX-License-Identifier: Apache-2.0 */
/* bench_stats.c - zf-bench-stats: the pass over the gradient (sum of squares, non-finite count, channel sums) against
 * the read bandwidth of the machine, measured in the same run.
 *
 * usage: zf-bench-stats [--isa NAME] [--best] [repeats]
 *
 * One row per instruction set, dtype, matrix shape and kind of channel; one thread. Reading and stats alternate,
 * medians (--best: the best of each, for a machine that others use). A ratio near 1 means that the gradient comes from
 * memory once: the second look at it is served by a cache.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kernels.h>

#include "streams.h"
#include "team.h"

enum { MAX_REPEATS = 101, N_NBYTES = 256 << 20 };

typedef struct bench {
    const zfi_kernels_t *kernels;
    const void *grad;
    double *abs_sums;
    zfi_dtype_t dtype;
    int channels_are_rows;
    uint64_t cols;
    int is_best;
    double checksum; /* keeps the work alive */
} bench_t;

static void read_once(void *arg, int thread) {
    bench_t *bench = arg;

    (void)thread;
    bench->checksum += streams_read(bench->grad, N_NBYTES);
}

static void take_stats(void *arg, int thread) {
    bench_t *bench = arg;
    const uint64_t rows = N_NBYTES / zfi_dtype_nbytes(bench->dtype) / bench->cols;
    const zfi_stats_matrix_t matrix = {.rows = rows, .cols = bench->cols, .abs_sums = bench->abs_sums};
    const zfi_stats_t job = {.grad = bench->grad,
                             .dtype = bench->dtype,
                             .channels_are_rows = bench->channels_are_rows,
                             .matrices = &matrix,
                             .n_matrices = 1};
    zfi_stats_result_t result;

    (void)thread;
    bench->kernels->stats(&job, &result);
    bench->checksum += result.sum_squares;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static const char *const dtypes[ZFI_N_DTYPES] = {[ZFI_F32] = "fp32", [ZFI_BF16] = "bf16", [ZFI_F16] = "fp16"};

static void measure(bench_t *bench, team_t *team, int n_repeats) {
    double reading[MAX_REPEATS], stats[MAX_REPEATS];
    const int shown = bench->is_best ? n_repeats - 1 : n_repeats / 2;

    for (int r = 0; r < n_repeats; r++) {
        reading[r] = N_NBYTES / team_run(team, read_once, bench);
        stats[r] = N_NBYTES / team_run(team, take_stats, bench);
    }
    qsort(reading, (size_t)n_repeats, sizeof reading[0], compare_doubles);
    qsort(stats, (size_t)n_repeats, sizeof stats[0], compare_doubles);
    printf("%-8s %5s %8llu %-8s | %7.1f | %9.1f | %6.3f\n", bench->kernels->name, dtypes[bench->dtype],
           (unsigned long long)bench->cols, bench->channels_are_rows ? "rows" : "columns", 1e-9 * stats[shown],
           1e-9 * reading[shown], stats[shown] / reading[shown]);
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
    int n_repeats = 9, only_isa = -1, is_bad = 0;
    bench_t bench = {.grad = new_gradient(), .abs_sums = malloc(sizeof(double) << 20)};
    team_t *team = team_new(1);

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--best") == 0)
            bench.is_best = 1;
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            is_bad |= (only_isa = zfi_isa_parse(argv[++i])) < 0;
        else
            n_repeats = atoi(argv[i]);
    }
    if (is_bad || !bench.grad || !bench.abs_sums || !team || n_repeats < 1 || n_repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: zf-bench-stats [--isa NAME] [--best] [repeats 1..%d] (needs 300 MB)\n", MAX_REPEATS);
        return 2;
    }
    printf("stats: one thread, %d MiB, %s of %d\n", N_NBYTES >> 20, bench.is_best ? "best" : "medians", n_repeats);
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
                    measure(&bench, team, n_repeats);
            }
    team_free(team);
    return 0;
}
