/* SPDX-License-Identifier: Apache-2.0 */
/* exact.c - options, instruction sets, the table of laws. */
#include "exact.h"

#include "exact_device.h"
#include "harness/option_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const laws[ZX_N_LAWS + 1] = {
    [1] = "topk_ratio 1, or interval 1 and lag 0: visible is the plain optimizer's at every step",
    [2] = "engine = oracle in everything that can be read",
    [3] = "N steps = N/2 steps, save, load in a new process, N/2 steps",
    [4] = "P ranks = 1 rank; here one: saved, and loaded with other instructions and workers",
    [5] = "every value seen in mid-flight is one step's, never half of two",
    [6] = "replay: after FLUSH, weights and moments are the plain optimizer's",
};

/* Cases that compared nothing: laws 3 and 4 of a plugin without zf.state/1. */
static int is_without_state(const zx_totals_t *t, int law) { return t->n_cases[law] > 0 && t->n_values[law] == 0; }

int zx_law_of(uint64_t index) {
    static const int pattern[] = {2, 1, 5, 6, 4, 3, 2, 6};
    return pattern[index % 8];
}

const char *zx_isa_of(const zx_options_t *options, uint64_t index) {
    return options->isas[(index / 8 + index) % options->n_isas];
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void all_isas(zx_options_t *o) {
    o->n_isas = 0;
    o->isas[o->n_isas++] = "generic";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        o->isas[o->n_isas++] = "avx2";
#ifndef ZX_WITHOUT_AVX512
    if (__builtin_cpu_supports("avx512f"))
        o->isas[o->n_isas++] = "avx512";
#endif
#elif defined(__aarch64__)
    o->isas[o->n_isas++] = "neon";
#endif
}

static void choose_isas(zx_options_t *o) {
    if (strcmp(o->isa, "all") == 0) {
        all_isas(o);
        return;
    }
    o->n_isas = 1;
    o->isas[0] = strcmp(o->isa, "plugin") == 0 ? "" : o->isa;
}

#define AT(member) offsetof(zx_options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "the library (default: ZFPLUGIN_PATH, else libzfplugin.so.0)"),
    ZC_OPTION("cases", ZC_U32, AT(n_cases), "N", "random cases, default 400", .least = 1, .most = 99999999),
    ZC_OPTION("seed", ZC_U64, AT(seed), "N", "default 1"),
    ZC_OPTION("law", ZC_U32, AT(law), "N", "cases of one law only: 1 to 6", .least = 1, .most = ZX_N_LAWS),
    ZC_OPTION("only", ZC_U32, AT(only), "CASE", "this case alone", .least = 0, .most = 99999999),
    ZC_OPTION("times", ZC_U32, AT(n_times), "N", "every case so often: a failure may hang on timing", .least = 1,
              .most = 999999),
    ZC_OPTION("device", ZC_CHOICE_TEXT, AT(device), "NAME", "where the tensors are: cpu (default), cuda",
              .choices = "cpu cuda"),
    ZC_OPTION("plain", ZC_SWITCH, AT(is_plain), NULL,
              "AdamW on float32 alone, nothing resident: for a device whose backend has a part only"),
    ZC_OPTION("threads", ZC_U32, AT(threads), "N", "workers of the plugin; default 0: drawn per case, 1 to 4",
              .least = 0, .most = 256),
    ZC_OPTION("isa", ZC_CHOICE_TEXT, AT(isa), "NAME",
              "all (default: split over the cases), generic, neon, avx2, avx512, plugin (its own choice)",
              .choices = "all generic avx2 avx512 plugin"),
    ZC_OPTION("jobs", ZC_U32, AT(n_jobs), "N", "cases at the same time, default: processors", .least = 1, .most = 64),
    ZC_OPTION("deadline", ZC_U32, AT(deadline_s), "S", "seconds for one case, default 120", .least = 1, .most = 99999),
    ZC_OPTION("max-failures", ZC_U32, AT(max_failures), "N", "stop after so many, default 3", .least = 1,
              .most = 99999999),
    ZC_OPTION("quiet", ZC_SWITCH, AT(is_quiet), NULL, "no table, no progress: differences only"),
    ZC_OPTION("resume", ZC_U32, AT(resume), "N", NULL, .least = 1, .most = 1000),
    ZC_OPTION("state", ZC_TEXT, AT(state), "DIR", NULL),
    ZC_OPTION("child", ZC_TEXT, AT(child), "LIST", NULL),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int print_help(void) {
    return zc_options_help("zf-conform exact - the plugin against the oracle, bit for bit", table, N_OPTIONS,
                           "0 conforms, 1 does not, 2 could not run, 77 skipped");
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_table(const zx_options_t *o, const zx_totals_t *t) {
    printf("%-3s %-82s %7s %15s %10s\n", "law", "", "cases", "values compared", "mismatches");
    for (int i = 1; i <= ZX_N_LAWS; i++)
        if (t->n_mismatches[i] == 0 && is_without_state(t, i))
            printf("%-3d %-82s %s\n", i, laws[i], "skipped: the plugin has no zf.state/1");
        else if (o->law && o->law != (uint32_t)i && t->n_values[i] == 0 && t->n_mismatches[i] == 0)
            printf("%-3d %-82s %s\n", i, laws[i], "not asked for");
        else
            printf("%-3d %-82s %7" PRIu64 " %15" PRIu64 " %10" PRIu64 "\n", i, laws[i], t->n_cases[i], t->n_values[i],
                   t->n_mismatches[i]);
}

/* What came up by chance. */
static void print_drawn(const zx_totals_t *t) {
    static const char *const names[ZX_N_DRAWN] = {
#define NAME(id, text) text,
        ZX_DRAWN(NAME)
#undef NAME
    };
    printf("drew:");
    for (int i = 0; i < ZX_N_DRAWN; i++)
        printf("%s %" PRIu64 " %s", i ? "," : "", t->n_drawn[i], names[i]);
    printf("\n");
}

static void print_end(const zx_options_t *o, const zx_totals_t *t, time_t seconds) {
    printf("seed %" PRIu64 ", %" PRIu64 " cases, instruction sets:", o->seed, t->n_done);
    for (uint32_t i = 0; i < o->n_isas; i++)
        printf(" %s", o->isas[i][0] ? o->isas[i] : "the plugin's choice");
    printf("; %lld s: %s", (long long)seconds, t->n_failures ? "DOES NOT CONFORM" : "conforms");
    for (int i = 1; i <= ZX_N_LAWS; i++)
        if (is_without_state(t, i))
            printf(", but law %d is skipped", i);
    printf("\n");
}

int zx_exact_main(int argc, char **argv) {
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    zx_options_t o = {.seed = 1,
                      .n_cases = 400,
                      .only = ZX_ALL_CASES,
                      .isa = "all",
                      .n_times = 1,
                      .deadline_s = 120,
                      .max_failures = 3,
                      .n_jobs = n_cpus < 1 ? 1 : (n_cpus > 16 ? 16 : (uint32_t)n_cpus)};
    time_t start = time(NULL);
    zx_totals_t totals;
    glue_error_t err;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &o, &err) != 0)
        return fprintf(stderr, "zf-conform exact: %s\n", err.text), 2;
    if (o.wants_help)
        return print_help();
    choose_isas(&o);
    if (o.device)
        setenv(ZX_DEVICE_ENV, o.device, 1);
    if (o.is_plain)
        setenv(ZX_PLAIN_ENV, "1", 1);
    if (o.child)
        return zx_child_main(&o);
    if (zx_device_is_gpu() && zx_device_find() != 0)
        return 2;
    if (zx_run_batches(&o, &totals) != 0)
        return 2;
    if (!o.is_quiet) {
        print_table(&o, &totals);
        print_drawn(&totals);
        print_end(&o, &totals, time(NULL) - start);
    }
    int status = totals.n_failures ? 1 : (totals.n_done ? 0 : 2);
    if (status == 0 && o.law && is_without_state(&totals, (int)o.law))
        status = 77;
    return status;
}
