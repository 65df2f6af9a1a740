/* checks.h - results that are a list of checks (areas abi, exact, shard): one JSON form for all, one table in the page.
 *
 * {"area": "abi", "exit_status": 0, "summary": "...", "unit": "checks", "checks": [
 *   {"group": "5", "name": "null", "verdict": "PASS", "count": 12, "text": "...", "details": ["...", ...]}, ...]}
 * verdict: PASS, FAIL, or anything else that says why there is none ("skipped", "not in this version"). */
#ifndef ZF_CONFORMANCE_REPORT_CHECKS_H
#define ZF_CONFORMANCE_REPORT_CHECKS_H

#include <stddef.h>
#include <stdio.h>

typedef struct zr_check {
    const char *group, *name, *verdict, *text;
    double count; /* of the file's unit; negative = none */
    const char *const *details;
    size_t n_details;
} zr_check_t;

void zr_checks_begin(FILE *file, const char *area, int exit_status, const char *summary, const char *unit);
void zr_checks_put(FILE *file, const zr_check_t *check, int is_first);
void zr_checks_end(FILE *file);

#endif
