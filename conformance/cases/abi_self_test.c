/* SPDX-License-Identifier: Apache-2.0 */
/* abi_self_test.c - proof 8 (abi_self_test.h). */
#define _GNU_SOURCE /* popen */
#include "abi_self_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi_elf.h"
#include "abi_golden.h"
#include "abi_layout.h"
#include "abi_probes.h"
#include "abi_text.h"

typedef struct part {
    const char *name;
    void (*probes)(abi_report_t *, const abi_env_t *);
} part_t;

static const part_t parts[] = {
    {"entry", abi_entry_probes},       {"slots", abi_slot_probes},       {"cases", abi_case_probes},
    {"training", abi_training_probes}, {"counters", abi_counter_probes}, {"hosts", abi_host_probes},
    {"books", abi_books_probes},       {"extent", abi_extent_probes},    {"isolation", abi_isolation_probes},
    {"state", abi_state_probes},       {"manners", abi_manners_probes},  {"layers", abi_layer_probes}};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

int abi_check_part(abi_report_t *report, const abi_env_t *env, const char *part, const char **why) {
    if (strcmp(part, "elf") == 0)
        return abi_elf_check(report, env->plugin, why);
    for (size_t i = 0; i < N_PARTS; i++)
        if (strcmp(part, parts[i].name) == 0)
            return parts[i].probes(report, env), 0;
    *why = "--only: there are no such probes";
    return -1;
}

int abi_check_plugin(abi_report_t *report, const abi_env_t *env, const char **why) {
    if (abi_elf_check(report, env->plugin, why) != 0)
        return -1;
    for (size_t i = 0; i < N_PARTS; i++) {
        parts[i].probes(report, env);
        if (abi_report_verdict(report, ABI_RULE_TABLE) == ABI_FAIL) { /* a table that lacks slots cannot be called */
            abi_report_add(report, ABI_RULE_VALID, ABI_SKIP, "the table is not complete");
            return 0;
        }
    }
    return 0;
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* The comparison of layouts, on made-up ones: 1.0 may grow at the end of a struct and nowhere else. */
static int check_comparison(void) {
    static const char golden[] = "const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\nstruct t "
                                 "input 8\n  0 4 uint32_t struct_size\n";
    static const struct {
        const char *now;
        int is_major0_ok, is_major1_ok;
    } tries[] = {
        {golden, 1, 1},
        {"const A 1\nconst B 2\nstruct s input 16\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\n  8 8 double "
         "b\nstruct t input 8\n  0 4 uint32_t struct_size\n",
         0, 1},
        {"const A 1\nstruct s input 16\n  0 4 uint32_t struct_size\n  4 4 uint32_t b\n  8 4 uint32_t a\nstruct t input "
         "8\n  0 4 uint32_t struct_size\n",
         0, 0},
        {"const A 2\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\nstruct t input 8\n  0 4 uint32_t "
         "struct_size\n",
         0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 int32_t a\nstruct t input 8\n  0 4 uint32_t "
         "struct_size\n",
         0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\n", 0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\nstruct t input 8\n  0 4 uint32_t struct_size\n", 0,
         0}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        static abi_report_t major0, major1;
        memset(&major0, 0, sizeof major0), memset(&major1, 0, sizeof major1);
        abi_layout_compare(&major0, golden, tries[i].now, 0);
        abi_layout_compare(&major1, golden, tries[i].now, 1);
        if ((major0.rules[ABI_RULE_LAYOUT].n_fail == 0) != tries[i].is_major0_ok ||
            (major1.rules[ABI_RULE_LAYOUT].n_fail == 0) != tries[i].is_major1_ok)
            return 0;
    }
    return 1;
}

/* ---- mock headers ------------------------------------------------------------------------------------------------ */

typedef struct header_mock {
    const char *name;
    unsigned by;        /* who must notice: */
    const char *needle; /* what the finding must name */
} header_mock_t;

#define HEADER_MOCK(name, by, file, from, to, needle) {#name, by, needle},
enum { layout = 1, text = 2, both = 3 };
static const header_mock_t header_mocks[] = {
#include "../mocks/headers.def"
};
#undef HEADER_MOCK

/* What the program printed, for the caller to free; NULL if it did not run. */
static char *read_output(const char *program) {
    char *said = NULL;
    size_t nbytes = 0;
    FILE *f = popen(program, "r");
    ssize_t n = f ? getdelim(&said, &nbytes, '\0', f) : -1;
    if (f && pclose(f) == 0 && n > 0)
        return said;
    free(said);
    return NULL;
}

static int is_as_expected(const abi_finding_t *found, const header_mock_t *mock, unsigned who) {
    if (!(mock->by & who))
        return found->n_fail == 0;
    return found->n_fail == 1 && strstr(found->details[0], mock->needle);
}

/* The changed headers must be noticed by whoever should, for the right reason, and by nobody else. */
static int judge_headers(const header_mock_t *mock, const char *mocks_dir, int number, int is_tap) {
    static abi_report_t reports[2];
    const abi_finding_t *by_layout = &reports[0].rules[ABI_RULE_LAYOUT], *by_text = &reports[1].rules[ABI_RULE_LAYOUT];
    char path[1200], *printed;
    int is_ok;
    memset(reports, 0, sizeof reports);
    snprintf(path, sizeof path, "'%s/headers/%s/layout'", mocks_dir, mock->name);
    printed = read_output(path);
    abi_layout_compare(&reports[0], abi_golden_layout(), printed ? printed : "", 0);
    free(printed);
    snprintf(path, sizeof path, "%s/headers/%s", mocks_dir, mock->name);
    abi_text_check(&reports[1], path);
    is_ok = is_as_expected(by_layout, mock, layout) && is_as_expected(by_text, mock, text);
    if (is_tap)
        printf("%sok %d - headers %s break layout\n", is_ok ? "" : "not ", number, mock->name);
    else
        printf("%-4s  headers/%-16s layout\n", is_ok ? "ok" : "FAIL", mock->name);
    if (!is_ok)
        printf("%scompiled: %s; read: %s\n", is_tap ? "# " : "      ",
               by_layout->n_fail ? by_layout->details[0] : "nothing",
               by_text->n_fail ? by_text->details[0] : "nothing");
    return is_ok;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

enum { N_HEADER_MOCKS = sizeof header_mocks / sizeof header_mocks[0] };

int abi_self_test(const char *mocks_dir, int is_tap) {
    int n_wrong, is_ok = check_comparison();
    if (!mocks_dir || access(mocks_dir, R_OK) != 0) {
        printf("skipped: no directory of changed headers; name it with --mocks DIR\n");
        return 77;
    }
    if (is_tap)
        printf("TAP version 13\n1..%d\n%sok 1 - layouts are compared as written\n", 1 + N_HEADER_MOCKS,
               is_ok ? "" : "not ");
    else
        printf("%-4s  layouts are compared as written\n", is_ok ? "ok" : "FAIL");
    n_wrong = !is_ok;
    for (int i = 0; i < N_HEADER_MOCKS; i++)
        n_wrong += !judge_headers(&header_mocks[i], mocks_dir, i + 2, is_tap);
    return n_wrong ? 1 : 0;
}
