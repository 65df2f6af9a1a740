/* SPDX-License-Identifier: Apache-2.0 */
/* test_tasks.c - all nine GLUE tasks through loader, tokenizer, training and metrics, on small files in the official
 * layout with the official traps: headers, byte order marks, quotes, text labels, QQP's broken rows, MNLI's last column
 * and its two dev sets, STS-B's scores. Each file has a rule that a model can learn, so that wrong columns show. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "host/run.h"
#include "suite.h"

enum { N_TRAIN = 240, N_DEV = 60 };

static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfair\nthe\nfilm\n\"\nnoise\n";

/* The word that decides a row: its class number, and for a regression its score. */
static const char *const words[] = {"bad", "good", "fair"};

/* Columns of one row; %A and %B are texts, %L the label, anything else is written as it is. MNLI's dev files have more
 * columns before the label than its training file. */
typedef struct layout {
    const char *task, *header, *row, *dev_header, *dev_row; /* the last two NULL: as in train */
    int is_in_second_text;                                  /* where the deciding word stands */
} layout_t;

#define MNLI_START                                                                                                     \
    "index\tpromptID\tpairID\tgenre\ts1_binary_parse\ts2_binary_parse\ts1_parse\ts2_"                                  \
    "parse\tsentence1\tsentence2\tlabel1\t"
#define MNLI_ROW "0\t1\t2\tfiction\tgood\tbad\tgood\tbad\t%A\t%B\tneutral\t"

static const layout_t layouts[] = {
    {"sst2", "sentence\tlabel\n", "%A\t%L\n", NULL, NULL, 0},
    {"cola", "", "gj04\t%L\t*\t%A\n", NULL, NULL, 0},
    {"mrpc", "\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", "%L\t1\t2\t%A\t%B\n", NULL, NULL, 1},
    {"rte", "index\tsentence1\tsentence2\tlabel\n", "7\t%A\t%B\t%L\n", NULL, NULL, 1},
    {"qnli", "index\tquestion\tsentence\tlabel\n", "7\t%A\t%B\t%L\n", NULL, NULL, 1},
    {"wnli", "index\tsentence1\tsentence2\tlabel\n", "7\t%A\t%B\t%L\n", NULL, NULL, 1},
    {"stsb", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
     "0\tmain\tfile\t2012\t1\tnone\tnone\t%A\t%B\t%L\n", NULL, NULL, 1},
    {"qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", "1\t2\t3\t%A\t%B\t%L\n", NULL, NULL, 1},
    {"mnli", MNLI_START "gold_label\n", MNLI_ROW "%L\n", MNLI_START "label2\tlabel3\tgold_label\n",
     MNLI_ROW "neutral\tneutral\t%L\n", 1},
};

enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static void put_text(FILE *file, const char *word) { (void)fprintf(file, "the \"film noise %s", word); }

static void put_label(FILE *file, const glue_task_t *task, size_t class_number) {
    if (task->n_labels > 0)
        (void)fputs(task->labels[class_number], file);
    else
        (void)fprintf(file, "%zu.%zu00", 2 * class_number, class_number);
}

static void put_row(FILE *file, const layout_t *layout, const char *row, const glue_task_t *task, size_t i) {
    size_t n_classes = task->n_labels > 0 ? (size_t)task->n_labels : 3, class_number = i * 7 % 11 % n_classes;

    for (; *row != '\0'; row++) {
        if (*row != '%') {
            (void)fputc(*row, file);
            continue;
        }
        row++;
        if (*row == 'L')
            put_label(file, task, class_number);
        else
            put_text(file, (*row == 'B') == layout->is_in_second_text ? words[class_number] : "noise");
    }
}

static const char *path_of(const glue_task_t *task, const char *name) {
    char below[128];

    (void)snprintf(below, sizeof below, "%s/%s", task->folder, name);
    return zt_path(below);
}

/* Broken as in the official file: a question with a line end falls apart into two short lines. */
static void put_broken_rows(FILE *file) {
    (void)fputs("9\t8\t7\tthe film\tthe \n", file);
    (void)fputs("noise?\t0\n\n", file);
}

