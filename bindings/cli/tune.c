/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune.c - `zf tune`: which windows the user's own trainer hides (parts in tune.h).
 *
 * Each setting is a run of the command with an INI file of its own. The trace of a run says what
 * its steps behind warm-up took: time, stall and lateness; the choice is the least late setting whose stall is small
 * enough. Lateness is the meter's, a loss per step of either sign: what is near 0 is least. Where a run measured none,
 * settings are ordered by the age of what the model sees, S - 1 + lag steps. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tune.h"
#include "zf/ext/config.h"

enum { MOST_ROWS = 32, MOST_INI_NBYTES = 1 << 20, MOST_TRACE_PATH = 191, NAME_NBYTES = 128 };

typedef struct tune {
    const char *command, *config_path, *output, *folder_given;
    double max_stall, timeout_s;
    int is_json, is_forced;
    tune_row_t rows[MOST_ROWS];
    int n_rows, n_run, is_interrupted;
    char *text; /* of config_path */
    char folder[TUNE_PATH_NBYTES - NAME_NBYTES];
} tune_t;

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* S:LAG,S:LAG,...; 0: no such list (said). */
static int take_settings(tune_t *tune, const char *text) {
    tune->n_rows = 0;
    for (const char *at = text; *at;) {
        unsigned s, lag;
        int n = 0;
        if (tune->n_rows == MOST_ROWS || sscanf(at, "%4u:%1u%n", &s, &lag, &n) != 2 || s < 1 || lag > 1 ||
            (at[n] && (at[n] != ',' || !at[n + 1])))
            break;
        tune->rows[tune->n_rows++] = (tune_row_t){.update_interval = s, .publish_lag = lag};
        at += n + (at[n] == ',');
        if (!*at)
            return 1;
    }
    fprintf(stderr, "zf tune: --settings ");
    zf_cli_print(stderr, text);
    fprintf(stderr, ": need a list of at most %d S:LAG with LAG 0 or 1, such as 1:0,2:0,2:1\n", MOST_ROWS);
    return 0;
}

static int take_number(const char *name, const char *text, double most, double *out) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x > 0) || x > most) {
        fprintf(stderr, "zf tune: %s ", name);
        zf_cli_print(stderr, text);
        fprintf(stderr, ": need a number above 0, at most %g\n", most);
        return 0;
    }
    *out = x;
    return 1;
}

static int take_value(tune_t *tune, const char *name, const char *value) {
    const struct word {
        const char *name, **at;
    } words[] = {{"--command", &tune->command},
                 {"--config", &tune->config_path},
                 {"--output", &tune->output},
                 {"--folder", &tune->folder_given}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(name, words[i].name) == 0) {
            *words[i].at = value;
            return 1;
        }
    if (strcmp(name, "--settings") == 0)
        return take_settings(tune, value);
    if (strcmp(name, "--max-stall") == 0)
        return take_number(name, value, 1, &tune->max_stall);
    if (strcmp(name, "--timeout") == 0)
        return take_number(name, value, 1e6, &tune->timeout_s);
    return 0;
}

static int read_options(tune_t *tune, int argc, char **argv) {
    static const char settings[] = "1:0,2:0,4:0,1:1,2:1";
    *tune = (tune_t){.output = "zf-tuned.ini", .max_stall = 0.03, .timeout_s = 3600};
    if (!take_settings(tune, settings))
        return 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            tune->is_json = 1;
        else if (strcmp(argv[i], "--force") == 0)
            tune->is_forced = 1;
        else if (i + 1 < argc && take_value(tune, argv[i], argv[i + 1]))
            i++;
        else {
            zf_cli_misuse("tune: \"%s\" is no option, or it lacks its value", argv[i]);
            return 0;
        }
    }
    if (!tune->command) {
        zf_cli_misuse("tune: --command is missing");
        return 0;
    }
    if (strstr(tune->command, "{config}") || strstr(tune->command, "ZF_TUNE_CONFIG"))
        return 1;
    fprintf(stderr, "zf tune: the command does not say where the configuration goes: write {config} where your trainer "
                    "takes the path of its INI file, or $ZF_TUNE_CONFIG, which holds the same path\n");
    return 0;
}

/* ---- the runs ---------------------------------------------------------------------------------------------------- */

static void name_file(const tune_t *tune, const tune_row_t *row, const char *kind, char out[TUNE_PATH_NBYTES]) {
    snprintf(out, TUNE_PATH_NBYTES, "%s/S%u-lag%u.%s", tune->folder, row->update_interval, row->publish_lag, kind);
}

