/* SPDX-License-Identifier: Apache-2.0 */
/* test_glue_files.c - loader and tokenizer on the official files. ZF_GLUE_DIR names their folder (SST-2/, CoLA/, MRPC/
 * and vocab.txt); without it the test is skipped, exit status 77. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glue/data.h"
#include "host/corpus.h"
#include "host/tokenizer.h"

static const char *data_dir;

typedef struct expectation {
    const char *task;
    glue_split_t split;
    size_t n_rows;
    size_t longest;      /* pieces with [CLS] and [SEP]; 0 = not checked */
    double mean_rounded; /* of the same */
} expectation_t;

static const expectation_t expectations[] = {
    {"sst2", GLUE_TRAIN, 67349, 66, 13.0}, {"sst2", GLUE_DEV, 872, 0, 0.0},       {"cola", GLUE_TRAIN, 8551, 47, 11.0},
    {"cola", GLUE_DEV, 1043, 0, 0.0},      {"mrpc", GLUE_TRAIN, 3668, 103, 53.0}, {"mrpc", GLUE_DEV, 408, 0, 0.0},
};

static void check_lengths(const host_corpus_t *corpus, const expectation_t *e) {
    size_t longest = 0;

    if (e->longest == 0)
        return;
    for (size_t i = 0; i < corpus->n_rows; i++) {
        size_t length = corpus->starts[i + 1] - corpus->starts[i];

        longest = length > longest ? length : longest;
    }
    ck_assert_uint_eq(longest, e->longest);
    ck_assert_double_eq_tol((double)corpus->starts[corpus->n_rows] / (double)corpus->n_rows, e->mean_rounded, 0.5);
}

START_TEST(test_file) {
    const expectation_t *e = &expectations[_i];
    char vocab[4096];
    glue_error_t err = {""};
    host_tokenizer_t *tokenizer;
    glue_dataset_t dataset;
    host_corpus_t corpus;

    (void)snprintf(vocab, sizeof vocab, "%s/vocab.txt", data_dir);
    ck_assert_msg(host_tokenizer_load(vocab, &tokenizer, &err) == 0, "%s", err.text);
    ck_assert_msg(glue_read_split(glue_task_find(e->task), data_dir, e->split, &dataset, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(dataset.n_rows, e->n_rows);
    ck_assert_msg(host_corpus_encode(tokenizer, &dataset, 512, &corpus, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < corpus.starts[corpus.n_rows]; i++)
        ck_assert_msg(corpus.ids[i] != host_tokenizer_id(tokenizer, "[UNK]"), "%s: found [UNK] at token %zu", e->task,
                      i);
    check_lengths(&corpus, e);
    host_corpus_free(&corpus);
    glue_dataset_free(&dataset);
    host_tokenizer_free(tokenizer);
}
END_TEST

int main(void) {
    Suite *suite;
    TCase *tcase;
    SRunner *runner;
    int n_failed;

    data_dir = getenv("ZF_GLUE_DIR");
    if (data_dir == NULL || data_dir[0] == '\0') {
        (void)puts("skipped: ZF_GLUE_DIR is not set; it must name the folder of the official GLUE files");
        return 77;
    }
    suite = suite_create("glue files");
    tcase = tcase_create("official files");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, test_file, 0, sizeof expectations / sizeof expectations[0]);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
