/* SPDX-License-Identifier: Apache-2.0 */
/* bench_host.c - zf-bench-host: the host's replay against the limits of the machine, measured in the same run.
 *
 * One row per instruction set, threads, gradient dtype and S (slots). Layout as in the engine: w, m, v are long arrays,
 * the S slots of a chunk lie together. Per repetition, alternating: read-modify-write of the same streams (with and
 * without software prefetch, the better counts), the kernel on arrays far beyond the caches, the kernel on arrays
 * inside them. Medians over repetitions. limit = the lower of
 * read-modify-write and the speed inside the cache. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kernels.h>

#include "harness/option_table.h"
#include "streams.h"
#include "table.h"
#include "team.h"

enum {
    CHUNK_ELEMS = 65536, /* the unit of a replay: its slots lie together */
    PAD_NBYTES = 320,    /* between slots: else all streams fall into the same sets of the caches */
    CACHED_ELEMS = 2048, /* inside the L1 or L2 cache with 16 slots */
    MAX_SLOTS = 16,
    N_AHEAD = 4 /* distances of software prefetch tried for read-modify-write */
};

/* What one thread works on: n_elems of w, m, v and visible, slots as [chunk][slot][CHUNK_ELEMS]. */
typedef struct share {
    float *w, *m, *v;
    uint16_t *visible;
    char *slots;
    uint64_t n_elems;
} share_t;

typedef struct bench {
    const zfi_kernels_t *kernels;
    zfi_rule_t rule;
    zfi_moments_t moments;
    zfi_dtype_t dtype;
    uint32_t n_slots;
    uint64_t n_elems; /* per thread, this row */
    uint64_t n_cached_passes;
    size_t ahead_nbytes;
    int n_threads;
    zfi_scalars_t scalars[MAX_SLOTS];
    share_t shares[TEAM_MAX_THREADS];
} bench_t;

typedef struct options {
    const char *isa; /* NULL: all */
    int rule, moments;
    uint32_t n_repeats;
    uint32_t n_millions; /* of elements, over all threads */
    int wants_help;
} options_t;

static const char rules[] = "adamw adam sgd sgd_nesterov lion", all_moments[] = "float32 bfloat16 bfloat16_stochastic";

#define AT(member) offsetof(options_t, member)
static const zc_option_t option_table[] = {
    ZC_OPTION("isa", ZC_CHOICE_TEXT, AT(isa), "NAME", "this instruction set alone",
              .choices = "generic neon avx2 avx512"),
    ZC_OPTION("repeat", ZC_U32, AT(n_repeats), "N", "repetitions, default 11", .least = 1, .most = SAMPLES_MAX),
    ZC_OPTION("elems", ZC_U32, AT(n_millions), "MILLIONS", "elements, default 16", .least = 1, .most = 100000),
    ZC_OPTION("rule", ZC_CHOICE, AT(rule), "NAME", "update rule, default adamw", .choices = rules),
    ZC_OPTION("moments", ZC_CHOICE, AT(moments), "NAME", "type of the moments, default float32",
              .choices = all_moments),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};
enum { N_OPTIONS = sizeof option_table / sizeof option_table[0] };

static void *allocate(size_t nbytes) {
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "zf-bench-host: no memory for %zu bytes; try a smaller --elems\n", nbytes);
        exit(2);
    }
    (void)madvise(at, nbytes, MADV_HUGEPAGE);
    return at;
}

static size_t slots_nbytes(uint64_t n_elems) {
    return (size_t)(n_elems / CHUNK_ELEMS + 1) * MAX_SLOTS * (CHUNK_ELEMS * sizeof(float) + PAD_NBYTES);
}

static void fill_share(void *arg, int thread) {
    share_t *share = &((bench_t *)arg)->shares[thread];
    uint32_t state = (uint32_t)thread * 2654435761u + 1u;
    float *slots =
        (float *)share->slots; /* fp32 values; read as bf16 they are ordinary numbers in every second place */
    for (uint64_t i = 0; i < share->n_elems; i++) {
        share->w[i] = 0.02f;
        share->m[i] = 1e-3f;
        share->v[i] = 1e-6f;
        share->visible[i] = 0;
    }
    for (uint64_t i = 0; i < slots_nbytes(share->n_elems) / sizeof *slots; i++) {
        uint16_t upper[2];
        state = state * 1664525u + 1013904223u;
        upper[0] = upper[1] = zfi_f32_to_bf16(((float)(state >> 8) * 0x1p-23f - 1.0f) * 1e-2f);
        memcpy(&slots[i], upper, sizeof upper);
    }
}

static void allocate_shares(bench_t *bench, int n_threads, uint64_t n_elems_each) {
    for (int t = 0; t < n_threads; t++) {
        share_t *share = &bench->shares[t];
        share->n_elems = n_elems_each;
        share->w = allocate(n_elems_each * sizeof(float));
        share->m = allocate(n_elems_each * sizeof(float));
        share->v = allocate(n_elems_each * sizeof(float));
        share->visible = allocate(n_elems_each * sizeof(uint16_t));
        share->slots = allocate(slots_nbytes(n_elems_each));
    }
}

