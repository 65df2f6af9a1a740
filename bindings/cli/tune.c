/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune.c - `zf tune`: which windows the user's own trainer hides (parts in tune.h).
 *
 * Each setting is run several times, in turn with the others, with an INI file of its own. The trace of a run says what
 * its steps behind warm-up took: time, stall and lateness; the choice is the least late setting whose stall is small
 * enough, by the median of its runs. Lateness is the meter's, a loss per step of either sign: what is near 0 is least.
 * Where a run measured none, settings are ordered by the age of what the model sees, S - 1 + lag steps. Where the best
 * setting and the present one differ by less than runs of one setting do, the present one stays. */
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
    double n_rounds; /* 1 or more */
    int n_rows, is_interrupted;
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
    if (strcmp(name, "--rounds") == 0)
        return take_number(name, value, TUNE_MOST_ROUNDS, &tune->n_rounds) && tune->n_rounds >= 1;
    if (strcmp(name, "--timeout") == 0)
        return take_number(name, value, 1e6, &tune->timeout_s);
    return 0;
}

static int read_options(tune_t *tune, int argc, char **argv) {
    static const char settings[] = "1:0,2:0,4:0,1:1,2:1";
    *tune = (tune_t){.output = "zf-tuned.ini", .n_rounds = 3, .max_stall = 0.03, .timeout_s = 3600};
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
    snprintf(what, sizeof what, "round %d of %.0f, setting %d of %d, S = %u, lag %u", row->n_runs + 1, tune->n_rounds,
             i + 1, tune->n_rows, row->update_interval, row->publish_lag);
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
        if (*row->why)
            row->n_runs = 0;
        if (*row->why && !tune->is_interrupted)
            fprintf(stderr, "zf: %s: %s; its output: %s\n", what, row->why, log);
    }
    free(text);
    free(command);
    return rc;
}

/* Each setting that has not failed, once more. -1 after a message. */
static int run_round(tune_t *tune, const zf_config_ext_t *config) {
    int rc = 0;
    for (int i = 0; i < tune->n_rows && !rc && !tune->is_interrupted; i++)
        if (!*tune->rows[i].why)
            rc = run_row(tune, config, i);
    return rc;
}

