/* abi_main.c - zf-conform abi: proofs 1, 2, 3, 5, 7 and 8 of the ABI, against any .so.
 *
 * Proof 8 runs this program on mock plugins that each break one rule: exactly the expected rules must fail. It tests
 * the checker, not the plugin. */
#define _GNU_SOURCE /* realpath */
#include "abi_main.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi_elf.h"
#include "abi_headers.h"
#include "abi_layout.h"
#include "abi_probes.h"

#ifndef ZFC_HEADERS_DIR
#define ZFC_HEADERS_DIR NULL
#endif
#ifndef ZFC_MOCKS_DIR
#define ZFC_MOCKS_DIR NULL
#endif

typedef struct options {
    const char *plugin, *headers, *mocks, *only, *json;
    int is_tap, is_self_test, is_print_layout, is_layout, is_headers, is_help;
} options_t;

static const char usage[] =
    "zf-conform abi --plugin FILE.so [--headers DIR] [--mocks DIR] [--tap] [--json FILE]\n"
    "               --layout | --headers-only | --print-layout | --self-test [--mocks DIR] [--only NAME]\n"
    "  --plugin FILE    every proof of the ABI against this library (default: $ZFPLUGIN_PATH)\n"
    "  --headers DIR    include directory that has zf/plugin.h\n"
    "  --mocks DIR      directory of the mock plugins\n"
    "  --layout         proof 1 alone: headers against the golden layout\n"
    "  --headers-only   proof 2 alone: headers in every language mode\n"
    "  --print-layout   the layout of the headers, as abi/layout/v0.1.txt holds it\n"
    "  --self-test      proof 8: every mock must break its rule and no other; --only NAME takes one of them\n"
    "  --tap            TAP version 13 in place of the table\n"
    "  --json FILE      the findings as JSON too, for zf-conform --report\n"
    "exit status: 0 conforms, 1 does not, 2 could not run, 77 skipped\n";

static int parse(int argc, char **argv, options_t *o) {
    const struct {
        const char *name;
        const char **value;
        int *flag;
    } table[] = {{"--plugin", &o->plugin, NULL},
                 {"--headers", &o->headers, NULL},
                 {"--mocks", &o->mocks, NULL},
                 {"--only", &o->only, NULL},
                 {"--json", &o->json, NULL},
                 {"--tap", NULL, &o->is_tap},
                 {"--self-test", NULL, &o->is_self_test},
                 {"--layout", NULL, &o->is_layout},
                 {"--print-layout", NULL, &o->is_print_layout},
                 {"--headers-only", NULL, &o->is_headers},
                 {"--help", NULL, &o->is_help}};
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        while (k < sizeof table / sizeof table[0] && strcmp(table[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof table / sizeof table[0] || (table[k].value && i + 1 == argc)) {
            fprintf(stderr, "zf-conform abi: %s \"%s\"\n%s",
                    k == sizeof table / sizeof table[0] ? "unknown option" : "a value is missing after", argv[i],
                    usage);
            return 0;
        }
        if (table[k].flag)
            *table[k].flag = 1;
        else
            *table[k].value = argv[++i];
    }
    return 1;
}

/* All proofs that concern one library. 0, or -1 when the file is no library (said in why). */
static int check_plugin(abi_report_t *report, const abi_env_t *env, const char **why) {
    if (abi_elf_check(report, env->plugin, why) != 0)
        return -1;
    abi_entry_probes(report, env);
    if (abi_report_verdict(report, ABI_RULE_TABLE) ==
        ABI_FAIL) { /* slots cannot be called in a table that lacks some */
        abi_report_add(report, ABI_RULE_VALID, ABI_SKIP, "the table is not complete");
        return 0;
    }
    abi_slot_probes(report, env);
    abi_case_probes(report, env);
    abi_isolation_probes(report, env);
    return 0;
}

static void add_later_proofs(abi_report_t *report) {
    abi_report_add(report, ABI_RULE_ABIDIFF, ABI_SKIP, "not in this version: begins when the ABI is frozen as 1.0");
    abi_report_add(report, ABI_RULE_MIXED, ABI_SKIP, "not in this version: begins when the ABI is frozen as 1.0");
}

/* ---- proof 8 ----------------------------------------------------------------------------------------------------- */

typedef struct mock {
    const char *name;   /* NAME.so */
    const char *broken; /* names of the rules that must fail, space-separated; "" = none */
} mock_t;

#define MOCK(name, broken, what) {#name, broken},
static const mock_t mocks[] = {
#include "../mocks/mocks.def"
};
#undef MOCK

static int is_word_of(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return 1;
    return 0;
}

/* Prints one line, and every difference between what broke and what should. 1 = as expected. */
static int judge(const mock_t *mock, const abi_report_t *report, int number, int is_tap) {
    int is_ok = 1;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && is_tap)
            printf("%sok %d - %s breaks %s\n", is_ok ? "" : "not ", number, mock->name,
                   *mock->broken ? mock->broken : "nothing");
        else if (pass == 1)
            printf("%-4s  %-24s %s\n", is_ok ? "ok" : "FAIL", mock->name, *mock->broken ? mock->broken : "-");
        for (int i = 0; i < ABI_N_RULES; i++) {
            int is_broken = report->rules[i].n_fail > 0,
                is_expected = is_word_of(mock->broken, abi_rule_name((abi_rule_t)i));
            if (is_broken != is_expected)
                is_ok = 0;
            if (pass == 0 || is_broken == is_expected)
                continue;
            printf("%s%s %s: %s\n", is_tap ? "# " : "      ", abi_rule_name((abi_rule_t)i),
                   is_broken ? "was broken too" : "was not seen to be broken",
                   is_broken ? report->rules[i].details[0] : "");
        }
    }
    fflush(stdout);
    return is_ok;
}

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

