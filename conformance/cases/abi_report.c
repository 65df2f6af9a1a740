/* SPDX-License-Identifier: Apache-2.0 */
/* abi_report.c - collecting and printing findings (abi_report.h). */
#include "abi_report.h"

#include <string.h>

static const struct {
    int proof;
    const char *name, *text;
} rules[ABI_N_RULES] = {
#define ABI_RULE_ROW(id, proof, name, text) {proof, name, text},
    ABI_RULES(ABI_RULE_ROW)
#undef ABI_RULE_ROW
};

const char *abi_rule_name(abi_rule_t rule) { return rule < ABI_N_RULES ? rules[rule].name : "?"; }

void abi_report_add(abi_report_t *report, abi_rule_t rule, abi_verdict_t verdict, const char *detail) {
    abi_finding_t *f = &report->rules[rule];
    if (verdict == ABI_PASS)
        f->n_pass++;
    else if (verdict == ABI_FAIL)
        f->n_fail++;
    else
        f->n_skip++;
    if (verdict == ABI_PASS || f->n_details == ABI_MAX_DETAILS)
        return;
    snprintf(f->details[f->n_details++], ABI_DETAIL_NBYTES, "%s%s", verdict == ABI_SKIP ? "skipped: " : "",
             detail ? detail : "");
}

abi_verdict_t abi_report_verdict(const abi_report_t *report, abi_rule_t rule) {
    const abi_finding_t *f = &report->rules[rule];
    return f->n_fail ? ABI_FAIL : f->n_pass ? ABI_PASS : ABI_SKIP;
}

static void print_details(const abi_finding_t *f, FILE *out, const char *indent) {
    for (unsigned i = 0; i < f->n_details; i++)
        fprintf(out, "%s%s\n", indent, f->details[i]);
    if (f->n_fail + f->n_skip > f->n_details)
        fprintf(out, "%s... and %u more\n", indent, f->n_fail + f->n_skip - f->n_details);
}

static void print_tap(const abi_report_t *report, FILE *out) {
    fprintf(out, "TAP version 13\n1..%d\n", ABI_N_RULES);
    for (int i = 0; i < ABI_N_RULES; i++) {
        abi_verdict_t verdict = abi_report_verdict(report, (abi_rule_t)i);
        const abi_finding_t *f = &report->rules[i];
        fprintf(out, "%sok %d - %s: %s", verdict == ABI_FAIL ? "not " : "", i + 1, rules[i].name, rules[i].text);
        if (verdict == ABI_SKIP)
            fprintf(out, " # SKIP %s", f->n_details ? f->details[0] : "not run");
        fputc('\n', out);
        if (verdict != ABI_SKIP)
            print_details(f, out, "# ");
    }
}

static void print_table(const abi_report_t *report, FILE *out) {
    static const char *const words[] = {"pass", "FAIL", "skip"};
    unsigned n[3] = {0, 0, 0};
    fprintf(out, "proof  rule            result  checks  what\n");
    for (int i = 0; i < ABI_N_RULES; i++) {
        abi_verdict_t verdict = abi_report_verdict(report, (abi_rule_t)i);
        const abi_finding_t *f = &report->rules[i];
        n[verdict]++;
        fprintf(out, "%5d  %-14s  %-6s  %6u  %s\n", rules[i].proof, rules[i].name, words[verdict],
                f->n_pass + f->n_fail + f->n_skip, rules[i].text);
        print_details(f, out, "         ");
    }
    fprintf(out, "%u rules hold, %u broken, %u skipped\n", n[ABI_PASS], n[ABI_FAIL], n[ABI_SKIP]);
}

void abi_report_print(const abi_report_t *report, FILE *out, int is_tap) {
    if (is_tap)
        print_tap(report, out);
    else
        print_table(report, out);
    fflush(out);
}

int abi_report_exit_status(const abi_report_t *report) {
    for (int i = 0; i < ABI_N_RULES; i++)
        if (report->rules[i].n_fail)
            return 1;
    return 0;
}