static void free_shares(bench_t *bench, int n_threads) {
    for (int t = 0; t < n_threads; t++) {
        share_t *share = &bench->shares[t];
        munmap(share->w, share->n_elems * sizeof(float));
        munmap(share->m, share->n_elems * sizeof(float));
        munmap(share->v, share->n_elems * sizeof(float));
        munmap(share->visible, share->n_elems * sizeof(uint16_t));
        munmap(share->slots, slots_nbytes(share->n_elems));
    }
}

static void point_grads(const bench_t *bench, const share_t *share, uint64_t first, const void *out_grads[MAX_SLOTS]) {
    const size_t chunk_nbytes = CHUNK_ELEMS * zfi_dtype_nbytes(bench->dtype) + PAD_NBYTES;
    for (uint32_t k = 0; k < bench->n_slots; k++)
        out_grads[k] = share->slots + (first / CHUNK_ELEMS * bench->n_slots + k) * chunk_nbytes;
}

/* m or v from element `first` on. */
static void *moment_at(const bench_t *bench, float *array, uint64_t first) {
    return (char *)array + first * zfi_moments_nbytes(bench->moments);
}

static void replay_piece(const bench_t *bench, const share_t *share, uint64_t first, uint64_t n_elems) {
    const void *grads[MAX_SLOTS];
    const zfi_replay_t job = {.w = share->w + first,
                              .m = moment_at(bench, share->m, first),
                              .v = zfi_rule_has_v(bench->rule) ? moment_at(bench, share->v, first) : NULL,
                              .grads = grads,
                              .scalars = bench->scalars,
                              .n_slots = bench->n_slots,
                              .grad_dtype = bench->dtype,
                              .visible = share->visible + first,
                              .visible_dtype = ZFI_BF16,
                              .n_elems = n_elems,
                              .moments = bench->moments,
                              .key = 1,
                              .first_index = first};
    point_grads(bench, share, first, grads);
    if (bench->kernels->replay[bench->rule](&job) != UINT64_MAX) {
        fprintf(stderr, "zf-bench-host: replay found a non-finite weight\n");
        exit(2);
    }
}

static void replay_memory(void *arg, int thread) {
    const bench_t *bench = arg;
    for (uint64_t first = 0; first < bench->n_elems; first += CHUNK_ELEMS)
        replay_piece(bench, &bench->shares[thread], first, CHUNK_ELEMS);
}

static void replay_cached(void *arg, int thread) {
    const bench_t *bench = arg;
    for (uint64_t pass = 0; pass < bench->n_cached_passes; pass++)
        replay_piece(bench, &bench->shares[thread], 0, CACHED_ELEMS);
}

static void read_modify_write(void *arg, int thread) {
    const bench_t *bench = arg;
    const share_t *share = &bench->shares[thread];
    const void *grads[MAX_SLOTS];
    for (uint64_t first = 0; first < bench->n_elems; first += CHUNK_ELEMS) {
        const streams_t streams = {.w = share->w + first,
                                   .m = moment_at(bench, share->m, first),
                                   .v = zfi_rule_has_v(bench->rule) ? moment_at(bench, share->v, first) : NULL,
                                   .moment_nbytes = zfi_moments_nbytes(bench->moments),
                                   .grads = grads,
                                   .n_slots = bench->n_slots,
                                   .elem_nbytes = zfi_dtype_nbytes(bench->dtype),
                                   .visible = share->visible + first,
                                   .n_elems = CHUNK_ELEMS};
        point_grads(bench, share, first, grads);
        streams_read_modify_write(&streams, bench->ahead_nbytes);
    }
}

static void set_scalars(bench_t *bench) {
    for (int k = 0; k < MAX_SLOTS; k++) {
        const double n = 1000 + k;
        bench->scalars[k] = (zfi_scalars_t){.s = 1.0f,
                                            .b1 = 0.9f,
                                            .one_minus_b1 = 0.1f,
                                            .b2 = 0.999f,
                                            .one_minus_b2 = 0.001f,
                                            .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(0.999, n))),
                                            .eps = 1e-8f,
                                            .neg_step = -1e-5f,
                                            .decay = 1.0f - 1e-7f,
                                            .l2 = 1e-7f};
    }
}

/* In and out: w, m, v; in: a gradient per slot; out: the visible value. */
static double nbytes_per_elem(const bench_t *bench) {
    const size_t moments = (zfi_rule_has_v(bench->rule) ? 2 : 1) * zfi_moments_nbytes(bench->moments);
    return (double)(2 * (sizeof(float) + moments) + bench->n_slots * zfi_dtype_nbytes(bench->dtype) + 2);
}

