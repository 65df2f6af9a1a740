/* SPDX-License-Identifier: Apache-2.0 */
/* harness/checks.h - results that are a list of checks (areas abi, exact, shard): one JSON form for all.
 *
 * {"area": "abi", "exit_status": 0, "summary": "...", "unit": "checks", "checks": [
 *   {"group": "5", "name": "null", "verdict": "PASS", "count": 12, "text": "...", "details": ["...", ...]}, ...]}
 * verdict: PASS, FAIL, or anything else that says why there is none ("skipped", "not in this version"). */
#ifndef ZF_CONFORMANCE_CASES_CHECKS_H
#define ZF_CONFORMANCE_CASES_CHECKS_H

#include <jansson.h>
#include <stddef.h>

typedef struct zc_check {
    const char *group, *name, *verdict, *text;
    double count; /* of the file's unit; negative = none */
    const char *const *details;
    size_t n_details;
} zc_check_t;

/* The document with no check in it yet; zj_write (json_file.h) takes it over. */
json_t *zc_checks_new(const char *area, int exit_status, const char *summary, const char *unit);
void zc_checks_add(json_t *document, const zc_check_t *check);

#endif
