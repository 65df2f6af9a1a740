/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_tsv.c - GLUE's TSV files. Input: one byte, the task; then the file. Every row of what is accepted has
 * texts inside the buffer and a label of the task. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "glue/data.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void check_row(const glue_task_t *task, const glue_row_t *row) {
    FUZZ_CHECK(row->text_a != NULL && strlen(row->text_a) < GLUE_MAX_LINE_NBYTES, "text_a");
    FUZZ_CHECK((row->text_b != NULL) == (task->text_b != GLUE_NO_COLUMN), "text_b");
    if (row->text_b)
        FUZZ_CHECK(strlen(row->text_b) < GLUE_MAX_LINE_NBYTES, "text_b");
    if (task->n_labels)
        FUZZ_CHECK(row->label >= 0 && row->label < task->n_labels, "label %d", row->label);
    else
        FUZZ_CHECK(isfinite(row->score) && row->score >= task->min_score && row->score <= task->max_score, "score %g",
                   row->score);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    int n_tasks;
    const glue_task_t *task = glue_task_table(&n_tasks);
    glue_dataset_t set;
    glue_error_t err = {{0}};
    fuzz_file_t file;

    if (nbytes == 0)
        return 0;
    task += data[0] % n_tasks;
    fuzz_file_start(&file, data + 1, nbytes - 1);
    if (glue_read_file(task, file.path, &set, &err) == 0) {
        FUZZ_CHECK(set.n_rows > 0, "no rows");
        for (size_t i = 0; i < set.n_rows; i++)
            check_row(task, &set.rows[i]);
        glue_dataset_free(&set);
    } else {
        FUZZ_CHECK(strlen(err.text) > 10 && !strchr(err.text, '\n'), "refused with \"%s\"", err.text);
    }
    fuzz_file_end(&file);
    return 0;
}