/* The folder of the runs' files. Its path goes into commands of the shell and into a key of 191 bytes. */
static int make_folder(tune_t *tune) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@,=%";
    char longest[TUNE_PATH_NBYTES], wish[TUNE_PATH_NBYTES], *path;
    const char *temporary = getenv("TMPDIR");
    if (tune->folder_given)
        snprintf(wish, sizeof wish, "%s", tune->folder_given);
    else
        snprintf(wish, sizeof wish, "%s/zf-tune-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (tune->folder_given ? mkdir(wish, 0777) != 0 && errno != EEXIST : !mkdtemp(wish))
        return zf_cli_complain(wish, "%s", strerror(errno));
    path = realpath(wish, NULL);
    if (!path)
        return zf_cli_complain(wish, "%s", strerror(errno));
    snprintf(tune->folder, sizeof tune->folder, "%s", path);
    free(path);
    name_file(tune, &(tune_row_t){.update_interval = 9999, .publish_lag = 1}, "rank0.json", longest);
    if (tune->folder[strspn(tune->folder, plain)] || strlen(longest) > MOST_TRACE_PATH)
        return zf_cli_complain(tune->folder,
                               "a shell could misread this path, or it is too long: give another --folder");
    return 0;
}

/* command with path in place of each {config}; to be freed. */
static char *put_path(const char *command, const char *path) {
    char *out = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&out, &nbytes);
    const char *at = command, *found;
    if (!to)
        return NULL;
    for (; (found = strstr(at, "{config}")) != NULL; at = found + strlen("{config}"))
        fprintf(to, "%.*s%s", (int)(found - at), at, path);
    fprintf(to, "%s", at);
    if (fclose(to) != 0) {
        free(out);
        return NULL;
    }
    return out;
}

