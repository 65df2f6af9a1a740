/* checks.c - the JSON form of a list of checks, and its table (checks.h). */
#include "checks.h"

#include "glue_json.h"
#include "page.h"
#include "text.h"

#include <math.h>

void zr_checks_begin(FILE *file, const char *area, int exit_status, const char *summary, const char *unit) {
    (void)fputs("{\"area\": ", file);
    zr_put_json(file, area);
    (void)fprintf(file, ", \"exit_status\": %d, \"summary\": ", exit_status);
    zr_put_json(file, summary);
    (void)fputs(", \"unit\": ", file);
    zr_put_json(file, unit);
    (void)fputs(", \"checks\": [\n", file);
}

void zr_checks_put(FILE *file, const zr_check_t *check, int is_first) {
    const char *const names[] = {"group", "name", "verdict", "text"};
    const char *const values[] = {check->group, check->name, check->verdict, check->text};

    (void)fputs(is_first ? " {" : ",\n {", file);
    for (size_t i = 0; i < 4; i++) {
        (void)fprintf(file, "\"%s\": ", names[i]);
        zr_put_json(file, values[i]);
        (void)fputs(", ", file);
    }
    if (check->count >= 0.0)
        (void)fprintf(file, "\"count\": %.0f, ", check->count);
    (void)fputs("\"details\": [", file);
    for (size_t i = 0; i < check->n_details; i++) {
        (void)fputs(i > 0 ? ", " : "", file);
        zr_put_json(file, check->details[i]);
    }
    (void)fputs("]}", file);
}

void zr_checks_end(FILE *file) { (void)fputs("\n]}\n", file); }

/* ---- the page ---------------------------------------------------------------------------------------------------- */

void zr_say_checks(const json_t *json, char out[ZR_SUMMARY_NBYTES]) {
    (void)zg_json_text(json, "summary", out, ZR_SUMMARY_NBYTES);
}

/* The details as a list inside the cell. */
static void put_details(FILE *file, const json_t *check) {
    char text[700];
    const json_t *item;
    size_t i;
    int n = 0;

    json_array_foreach(zg_json_find(check, "details"), i, item) if (zg_json_text(item, NULL, text, sizeof text)) {
        (void)fputs(n++ == 0 ? "<ul class=\"details\">" : "", file);
        (void)fputs("<li>", file);
        zr_put_html(file, text);
        (void)fputs("</li>", file);
    }
    (void)fputs(n > 0 ? "</ul>" : "", file);
}

static void put_row(FILE *file, const json_t *check) {
    char text[700];

    (void)fputs("<tr>", file);
    (void)zg_json_text(check, "group", text, sizeof text);
    zr_cell_text(file, text);
    (void)zg_json_text(check, "name", text, sizeof text);
    zr_cell_text(file, text);
    (void)fputs("<td>", file);
    (void)zg_json_text(check, "verdict", text, sizeof text);
    zr_put_verdict(file, text);
    (void)fputs("</td>", file);
    zr_cell_number(file, zg_json_number(check, "count", NAN), 0);
    (void)fputs("<td class=\"wide\">", file);
    (void)zg_json_text(check, "text", text, sizeof text);
    zr_put_html(file, text);
    put_details(file, check);
    (void)fputs("</td></tr>\n", file);
}

void zr_put_checks(FILE *file, const json_t *json) {
    char unit[80] = ">";
    const char *heads[] = {"", "name", "result", unit, "what holds"};
    const json_t *item;
    size_t i;

    (void)zg_json_text(json, "unit", unit + 1, sizeof unit - 1);
    zr_table_begin(file, heads, 5);
    json_array_foreach(zg_json_find(json, "checks"), i, item) put_row(file, item);
    zr_table_end(file);
}
