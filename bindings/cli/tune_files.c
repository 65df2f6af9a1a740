/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune_files.c - the INI file of a setting, and what its run counted (contract in tune.h). */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tune.h"

enum { LEAST_STEPS = 16, MOST_STEPS = 300, SETTLE = 8, MOST_NBYTES = 1 << 30 };

/* ---- the INI file ------------------------------------------------------------------------------------------------ */

/* The word at `at` is this one, and nothing but blanks is between it and one of `ends`. */
static int is_word(const char *at, const char *word, const char *ends) {
    size_t n = strlen(word);
    at += strspn(at, " \t");
    if (strncmp(at, word, n) != 0)
        return 0;
    at += n + strspn(at + n, " \t");
    return *at && strchr(ends, *at) != NULL;
}

/* The value of the line's key `mode` is this word. */
static int is_mode(const char *line, const char *word) {
    const char *value = line + strcspn(line, "=:\n");
    return is_word(line, "mode", "=:") && strncmp(value + 1 + strspn(value + 1, " \t"), word, strlen(word)) == 0;
}

/* A key that the setting decides. */
static int is_replaced(const char *line, int is_zenflow, int is_trace) {
    return (is_zenflow && (is_word(line, "update_interval", "=:") || is_word(line, "publish_lag", "=:") ||
                           is_mode(line, "exact") || is_mode(line, "windows"))) ||
           (is_trace && is_word(line, "file", "=:"));
}

/* The steps behind warm-up and SETTLE more, in which threads and caches come to rest. */
static void print_trace(FILE *to, const char *trace_path, unsigned long warm_up) {
    unsigned long first = warm_up + SETTLE + 1;
    fprintf(to, "\n[trace]\nfile = %s steps %lu..%lu\n", trace_path, first, first + MOST_STEPS - 1);
}

char *tune_config(const char *text, const tune_row_t *row, const char *trace_path, unsigned long warm_up) {
    char *out = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&out, &nbytes);
    int is_zenflow = 0, is_trace = 0;
    if (!to)
        return NULL;
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0)
        text += 3;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        const char *first = line + strspn(line, " \t\r\v\f");
        if (*first == '[') {
            is_zenflow = is_word(first + 1, "zenflow", "]");
            is_trace = trace_path && is_word(first + 1, "trace", "]");
        }
        if (is_zenflow && is_word(first, "full_warm_up_rounds", "=:"))
            warm_up = strtoul(first + strcspn(first, "=:") + 1, NULL, 10);
        if (*first == '[' || !is_replaced(first, is_zenflow, is_trace))
            fprintf(to, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    fprintf(to, "\n[zenflow]\nupdate_interval = %u\npublish_lag = %u\n", row->update_interval, row->publish_lag);
    if (trace_path)
        print_trace(to, trace_path, warm_up);
    if (fclose(to) != 0) {
        free(out);
        return NULL;
    }
    return out;
}

int tune_is_config(const char *text, const tune_row_t *row) {
    unsigned interval = UINT_MAX, lag = UINT_MAX;
    int is_zenflow = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *first = line + strspn(line, " \t\r\v\f"), *value = first + strcspn(first, "=:\n");
        if (*first == '[')
            is_zenflow = is_word(first + 1, "zenflow", "]");
        if (is_zenflow && is_mode(first, "exact"))
            interval = 1, lag = 0;
        if (is_zenflow && is_word(first, "update_interval", "=:"))
            (void)sscanf(value + 1, "%u", &interval);
        if (is_zenflow && is_word(first, "publish_lag", "=:"))
            (void)sscanf(value + 1, "%u", &lag);
    }
    return interval == row->update_interval && lag == row->publish_lag;
}

int tune_write_file(const char *path, const char *text) {
    zf_cli_replace_t file;
    if (zf_cli_replace_begin(path, &file))
        return -1;
    fputs(text, file.to);
    return zf_cli_replace_end(&file, 1) ? -1 : 0;
}

/* ---- what the run counted ---------------------------------------------------------------------------------------- */

/* NAME.json, of several ranks NAME.rank0.json; NULL where there is neither, or it is not complete. */
static json_t *read_counted(const char *path) {
    char other[TUNE_PATH_NBYTES], *text;
    size_t nbytes;
    json_t *trace, *counted;
    snprintf(other, sizeof other, "%.*s.rank0.json", (int)(strlen(path) - strlen(".json")), path);
    if (access(path, F_OK) != 0 && access(other, F_OK) != 0)
        return NULL;
    text = zf_cli_read_file(access(path, F_OK) == 0 ? path : other, MOST_NBYTES, &nbytes);
    trace = text ? json_loadb(text, nbytes, 0, NULL) : NULL;
    counted = json_incref(json_object_get(json_object_get(trace, "otherData"), "counted"));
    json_decref(trace);
    free(text);
    return counted;
}

static double number_of(const json_t *counted, const char *name) {
    return json_number_value(json_object_get(counted, name));
}

static void judge(const json_t *counted, tune_row_t *row) {
    double seconds = number_of(counted, "seconds"), stall_s = number_of(counted, "stall_seconds");
    double late_steps = number_of(counted, "lateness_steps");
    int i = row->n_runs;
    double interval = number_of(counted, "update_interval"), lag = number_of(counted, "publish_lag");
    if (interval != row->update_interval || lag != row->publish_lag)
        snprintf(row->why, sizeof row->why,
                 "it trained with S = %.0f, lag %.0f: the trainer sets these keys itself, above its file", interval,
                 lag);
    else if (row->n_steps < LEAST_STEPS)
        snprintf(row->why, sizeof row->why,
                 "%.0f of its %.0f steps are behind warm-up and %d more, at least %d are needed: take more steps, or "
                 "give a smaller full_warm_up_rounds with --config",
                 row->n_steps, number_of(counted, "submitted"), SETTLE, LEAST_STEPS);
    else if (!(seconds > 0) || !(stall_s >= 0))
        snprintf(row->why, sizeof row->why, "its counters make no sense: %g s, stall %g s", seconds, stall_s);
    if (*row->why)
        return;
    row->step_s[i] = seconds / row->n_steps;
    row->stall_share[i] = stall_s / seconds;
    row->lateness[i] = late_steps > 0 ? number_of(counted, "lateness_sum") / late_steps : (double)NAN;
    row->n_runs++;
}

void tune_read_trace(const char *path, tune_row_t *row) {
    json_t *counted = read_counted(path);
    if (!counted) {
        snprintf(row->why, sizeof row->why,
                 "it left no complete trace: the trainer has to train with the file that {config} names, past warm-up "
                 "and %d steps more, and to destroy the plugin's instance at its end",
                 SETTLE);
        return;
    }
    row->n_steps = number_of(counted, "steps");
    judge(counted, row);
    json_decref(counted);
}
