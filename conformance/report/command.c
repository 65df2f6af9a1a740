/* command.c - the command line of --report; one child process per area (command.h).
 *
 * Model: every area is this program again, with its own options and its JSON file told to lie in the results folder;
 * what it prints is seen as always. The page is then made of what lies there: JSON files that say their "area", or are
 * named AREA.json or AREA-*.json. An area that ends without its file is in the page with its exit status. */
#define _POSIX_C_SOURCE 200809L
#include "command.h"

#include "glue_file.h"
#include "glue_json.h"
#include "glue_run.h"
#include "page.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COULD_NOT_RUN = 2, MAX_AREAS = 8, MAX_ARGUMENTS = 160, MAX_FILES = 64 };

/* How an area is told where its results go, and what it needs. */
typedef struct runner {
    const char *area;
    const char *out_option; /* ... with the path below as its value */
    int is_folder;          /* the results folder itself, else AREA.json in it */
    int takes_data;
} runner_t;

static const runner_t runners[] = {
    {"abi", "--json", 0, 0},   {"exact", "--json", 0, 0},   {"glue", "--out", 1, 1},
    {"curves", "--out", 1, 1}, {"ablation", "--out", 1, 1}, {"perf", "--out", 0, 0},
};

typedef struct wanted {
    const runner_t *runner;
    const char *arguments[MAX_ARGUMENTS]; /* those behind its name */
    size_t n;
    int exit_status;
    double seconds;
} wanted_t;

typedef struct command {
    const char *page, *results, *plugin, *data;
    wanted_t areas[MAX_AREAS];
    size_t n_areas;
    int wants_help;
} command_t;

typedef struct files {
    zr_result_t list[MAX_FILES + MAX_AREAS];
    json_t *documents[MAX_FILES];
    char messages[MAX_AREAS][200];
    size_t n, n_documents;
} files_t;

static void print_help(void) {
    (void)puts("zf-conform --report FILE.html [options] [AREA [options of the area] ...]\n"
               "Runs the areas named and writes one self-contained page of all results in the results folder.\n"
               "  --plugin FILE    libzfplugin.so (default: ZFPLUGIN_PATH)\n"
               "  --data DIR       official GLUE files, for the areas that train\n"
               "  --results DIR    JSON files of the areas, made and read (default: FILE.html.results); with no AREA\n"
               "                   nothing is run and the page is made of what lies there\n"
               "areas: abi exact glue curves ablation perf; zf-conform AREA --help lists their options");
}

static int complain(const char *text, const char *detail) {
    (void)fprintf(stderr, "zf-conform --report: %s%s\n", text, detail);
    return -1;
}

/* ---- command line ------------------------------------------------------------------------------------------------ */

static const runner_t *find_runner(const char *name) {
    for (size_t i = 0; i < sizeof runners / sizeof *runners; i++)
        if (strcmp(runners[i].area, name) == 0)
            return &runners[i];
    return NULL;
}

static int take_area(command_t *c, const runner_t *runner) {
    for (size_t i = 0; i < c->n_areas; i++)
        if (c->areas[i].runner == runner)
            return complain("this area is named twice: ", runner->area);
    c->areas[c->n_areas++] = (wanted_t){.runner = runner, .exit_status = COULD_NOT_RUN, .seconds = NAN};
    return 0;
}

static int take_own(command_t *c, const char *name, const char *value) {
    const char **place = strcmp(name, "--plugin") == 0    ? &c->plugin
                         : strcmp(name, "--data") == 0    ? &c->data
                         : strcmp(name, "--results") == 0 ? &c->results
                                                          : NULL;

    if (place == NULL)
        return complain("an option, or an area (abi exact glue curves ablation perf), is needed; found ", name);
    if (value == NULL)
        return complain("nothing follows ", name);
    *place = value;
    return 0;
}

