/* SPDX-License-Identifier: Apache-2.0 */
/* harness/report_command.c - the command line of --report; one child process per area, one for the page
 * (report_command.h).
 *
 * Model: every area is this program again, with its own options and its JSON file told to lie in the results folder;
 * what it prints is seen as always. report.json says what was run, how long it took and how it ended, so that the page
 * also names an area that left no file. The page is drawn by python3 -m zfplugin.report from that folder. Where Python,
 * zfplugin or matplotlib is missing, the areas' tables have been printed, their JSON is kept, and the exit status is
 * still theirs. */
#define _POSIX_C_SOURCE 200809L
#include "report_command.h"

#include "json_file.h"
#include "option_table.h"
#include "python_command.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COULD_NOT_RUN = 2, MAX_AREAS = 8, MAX_ARGUMENTS = 160 };

/* How an area is told where its results go, and what it needs. */
typedef struct runner {
    const char *area;
    const char *out_option; /* ... with the path below as its value */
    int is_folder;          /* the results folder itself, else AREA.json in it */
    int takes_data;
} runner_t;

static const runner_t runners[] = {
    {"abi", "--json", 0, 0},
    {"exact", "--json", 0, 0},
    {"glue", "--out", 1, 1},
    {"perf", "--out", 0, 0},
};

typedef struct wanted {
    const runner_t *runner;
    char **arguments; /* [n], those behind its name */
    size_t n;
    int exit_status;
    double seconds;
} wanted_t;

typedef struct command {
    const char *page, *results, *plugin, *data;
    char folder[PATH_MAX]; /* results, where no --results says otherwise */
    wanted_t areas[MAX_AREAS];
    size_t n_areas;
    int wants_help;
} command_t;

/* ---- command line ------------------------------------------------------------------------------------------------ */

