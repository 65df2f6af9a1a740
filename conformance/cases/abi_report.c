/* SPDX-License-Identifier: Apache-2.0 */
/* abi_report.c - collecting and printing findings (abi_report.h). */
#include "abi_report.h"

static const struct {
    int proof;
    const char *name, *text;
} rules[ABI_N_RULES] = {
#define ABI_RULE_ROW(id, proof, name, text) {proof, name, text},
    ABI_RULES(ABI_RULE_ROW)
#undef ABI_RULE_ROW
};

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

/* Rules that a probe came to and could not judge, by name; others were not asked for. */
static void print_skipped(const abi_report_t *report, FILE *out) {
    unsigned n_skipped = 0, n_unasked = 0;
    for (int i = 0; i < ABI_N_RULES; i++) {
        const abi_finding_t *f = &report->rules[i];
        int is_skipped = f->n_pass + f->n_fail == 0 && f->n_skip > 0;
        n_unasked += f->n_pass + f->n_fail + f->n_skip == 0;
        if (is_skipped)
            fprintf(out, "%s%s", n_skipped ? ", " : ", skipped: ", rules[i].name);
        n_skipped += (unsigned)is_skipped;
    }
    fprintf(out, "%s", n_skipped ? "" : ", 0 skipped");
    if (n_unasked)
        fprintf(out, ", %u not asked", n_unasked);
    fprintf(out, "\n");
}

static void print_details(const abi_finding_t *f, FILE *out) {
    for (unsigned i = 0; i < f->n_details; i++)
        fprintf(out, "         %s\n", f->details[i]);
    if (f->n_fail + f->n_skip > f->n_details)
        fprintf(out, "         ... and %u more\n", f->n_fail + f->n_skip - f->n_details);
}

void abi_report_print(const abi_report_t *report, FILE *out) {
    static const char *const words[] = {"pass", "FAIL", "skip"};
    unsigned n[3] = {0, 0, 0};
    fprintf(out, "proof  rule            result  checks  what\n");
    for (int i = 0; i < ABI_N_RULES; i++) {
        abi_verdict_t verdict = abi_report_verdict(report, (abi_rule_t)i);
        const abi_finding_t *f = &report->rules[i];
        n[verdict]++;
        fprintf(out, "%5d  %-14s  %-6s  %6u  %s\n", rules[i].proof, rules[i].name, words[verdict],
                f->n_pass + f->n_fail + f->n_skip, rules[i].text);
        print_details(f, out);
    }
    fprintf(out, "%u rules hold, %u broken", n[ABI_PASS], n[ABI_FAIL]);
    print_skipped(report, out);
    fflush(out);
}

int abi_report_exit_status(const abi_report_t *report) {
    for (int i = 0; i < ABI_N_RULES; i++)
        if (report->rules[i].n_fail)
            return 1;
    return 0;
}