static int parse(command_t *c, int argc, char **argv) {
    c->plugin = getenv("ZFPLUGIN_PATH");
    c->page = argc > 1 ? argv[1] : "--help";
    c->wants_help = strcmp(c->page, "--help") == 0;
    if (!c->wants_help && (c->page[0] == '-' || c->page[0] == '\0' || find_runner(c->page) != NULL))
        return complain("the name of the page is needed first: --report FILE.html; found ", c->page);
    for (int i = 2; i < argc && !c->wants_help; i++) {
        const runner_t *runner = find_runner(argv[i]);
        wanted_t *area = c->n_areas > 0 ? &c->areas[c->n_areas - 1] : NULL;

        if (runner != NULL && take_area(c, runner) != 0)
            return -1;
        if (runner != NULL)
            continue;
        if (area == NULL && take_own(c, argv[i], i + 1 < argc ? argv[i + 1] : NULL) != 0)
            return -1;
        if (area == NULL)
            i++;
        else if (area->n + 16 < MAX_ARGUMENTS)
            area->arguments[area->n++] = argv[i];
        else
            return complain("too many options behind ", area->runner->area);
    }
    if (c->n_areas > 0 && (c->plugin == NULL || c->plugin[0] == '\0'))
        return complain("--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge", "");
    return 0;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static double now_seconds(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    char path[ZG_MAX_PATH + 32];
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

/* ---- results ----------------------------------------------------------------------------------------------------- */

static const wanted_t *run_of(const command_t *c, const char *area) {
    for (size_t i = 0; i < c->n_areas; i++)
        if (strcmp(c->areas[i].runner->area, area) == 0)
            return &c->areas[i];
    return NULL;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names of the files in the folder that end in .json, in order; each is to be freed. */
static size_t list_files(const char *folder, char *names[MAX_FILES]) {
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t n = 0;

    while (dir != NULL && n < MAX_FILES && (entry = readdir(dir)) != NULL) {
        size_t length = strlen(entry->d_name);

        if (length > 5 && strcmp(entry->d_name + length - 5, ".json") == 0 &&
            (names[n] = strdup(entry->d_name)) != NULL)
            n++;
    }
    if (dir != NULL)
        (void)closedir(dir);
    qsort(names, n, sizeof *names, compare_names);
    return n;
}

/* The area of a file: what it says itself, else what it is named after ("curves-1e-3.json"). NULL: of none. */
static const char *area_of(const char *name, const json_t *json) {
    char said[32];
    int says = zg_json_text(json, "area", said, sizeof said);

    for (size_t i = 0; zr_area_name(i) != NULL; i++) {
        size_t length = strlen(zr_area_name(i));

        if (says ? strcmp(said, zr_area_name(i)) == 0
                 : strncmp(name, zr_area_name(i), length) == 0 && (name[length] == '.' || name[length] == '-'))
            return zr_area_name(i);
    }
    return NULL;
}

/* Takes over json, the contents of a file; NULL: it has none that can be read. */
static void take_file(const command_t *c, const char *name, json_t *json, files_t *out) {
    const char *area = area_of(name, json);
    const wanted_t *run = area != NULL ? run_of(c, area) : NULL;
    int is_of_run = run != NULL && strncmp(name, area, strlen(area)) == 0;

    if (area == NULL) {
        json_decref(json);
        return;
    }
    out->documents[out->n_documents++] = json;
    out->list[out->n++] = (zr_result_t){.area = area,
                                        .json = json,
                                        .message = json == NULL ? "the file is damaged" : NULL,
                                        .exit_status = is_of_run ? run->exit_status : -1,
                                        .seconds = is_of_run ? run->seconds : NAN};
}

static void read_results(const command_t *c, files_t *out) {
    char *names[MAX_FILES], path[ZG_MAX_PATH + 300];
    size_t n = list_files(c->results, names);

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", c->results, names[i]);
        take_file(c, names[i], zg_json_read(path), out);
        free(names[i]);
    }
    for (size_t i = 0; i < c->n_areas; i++) {
        const wanted_t *a = &c->areas[i];
        int is_there = 0;

        for (size_t k = 0; k < out->n; k++)
            is_there |= strcmp(out->list[k].area, a->runner->area) == 0 && out->list[k].exit_status >= 0;
        (void)snprintf(out->messages[i], sizeof out->messages[i], "left no results; exit status %d", a->exit_status);
        if (!is_there)
            out->list[out->n++] = (zr_result_t){.area = a->runner->area,
                                                .exit_status = a->exit_status,
                                                .seconds = a->seconds,
                                                .message = out->messages[i]};
    }
}

int zr_report_main(int argc, char **argv) {
    static command_t c;
    static files_t files;
    char folder[ZG_MAX_PATH];
    glue_error_t err = {""};
    int status;

    if (parse(&c, argc, argv) != 0)
        return COULD_NOT_RUN;
    if (c.wants_help)
        return print_help(), 0;
    if (c.results == NULL) {
        (void)snprintf(folder, sizeof folder, "%.4000s.results", c.page);
        c.results = folder;
    }
    if (c.n_areas > 0 && zg_make_folder(c.results, &err) != 0)
        return complain(err.text, ""), COULD_NOT_RUN;
    for (size_t i = 0; i < c.n_areas; i++)
        run_area(&c, &c.areas[i]);
    read_results(&c, &files);
    status = worst_status(&c);
    if (files.n == 0) {
        status = COULD_NOT_RUN;
        (void)complain("no results of an area (AREA.json) and no AREA to run; looked in ", c.results);
    } else if (zr_page_write(files.list, files.n, c.page, &err) != 0) {
        status = COULD_NOT_RUN;
        (void)complain(err.text, "");
    } else {
        (void)printf("%s\n", c.page);
    }
    for (size_t i = 0; i < files.n_documents; i++)
        json_decref(files.documents[i]);
    return status;
}