#define AT(member) offsetof(command_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("data", ZC_TEXT, AT(data), "DIR", "official GLUE files, for the areas that train"),
    ZC_OPTION("results", ZC_TEXT, AT(results), "DIR",
              "JSON files of the areas, made and read (default: FILE.html.results)"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int print_help(void) {
    return zc_options_help(
        "zf-conform --report FILE.html [options] [AREA [options of the area] ...]\n"
        "Runs the areas named and draws one self-contained page of all results in the results folder; with no\n"
        "AREA nothing is run. python3 (or ZF_PYTHON) with matplotlib draws the page; without it the areas' tables\n"
        "and JSON stand, and what is missing is named. Areas: abi exact glue perf; zf-conform AREA\n"
        "--help lists their options",
        table, N_OPTIONS, NULL,
        "the areas' worst (1 before 2 before 3), with or without a page; 2 where only the page was wanted\n"
        "and could not be drawn");
}

static int complain(const glue_error_t *err) {
    (void)fflush(stdout);
    (void)fprintf(stderr, "zf-conform --report: %s\n", err->text);
    return COULD_NOT_RUN;
}

static const runner_t *find_runner(const char *name) {
    for (size_t i = 0; i < sizeof runners / sizeof *runners; i++)
        if (strcmp(runners[i].area, name) == 0)
            return &runners[i];
    return NULL;
}

/* An area begins at argv[at]. Returns where the next one does. */
static int take_area(command_t *c, int argc, char **argv, int at, glue_error_t *err) {
    const runner_t *runner = find_runner(argv[at]);
    wanted_t *area = &c->areas[c->n_areas];

    for (size_t i = 0; i < c->n_areas; i++)
        if (c->areas[i].runner == runner)
            return glue_fail(err, "the area %s is named twice; once is needed", runner->area);
    *area = (wanted_t){.runner = runner, .arguments = argv + at + 1, .exit_status = COULD_NOT_RUN};
    for (at++; at < argc && find_runner(argv[at]) == NULL; at++)
        area->n++;
    c->n_areas++;
    if (area->n + 16 > MAX_ARGUMENTS)
        return glue_fail(err, "found %zu words behind %s; at most %d are taken", area->n, runner->area,
                         MAX_ARGUMENTS - 16);
    return at;
}

static int parse(command_t *c, int argc, char **argv, glue_error_t *err) {
    const char *found = argc > 1 ? argv[1] : "nothing";
    int at = 2;

    c->plugin = getenv("ZFPLUGIN_PATH");
    c->wants_help = argc > 1 && strcmp(argv[1], "--help") == 0;
    if (c->wants_help)
        return 0;
    if (argc < 2 || found[0] == '-' || found[0] == '\0' || find_runner(found) != NULL)
        return glue_fail(err, "the name of the page is needed first: --report FILE.html; found %s", found);
    c->page = found;
    while (at < argc && find_runner(argv[at]) == NULL) /* own options, each with its value */
        at += strcmp(argv[at], "--help") == 0 || at + 1 == argc ? 1 : 2;
    if (zc_options_parse(table, N_OPTIONS, NULL, at - 1, argv + 1, c, err) != 0)
        return -1;
    while (at > 0 && at < argc)
        at = take_area(c, argc, argv, at, err);
    if (at < 0)
        return -1;
    if (!c->wants_help && c->n_areas > 0 && (c->plugin == NULL || c->plugin[0] == '\0'))
        return glue_fail(err, "--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge");
    if (c->results == NULL) {
        (void)snprintf(c->folder, sizeof c->folder, "%.4000s.results", c->page);
        c->results = c->folder;
    }
    return 0;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static double now_seconds(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Makes a folder and those above it. */
static int make_folder(const char *path, glue_error_t *err) {
    char part[PATH_MAX];

    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return glue_fail(err, "%s: the path is too long", path);
    for (char *p = part + 1;; p++) {
        char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return glue_fail(err, "%s: cannot make this folder: %s", part, strerror(errno));
        *p = c;
        if (c == '\0')
            return 0;
    }
}

static void become(const command_t *c, const wanted_t *area, const char *out_path) {
    const char *arguments[MAX_ARGUMENTS + 16] = {"zf-conform", area->runner->area, "--plugin", c->plugin};
    size_t n = 4;

    arguments[n++] = area->runner->out_option;
    arguments[n++] = out_path;
    if (area->runner->takes_data && c->data != NULL) {
        arguments[n++] = "--data";
        arguments[n++] = c->data;
    }
    memcpy(arguments + n, area->arguments, area->n * sizeof *arguments);
    arguments[n + area->n] = NULL;
    (void)execv("/proc/self/exe", (char **)(size_t)arguments);
    _exit(COULD_NOT_RUN);
}

/* An older result of this area must not pass for this run's. */
static void remove_old(const char *folder, const char *area) {
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t length = strlen(area);

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *end = strrchr(entry->d_name, '.');

        if (strncmp(entry->d_name, area, length) == 0 && strchr("-.", entry->d_name[length]) != NULL && end != NULL &&
            strcmp(end, ".json") == 0)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static void run_area(const command_t *c, wanted_t *area) {
    char path[PATH_MAX + 32];
    double start = now_seconds();
    int status = 0;
    pid_t pid;

    if (area->runner->is_folder)
        (void)snprintf(path, sizeof path, "%s", c->results);
    else
        (void)snprintf(path, sizeof path, "%s/%s.json", c->results, area->runner->area);
    remove_old(c->results, area->runner->area);
    (void)printf("== %s\n", area->runner->area);
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0)
        become(c, area, path);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    area->seconds = now_seconds() - start;
    area->exit_status = pid < 0 ? COULD_NOT_RUN : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int worst_status(const command_t *c) {
    static const int order[] = {1, 2, 3};

    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < c->n_areas; i++)
            if (c->areas[i].exit_status == order[k])
                return order[k];
    return 0;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* What was run, for the page. */
static int write_run(const command_t *c, glue_error_t *err) {
    char path[PATH_MAX + 32];
    json_t *ran = json_array();

    (void)snprintf(path, sizeof path, "%s/report.json", c->results);
    for (size_t i = 0; i < c->n_areas; i++)
        (void)json_array_append_new(ran, json_pack("{s:s, s:i, s:f}", "area", c->areas[i].runner->area, "exit_status",
                                                   c->areas[i].exit_status, "seconds", c->areas[i].seconds));
    return zj_write(json_pack("{s:s, s:o}", "area", "report", "ran", ran), path, err);
}

/* Returns Python's exit status; ZC_PYTHON_NOT_FOUND where there is no Python. */
static int run_python(const command_t *c) {
    int status = 0;
    pid_t pid;

    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        zc_become_python((const char *[]){"-m", "zfplugin.report", c->results, "--page", c->page, NULL});
        _exit(ZC_PYTHON_NOT_FOUND);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : COULD_NOT_RUN;
}

/* Draws the page, or says what stands without it. A page of an earlier run must not pass for this run's. */
static int draw_page(const command_t *c, glue_error_t *err) {
    int status;

    if (c->n_areas > 0)
        (void)unlink(c->page);
    status = run_python(c);
    if (status == 0)
        return 0;
    if (status == ZC_PYTHON_NOT_FOUND)
        (void)fprintf(stderr,
                      "zf-conform --report: %s is not there: apt-get install python3 python3-matplotlib, or set "
                      "ZF_PYTHON to a Python with matplotlib\n",
                      zc_python_name());
    return glue_fail(err, "no page was drawn; %sthe JSON files are in %s; later: zf-conform --report %s --results %s",
                     c->n_areas > 0 ? "the tables stand above, " : "", c->results, c->page, c->results);
}

int zr_report_main(int argc, char **argv) {
    static command_t c;
    glue_error_t err = {""};

    if (parse(&c, argc, argv, &err) != 0)
        return complain(&err);
    if (c.wants_help)
        return print_help();
    if (c.n_areas > 0 && make_folder(c.results, &err) != 0)
        return complain(&err);
    for (size_t i = 0; i < c.n_areas; i++)
        run_area(&c, &c.areas[i]);
    if (c.n_areas > 0 && write_run(&c, &err) != 0)
        return complain(&err);
    if (draw_page(&c, &err) != 0 && (complain(&err), c.n_areas == 0))
        return COULD_NOT_RUN;
    return worst_status(&c);
}