/* The files of the runs go, unless somebody may want to read them. */
static void tidy(const tune_t *tune) {
    static const char *const kinds[] = {"ini", "log", "json", "rank0.json"};
    char path[TUNE_PATH_NBYTES];
    for (int i = 0; i < tune->n_rows; i++)
        if (tune->folder_given || !tune->rows[i].n_runs)
            return;
    for (int i = 0; i < tune->n_rows; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            name_file(tune, &tune->rows[i], kinds[k], path);
            (void)remove(path);
        }
    (void)rmdir(tune->folder); /* stays where something else lies in it */
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static unsigned age(const tune_row_t *row) { return row->update_interval - 1 + row->publish_lag; }

static void sum_up(tune_row_t *row) {
    double sizes[TUNE_MOST_ROUNDS];
    for (int i = 0; i < row->n_runs; i++)
        sizes[i] = fabs(row->lateness[i]);
    if (!row->n_runs)
        return;
    row->of_step = zf_cli_range(row->step_s, (size_t)row->n_runs);
    row->of_stall = zf_cli_range(row->stall_share, (size_t)row->n_runs);
    row->of_distance = zf_cli_range(sizes, (size_t)row->n_runs);
    row->of_lateness = zf_cli_range(row->lateness, (size_t)row->n_runs);
}

static int is_lateness_known(const tune_t *tune) {
    for (int i = 0; i < tune->n_rows; i++)
        for (int k = 0; k < tune->rows[i].n_runs; k++)
            if (isnan(tune->rows[i].lateness[k]))
                return 0;
    return 1;
}

/* What is less late; of equals, what is quicker. */
static int is_better(const tune_row_t *a, const tune_row_t *b, int by_lateness) {
    double of_a = by_lateness ? a->of_distance.median : age(a), of_b = by_lateness ? b->of_distance.median : age(b);
    return of_a < of_b || (!(of_b < of_a) && a->of_step.median < b->of_step.median);
}

/* No run of b was as good as the worst of a. */
static int is_below(zf_cli_range_t a, zf_cli_range_t b) { return a.most < b.least; }

/* Whether every run of the better setting says so. */
static int is_clear(const tune_t *tune, const tune_row_t *better, const tune_row_t *other) {
    int is_short = better->of_stall.most <= tune->max_stall;
    if (other->of_stall.least > tune->max_stall)
        return is_short || is_below(better->of_stall, other->of_stall);
    if (!is_short)
        return 0;
    if (!is_lateness_known(tune) && age(better) != age(other))
        return age(better) < age(other);
    return (is_lateness_known(tune) && is_below(better->of_distance, other->of_distance)) ||
           is_below(better->of_step, other->of_step);
}

static const tune_row_t *find_best(const tune_t *tune) {
    const tune_row_t *best = NULL, *least_stall = NULL;
    int by_lateness = is_lateness_known(tune);
    for (int i = 0; i < tune->n_rows; i++) {
        const tune_row_t *row = &tune->rows[i];
        if (!row->n_runs)
            continue;
        if (!least_stall || row->of_stall.median < least_stall->of_stall.median)
            least_stall = row;
        if (row->of_stall.median <= tune->max_stall && (!best || is_better(row, best, by_lateness)))
            best = row;
    }
    return best ? best : least_stall;
}

/* That of --config, or the first that ran. */
static const tune_row_t *find_present(const tune_t *tune) {
    const tune_row_t *first = NULL;
    for (int i = tune->n_rows; i-- > 0;)
        if (tune->rows[i].n_runs)
            first = &tune->rows[i];
    for (int i = 0; i < tune->n_rows; i++)
        if (tune->rows[i].n_runs && tune_is_config(tune->text, &tune->rows[i]))
            return &tune->rows[i];
    return first;
}

static const tune_row_t *choose(const tune_t *tune) {
    const tune_row_t *best = find_best(tune), *present = find_present(tune);
    return !best || best == present || is_clear(tune, best, present) ? best : present;
}

static const char *verdict(const tune_t *tune, const tune_row_t *row, const tune_row_t *chosen) {
    if (!row->n_runs)
        return row->why;
    if (row == chosen)
        return "chosen";
    if (row->of_stall.least > tune->max_stall)
        return "stalls too long";
    return is_clear(tune, chosen, row) ? "later, or slower" : "no difference";
}

static const char *reason(const tune_t *tune, const tune_row_t *chosen) {
    if (chosen != find_best(tune))
        return tune_is_config(tune->text, chosen)
                   ? "it stays: to the best of the others there is no difference beyond that of its own runs"
                   : "the first of the settings: to the best of them there is no difference beyond that of its own "
                     "runs";
    if (chosen->of_stall.median > tune->max_stall)
        return "no setting stalls as little as asked: this one stalls least";
    return is_lateness_known(tune) ? "the least lateness of those that stall little enough"
                                   : "lateness was not measured: the youngest values of those that stall little enough";
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_range(FILE *to, int digits, double factor, zf_cli_range_t range) {
    fprintf(to, "  %7.*f (%.*f to %.*f)", digits, factor * range.median, digits, factor * range.least, digits,
            factor * range.most);
}

static void print_row(const tune_row_t *row, FILE *to) {
    fprintf(to, "  %6.0f", row->n_steps);
    print_range(to, 3, 1e3, row->of_step);
    print_range(to, 1, 100, row->of_stall);
    if (isnan(row->of_lateness.median))
        fprintf(to, "  -");
    else
        fprintf(to, "  %.3g (%.3g to %.3g)", row->of_lateness.median, row->of_lateness.least, row->of_lateness.most);
}

static void print_table(const tune_t *tune, const tune_row_t *chosen, const char *prefix, FILE *to) {
    fprintf(to,
            "%s  S  lag   steps  ms per step, stall in %% of it, lateness: median (least to most) of %.0f "
            "run%s\n",
            prefix, tune->n_rounds, tune->n_rounds > 1 ? "s" : "");
    for (int i = 0; i < tune->n_rows; i++) {
        const tune_row_t *row = &tune->rows[i];
        fprintf(to, "%s%3u  %3u", prefix, row->update_interval, row->publish_lag);
        if (row->n_runs)
            print_row(row, to);
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

static void set_range(json_t *out, const char *name, zf_cli_range_t range) {
    char least[32], most[32];
    snprintf(least, sizeof least, "%s_least", name);
    snprintf(most, sizeof most, "%s_most", name);
    json_object_set_new(out, name, isnan(range.median) ? json_null() : json_real(range.median));
    json_object_set_new(out, least, isnan(range.median) ? json_null() : json_real(range.least));
    json_object_set_new(out, most, isnan(range.median) ? json_null() : json_real(range.most));
}

static json_t *row_of(const tune_t *tune, const tune_row_t *row, const tune_row_t *chosen) {
    json_t *out = json_pack("{s:i, s:i, s:b, s:s}", "update_interval", (int)row->update_interval, "publish_lag",
                            (int)row->publish_lag, "has_run", row->n_runs > 0, "verdict", verdict(tune, row, chosen));
    if (!out || !row->n_runs)
        return out;
    json_object_set_new(out, "steps", json_integer((json_int_t)row->n_steps));
    set_range(out, "step_s", row->of_step);
    set_range(out, "stall_share", row->of_stall);
    set_range(out, "lateness", row->of_lateness);
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
        if (tune->rows[i].n_runs && tune->rows[i].of_step.median < quickest->of_step.median)
            quickest = &tune->rows[i];
    share = 1 - quickest->of_step.median / chosen->of_step.median;
    if (share > tune->max_stall && is_below(quickest->of_step, chosen->of_step))
        printf("S = %u, lag %u takes %.0f %% less time per step: the host's work takes cores or bandwidth from the "
               "trainer\n",
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
    for (int i = 0; i < (int)tune.n_rounds && !status && !tune.is_interrupted; i++)
        status = run_round(&tune, config) != 0;
    for (int i = 0; i < tune.n_rows; i++)
        sum_up(&tune.rows[i]);
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
