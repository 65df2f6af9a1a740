/* test_glue_parts.c - the small parts of the area "glue": JSON look-up, SHA-256, markers of a document, smoothing. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "glue/sha256.h"
#include "glue_json.h"
#include "glue_markers.h"
#include "report/plot.h"
#include "suite.h"

static json_t *json;

static void parse(void) {
    json = zg_json_parse("{ \"a\": {\"text\": \"x } \\\" ,\", \"n\": -2.5e1}, \"aa\": 3, \"empty\": {},\n"
                         "  \"list\": [1, 2.5,\n 3], \"mixed\": [1, null, 2], \"none\": [], \"last\": null }");
    ck_assert_ptr_nonnull(json);
}

static void release(void) { json_decref(json); }

START_TEST(json_finds_members_by_path) {
    ck_assert(zg_json_number(json, "a.n", 0.0) == -25.0);
    ck_assert(zg_json_number(json, "aa", 0.0) == 3.0);
    ck_assert(zg_json_number(json, "a.m", 7.0) == 7.0);
    ck_assert(zg_json_number(json, "n", 7.0) == 7.0);
    ck_assert(zg_json_number(json, "empty.n", 7.0) == 7.0);
    ck_assert(zg_json_number(json, "aa.n", 7.0) == 7.0);
    ck_assert(zg_json_number(json, "last", 7.0) == 7.0);
    ck_assert(zg_json_number(NULL, "aa", 7.0) == 7.0);
    ck_assert(json_is_null(zg_json_find(json, "last")));
    ck_assert_ptr_null(zg_json_find(json, "none.of.these"));
}
END_TEST

START_TEST(json_copies_arrays) {
    double list[2] = {0};

    ck_assert_uint_eq(zg_json_numbers(json, "list", list, 2), 3);
    ck_assert(list[0] == 1.0 && list[1] == 2.5);
    ck_assert_uint_eq(zg_json_numbers(json, "mixed", list, 2), 1);
    ck_assert_uint_eq(zg_json_numbers(json, "none", list, 2), 0);
    ck_assert_uint_eq(zg_json_numbers(json, "aa", list, 2), 0);
}
END_TEST

START_TEST(json_cuts_texts) {
    char text[4] = "old";

    ck_assert_int_eq(zg_json_text(json, "a.text", text, sizeof text), 1);
    ck_assert_str_eq(text, "x }");
    ck_assert_int_eq(zg_json_text(json, "aa", text, sizeof text), 0);
    ck_assert_str_eq(text, "");
}
END_TEST

static void check_sha256(const char *text, size_t n_times, const char *expected) {
    char hex[GLUE_SHA256_HEX_NBYTES];
    glue_sha256_t hash;

    glue_sha256_init(&hash);
    for (size_t i = 0; i < n_times; i++)
        glue_sha256_update(&hash, text, strlen(text));
    glue_sha256_hex(&hash, hex);
    ck_assert_str_eq(hex, expected);
}

/* FIPS 180-4's own examples. */
START_TEST(sha256_gives_the_published_digests) {
    check_sha256("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha256("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_sha256("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
END_TEST

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void check_file(const char *path, const char *expected) {
    char text[256] = "";
    FILE *file = fopen(path, "r");

    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(text, expected);
}

START_TEST(markers_keep_what_is_outside) {
    const char *path = "glue_markers.md";
    glue_error_t err = {""};

    write_file(path, "head\n<!-- x:begin -->\nold\n<!-- x:end -->\ntail\n");
    ck_assert_int_eq(zg_markers_replace(path, "x", "new\n", &err), 0);
    check_file(path, "head\n<!-- x:begin -->\nnew\n<!-- x:end -->\ntail\n");
    ck_assert_int_eq(zg_markers_replace(path, "y", "new\n", &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "y:begin"));
    check_file(path, "head\n<!-- x:begin -->\nnew\n<!-- x:end -->\ntail\n");
    (void)unlink(path);
}
END_TEST

START_TEST(smoothing_is_a_centred_mean) {
    const double y[5] = {1, 2, 6, 4, 5};
    double out[5];

    zr_smooth(y, 5, 1, out);
    ck_assert(out[0] == 1.5 && out[1] == 3.0 && out[2] == 4.0 && out[3] == 5.0 && out[4] == 4.5);
}
END_TEST

START_TEST(plot_is_whole_for_odd_lines) {
    const double flat[3] = {2, 2, 2}, one[1] = {NAN};
    const zr_line_t lines[] = {{.title = "a < b & c", .y = flat, .n = 3}, {.title = "one", .y = one, .n = 1}};
    zr_plot_t plot = {.title = "t", .subtitle = "s", .x_label = "x", .y_label = "y", .lines = lines, .n_lines = 2};
    const char *path = "glue_plot.svg";
    glue_error_t err = {""};
    char text[8192] = "";
    FILE *file;

    ck_assert_int_eq(zr_plot_write(&plot, path, &err), 0);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    ck_assert_ptr_nonnull(strstr(text, "a &lt; b &amp; c"));
    ck_assert_ptr_nonnull(strstr(text, "</svg>"));
    ck_assert_int_eq(zr_plot_write(&plot, "nowhere/x.svg", &err), -1);
    (void)unlink(path);
}
END_TEST

ZT_MAIN_WITH("glue_parts", parse, release, json_finds_members_by_path, json_copies_arrays, json_cuts_texts,
             sha256_gives_the_published_digests, markers_keep_what_is_outside, smoothing_is_a_centred_mean,
             plot_is_whole_for_odd_lines)