/* What the shell said of the command, where it failed. */
static void judge_end(const tune_t *tune, tune_end_t end, int status, tune_row_t *row) {
    if (end == TUNE_NOT_STARTED)
        snprintf(row->why, sizeof row->why, "it was not started: %s", strerror(status));
    else if (end == TUNE_INTERRUPTED)
        snprintf(row->why, sizeof row->why, "interrupted");
    else if (end == TUNE_LATE)
        snprintf(row->why, sizeof row->why, "it was ended after %g s (--timeout)", tune->timeout_s);
    else if (WIFSIGNALED(status))
        snprintf(row->why, sizeof row->why, "it was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0)
        snprintf(row->why, sizeof row->why, "exit status %d", WEXITSTATUS(status));
}

/* Steps of warm-up where the configuration says nothing. */
static unsigned long warm_up_of(const zf_config_ext_t *config) {
    zf_config_key_t key = {.struct_size = sizeof key};
    for (uint32_t i = 0; i < config->n_keys(); i++)
        if (config->key(i, &key, NULL) >= 0 && strcmp(key.key, "full_warm_up_rounds") == 0)
            return strtoul(key.deflt, NULL, 10);
    return 0;
}

/* 0, or -1 after a message: it makes no sense to go on. */
static int run_row(tune_t *tune, const zf_config_ext_t *config, int i) {
    tune_row_t *row = &tune->rows[i];
    char ini[TUNE_PATH_NBYTES], log[TUNE_PATH_NBYTES], trace[TUNE_PATH_NBYTES], what[NAME_NBYTES];
    zf_error_t err = {.struct_size = sizeof err};
    char *text, *command = NULL;
    int status = 0, rc = -1;
    name_file(tune, row, "ini", ini);
    name_file(tune, row, "log", log);
    name_file(tune, row, "json", trace);
    snprintf(what, sizeof what, "setting %d of %d, S = %u, lag %u", i + 1, tune->n_rows, row->update_interval,
             row->publish_lag);
    (void)remove(trace); /* of another time, where --folder was given */
    text = tune_config(tune->text, row, trace, warm_up_of(config));
    command = put_path(tune->command, ini);
    if (!text || !command)
        zf_cli_complain(ini, "no memory for it");
    else
        rc = tune_write_file(ini, text);
    if (!rc && config->check(text, strlen(text), NULL, 0, &err) < 0) {
        zf_cli_complain(ini, "%s", err.message); /* lines that it names are of that file */
        rc = -1;
    }
    if (!rc) {
        tune_process_t process = {command, ini, log, what, tune->timeout_s};
        tune_end_t end = tune_run(&process, &status);
        tune->is_interrupted = end == TUNE_INTERRUPTED;
        judge_end(tune, end, status, row);
        if (!*row->why)
            tune_read_trace(trace, row);
        tune->n_run += row->has_run;
        if (!row->has_run && !tune->is_interrupted)
            fprintf(stderr, "zf: %s: %s; its output: %s\n", what, row->why, log);
    }
    free(text);
    free(command);
    return rc;
}

/* The files of the runs go, unless somebody may want to read them. */
static void tidy(const tune_t *tune) {
    static const char *const kinds[] = {"ini", "log", "json", "rank0.json"};
    char path[TUNE_PATH_NBYTES];
    if (tune->folder_given || tune->n_run < tune->n_rows)
        return;
    for (int i = 0; i < tune->n_rows; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            name_file(tune, &tune->rows[i], kinds[k], path);
            (void)remove(path);
        }
    (void)rmdir(tune->folder); /* stays where something else lies in it */
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static double step_ms(const tune_row_t *row) { return 1e3 * row->seconds / row->n_steps; }
static double stall_share(const tune_row_t *row) { return row->stall_s / row->seconds; }
static unsigned age(const tune_row_t *row) { return row->update_interval - 1 + row->publish_lag; }
/* Loss per step; NAN: not measured. */
static double lateness(const tune_row_t *row) {
    return row->lateness_steps > 0 ? row->lateness_sum / row->lateness_steps : (double)NAN;
}

static int is_lateness_known(const tune_t *tune) {
    for (int i = 0; i < tune->n_rows; i++)
        if (tune->rows[i].has_run && isnan(lateness(&tune->rows[i])))
            return 0;
    return 1;
}

/* What is less late; of equals, what is quicker. */
static int is_better(const tune_row_t *a, const tune_row_t *b, int by_lateness) {
    double of_a = by_lateness ? fabs(lateness(a)) : age(a), of_b = by_lateness ? fabs(lateness(b)) : age(b);
    return of_a < of_b || (!(of_b < of_a) && step_ms(a) < step_ms(b));
}

static const tune_row_t *choose(const tune_t *tune) {
    const tune_row_t *best = NULL, *least_stall = NULL;
    int by_lateness = is_lateness_known(tune);
    for (int i = 0; i < tune->n_rows; i++) {
        const tune_row_t *row = &tune->rows[i];
        if (!row->has_run)
            continue;
        if (!least_stall || stall_share(row) < stall_share(least_stall))
            least_stall = row;
        if (stall_share(row) <= tune->max_stall && (!best || is_better(row, best, by_lateness)))
            best = row;
    }
    return best ? best : least_stall;
}

static const char *verdict(const tune_t *tune, const tune_row_t *row, const tune_row_t *chosen) {
    if (!row->has_run)
        return row->why;
    if (row == chosen)
        return "chosen";
    return stall_share(row) > tune->max_stall ? "stalls too long" : "later, or slower";
}

static const char *reason(const tune_t *tune, const tune_row_t *chosen) {
    if (stall_share(chosen) > tune->max_stall)
        return "no setting stalls as little as asked: this one stalls least";
    return is_lateness_known(tune) ? "the least lateness of those that stall little enough"
                                   : "lateness was not measured: the youngest values of those that stall little enough";
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_table(const tune_t *tune, const tune_row_t *chosen, const char *prefix, FILE *to) {
    fprintf(to, "%s  S  lag   steps  ms per step    stall     lateness  verdict\n", prefix);
    for (int i = 0; i < tune->n_rows; i++) {
        const tune_row_t *row = &tune->rows[i];
        fprintf(to, "%s%3u  %3u", prefix, row->update_interval, row->publish_lag);
        if (!row->has_run)
            fprintf(to, "%44s", "");
        else
            fprintf(to, "  %6.0f  %11.3f  %5.1f %%", row->n_steps, step_ms(row), 100 * stall_share(row));
        if (row->has_run && isnan(lateness(row)))
            fprintf(to, "  %11s", "-");
        else if (row->has_run)
            fprintf(to, "  %11.3g", lateness(row));
        fprintf(to, "  %s\n", verdict(tune, row, chosen));
    }
}

/* Something lies where the output goes: 1 after a message, unless it may be replaced. */
static int is_taken(const tune_t *tune) {
    struct stat info;
    if (tune->is_forced || lstat(tune->output, &info) != 0)
        return 0;
    return zf_cli_complain(tune->output, "is there already: --force overwrites it, --output names another");
}

/* 0, or 1 after a message. */
static int write_output(const tune_t *tune, const tune_row_t *chosen) {
    char *text = tune_config(tune->text, chosen, NULL, 0);
    zf_cli_replace_t file;
    int is_bad;
    if (!text)
        return zf_cli_complain(tune->output, "no memory for it");
    is_bad = is_taken(tune) || zf_cli_replace_begin(tune->output, &file);
    if (!is_bad) {
        fprintf(file.to, "# Written by zf tune for: ");
        zf_cli_print(file.to, tune->command);
        fprintf(file.to, "\n# S = %u, lag %u: %s (at most %g of a step)\n", chosen->update_interval,
                chosen->publish_lag, reason(tune, chosen), tune->max_stall);
        print_table(tune, chosen, "# ", file.to);
        fprintf(file.to, "%s", text);
        is_bad = zf_cli_replace_end(&file, 1);
    }
    free(text);
    return is_bad;
}

static json_t *row_of(const tune_t *tune, const tune_row_t *row, const tune_row_t *chosen) {
    json_t *out = json_pack("{s:i, s:i, s:b, s:s}", "update_interval", (int)row->update_interval, "publish_lag",
                            (int)row->publish_lag, "has_run", row->has_run, "verdict", verdict(tune, row, chosen));
    if (!out || !row->has_run)
        return out;
    json_object_set_new(out, "steps", json_integer((json_int_t)row->n_steps));
    json_object_set_new(out, "step_s", json_real(row->seconds / row->n_steps));
    json_object_set_new(out, "stall_share", json_real(stall_share(row)));
    json_object_set_new(out, "lateness", isnan(lateness(row)) ? json_null() : json_real(lateness(row)));
    return out;
}

static int print_json(const tune_t *tune, const tune_row_t *chosen) {
    json_t *rows = json_array(), *out;
    for (int i = 0; i < tune->n_rows; i++)
        json_array_append_new(rows, row_of(tune, &tune->rows[i], chosen));
    out = json_pack("{s:s, s:f, s:o, s:o, s:s?, s:s?}", "area", "tune", "max_stall", tune->max_stall, "settings", rows,
                    "chosen", chosen ? row_of(tune, chosen, chosen) : json_null(), "reason",
                    chosen ? reason(tune, chosen) : NULL, "output", chosen ? tune->output : NULL);
    if (!out)
        return zf_cli_complain(tune->output, "no memory, or the command or path is no UTF-8");
    json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(out);
    return 0;
}

/* Stall is what the device waits. What the workers take away from a trainer on the same cores is in the time alone. */
static void print_quicker(const tune_t *tune, const tune_row_t *chosen) {
    const tune_row_t *quickest = chosen;
    double share;
    for (int i = 0; i < tune->n_rows; i++)
        if (tune->rows[i].has_run && step_ms(&tune->rows[i]) < step_ms(quickest))
            quickest = &tune->rows[i];
    share = 1 - step_ms(quickest) / step_ms(chosen);
    if (share > tune->max_stall)
        printf(
            "S = %u, lag %u takes %.0f %% less time per step: where that is more than these runs differ by chance, the "
            "host's work takes cores or bandwidth from the trainer\n",
            quickest->update_interval, quickest->publish_lag, 100 * share);
}

static int report(const tune_t *tune) {
    const tune_row_t *chosen = choose(tune);
    int status = chosen ? write_output(tune, chosen) : 1;
    if (tune->is_json)
        return print_json(tune, chosen) || status;
    print_table(tune, chosen, "", stdout);
    if (chosen && !status) {
        printf("\nS = %u, lag %u: %s (at most %g of a step); written to ", chosen->update_interval, chosen->publish_lag,
               reason(tune, chosen), tune->max_stall);
        zf_cli_print(stdout, tune->output);
        printf("\n");
        print_quicker(tune, chosen);
    } else if (!chosen) {
        fprintf(stderr, "zf: no setting ran; output and files of the runs: %s\n", tune->folder);
    }
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int start(tune_t *tune) {
    size_t n;
    if (is_taken(tune))
        return 1;
    tune->text = tune->config_path ? zf_cli_read_file(tune->config_path, MOST_INI_NBYTES, &n) : calloc(1, 1);
    if (!tune->text)
        return 1;
    if (tune->config_path && memchr(tune->text, '\0', n))
        return zf_cli_complain(tune->config_path, "byte 0x00: this is no text");
    return make_folder(tune);
}

int zf_cli_tune(zf_cli_t *cli, int argc, char **argv) {
    static tune_t tune;
    const zf_config_ext_t *config;
    int status;
    if (!read_options(&tune, argc, argv))
        return 2;
    config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    if (!config)
        return 1;
    status = start(&tune);
    if (!status)
        tune_catch_signals();
    for (int i = 0; i < tune.n_rows && !status && !tune.is_interrupted; i++)
        status = run_row(&tune, config, i) != 0;
    if (!status && tune.is_interrupted) {
        fprintf(stderr, "zf: interrupted; output and files of the runs: %s\n", tune.folder);
        status = 1;
    } else if (!status) {
        status = report(&tune);
        tidy(&tune);
    }
    free(tune.text);
    return status;
}