static void write_split(const layout_t *layout, const glue_task_t *task, const char *name, size_t n, int is_dev) {
    const char *header = is_dev && layout->dev_header != NULL ? layout->dev_header : layout->header;
    const char *row = is_dev && layout->dev_row != NULL ? layout->dev_row : layout->row;
    FILE *file = fopen(path_of(task, name), "wb");

    ck_assert_ptr_nonnull(file);
    (void)fputs(header, file);
    for (size_t i = 0; i < n; i++) {
        put_row(file, layout, row, task, i + (is_dev ? 3 : 0));
        if (task->has_broken_rows && i % 50 == 20)
            put_broken_rows(file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void write_task(const layout_t *layout, const glue_task_t *task) {
    ck_assert_int_eq(mkdir(zt_path(task->folder), 0700), 0);
    write_split(layout, task, "train.tsv", N_TRAIN, 0);
    write_split(layout, task, task->dev_file, N_DEV, 1);
    if (task->second_dev_file != NULL)
        write_split(layout, task, task->second_dev_file, N_DEV / 2, 1);
}

static void setup(void) {
    zt_folder_make();
    zt_write_text("vocab.txt", vocabulary);
}

static host_run_options_t options_of(const glue_task_t *task) {
    host_run_options_t o;

    host_run_defaults(&o);
    o.task = task;
    o.data_dir = zt_folder();
    o.max_tokens = 32;
    o.model.n_layers = 1;
    o.model.hidden = 32;
    o.model.ffn = 64;
    o.train.n_steps = 120;
    o.train.batch = 16;
    o.train.hyper.lr = 3e-3;
    return o;
}

static void check_workload(const host_workload_t *w, const glue_task_t *task) {
    ck_assert_uint_eq(w->train.n_rows, N_TRAIN);
    ck_assert_uint_eq(w->dev.n_rows, N_DEV);
    ck_assert_uint_eq(w->second_dev.n_rows, task->second_dev_file != NULL ? N_DEV / 2 : 0);
    ck_assert_uint_eq(w->train.n_skipped, task->has_broken_rows ? 15 : 0); /* three lines at each of five places */
    ck_assert_uint_eq(w->dev.n_skipped, task->has_broken_rows ? 3 : 0);
    for (size_t i = 0; i < w->train.starts[w->train.n_rows]; i++)
        ck_assert_int_ne(w->train.ids[i], 1); /* [UNK] */
    for (size_t row = 0; row < w->train.n_rows; row++)
        ck_assert_int_eq(w->train.types[w->train.starts[row + 1] - 1], task->text_b == GLUE_NO_COLUMN ? 0 : 1);
}

static void check_task(const layout_t *layout) {
    const glue_task_t *task = glue_task_find(layout->task);
    host_run_options_t options = options_of(task);
    host_workload_t workload;
    host_run_result_t result;
    glue_error_t err = {""};
    double second = 0.0;
    const char *second_name;

    write_task(layout, task);
    ck_assert_msg(host_workload_load(&options, &workload, &err) == 0, "%s", err.text);
    check_workload(&workload, task);
    ck_assert_msg(host_run(&workload, &options, &result, &err) == 0, "%s", err.text);
    second_name = host_run_second_score(&workload, &result, &second);
    ck_assert_msg(result.scores.main > 99.0, "%s: %s %.2f on a rule of one word", task->name,
                  glue_metric_name(task->metric), result.scores.main);
    ck_assert_int_eq(second_name != NULL, strcmp(task->name, "mrpc") == 0 || strcmp(task->name, "qqp") == 0 ||
                                              strcmp(task->name, "stsb") == 0 || strcmp(task->name, "mnli") == 0);
    if (second_name != NULL)
        ck_assert_msg(second > 90.0, "%s: %s %.2f on a rule of one word", task->name, second_name, second);
    else
        ck_assert(isnan(second));
    host_run_result_free(&result);
    host_workload_free(&workload);
}

START_TEST(test_every_task) {
    for (int i = 0; i < N_LAYOUTS; i++)
        check_task(&layouts[i]);
}
END_TEST

/* A file of another task under QQP's name: nearly every line lacks columns. */
START_TEST(test_not_qqp) {
    const glue_task_t *task = glue_task_find("qqp");
    glue_error_t err = {""};
    glue_dataset_t d;

    zt_write_text("train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\nc\nd\n");
    ck_assert_int_eq(glue_read_file(task, zt_path("train.tsv"), &d, &err), -1);
    ck_assert_msg(strstr(err.text, "2 lines with fewer than 6 columns beside 1 whole ones") != NULL, "%s", err.text);
}
END_TEST

START_TEST(test_missing_second_dev_file) {
    const glue_task_t *task = glue_task_find("mnli");
    host_run_options_t options = options_of(task);
    host_workload_t workload;
    glue_error_t err = {""};

    write_task(&layouts[N_LAYOUTS - 1], task);
    (void)unlink(path_of(task, task->second_dev_file));
    ck_assert_int_eq(host_workload_load(&options, &workload, &err), -1);
    ck_assert_msg(strstr(err.text, "dev_mismatched.tsv") != NULL, "%s", err.text);
}
END_TEST

ZT_MAIN_WITH("tasks", setup, zt_folder_remove, test_every_task, test_not_qqp, test_missing_second_dev_file)
