/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - the TSV loader of data.h: slurp the file, cut it in place, check every line.
 *
 * One pass: each line is cut into fields (TAB -> NUL), the fields that the task names are checked and the row is
 * appended. The parser's position (path, line number) is in parse_t, so that every message names file:line. */
#define _POSIX_C_SOURCE 200809L
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_COLUMNS = 32 };

typedef struct parse {
    const glue_task_t *task;
    const char *path;
    size_t line_number; /* from 1 */
    int n_columns;      /* fixed by the first line; 0 before it */
    glue_row_t *rows;
    size_t n_rows, n_rows_allocated, n_skipped;
    glue_error_t *err;
} parse_t;

static int open_regular(const char *path, FILE **out_file, size_t *out_nbytes, glue_error_t *err) {
    struct stat info;
    FILE *file;

    if (stat(path, &info) != 0)
        return glue_fail(err, "%s: cannot open: %s; a TSV file is needed", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return glue_fail(err, "%s: is %s; a TSV file is needed", path,
                         S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    if (info.st_size == 0)
        return glue_fail(err, "%s: the file is empty; a TSV file with at least one row is needed", path);
    file = fopen(path, "rb");
    if (file == NULL)
        return glue_fail(err, "%s: cannot open: %s", path, strerror(errno));
    *out_file = file;
    *out_nbytes = (size_t)info.st_size;
    return 0;
}

/* The whole file, zero-terminated. */
static int slurp(const char *path, char **out_buffer, size_t *out_nbytes, glue_error_t *err) {
    FILE *file = NULL;
    char *buffer;
    size_t nbytes = 0, n_read;

    if (open_regular(path, &file, &nbytes, err) != 0)
        return -1;
    buffer = malloc(nbytes + 1);
    if (buffer == NULL) {
        (void)fclose(file);
        return glue_fail(err, "%s: out of memory for %zu bytes", path, nbytes);
    }
    n_read = fread(buffer, 1, nbytes, file);
    (void)fclose(file);
    if (n_read != nbytes) {
        free(buffer);
        return glue_fail(err, "%s: read %zu of %zu bytes: the file changed or cannot be read", path, n_read, nbytes);
    }
    buffer[nbytes] = '\0';
    *out_buffer = buffer;
    *out_nbytes = nbytes;
    return 0;
}

/* Cuts line at its TABs. Returns the number of fields; those beyond MAX_COLUMNS are counted, not stored. */
static int cut_fields(char *line, char *fields[MAX_COLUMNS]) {
    int n = 0;

    for (char *field = line; field != NULL; n++) {
        char *tab = strchr(field, '\t');

        if (n < MAX_COLUMNS)
            fields[n] = field;
        if (tab != NULL)
            *tab++ = '\0';
        field = tab;
    }
    return n;
}

static int check_n_columns(parse_t *p, int n_found) {
    const glue_task_t *task = p->task;

    if (p->n_columns == 0) {
        if (n_found < task->min_columns || n_found > MAX_COLUMNS)
            return glue_fail(p->err, "%s:%zu: found %d columns separated by TAB; %s needs %d", p->path, p->line_number,
                             n_found, task->folder, task->min_columns);
        p->n_columns = n_found;
    }
    if (n_found != p->n_columns)
        return glue_fail(p->err, "%s:%zu: found %d columns separated by TAB; the first line has %d", p->path,
                         p->line_number, n_found, p->n_columns);
    return 0;
}

/* Plain decimals only ("3.800"), read the same in every locale. */
static int parse_decimal(const char *text, double *out_value) {
    double value = 0.0, unit = 1.0;
    int n_digits = 0, has_point = 0;

    for (; *text != '\0'; text++) {
        if (*text == '.' && !has_point) {
            has_point = 1;
            continue;
        }
        if (*text < '0' || *text > '9' || n_digits++ > 15)
            return -1;
        value = value * 10.0 + (double)(*text - '0');
        unit *= has_point ? 10.0 : 1.0;
    }
    *out_value = value / unit;
    return n_digits > 0 ? 0 : -1;
}

static int parse_score(parse_t *p, const char *text, glue_row_t *out_row) {
    const glue_task_t *task = p->task;
    double score;

    if (parse_decimal(text, &score) != 0 || score < task->min_score || score > task->max_score)
        return glue_fail(p->err, "%s:%zu: found score \"%.40s\"; %s needs a number from %g to %g", p->path,
                         p->line_number, text, task->folder, task->min_score, task->max_score);
    out_row->label = 0;
    out_row->score = score;
    return 0;
}

static int parse_label(parse_t *p, const char *text, glue_row_t *out_row) {
    const glue_task_t *task = p->task;
    const char *hint = strchr(text, '\r') != NULL ? " (the line ends in CR LF: it must end in LF)" : "";
    char wanted[96] = "";
    size_t n = 0;

    for (int i = 0; i < task->n_labels; i++) {
        if (strcmp(text, task->labels[i]) == 0) {
            out_row->label = i;
            out_row->score = (double)i;
            return 0;
        }
        n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s\"%s\"", i == 0 ? "" : " or ", task->labels[i]);
    }
    return glue_fail(p->err, "%s:%zu: found label \"%.40s\"%s; %s needs %s", p->path, p->line_number, text, hint,
                     task->folder, wanted);
}

static int append_row(parse_t *p, const glue_row_t *row) {
    if (p->n_rows == p->n_rows_allocated) {
        size_t n_wanted = p->n_rows_allocated == 0 ? 1024 : 2 * p->n_rows_allocated;
        glue_row_t *rows = realloc(p->rows, n_wanted * sizeof *rows);

        if (rows == NULL)
            return glue_fail(p->err, "%s: out of memory for %zu rows", p->path, n_wanted);
        p->rows = rows;
        p->n_rows_allocated = n_wanted;
    }
    p->rows[p->n_rows++] = *row;
    return 0;
}

static int parse_line(parse_t *p, char *line) {
    const glue_task_t *task = p->task;
    char *fields[MAX_COLUMNS];
    glue_row_t row;
    const char *label;
    int n_fields;

    n_fields = cut_fields(line, fields);
    if (task->has_broken_rows && p->line_number > 1 && n_fields < task->min_columns) {
        p->n_skipped++;
        return 0;
    }
    if (check_n_columns(p, n_fields) != 0)
        return -1;
    if (p->line_number == 1 && task->has_header)
        return 0;
    row.text_a = fields[task->text_a];
    row.text_b = task->text_b == GLUE_NO_COLUMN ? NULL : fields[task->text_b];
    label = fields[task->label == GLUE_LAST_COLUMN ? p->n_columns - 1 : task->label];
    if ((task->n_labels == 0 ? parse_score(p, label, &row) : parse_label(p, label, &row)) != 0)
        return -1;
    return append_row(p, &row);
}

/* Cuts text, which ends at end, into lines. A last line without LF counts; nothing after a last LF does not. */
static int parse_lines(parse_t *p, char *text, char *end) {
    while (text < end) {
        char *newline = memchr(text, '\n', (size_t)(end - text));
        char *stop = newline != NULL ? newline : end;
        size_t nbytes = (size_t)(stop - text);
        const char *nul = memchr(text, '\0', nbytes);

        p->line_number++;
        if (nul != NULL)
            return glue_fail(p->err, "%s:%zu: found a NUL byte at byte %zu of the line; a text file is needed", p->path,
                             p->line_number, (size_t)(nul - text) + 1);
        if (nbytes > GLUE_MAX_LINE_NBYTES)
            return glue_fail(p->err, "%s:%zu: found a line of %zu bytes; at most %d are allowed", p->path,
                             p->line_number, nbytes, GLUE_MAX_LINE_NBYTES);
        *stop = '\0';
        if (parse_line(p, text) != 0)
            return -1;
        text = stop + 1;
    }
    if (p->n_rows == 0)
        return glue_fail(p->err, "%s:%zu: found no row%s; at least one is needed", p->path, p->line_number,
                         p->task->has_header ? " after the header" : "");
    if (p->n_skipped > p->n_rows)
        return glue_fail(p->err,
                         "%s: found %zu lines with fewer than %d columns beside %zu whole ones; a %s file is needed",
                         p->path, p->n_skipped, p->task->min_columns, p->n_rows, p->task->folder);
    return 0;
}

int glue_read_file(const glue_task_t *task, const char *path, glue_dataset_t *out, glue_error_t *err) {
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    parse_t p = {.task = task, .path = path, .err = err};
    char *buffer = NULL, *text;
    size_t nbytes = 0;

    if (slurp(path, &buffer, &nbytes, err) != 0)
        return -1;
    text = nbytes >= 3 && memcmp(buffer, byte_order_mark, 3) == 0 ? buffer + 3 : buffer;
    if (parse_lines(&p, text, buffer + nbytes) != 0) {
        free(p.rows);
        free(buffer);
        return -1;
    }
    *out =
        (glue_dataset_t){.task = task, .rows = p.rows, .n_rows = p.n_rows, .n_skipped = p.n_skipped, .buffer = buffer};
    return 0;
}

static int exists(const char *path) {
    struct stat info;

    return stat(path, &info) == 0;
}

int glue_find_split(const glue_task_t *task, const char *data_dir, glue_split_t split, char *out_path,
                    size_t out_path_nbytes, glue_error_t *err) {
    const char *file = split == GLUE_TRAIN ? "train.tsv" : split == GLUE_DEV ? task->dev_file : task->second_dev_file;
    int n = snprintf(out_path, out_path_nbytes, "%s/%s/%s", data_dir, task->folder, file);

    if (n >= 0 && (size_t)n < out_path_nbytes && exists(out_path))
        return 0;
    if (n < 0 || (size_t)n >= out_path_nbytes)
        return glue_fail(err, "%.60s...: the path is too long", data_dir);
    (void)snprintf(out_path, out_path_nbytes, "%s/%s", data_dir, file);
    if (exists(out_path))
        return 0;
    return glue_fail(err, "%s: found neither %s/%s nor %s; the official %s files are needed", data_dir, task->folder,
                     file, file, task->folder);
}

int glue_read_split(const glue_task_t *task, const char *data_dir, glue_split_t split, glue_dataset_t *out,
                    glue_error_t *err) {
    char path[4096];

    if (glue_find_split(task, data_dir, split, path, sizeof path, err) != 0)
        return -1;
    return glue_read_file(task, path, out, err);
}

void glue_dataset_free(glue_dataset_t *dataset) {
    free(dataset->rows);
    free(dataset->buffer);
    *dataset = (glue_dataset_t){.task = NULL};
}
