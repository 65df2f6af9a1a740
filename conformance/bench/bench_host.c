/* SPDX-License-Identifier: Apache-2.0 */
/* bench_host.c - zf-bench-host: the host's replay against the limits of the machine, measured in the same run.
 *
 * One row per instruction set, threads, gradient dtype and S (slots). Layout as in the engine: w, m, v are long arrays,
 * the S slots of a chunk lie together. Per repetition, alternating: read-modify-write of the same streams (with and
 * without software prefetch, the better counts), the kernel on arrays far beyond the caches, the kernel on arrays
 * inside them. Medians over repetitions. limit = the lower of read-modify-write and the speed inside the cache. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kernels.h>

#include "harness/option_table.h"
#include "passes.h"
#include "streams.h"
#include "table.h"
#include "team.h"

enum {
    CACHED_ELEMS = 2048, /* inside the L1 or L2 cache with 16 slots */
    N_AHEAD = 4          /* distances of software prefetch tried for read-modify-write */
};

typedef struct bench {
    passes_t passes;
    uint64_t n_cached_passes;
    size_t ahead_nbytes;
} bench_t;

typedef struct options {
    const char *isa; /* NULL: all */
    int rule, moments;
    uint32_t n_repeats;
    uint32_t n_millions; /* of elements, over all threads */
    int wants_help;
} options_t;

static const char rules[] = "adamw adam sgd sgd_nesterov lion",
                  all_moments[] = "float32 bfloat16 bfloat16_stochastic int8 int8_bfloat16";

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

static void replay_cached(void *arg, int thread) {
    const bench_t *bench = arg;
    const passes_t *passes = &bench->passes;
    for (uint64_t pass = 0; pass < bench->n_cached_passes; pass++)
        passes_piece(passes, &passes->shares[thread], 0, CACHED_ELEMS);
}

static void read_modify_write(void *arg, int thread) {
    const bench_t *bench = arg;
    const passes_t *passes = &bench->passes;
    const share_t *share = &passes->shares[thread];
    const void *grads[PASSES_MAX_SLOTS];
    for (uint64_t first = 0; first < passes->n_elems; first += PASSES_CHUNK_ELEMS) {
        const streams_t streams = {.w = share->w + first,
                                   .m = passes_moment(passes, ZFI_M, share->m, first),
                                   .v = zfi_rule_has_v(passes->rule) ? passes_moment(passes, ZFI_V, share->v, first)
                                                                     : NULL,
                                   .m_nbytes = zfi_moment_nbytes(passes->moments, ZFI_M, ZFI_RUN) / ZFI_RUN,
                                   .v_nbytes = zfi_moment_nbytes(passes->moments, ZFI_V, ZFI_RUN) / ZFI_RUN,
                                   .grads = grads,
                                   .n_slots = passes->n_slots,
                                   .elem_nbytes = zfi_dtype_nbytes(passes->dtype),
                                   .visible = share->visible + first,
                                   .n_elems = PASSES_CHUNK_ELEMS};
        passes_point(passes, share, first, grads);
        streams_read_modify_write(&streams, bench->ahead_nbytes);
    }
}

/* In and out: w, m, v; in: a gradient per slot; out: the visible value. */
static double nbytes_per_elem(const passes_t *passes) {
    const double m = (double)zfi_moment_nbytes(passes->moments, ZFI_M, ZFI_RUN) / ZFI_RUN;
    const double v = (double)zfi_moment_nbytes(passes->moments, ZFI_V, ZFI_RUN) / ZFI_RUN;
    return 2 * (sizeof(float) + m + (zfi_rule_has_v(passes->rule) ? v : 0)) +
           (double)(passes->n_slots * zfi_dtype_nbytes(passes->dtype) + 2);
}

/* One row. The passes inside the cache take about as long as those through memory. */
static void measure(bench_t *bench, const options_t *options, table_t *table) {
    static const size_t ahead_nbytes[N_AHEAD] = {0, 512, 1024, 2048};
    passes_t *passes = &bench->passes;
    samples_t memory = {0}, cached = {0}, rmw[N_AHEAD] = {{0}};
    const double n_elems = (double)passes->n_elems * passes->n_threads, nbytes = nbytes_per_elem(passes);
    const uint64_t n_passes = passes->n_elems / CACHED_ELEMS / 2 + 1;
    const double n_cached = (double)CACHED_ELEMS * (double)n_passes * passes->n_threads;
    const double bar = passes->n_slots <= 4 ? 0.95 : 0.85;
    double best_rmw = 0.0, speed, inside, ratio;
    bench->n_cached_passes = n_passes;
    team_run(passes->n_threads, passes_replay, passes);
    for (uint32_t i = 0; i < options->n_repeats; i++) {
        for (int a = 0; a < N_AHEAD; a++) {
            bench->ahead_nbytes = ahead_nbytes[a];
            samples_add(&rmw[a], n_elems / team_run(passes->n_threads, read_modify_write, bench));
        }
        samples_add(&memory, n_elems / team_run(passes->n_threads, passes_replay, passes));
        samples_add(&cached, n_cached / team_run(passes->n_threads, replay_cached, bench));
    }
    for (int a = 0; a < N_AHEAD; a++)
        best_rmw = fmax(best_rmw, samples_median(&rmw[a]));
    speed = samples_median(&memory);
    inside = samples_median(&cached);
    ratio = speed / fmin(best_rmw, inside);
    table_row(table, (const char *[]){passes->kernels->name, passes->dtype == ZFI_BF16 ? "bf16" : "fp32"},
              (const double[]){passes->n_threads, passes->n_slots, 1e-9 * nbytes * speed, 1e-9 * speed,
                               1e-9 * nbytes * best_rmw, 1e-9 * nbytes * inside, ratio, bar},
              ratio >= bar ? "" : "below");
}

/* All rows of one instruction set. */
static void measure_isa(bench_t *bench, const options_t *options, table_t *table) {
    static const uint32_t n_slots[] = {1, 2, 4, 8, 16};
    passes_t *passes = &bench->passes;
    const int is_slow = strcmp(passes->kernels->name, "generic") == 0;
    for (int dtype = ZFI_BF16; dtype >= ZFI_F32; dtype--)
        for (size_t k = 0; k < sizeof n_slots / sizeof n_slots[0]; k++) {
            passes->dtype = (zfi_dtype_t)dtype;
            passes->n_slots = n_slots[k];
            passes->n_elems = ((uint64_t)options->n_millions << 20) / (uint64_t)passes->n_threads / (is_slow ? 16 : 1);
            passes->n_elems = (passes->n_elems / PASSES_CHUNK_ELEMS + 1) * PASSES_CHUNK_ELEMS;
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
    bench.passes.rule = (zfi_rule_t)options.rule;
    bench.passes.moments = (zfi_moments_t)options.moments;
    table = table_begin(NULL, "replay", "visible bf16; limit = lower of read-modify-write and the kernel inside L1/2",
                        columns);
    for (int n_threads = 1; n_threads <= max_threads; n_threads += max_threads > 1 ? max_threads - 1 : 1) {
        passes_open(&bench.passes, n_threads,
                    ((uint64_t)options.n_millions << 20) / (uint64_t)n_threads + PASSES_CHUNK_ELEMS);
        for (int isa = ZFI_N_ISAS - 1; isa >= 0; isa--) {
            bench.passes.kernels = zfi_kernels_of((zfi_isa_t)isa);
            if (bench.passes.kernels && (!options.isa || zfi_isa_parse(options.isa) == isa))
                measure_isa(&bench, &options, &table);
        }
        passes_close(&bench.passes);
    }
    return 0;
}