/* One row. The passes inside the cache take about as long as those through memory. */
static void measure(bench_t *bench, const options_t *options, table_t *table) {
    static const size_t ahead_nbytes[N_AHEAD] = {0, 512, 1024, 2048};
    samples_t memory = {0}, cached = {0}, rmw[N_AHEAD] = {{0}};
    const double n_elems = (double)bench->n_elems * bench->n_threads, nbytes = nbytes_per_elem(bench);
    const uint64_t n_passes = bench->n_elems / CACHED_ELEMS / 2 + 1;
    const double n_cached = (double)CACHED_ELEMS * (double)n_passes * bench->n_threads;
    const double bar = bench->n_slots <= 4 ? 0.95 : 0.85;
    double best_rmw = 0.0, speed, inside, ratio;
    bench->n_cached_passes = n_passes;
    team_run(bench->n_threads, replay_memory, bench);
    for (uint32_t i = 0; i < options->n_repeats; i++) {
        for (int a = 0; a < N_AHEAD; a++) {
            bench->ahead_nbytes = ahead_nbytes[a];
            samples_add(&rmw[a], n_elems / team_run(bench->n_threads, read_modify_write, bench));
        }
        samples_add(&memory, n_elems / team_run(bench->n_threads, replay_memory, bench));
        samples_add(&cached, n_cached / team_run(bench->n_threads, replay_cached, bench));
    }
    for (int a = 0; a < N_AHEAD; a++)
        best_rmw = fmax(best_rmw, samples_median(&rmw[a]));
    speed = samples_median(&memory);
    inside = samples_median(&cached);
    ratio = speed / fmin(best_rmw, inside);
    table_row(table, (const char *[]){bench->kernels->name, bench->dtype == ZFI_BF16 ? "bf16" : "fp32"},
              (const double[]){bench->n_threads, bench->n_slots, 1e-9 * nbytes * speed, 1e-9 * speed,
                               1e-9 * nbytes * best_rmw, 1e-9 * nbytes * inside, ratio, bar},
              ratio >= bar ? "" : "below");
}

/* All rows of one instruction set. */
static void measure_isa(bench_t *bench, const options_t *options, table_t *table) {
    static const uint32_t n_slots[] = {1, 2, 4, 8, 16};
    const int is_slow = strcmp(bench->kernels->name, "generic") == 0;
    for (int dtype = ZFI_BF16; dtype >= ZFI_F32; dtype--)
        for (size_t k = 0; k < sizeof n_slots / sizeof n_slots[0]; k++) {
            bench->dtype = (zfi_dtype_t)dtype;
            bench->n_slots = n_slots[k];
            bench->n_elems = ((uint64_t)options->n_millions << 20) / (uint64_t)bench->n_threads / (is_slow ? 16 : 1);
            bench->n_elems = (bench->n_elems / CHUNK_ELEMS + 1) * CHUNK_ELEMS;
            measure(bench, options, table);
        }
}

int main(int argc, char **argv) {
    static const column_t columns[] = {{"isa", -1},  {"grads", -1},   {"threads", 0},  {"slots", 0},
                                       {"GB/s", 1},  {"Gparam/s", 3}, {"rmw GB/s", 1}, {"L1/2 GB/s", 1},
                                       {"ratio", 3}, {"bar", 2},      {NULL, 0}};
    options_t options = {.n_repeats = 11, .n_millions = 16};
    static bench_t bench;
    const int max_threads = team_max_threads();
    glue_error_t err;
    table_t table;
    if (zc_options_parse(option_table, N_OPTIONS, argc, argv, &options, &err) != 0)
        return fprintf(stderr, "zf-bench-host: %s\n", err.text), 2;
    if (options.wants_help)
        return zc_options_help("zf-bench-host - replays against the limits of the machine", option_table, N_OPTIONS,
                               "0 measured, 2 could not run");
    set_scalars(&bench);
    bench.rule = (zfi_rule_t)options.rule;
    bench.moments = (zfi_moments_t)options.moments;
    table = table_begin(NULL, "replay", "visible bf16; limit = lower of read-modify-write and the kernel inside L1/2",
                        columns);
    for (int n_threads = 1; n_threads <= max_threads; n_threads += max_threads > 1 ? max_threads - 1 : 1) {
        bench.n_threads = n_threads;
        allocate_shares(&bench, n_threads, ((uint64_t)options.n_millions << 20) / (uint64_t)n_threads + CHUNK_ELEMS);
        team_run(n_threads, fill_share, &bench);
        for (int isa = ZFI_N_ISAS - 1; isa >= 0; isa--) {
            bench.kernels = zfi_kernels_of((zfi_isa_t)isa);
            if (bench.kernels && (!options.isa || zfi_isa_parse(options.isa) == isa))
                measure_isa(&bench, &options, &table);
        }
        free_shares(&bench, n_threads);
    }
    return 0;
}
