/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune_files.c - the INI file of a setting, and the counters that its run left (contract in tune.h). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tune.h"

enum { LEAST_STEPS = 16, MOST_NBYTES = 1 << 20 };

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

/* A key that the setting decides. */
static int is_replaced(const char *line, int is_zenflow, int is_stats) {
    return (is_zenflow && (is_word(line, "update_interval", "=:") || is_word(line, "publish_lag", "=:"))) ||
           (is_stats && (is_word(line, "prometheus", "=:") || is_word(line, "interval_s", "=:")));
}

char *tune_config(const char *text, const tune_row_t *row, const char *counters_path) {
    char *out = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&out, &nbytes);
    int is_zenflow = 0, is_stats = 0;
    if (!to)
        return NULL;
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0)
        text += 3;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        const char *first = line + strspn(line, " \t\r\v\f");
        if (*first == '[') {
            is_zenflow = is_word(first + 1, "zenflow", "]");
            is_stats = counters_path && is_word(first + 1, "stats", "]");
        }
        if (*first == '[' || !is_replaced(first, is_zenflow, is_stats))
            fprintf(to, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    fprintf(to, "\n[zenflow]\nupdate_interval = %u\npublish_lag = %u\n", row->update_interval, row->publish_lag);
    if (counters_path)
        fprintf(to, "\n[stats]\nprometheus = %s\ninterval_s = 0\n", counters_path);
    if (fclose(to) != 0) {
        free(out);
        return NULL;
    }
    return out;
}

int tune_write_file(const char *path, const char *text) {
    zf_cli_replace_t file;
    if (zf_cli_replace_begin(path, &file))
        return -1;
    fputs(text, file.to);
    return zf_cli_replace_end(&file, 1) ? -1 : 0;
}

/* ---- the counters ------------------------------------------------------------------------------------------------ */

typedef struct counters {
    double steps, interval, lag;
    int n_found; /* of the wanted ones */
} counters_t;

/* One line of the file: a comment, or zfplugin_NAME{rank="N"} VALUE. */
static void take_line(const char *line, counters_t *counters, tune_row_t *row) {
    const struct wanted {
        const char *name;
        double *at;
    } all[] = {{"steps_total", &counters->steps},
               {"update_interval", &counters->interval},
               {"publish_lag", &counters->lag},
               {"steady_steps", &row->n_steps},
               {"steady_seconds", &row->seconds},
               {"steady_stall_seconds", &row->stall_s},
               {"steady_lateness_sum", &row->lateness_sum},
               {"steady_lateness_steps", &row->lateness_steps}};
    char name[64];
    double value;
    if (sscanf(line, "zfplugin_%63[a-z_]{rank=\"%*u\"} %lf", name, &value) != 2)
        return;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(name, all[i].name) == 0) {
            *all[i].at = value;
            counters->n_found++;
        }
}

/* NAME.prom, of several ranks NAME.rank0.prom; NULL where there is neither. */
static char *read_text(const char *path) {
    char other[TUNE_PATH_NBYTES];
    size_t nbytes;
    if (access(path, F_OK) == 0)
        return zf_cli_read_file(path, MOST_NBYTES, &nbytes);
    snprintf(other, sizeof other, "%.*s.rank0.prom", (int)(strlen(path) - strlen(".prom")), path);
    return access(other, F_OK) == 0 ? zf_cli_read_file(other, MOST_NBYTES, &nbytes) : NULL;
}

static void judge(const counters_t *counters, tune_row_t *row) {
    enum { ALL = 8 };
    if (counters->n_found != ALL)
        snprintf(row->why, sizeof row->why, "its counters are those of another version of the plugin");
    else if (counters->steps == 0)
        snprintf(row->why, sizeof row->why,
                 "its counters are those of the start: the trainer has to take steps, and to destroy the plugin's "
                 "instance at its end");
    else if (counters->interval != row->update_interval || counters->lag != row->publish_lag)
        snprintf(row->why, sizeof row->why,
                 "it trained with S = %.0f, lag %.0f: the trainer sets these keys itself, above its file",
                 counters->interval, counters->lag);
    else if (row->n_steps < LEAST_STEPS)
        snprintf(row->why, sizeof row->why,
                 "%.0f of its %.0f steps are behind warm-up and 8 more, at least %d are needed: take more steps, or "
                 "give a smaller full_warm_up_rounds with --config",
                 row->n_steps, counters->steps, LEAST_STEPS);
    else if (!(row->seconds > 0) || !(row->stall_s >= 0))
        snprintf(row->why, sizeof row->why, "its counters make no sense: %g s, stall %g s", row->seconds, row->stall_s);
    else
        row->has_run = 1;
}

void tune_read_counters(const char *path, tune_row_t *row) {
    counters_t counters = {0};
    char *text = read_text(path), *rest = NULL;
    if (!text) {
        snprintf(row->why, sizeof row->why,
                 "it wrote no counters: it has not trained with the file that {config} names");
        return;
    }
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        take_line(line, &counters, row);
    free(text);
    judge(&counters, row);
}
