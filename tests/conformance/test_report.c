/* test_report.c - the report's page: escaping, well-formedness, every section, files that are hostile or end early. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glue_json.h"
#include "report/checks.h"
#include "report/page.h"
#include "report/plot.h"
#include "report/text.h"
#include "suite.h"

/* ---- what a function writes into a file, as text ----------------------------------------------------------------- */

static char *text;
static size_t text_nbytes;

static FILE *open_text(void) {
    FILE *file = open_memstream(&text, &text_nbytes);

    ck_assert_ptr_nonnull(file);
    return file;
}

static void check_text(FILE *file, const char *expected) {
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(text, expected);
    free(text);
}

/* ---- a small check of well-formed XML ---------------------------------------------------------------------------- */

enum { MAX_DEPTH = 64, NAME_NBYTES = 32 };

static int is_entity(const char *p) {
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(p, names[i], strlen(names[i])) == 0)
            return 1;
    return 0;
}

/* Behind the attributes, at ">" or "/>"; NULL where one is not NAME="value". */
static const char *skip_attributes(const char *p) {
    for (p += strspn(p, " \n"); *p != '>' && *p != '/'; p += strspn(p, " \n")) {
        size_t n = strcspn(p, "= \n<>\"&");

        if (n == 0 || p[n] != '=' || p[n + 1] != '"')
            return NULL;
        for (p += n + 2; *p != '"'; p++)
            if (*p == '<' || *p == '\0' || (*p == '&' && !is_entity(p)))
                return NULL;
        p++;
    }
    return p;
}

/* NULL, or where it is not well-formed. */
static const char *find_fault(const char *p) {
    char open[MAX_DEPTH][NAME_NBYTES];
    size_t depth = 0;

    if (strncmp(p, "<!DOCTYPE html>", 15) == 0)
        p += 15;
    while (*p != '\0') {
        const char *start = p;
        int is_end;
        size_t n;

        if (*p != '<') {
            if (*p == '&' && !is_entity(p))
                return p;
            p++;
            continue;
        }
        is_end = p[1] == '/';
        p += 1 + is_end;
        n = strcspn(p, " \n/>");
        if (n == 0 || n >= NAME_NBYTES || (p = skip_attributes(p + n)) == NULL)
            return start;
        if (is_end) {
            if (depth == 0 || strlen(open[depth - 1]) != n || strncmp(open[depth - 1], start + 2, n) != 0)
                return start;
            depth--;
        } else if (*p != '/') {
            if (depth == MAX_DEPTH)
                return start;
            memcpy(open[depth], start + 1, n);
            open[depth++][n] = '\0';
        } else {
            p++;
        }
        if (*p++ != '>')
            return start;
    }
    return depth == 0 ? NULL : p;
}