static int self_test(const options_t *o) {
    enum { N_MOCKS = sizeof mocks / sizeof mocks[0] };
    static abi_report_t report;
    int n_wrong = 0, is_ok = check_comparison();
    if (!o->mocks || access(o->mocks, R_OK) != 0) {
        printf("skipped: no directory of mocks; name it with --mocks DIR\n");
        return 77;
    }
    if (o->is_tap)
        printf("TAP version 13\n1..%d\n%sok 1 - layouts are compared as written\n", N_MOCKS + 1, is_ok ? "" : "not ");
    else
        printf("%-4s  layouts are compared as written\n", is_ok ? "ok" : "FAIL");
    n_wrong += !is_ok;
    for (int i = 0; i < N_MOCKS; i++) {
        char path[1024];
        const char *why;
        abi_env_t env = {path, o->mocks};
        if (o->only && strcmp(o->only, mocks[i].name) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s.so", o->mocks, mocks[i].name);
        memset(&report, 0, sizeof report);
        if (check_plugin(&report, &env, &why) != 0)
            abi_report_add(&report, ABI_RULE_CRASH, ABI_FAIL, why);
        if (!judge(&mocks[i], &report, i + 2, o->is_tap))
            n_wrong++;
    }
    if (!o->is_tap)
        printf("%d of %d mocks are judged as expected\n", N_MOCKS + 1 - n_wrong, N_MOCKS + 1);
    return n_wrong ? 1 : 0;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static int report_and_return(const abi_report_t *report, const options_t *o) {
    abi_report_print(report, stdout, o->is_tap);
    if (o->json && abi_report_write_json(report, o->json) != 0) {
        fprintf(stderr, "zf-conform abi: %s: cannot write: %s\n", o->json, strerror(errno));
        return 2;
    }
    return abi_report_exit_status(report);
}

static int check_all(const options_t *o, abi_report_t *report) {
    const char *why;
    char *path = o->plugin ? realpath(o->plugin, NULL) : NULL;
    abi_env_t env = {path, o->mocks};
    int rc;
    if (!path) {
        fprintf(stderr, "zf-conform abi: %s%s\n", o->plugin ? "no such file: " : "which library? --plugin FILE.so",
                o->plugin ? o->plugin : "");
        return 2;
    }
    abi_layout_check(report, o->headers);
    abi_headers_check(report, o->headers);
    add_later_proofs(report);
    if (check_plugin(report, &env, &why) != 0) {
        fprintf(stderr, "zf-conform abi: %s: %s\n", path, why);
        rc = 2;
    } else {
        rc = report_and_return(report, o);
    }
    free(path);
    return rc;
}

int zfc_abi_main(int argc, char **argv) {
    static abi_report_t report;
    options_t o = {.headers = ZFC_HEADERS_DIR, .mocks = ZFC_MOCKS_DIR, .plugin = getenv("ZFPLUGIN_PATH")};
    if (!parse(argc, argv, &o))
        return 2;
    if (o.is_help)
        return fputs(usage, stdout) < 0;
    if (o.is_print_layout)
        return abi_layout_dump(stdout), 0;
    if (o.is_self_test)
        return self_test(&o);
    if (o.is_layout) {
        abi_layout_check(&report, o.headers);
        return report_and_return(&report, &o);
    }
    if (o.is_headers) {
        abi_headers_check(&report, o.headers);
        return report.rules[ABI_RULE_HEADERS].n_pass + report.rules[ABI_RULE_HEADERS].n_fail
                   ? report_and_return(&report, &o)
                   : (abi_report_print(&report, stdout, o.is_tap), 77);
    }
    return check_all(&o, &report);
}
