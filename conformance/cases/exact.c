/* exact.c - options, instruction sets, the table of laws. */
#include "exact.h"

#include "report/checks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "zf-conform exact - the plugin against the oracle, bit for bit\n"
    "  --plugin FILE       the library (default: ZFPLUGIN_PATH, else libzfplugin.so.1)\n"
    "  --cases N           random cases, default 400\n"
    "  --seed N            default 1\n"
    "  --law N             cases of one law only: 1 to 6\n"
    "  --only CASE         this case alone\n"
    "  --times N           every case so often: a failure may hang on timing\n"
    "  --threads N         workers of the plugin; default: drawn per case, 1 to 4\n"
    "  --isa NAME          all (default: split over the cases), generic, avx2, avx512, plugin (its own choice)\n"
    "  --jobs N            cases at the same time, default: processors\n"
    "  --deadline S        seconds for one case, default 120\n"
    "  --max-failures N    stop after so many, default 3\n"
    "  --tap               output for machines (TAP 13)\n"
    "  --json FILE         the table as JSON too, for zf-conform --report\n"
    "  --quiet             no table, no progress: differences only\n"
    "exit status: 0 conforms, 1 does not, 2 could not run, 77 skipped\n";

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
    if (__builtin_cpu_supports("avx512f"))
        o->isas[o->n_isas++] = "avx512";
#endif
}

static int set_isa(zx_options_t *o, const char *name) {
    static const char *const names[] = {"generic", "avx2", "avx512"};

    if (strcmp(name, "all") == 0) {
        all_isas(o);
        return 0;
    }
    o->n_isas = 1;
    o->isas[0] = "";
    if (strcmp(name, "plugin") == 0)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            o->isas[0] = names[i];
            return 0;
        }
    return -1;
}

static int parse_number(const char *text, uint64_t *out) {
    char *end;

    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' ? 0 : -1;
}

static int set_number(zx_options_t *o, const char *key, uint64_t n) {
    if (strcmp(key, "--cases") == 0 && n > 0 && n < 100000000)
        o->n_cases = (uint32_t)n;
    else if (strcmp(key, "--seed") == 0)
        o->seed = n;
    else if (strcmp(key, "--law") == 0 && n >= 1 && n <= ZX_N_LAWS)
        o->law = (int)n;
    else if (strcmp(key, "--only") == 0 && n < 100000000)
        o->only = (int64_t)n;
    else if (strcmp(key, "--times") == 0 && n >= 1 && n < 1000000)
        o->n_times = (uint32_t)n;
    else if (strcmp(key, "--threads") == 0 && n <= 256)
        o->threads = (uint32_t)n;
    else if (strcmp(key, "--resume") == 0 && n >= 1 && n <= 1000)
        o->resume = (uint32_t)n;
    else if (strcmp(key, "--jobs") == 0 && n >= 1 && n <= 64)
        o->n_jobs = (uint32_t)n;
    else if (strcmp(key, "--deadline") == 0 && n >= 1 && n < 100000)
        o->deadline_s = (uint32_t)n;
    else if (strcmp(key, "--max-failures") == 0 && n >= 1 && n < 100000000)
        o->max_failures = (uint32_t)n;
    else
        return -1;
    return 0;
}

static int set_option(zx_options_t *o, const char *key, const char *value) {
    uint64_t n;

    if (!value)
        return -1;
    if (strcmp(key, "--plugin") == 0) {
        o->plugin = value;
        return 0;
    }
    if (strcmp(key, "--json") == 0) {
        o->json = value;
        return 0;
    }
    if (strcmp(key, "--state") == 0) {
        o->state = value;
        return 0;
    }
    if (strcmp(key, "--child") == 0) {
        o->child = value;
        return 0;
    }
    if (strcmp(key, "--isa") == 0)
        return set_isa(o, value);
    return parse_number(value, &n) == 0 ? set_number(o, key, n) : -1;
}

/* 0, or -1 with a message printed. */
static int parse(zx_options_t *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tap") == 0) {
            o->is_tap = 1;
        } else if (strcmp(argv[i], "--quiet") == 0) {
            o->is_quiet = 1;
        } else if (set_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL) == 0) {
            i++;
        } else {
            fprintf(stderr, "zf-conform exact: %s %s: unknown, or not in range\n%s", argv[i],
                    i + 1 < argc ? argv[i + 1] : "", usage);
            return -1;
        }
    }
    return 0;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_table(const zx_options_t *o, const zx_totals_t *t) {
    printf("%-3s %-82s %7s %15s %10s\n", "law", "", "cases", "values compared", "mismatches");
    for (int i = 1; i <= ZX_N_LAWS; i++)
        if (t->n_mismatches[i] == 0 && is_without_state(t, i))
            printf("%-3d %-82s %s\n", i, laws[i], "skipped: the plugin has no zf.state/1");
        else if (o->law && o->law != i && t->n_values[i] == 0 && t->n_mismatches[i] == 0)
            printf("%-3d %-82s %s\n", i, laws[i], "not asked for");
        else
            printf("%-3d %-82s %7" PRIu64 " %15" PRIu64 " %10" PRIu64 "\n", i, laws[i], t->n_cases[i], t->n_values[i],
                   t->n_mismatches[i]);
}

