/* SPDX-License-Identifier: Apache-2.0 */
/* harness/checks.c - the JSON form of a list of checks (checks.h). */
#include "checks.h"

#include "json_file.h"

json_t *zc_checks_new(const char *area, int exit_status, const char *summary, const char *unit) {
    return json_pack("{s:s, s:i, s:o, s:s, s:[]}", "area", area, "exit_status", exit_status, "summary",
                     zj_string(summary), "unit", unit, "checks");
}

void zc_checks_add(json_t *document, const zc_check_t *check) {
    json_t *item = json_pack("{s:o, s:o, s:o, s:o, s:o}", "group", zj_string(check->group), "name",
                             zj_string(check->name), "verdict", zj_string(check->verdict), "text",
                             zj_string(check->text), "details", zj_strings(check->details, check->n_details));

    if (check->count >= 0.0)
        (void)json_object_set_new(item, "count", json_integer((json_int_t)check->count));
    (void)json_array_append_new(json_object_get(document, "checks"), item);
}
