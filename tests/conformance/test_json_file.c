/* SPDX-License-Identifier: Apache-2.0 */
/* test_json_file.c - JSON of the areas: look-up, what is written, the form of checks. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/json_file.h"
#include "suite.h"

static json_t *json;

static void parse(void) {
    json = zj_parse("{ \"a\": {\"text\": \"x } \\\" ,\", \"n\": -2.5e1}, \"aa\": 3, \"empty\": {},\n"
                    "  \"list\": [1, 2.5,\n 3], \"mixed\": [1, null, 2], \"none\": [], \"last\": null }");
    ck_assert_ptr_nonnull(json);
}

static void release(void) { json_decref(json); }

START_TEST(json_finds_members_by_path) {
    ck_assert(zj_number(json, "a.n", 0.0) == -25.0);
    ck_assert(zj_number(json, "aa", 0.0) == 3.0);
    ck_assert(zj_number(json, "a.m", 7.0) == 7.0);
    ck_assert(zj_number(json, "n", 7.0) == 7.0);
    ck_assert(zj_number(json, "empty.n", 7.0) == 7.0);
    ck_assert(zj_number(json, "aa.n", 7.0) == 7.0);
    ck_assert(zj_number(json, "last", 7.0) == 7.0);
    ck_assert(zj_number(NULL, "aa", 7.0) == 7.0);
}
END_TEST

static void check_file(const char *path, const char *expected) {
    char text[256] = "";
    FILE *file = fopen(path, "r");

    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(text, expected);
}

/* What jansson would refuse, and the form of a file: one line per member, one per object of an array. */
START_TEST(json_is_written_whatever_it_holds) {
    const double values[] = {0.123456789, NAN, 2.0, -INFINITY};
    const char *const texts[] = {"a \"b\"\n\x01", "\xff\xc3\xa9", "\xc3\xa9"};
    const char *path = "json_file.json";
    glue_error_t err = {""};
    json_t *list = json_array();

    for (int i = 0; i < 2; i++)
        (void)json_array_append_new(list, json_pack("{s:i}", "n", i));
    ck_assert_int_eq(zj_write(json_pack("{s:o, s:o, s:o, s:f}", "reals", zj_reals(values, 4, 5), "texts",
                                        zj_strings(texts, 3), "objects", list, "x", 1.0 / 3.0),
                              path, &err),
                     0);
    check_file(path, "{\n \"reals\": [0.12346, null, 2.0, null],\n"
                     " \"texts\": [\"a \\\"b\\\"\\n\\u0001\", \"???\", \"\xc3\xa9\"],\n"
                     " \"objects\": [\n  {\"n\": 0},\n  {\"n\": 1}\n ],\n \"x\": 0.333333333\n}\n");
    ck_assert_int_eq(zj_write(json_object(), "nowhere/x.json", &err), -1);
    ck_assert_str_eq(err.text, "nowhere/x.json: cannot write: No such file or directory");
    ck_assert_int_eq(zj_write(NULL, path, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot be put into JSON"));
    (void)unlink(path);
}
END_TEST

ZT_MAIN_WITH("json_file", parse, release, json_finds_members_by_path, json_is_written_whatever_it_holds)
