/* SPDX-License-Identifier: Apache-2.0 */
/* exact.h - the conformance area "exact": the plugin against the oracle, bit for bit.
 *
 * Model: a run is a list of random cases, each a function of (seed, law, number). Children run them in batches, one
 * instruction set per child, so that a plugin that crashes or hangs costs one case and not the report. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "exact_result.h"

enum { ZX_MAX_ISAS = 3 };
#define ZX_ALL_CASES UINT32_MAX

typedef struct zx_options {
    const char *plugin; /* path, or NULL: as zf_loader finds it */
    uint64_t seed;
    uint32_t n_cases;
    uint32_t law;       /* 0 = all */
    uint32_t only;      /* one case, or ZX_ALL_CASES */
    uint32_t n_times;   /* each case is run */
    uint32_t threads;   /* 0 = drawn per case */
    const char *device; /* NULL: as the environment says */
    const char *isa;    /* what was asked for; isas follows from it */
    const char *isas[ZX_MAX_ISAS];
    uint32_t n_isas;
    uint32_t n_jobs;
    uint32_t deadline_s; /* per case */
    uint32_t max_failures;
    int is_quiet, is_plain, wants_help;
    uint32_t resume;   /* with child: up to this save dry, then loaded from `state` (law 3) */
    const char *state; /* directory of the checkpoint */
    const char *child; /* "law:case,law:case,...": this process is a child */
} zx_options_t;

typedef struct zx_totals {
    uint64_t n_cases[ZX_N_LAWS + 1];      /* run, by the law they were made for */
    uint64_t n_values[ZX_N_LAWS + 1];     /* compared */
    uint64_t n_mismatches[ZX_N_LAWS + 1]; /* cases that broke this law */
    uint64_t n_drawn[ZX_N_DRAWN];
    uint64_t n_done, n_failures;
} zx_totals_t;

/* The subcommand. Exit status 0 conforms, 1 does not, 2 could not run, 77 skipped. */
int zx_exact_main(int argc, char **argv);

/* The law that case `index` tests when none was asked for. */
int zx_law_of(uint64_t index);
const char *zx_isa_of(const zx_options_t *options, uint64_t index);

/* exact_child.c: runs a list of cases in this process, and says on stdout what came of them. Exit status 0, or 2. */
int zx_child_main(const zx_options_t *options);
/* exact_child.c: a process whose stdout comes out of *out_fd; as fork(). */
pid_t zx_fork(int *out_fd);
/* exact_child.c: becomes a child for this list of cases, which goes on from a save where options has one. Never
 * returns. */
void zx_become_child(const zx_options_t *options, const char *list);
/* exact_child.c: the command that runs one case again, to stdout; isa NULL, or empty: the plugin's choice. */
void zx_print_repeat(const char *margin, const zx_options_t *options, int law, uint64_t index, const char *isa);
/* exact_child.c: what a child says at the end of a case. 0, or -1 where the line is another one. */
typedef struct zx_done {
    int law, broken; /* 0: none */
    uint64_t n_values[ZX_N_LAWS + 1], n_drawn[ZX_N_DRAWN];
} zx_done_t;
int zx_read_done(const char *line, zx_done_t *out);
/* exact_batch.c: 0 with *out filled, or -1 where no child could run at all. */
int zx_run_batches(const zx_options_t *options, zx_totals_t *out);