START_TEST(fault_finder_finds_faults) {
    static const char *const good[] = {"<a b=\"1\"><c/>x &amp; y</a>", "<!DOCTYPE html>\n<a>\n</a>"};
    static const char *const bad[] = {"<a>",          "<a></b>",       "<a>x & y</a>",   "<a b=1></a>",
                                      "<a b=\"<\"/>", "<a b=\"1></a>", "<a><b></a></b>", "</a>"};

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_ptr_null(find_fault(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_ptr_nonnull(find_fault(bad[i]));
}
END_TEST

/* ---- text -------------------------------------------------------------------------------------------------------- */

START_TEST(html_is_escaped) {
    FILE *file = open_text();

    zr_put_html(file, "<script>a && \"b\"</script> \x01\x7f \xff\xfe \xc0\xaf \xe2\x82 \xe2\x82\xac \xed\xa0\x80");
    check_text(file, "&lt;script&gt;a &amp;&amp; &quot;b&quot;&lt;/script&gt; ?? ?? ?? ?? \xe2\x82\xac ???");
}
END_TEST

START_TEST(json_is_escaped_and_read_back) {
    static const char hostile[] = "a \"b\" \\ c\n\td </script> \xe2\x82\xac";
    char back[80];
    json_t *json;
    FILE *file = open_text();

    (void)fputs("{\"x\": [1, ", file);
    zr_put_json(file, hostile);
    (void)fputs(", {\"y\": \"\\u20ac\\u0041\\u00e9\"}]}", file);
    ck_assert_int_eq(fclose(file), 0);
    json = zg_json_parse(text);
    ck_assert_ptr_nonnull(json);
    ck_assert_int_eq(zg_json_text(json_array_get(zg_json_find(json, "x"), 1), NULL, back, sizeof back), 1);
    ck_assert_str_eq(back, hostile);
    ck_assert_int_eq(zg_json_text(json_array_get(zg_json_find(json, "x"), 2), "y", back, sizeof back), 1);
    ck_assert_str_eq(back, "\xe2\x82\xac"
                           "A\xc3\xa9");
    json_decref(json);
    free(text);
}
END_TEST

START_TEST(numbers_are_for_readers) {
    char out[ZR_NUMBER_NBYTES];

    ck_assert_str_eq(zr_number(0.27112345, out), "0.2711");
    ck_assert_str_eq(zr_number(12.345, out), "12.35");
    ck_assert_str_eq(zr_number(1.23e-7, out), "1.2e-07");
    ck_assert_str_eq(zr_number(NAN, out), "-");
    ck_assert_str_eq(zr_fixed(4346275.4, 0, out), "4\xe2\x80\xaf"
                                                  "346\xe2\x80\xaf"
                                                  "275");
    ck_assert_str_eq(zr_fixed(-12345.5, 1, out), "-12\xe2\x80\xaf"
                                                 "345.5");
    ck_assert_str_eq(zr_fixed(1234.0, 0, out), "1234");
    ck_assert_str_eq(zr_fixed(1e300, 2, out), "1.000e+300");
}
END_TEST

/* ---- the page ---------------------------------------------------------------------------------------------------- */

#define HOSTILE "</td><script>alert(1)</script>&\\\"<"
static const char glue_json[] =
    "{\"area\": \"glue\", \"task\": \"" HOSTILE
    "\", \"metric\": \"accuracy\", \"is_synthetic\": true, \"plugin\": \"" HOSTILE
    "\", \"parameters\": 853442, \"steps\": 4, \"batch\": 32, \"lr\": 1e-3, \"margin\": 1, \"exit_status\": 3, "
    "\"arms\": [\n"
    "{\"name\": \"adamw\", \"metric\": [80, 81], \"mean_losses\": [0.7, 0.6, 0.5, 0.4]},\n"
    "{\"name\": \"" HOSTILE
    "\", \"metric\": [80.5, 81], \"verdict\": \"INCONCLUSIVE\", \"mean_difference\": 0.25, \"lower\": -1.2, "
    "\"upper\": null, \"start\": {\"conforms\": true}, \"last_quarter_ratio\": 1.02, \"link_bytes_per_step\": "
    "{\"down\": 100, "
    "\"publish\": 20, \"enter\": 3, \"down_formula\": 100, \"publish_formula\": 25}, \"stall_us_per_step\": 12, "
    "\"mean_losses\": [0.7, 0.65, 0.5, 1e300]}]}";
static const char curves_json[] =
    "{\"area\": \"curves\", \"exit_status\": 1, \"task\": \"sst2\", \"lr\": 1e-3, \"seeds\": 2, \"arms\": [\n"
    "{\"name\": \"adamw\", \"last_quarter_loss\": 0.26, \"to_adamw\": 1, \"bar\": null, \"curve_every\": 10, "
    "\"curve\": [0.7, 0.5]},\n"
    "{\"name\": \"r4\", \"title\": \"replay, S = 4\", \"to_adamw\": 1.2, \"bar\": 1.05, \"curve_every\": 10, "
    "\"curve\": [0.7, 0.6]}]}";
static const char perf_json[] = "{\"area\": \"perf\", \"exit_status\": 0, \"rows\": [{\"gradient\": \"bf16\", "
                                "\"interval\": 4, \"down_formula\": 2, "
                                "\"up_formula\": 0.5, \"host_formula\": 19.5, \"faults\": \"\", \"measured\": "
                                "{\"n_elems\": 5e6, \"down\": 2, \"up\": 0.5, "
                                "\"records\": 0.01, \"enter\": 0.02, \"state\": 12, \"slots\": 7, \"publish\": 0.5, "
                                "\"mapped\": 19.7, \"stall_us\": 100}}],\n"
                                " \"timeline\": {\"interval\": 4, \"steps_us\": [500, 1000], \"hooks\": [{\"name\": "
                                "\"step\", \"from_to_us\": [100, 120, 600, "
                                "620]}],\n \"threads\": [{\"name\": \"zf-down" HOSTILE
                                "\", \"busy_us\": [100,0,300]}], \"at_us\": [1,301,601,1001], "
                                "\"down_bytes\": [0,1000,0], \"up_bytes\": [0,0,10]}}";
static const char ablation_json[] =
    "{\"area\": \"ablation\", \"exit_status\": 0, \"seeds\": 2, \"levels\": [\n"
    "{\"factor\": \"publish_lag\", \"level\": \"0\", \"arm\": 1, \"against_default\": \"better\"},\n"
    "{\"factor\": \"predict\", \"level\": \"auto\", \"not_run\": \"" HOSTILE "\"},\n"
    "{\"factor\": \"predict\", \"level\": \"1\", \"arm\": 99, \"against_default\": \"-\"}],\n \"arms\": [\n"
    "{\"title\": \"AdamW\", \"rates\": [{\"lr\": \"1e-3\", \"to_adamw\": 1, \"curve_every\": 5, \"curve\": [1, "
    "0.5]}]},\n"
    "{\"title\": \"0\", \"rates\": [{\"lr\": \"1e-3\", \"to_adamw\": 1.01, \"curve_every\": 5, \"curve\": [1, "
    "0.6]}]}]}";

static char *make_checks(void) {
    static const char *const details[] = {HOSTILE, "line\nbreak"};
    FILE *file = open_text();

    zr_checks_begin(file, "abi", 1, "1 rule broken", "checks");
    zr_checks_put(file, &(zr_check_t){"proof 5", "null", "PASS", "refused", 86, NULL, 0}, 1);
    zr_checks_put(file, &(zr_check_t){"proof 5", HOSTILE, "FAIL", HOSTILE, -1, details, 2}, 0);
    zr_checks_end(file);
    ck_assert_int_eq(fclose(file), 0);
    return text;
}

/* The page of these results; release with free. */
static char *make_page(const zr_result_t *results, size_t n) {
    FILE *file = open_text();

    zr_page_put(file, results, n);
    ck_assert_int_eq(fclose(file), 0);
    return text;
}

static void check_page(const char *page) {
    const char *fault = find_fault(page);

    ck_assert_msg(fault == NULL, "not well-formed at: %.200s", fault);
    ck_assert_ptr_null(strstr(page, "<script"));
    ck_assert_ptr_null(strstr(page, "src="));
    ck_assert_ptr_null(strstr(page, "url("));
    ck_assert_ptr_null(strstr(page, "nan"));
    ck_assert_ptr_null(strstr(page, "inf\""));
    for (const char *p = page; (p = strstr(p, "http")) != NULL; p++) /* namespaces name, they do not load */
        ck_assert_int_eq(strncmp(p, "http://www.w3.org/2000/svg\"", 27), 0);
}

START_TEST(page_has_every_section) {
    static const char *const needed[] = {"id=\"abi\"",
                                         "id=\"exact\"",
                                         "id=\"shard\"",
                                         "id=\"glue\"",
                                         "id=\"curves\"",
                                         "id=\"ablation\"",
                                         "id=\"perf\"",
                                         "1 rule broken",
                                         "Score of every seed",
                                         "Difference of every seed",
                                         "margin: -1",
                                         "Training loss relative to AdamW",
                                         "Bytes over the link against the formula",
                                         "Stall",
                                         "Host memory against the formula",
                                         "What every thread does",
                                         "time, milliseconds",
                                         "optimizer step",
                                         "MISSED",
                                         "INCONCLUSIVE",
                                         "SYNTHETIC",
                                         "left no results",
                                         "Not run.",
                                         "nats per row",
                                         "bytes per parameter and step",
                                         "&lt;/td&gt;&lt;script&gt;alert(1)",
                                         "publish_lag",
                                         "viewport"};
    char *checks = make_checks(), *page;
    const char *const texts[] = {checks, glue_json, curves_json, perf_json, ablation_json};
    json_t *json[5];

    for (size_t i = 0; i < 5; i++) {
        json[i] = zg_json_parse(texts[i]);
        ck_assert_ptr_nonnull(json[i]);
    }
    {
        const zr_result_t results[] = {{"abi", json[0], 1, 12.0, NULL},
                                       {"glue", json[1], -1, NAN, NULL},
                                       {"curves", json[2], -1, NAN, NULL},
                                       {"perf", json[3], 0, 3.0, NULL},
                                       {"ablation", json[4], -1, NAN, NULL},
                                       {"ablation", NULL, -1, NAN, "the file is damaged"},
                                       {"exact", NULL, 139, 1.0, "left no results; " HOSTILE}};

        page = make_page(results, 7);
    }
    check_page(page);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        ck_assert_msg(strstr(page, needed[i]) != NULL, "no \"%s\" in the page", needed[i]);
    free(page);
    for (size_t i = 0; i < 5; i++)
        json_decref(json[i]);
    free(checks);
}
END_TEST

START_TEST(files_that_end_early_hold_nothing) {
    char *checks = make_checks();
    const char *const texts[] = {checks, glue_json, curves_json, perf_json, ablation_json};

    for (size_t k = 0; k < 5; k++)
        for (size_t n = 0; n < strlen(texts[k]) - 1; n++) { /* the last byte may be a line feed */
            char *cut = strndup(texts[k], n);

            ck_assert_ptr_null(zg_json_parse(cut));
            free(cut);
        }
    free(checks);
}
END_TEST

/* Puts another value in the place of the n-th one, counted as they stand; returns how many are left to count. */
static long put_instead(json_t *in, long n, json_t *other) {
    const char *key;
    json_t *value;
    size_t i;

    json_object_foreach(in, key, value) {
        if (n == 0)
            return json_object_set(in, key, other), -1;
        n = put_instead(value, n - 1, other);
        if (n < 0)
            return n;
    }
    json_array_foreach(in, i, value) {
        if (n == 0)
            return json_array_set(in, i, other), -1;
        n = put_instead(value, n - 1, other);
        if (n < 0)
            return n;
    }
    return n;
}

/* Whatever stands in the place of any value, and files of other areas in the place of a file, make a well-formed page.
 */
START_TEST(any_values_make_a_page) {
    static const char *const areas[] = {"abi", "glue", "curves", "perf", "ablation"};
    json_t *others[] = {json_null(), json_real(-1e300), json_string(HOSTILE), json_array(), json_pack("{s:[n]}", "x")};
    char *checks = make_checks(), *page;
    const char *const texts[] = {checks, glue_json, curves_json, perf_json, ablation_json};

    for (size_t k = 0; k < 5; k++)
        for (size_t other = 0; other < 5; other++) {
            int is_done = 0;

            for (long n = 0; !is_done; n++) {
                json_t *json = zg_json_parse(texts[k]);
                const zr_result_t result = {areas[k], json, -1, NAN, NULL};

                is_done = put_instead(json, n, others[other]) >= 0;
                ck_assert(!is_done || n >= 20); /* all of them */
                page = make_page(&result, 1);
                check_page(page);
                free(page);
                json_decref(json);
            }
        }
    for (size_t k = 0; k < 25; k++) {
        json_t *json = zg_json_parse(texts[k / 5]);
        const zr_result_t result = {areas[k % 5], json, -1, NAN, NULL};

        page = make_page(&result, 1);
        check_page(page);
        free(page);
        json_decref(json);
    }
    for (size_t i = 0; i < 5; i++)
        json_decref(others[i]);
    free(checks);
}
END_TEST

START_TEST(plots_take_any_values) {
    static const double wild[] = {NAN, 1e300, -1e300, INFINITY, 0.0};
    const zr_line_t line = {.title = HOSTILE, .y = wild, .n = 5};
    const zr_plot_t plot = {.title = HOSTILE, .x_label = "x", .y_label = HOSTILE, .lines = &line, .n_lines = 1};
    const zr_row_t row = {.label = HOSTILE, .values = wild, .n = 5, .mean = NAN, .low = -INFINITY, .high = INFINITY};
    const zr_dots_t dots = {.x_label = HOSTILE, .rows = &row, .n_rows = 1, .limit = NAN};
    const zr_bar_t bar = {.label = HOSTILE, .parts = {NAN, -1.0, 1e300}, .mark = INFINITY};
    const zr_bars_t bars = {.x_label = HOSTILE, .bars = &bar, .n_bars = 1, .n_parts = 3};
    const zr_plot_t empty = {.x_label = "x", .y_label = "y"};
    FILE *file = open_text();

    (void)fputs("<a>", file);
    zr_plot_lines(file, &plot);
    zr_plot_lines(file, &empty);
    zr_plot_dots(file, &dots);
    zr_plot_bars(file, &bars);
    (void)fputs("</a>", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_msg(find_fault(text) == NULL, "not well-formed at: %.200s", find_fault(text));
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "inf"));
    free(text);
}
END_TEST

ZT_MAIN("report", fault_finder_finds_faults, html_is_escaped, json_is_escaped_and_read_back, numbers_are_for_readers,
        page_has_every_section, files_that_end_early_hold_nothing, any_values_make_a_page, plots_take_any_values)
