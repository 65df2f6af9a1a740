/* SPDX-License-Identifier: Apache-2.0 */
/* task.c - the table of GLUE tasks (task.h). Columns are those of the official TSV files. */
#include "task.h"

#include <stddef.h>
#include <string.h>

/* clang-format off */
static const glue_task_t task_table[] = {
    {.name = "sst2", .folder = "SST-2", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 2,
     .text_a = 0, .text_b = GLUE_NO_COLUMN, .label = 1, .n_labels = 2, .labels = {"0", "1"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 2000, .max_tokens = 128},
    {.name = "cola", .folder = "CoLA", .dev_file = "dev.tsv", .has_header = 0, .min_columns = 4,
     .text_a = 3, .text_b = GLUE_NO_COLUMN, .label = 1, .n_labels = 2, .labels = {"0", "1"},
     .metric = GLUE_MATTHEWS, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 1000, .max_tokens = 128},
    {.name = "mrpc", .folder = "MRPC", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 5,
     .text_a = 3, .text_b = 4, .label = 0, .n_labels = 2, .labels = {"0", "1"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_F1, .margin = 1.0, .fine_tune_steps = 600, .max_tokens = 128},
    {.name = "rte", .folder = "RTE", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 4,
     .text_a = 1, .text_b = 2, .label = 3, .n_labels = 2, .labels = {"entailment", "not_entailment"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 600, .max_tokens = 256},
    {.name = "qnli", .folder = "QNLI", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 4,
     .text_a = 1, .text_b = 2, .label = 3, .n_labels = 2, .labels = {"entailment", "not_entailment"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 3000, .max_tokens = 128},
    {.name = "wnli", .folder = "WNLI", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 4,
     .text_a = 1, .text_b = 2, .label = 3, .n_labels = 2, .labels = {"0", "1"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 200, .max_tokens = 128},
    {.name = "stsb", .folder = "STS-B", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 10,
     .text_a = 7, .text_b = 8, .label = 9, .n_labels = 0, .min_score = 0.0, .max_score = 5.0,
     .metric = GLUE_PEARSON, .second_metric = GLUE_SPEARMAN, .margin = 1.0, .fine_tune_steps = 900, .max_tokens = 128},
    {.name = "qqp", .folder = "QQP", .dev_file = "dev.tsv", .has_header = 1, .min_columns = 6,
     .text_a = 3, .text_b = 4, .label = 5, .n_labels = 2, .labels = {"0", "1"}, .has_broken_rows = 1,
     .metric = GLUE_ACCURACY, .second_metric = GLUE_F1, .margin = 1.0, .fine_tune_steps = 3000, .max_tokens = 128},
    {.name = "mnli", .folder = "MNLI", .dev_file = "dev_matched.tsv",
     .second_dev_file = "dev_mismatched.tsv", .has_header = 1, .min_columns = 12,
     .text_a = 8, .text_b = 9, .label = GLUE_LAST_COLUMN, .n_labels = 3, 
     .labels = {"entailment", "neutral", "contradiction"},
     .metric = GLUE_ACCURACY, .second_metric = GLUE_NO_METRIC, .margin = 1.0, .fine_tune_steps = 3000, .max_tokens = 128},
};
/* clang-format on */

const glue_task_t *glue_task_table(int *out_n) {
    *out_n = (int)(sizeof task_table / sizeof task_table[0]);
    return task_table;
}

const glue_task_t *glue_task_find(const char *name) {
    for (size_t i = 0; i < sizeof task_table / sizeof task_table[0]; i++)
        if (strcmp(task_table[i].name, name) == 0)
            return &task_table[i];
    return NULL;
}

const char *glue_task_parse(const char *text, void *place) {
    const glue_task_t *task = glue_task_find(text);

    if (task == NULL)
        return "the name of a GLUE task, such as sst2,";
    *(const glue_task_t **)place = task;
    return NULL;
}