static void print_tap(const zx_totals_t *t) {
    printf("TAP version 13\n1..%d\n", ZX_N_LAWS);
    for (int i = 1; i <= ZX_N_LAWS; i++)
        if (t->n_values[i] == 0 && t->n_mismatches[i] == 0)
            printf("ok %d - law %d: %s # SKIP %s\n", i, i, laws[i],
                   is_without_state(t, i) ? "the plugin has no zf.state/1" : "no case");
        else
            printf("%s %d - law %d: %s (%" PRIu64 " cases, %" PRIu64 " values, %" PRIu64 " mismatches)\n",
                   t->n_mismatches[i] ? "not ok" : "ok", i, i, laws[i], t->n_cases[i], t->n_values[i],
                   t->n_mismatches[i]);
}

static void print_end(const zx_options_t *o, const zx_totals_t *t, time_t seconds) {
    printf("seed %" PRIu64 ", %" PRIu64 " cases, instruction sets:", o->seed, t->n_done);
    for (uint32_t i = 0; i < o->n_isas; i++)
        printf(" %s", o->isas[i][0] ? o->isas[i] : "the plugin's choice");
    printf("; %lld s: %s\n", (long long)seconds, t->n_failures ? "DOES NOT CONFORM" : "conforms");
}

static const char *verdict_of(const zx_totals_t *t, int law) {
    if (t->n_mismatches[law] == 0 && is_without_state(t, law))
        return "skipped";
    if (t->n_mismatches[law] > 0)
        return "FAIL";
    return t->n_values[law] > 0 ? "PASS" : "not asked for";
}

static int write_json(const zx_options_t *o, const zx_totals_t *t, int exit_status) {
    FILE *file = fopen(o->json, "w");
    uint64_t n_values = 0;
    char summary[200];

    if (!file)
        return -1;
    for (int i = 1; i <= ZX_N_LAWS; i++)
        n_values += t->n_values[i];
    snprintf(summary, sizeof summary,
             "%" PRIu64 " random cases, %" PRIu64 " values compared bit for bit, %" PRIu64 " cases with a mismatch",
             t->n_done, n_values, t->n_failures);
    zr_checks_begin(file, "exact", exit_status, summary, "values compared");
    for (int i = 1; i <= ZX_N_LAWS; i++) {
        char group[16], name[64], detail[64];
        const char *details[] = {detail};

        snprintf(group, sizeof group, "law %d", i);
        snprintf(name, sizeof name, "%" PRIu64 " cases", t->n_cases[i]);
        snprintf(detail, sizeof detail, "%" PRIu64 " cases with a mismatch", t->n_mismatches[i]);
        zr_checks_put(file,
                      &(zr_check_t){.group = group,
                                    .name = name,
                                    .verdict = verdict_of(t, i),
                                    .text = laws[i],
                                    .count = (double)t->n_values[i],
                                    .details = details,
                                    .n_details = t->n_mismatches[i] > 0},
                      i == 1);
    }
    zr_checks_end(file);
    return fclose(file) == 0 ? 0 : -1;
}

int zx_exact_main(int argc, char **argv) {
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    zx_options_t o = {.seed = 1,
                      .n_cases = 400,
                      .only = -1,
                      .n_times = 1,
                      .deadline_s = 120,
                      .max_failures = 3,
                      .n_jobs = n_cpus < 1 ? 1 : (n_cpus > 16 ? 16 : (uint32_t)n_cpus)};
    time_t start = time(NULL);
    zx_totals_t totals;
    int status;

    all_isas(&o);
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout), 0;
    if (parse(&o, argc, argv) != 0)
        return 2;
    if (o.child)
        return zx_child_main(&o);
    if (zx_run_batches(&o, &totals) != 0)
        return 2;
    if (o.is_tap)
        print_tap(&totals);
    else if (!o.is_quiet) {
        print_table(&o, &totals);
        print_end(&o, &totals, time(NULL) - start);
    }
    status = totals.n_failures ? 1 : (totals.n_done ? 0 : 2);
    if (status == 0 && o.law && is_without_state(&totals, o.law))
        status = 77;
    if (o.json && write_json(&o, &totals, status) != 0) {
        fprintf(stderr, "zf-conform exact: %s: cannot write: %s\n", o.json, strerror(errno));
        return 2;
    }
    return status;
}
