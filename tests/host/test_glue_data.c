/* SPDX-License-Identifier: Apache-2.0 */
/* test_glue_data.c - the TSV loader on good files with the traps of the official ones, and on bad input: each failure
 * is one line that names file:line, what was found and what is needed. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "glue/data.h"
#include "suite.h"

static glue_dataset_t reads(const char *task, const char *text) {
    glue_error_t err = {""};
    glue_dataset_t d;

    zt_write_text("file.tsv", text);
    ck_assert_msg(glue_read_file(glue_task_find(task), zt_path("file.tsv"), &d, &err) == 0, "%s", err.text);
    return d;
}

/* The file in place is refused, the message has all three parts and is one line. */
static void refused(const char *task, const char *where, const char *found, const char *needed) {
    glue_error_t err = {""};
    glue_dataset_t d = {.n_rows = 77};

    ck_assert_int_eq(glue_read_file(glue_task_find(task), zt_path("file.tsv"), &d, &err), -1);
    ck_assert_uint_eq(d.n_rows, 77); /* outputs only on success */
    ck_assert_msg(strstr(err.text, where) && strstr(err.text, found) && strstr(err.text, needed),
                  "\"%s\" lacks \"%s\", \"%s\" or \"%s\"", err.text, where, found, needed);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_int_eq(glue_read_file(glue_task_find(task), zt_path("file.tsv"), &d, NULL), -1);
}

static void refuses(const char *task, const char *text, const char *where, const char *found, const char *needed) {
    zt_write_text("file.tsv", text);
    refused(task, where, found, needed);
}

START_TEST(test_cola_without_header_and_final_newline) {
    glue_dataset_t d = reads("cola", "gj04\t1\t\tFine.\ngj04\t0\t*\tThat bad.");

    ck_assert_uint_eq(d.n_rows, 2);
    ck_assert_str_eq(d.rows[0].text_a, "Fine.");
    ck_assert_str_eq(d.rows[1].text_a, "That bad.");
    ck_assert_int_eq(d.rows[1].label, 0);
    glue_dataset_free(&d);
}
END_TEST

START_TEST(test_stsb_score) {
    static const char header[] = "i\tg\tf\ty\to\ts\ts\ts1\ts2\tscore\n";
    char text[256];
    glue_dataset_t d;

    (void)snprintf(text, sizeof text, "%s0\ta\tb\tc\td\te\tf\tA\tB\t3.800\n", header);
    d = reads("stsb", text);
    ck_assert_double_eq(d.rows[0].score, 3.8);
    glue_dataset_free(&d);
    (void)snprintf(text, sizeof text, "%s0\ta\tb\tc\td\te\tf\tA\tB\t5,0\n", header);
    refuses("stsb", text, "file.tsv:2", "\"5,0\"", "a number from 0 to 5");
    (void)snprintf(text, sizeof text, "%s0\ta\tb\tc\td\te\tf\tA\tB\t\n", header);
    refuses("stsb", text, "file.tsv:2", "\"\"", "a number from 0 to 5");
}
END_TEST

START_TEST(test_bad_lines) {
    refuses("sst2", "sentence label\n", "file.tsv:1", "1 columns", "needs 2");
    refuses("sst2", "sentence\tlabel\nfine \t1\nlost label\n", "file.tsv:3", "1 columns", "the first line has 2");
    refuses("sst2", "sentence\tlabel\na\tb\t1\n", "file.tsv:2", "3 columns", "the first line has 2");
    refuses("sst2", "sentence\tlabel\na\t1\n\nb\t1\n", "file.tsv:3", "1 columns", "the first line has 2");
    refuses("sst2", "sentence\tlabel\na\t2\n", "file.tsv:2", "\"2\"", "needs \"0\" or \"1\"");
    refuses("sst2", "sentence\tlabel\na\t\n", "file.tsv:2", "\"\"", "needs \"0\" or \"1\"");
    refuses("sst2", "sentence\tlabel\r\na\t1\r\n", "file.tsv:2", "CR LF", "must end in LF");
    refuses("sst2", "sentence\tlabel\n", "file.tsv:1", "no row", "at least one");
    refuses("rte", "i\ta\tb\tlabel\n0\tx\ty\tentails\n", "file.tsv:2", "entails",
            "\"entailment\" or \"not_entailment\"");
}
END_TEST

START_TEST(test_binary) {
    static const char bytes[] = "sentence\tlabel\nfine \t1\nab\0cd\t1\n";

    zt_write("file.tsv", bytes, sizeof bytes - 1);
    refused("sst2", "file.tsv:3", "NUL byte at byte 3", "a text file is needed");
    zt_write("file.tsv", "\0\0\0\0", 4);
    refused("sst2", "file.tsv:1", "NUL byte", "a text file");
    zt_write("file.tsv",
             "\x7f"
             "ELF\x02\x01\x01",
             7);
    refused("sst2", "file.tsv:1", "1 columns", "needs 2");
}
END_TEST

START_TEST(test_overlong_line) {
    size_t nbytes = GLUE_MAX_LINE_NBYTES + 20;
    char *bytes = malloc(nbytes);

    ck_assert_ptr_nonnull(bytes);
    memset(bytes, 'a', nbytes);
    memcpy(bytes, "sentence\tlabel\n", 15);
    zt_write("file.tsv", bytes, nbytes);
    free(bytes);
    refused("sst2", "file.tsv:2", "65541 bytes", "at most 65536");
}
END_TEST

START_TEST(test_no_file) {
    glue_error_t err = {""};
    glue_dataset_t d;

    refused("sst2", "file.tsv", "No such file", "a TSV file is needed");
    zt_write("file.tsv", "", 0);
    refused("sst2", "file.tsv", "empty", "at least one row");
    ck_assert_int_eq(glue_read_file(glue_task_find("sst2"), zt_folder(), &d, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "a directory"));
    ck_assert_int_eq(glue_read_split(glue_task_find("sst2"), zt_folder(), GLUE_TRAIN, &d, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "SST-2/train.tsv"));
}
END_TEST

START_TEST(test_task_table) {
    int n;
    const glue_task_t *tasks = glue_task_table(&n);

    ck_assert_int_eq(n, 9);
    for (int i = 0; i < n; i++) {
        ck_assert_int_lt(tasks[i].text_a, tasks[i].min_columns);
        ck_assert_int_lt(tasks[i].text_b, tasks[i].min_columns);
        ck_assert_int_lt(tasks[i].label, tasks[i].min_columns);
        ck_assert_double_gt(tasks[i].margin, 0.0);
        ck_assert_ptr_eq(glue_task_find(tasks[i].name), &tasks[i]);
    }
    ck_assert_ptr_null(glue_task_find("sst-3"));
}
END_TEST

ZT_MAIN_WITH("glue data", zt_folder_make, zt_folder_remove, test_cola_without_header_and_final_newline, test_stsb_score,
             test_bad_lines, test_binary, test_overlong_line, test_no_file, test_task_table)
