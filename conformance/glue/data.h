/* SPDX-License-Identifier: Apache-2.0 */
/* data.h - reads the official GLUE TSV files.
 *
 * Fields are separated by TAB and lines by LF, and by nothing else: the files are not CSV and a quote is a letter.
 * A UTF-8 byte order mark at the start is skipped; the last line may lack its LF. The first line (header or row) fixes
 * the number of columns and every other line must have as many. Stray control characters stay in the text (the
 * tokenizer drops them); a NUL byte, an overlong line, a missing column or an unknown label is an error that names
 * file and line. Only where the task is known for it (QQP, whose questions hold line ends) is a line that lacks columns
 * skipped and counted. Files are read whole; a row's texts are zero-terminated pieces of that one buffer. */
#ifndef ZF_CONFORMANCE_GLUE_DATA_H
#define ZF_CONFORMANCE_GLUE_DATA_H

#include "error.h"
#include "task.h"

#include <stddef.h>
#include <stdint.h>

/* A line longer than this is taken for a file that is no TSV. The longest official line has about 4 KB. */
enum { GLUE_MAX_LINE_NBYTES = 65536 };

typedef struct glue_row {
    const char *text_a;
    const char *text_b; /* NULL for tasks of one sentence */
    int32_t label;      /* class number; 0 for regression */
    double score;       /* regression; else the class number */
} glue_row_t;

typedef struct glue_dataset {
    const glue_task_t *task;
    glue_row_t *rows;
    size_t n_rows;
    size_t n_skipped; /* lines that lack columns, of a task with has_broken_rows */
    char *buffer;     /* owns the texts */
} glue_dataset_t;

typedef enum glue_split { GLUE_TRAIN, GLUE_DEV, GLUE_SECOND_DEV } glue_split_t;

/* Reads one file. *out is written on success only; release with glue_dataset_free. */
int glue_read_file(const glue_task_t *task, const char *path, glue_dataset_t *out, glue_error_t *err);

/* Finds the split's file below data_dir: first data_dir/<task folder>/FILE, then data_dir/FILE. */
int glue_find_split(const glue_task_t *task, const char *data_dir, glue_split_t split, char *out_path,
                    size_t out_path_nbytes, glue_error_t *err);

/* glue_find_split and glue_read_file in one. */
int glue_read_split(const glue_task_t *task, const char *data_dir, glue_split_t split, glue_dataset_t *out,
                    glue_error_t *err);

void glue_dataset_free(glue_dataset_t *dataset);

#endif
