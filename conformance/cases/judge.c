/* SPDX-License-Identifier: Apache-2.0 */
/* judge.c - zf-conform judge: what a deployer asks of a library, in one command. It says which file and machine it is
 * about, runs the areas that its profile asks for, one line each, says what was not judged, and ends with one word.
 *
 * Each area runs in a process of its own, and its last line is shown; all of it where it fails. */
#define _GNU_SOURCE
#include "judge.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "cost.h"
#include "exact.h"
#include "harness/option_table.h"
#include "harness/python_command.h"
#include "harness/sha256.h"
#include "near.h"
#include "zf_loader.h"

typedef enum { CORE, NEAR, SCHEDULE, N_PROFILES } profile_t;

static const struct {
    const char *name, *what;
} profiles[N_PROFILES] = {[CORE] = {"core", "what right calls rely on, of any vendor's plugin"},
                          [NEAR] = {"near", "core, and AdamW of any rounding, to a tolerance"},
                          [SCHEDULE] = {"schedule", "the whole contract, and libzfplugin's schedule to the bit"}};

typedef struct judge {
    const char *plugin, *profile, *plugin_found;
    int is_help, n_glue, worst;
    char **glue; /* options of zf-conform glue, behind "--" */
    profile_t chosen;
} judge_t;

/* ---- what is judged ---------------------------------------------------------------------------------------------- */

static void print_processor(void) {
    struct utsname system;
    char line[300], *name = NULL;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && (name = strchr(line, ':')) != NULL)
            break;
    if (file)
        (void)fclose(file);
    if (name)
        name[strcspn(name, "\n")] = '\0';
    (void)uname(&system);
    printf("machine   %s, %s, %ld processors, %s %s\n", name ? name + 2 : "?", system.machine,
           sysconf(_SC_NPROCESSORS_ONLN), system.sysname, system.release);
}

/* The best set that the library was built with and this processor has. */
static const char *find_isa(const char *build) {
#if defined(__x86_64__)
    if (strstr(build, "avx512") && __builtin_cpu_supports("avx512f"))
        return "avx512";
    if (strstr(build, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "avx2";
#elif defined(__aarch64__)
    if (strstr(build, "neon"))
        return "neon";
#endif
    return strstr(build, "generic") ? "generic" : "not known";
}

/* Threads that an instance starts which is told nothing. */
static int count_threads(const zf_plugin_t *zf) {
    zf_host_t host = {.struct_size = sizeof host};
    const zf_create_args_t args = {.struct_size = sizeof args, .host = &host, .device_type = ZF_DEVICE_CPU};
    zf_instance_t *instance = NULL;
    int before = abi_watch_threads(INT_MAX), n = 0;
    if (zf->create(&args, &instance, NULL) >= 0)
        n = abi_watch_threads(INT_MAX) - before;
    zf->destroy(instance, NULL);
    return n;
}

static profile_t choose_profile(const judge_t *j, const zf_description_t *d) {
    for (int i = 0; j->profile && i < N_PROFILES; i++)
        if (strcmp(j->profile, profiles[i].name) == 0)
            return (profile_t)i;
    return strcmp(d->name, "libzfplugin") == 0 ? SCHEDULE : NEAR;
}

/* The first lines. 0, or -1: there is nothing to judge. */
static int introduce(judge_t *j) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_description_t d = {.struct_size = sizeof d};
    zf_loader_t *loader;
    char digest[65];
    if (zf_loader_open(j->plugin, &loader, &err) < 0)
        return fprintf(stderr, "zf-conform judge: %s\n", err.message), -1;
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    if (zf->describe(&d, &err) < 0)
        return fprintf(stderr, "zf-conform judge: %s\n", err.message), -1;
    j->chosen = choose_profile(j, &d);
    printf("library   %s\n          sha256 %s\n", j->plugin,
           zc_sha256_file(j->plugin, digest) == 0 ? digest : "cannot be read");
    printf("plugin    %s %s, ABI %u.%u; %s\n", d.name, d.version, ZF_ABI_MAJOR(zf->abi), ZF_ABI_MINOR(zf->abi),
           *d.build ? d.build : "says nothing of its build");
    print_processor();
    printf("runs      instruction set %s, %d threads of its own\n", find_isa(d.build), count_threads(zf));
    printf("profile   %s: %s\n", profiles[j->chosen].name, profiles[j->chosen].what);
    fflush(stdout);
    return 0;
}

/* ---- areas ------------------------------------------------------------------------------------------------------- */

typedef struct area {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *words[6]; /* besides --plugin FILE */
    int least, most;      /* profiles that have it */
} area_t;

static const area_t areas[] = {{"core", zfc_abi_main, {"abi", "--profile", "core"}, CORE, NEAR},
                               {"contract", zfc_abi_main, {"abi"}, SCHEDULE, SCHEDULE},
                               {"near", zn_near_main, {"near"}, NEAR, SCHEDULE},
                               {"laws", zx_exact_main, {"exact", "--cases", "200"}, SCHEDULE, SCHEDULE},
                               {"cost", zk_cost_main, {"cost", "--times", "20"}, CORE, NEAR},
                               {"cost", zk_cost_main, {"cost"}, SCHEDULE, SCHEDULE}};
enum { N_AREAS = sizeof areas / sizeof *areas, MOST_WORDS = 200, ALL_LINES = 1 << 20 };

static int call(const judge_t *j, const area_t *area) {
    const char *argv[12];
    int argc = 0;
    while (area->words[argc])
        argv[argc] = area->words[argc], argc++;
    argv[argc++] = "--plugin";
    argv[argc++] = j->plugin;
    argv[argc] = NULL;
    return area->main(argc, (char **)(size_t)argv);
}

/* 0, 1 or 3; whatever else ended it, 2: it could not run. */
static int end_of(pid_t pid) {
    int status = 0;
    if (pid <= 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return 2;
    status = WEXITSTATUS(status);
    return status <= 1 || status == 3 ? status : 2;
}

/* 1 before 2 before 3 before 0. */
static void weigh(judge_t *j, int status) {
    if (status != 0 && (j->worst == 0 || status < j->worst))
        j->worst = status;
}

/* The last lines that say something: n of them, or all. */
static void show(const char *name, const char *said, const char *word, int n) {
    const char *from = said + strlen(said);
    while (from > said && from[-1] == '\n')
        from--;
    for (int i = 0; i < n && from > said; i++) {
        from--;
        while (from > said && from[-1] != '\n')
            from--;
    }
    printf("%-9s %s: %s%s", name, word, from, said[strlen(said) - 1] == '\n' ? "" : "\n");
    fflush(stdout);
}

/* Whole output where it does not conform. */
static void tell(judge_t *j, const char *name, char *said, int status) {
    if (WIFSIGNALED(status)) {
        snprintf(said, 100, "ended by signal %d\n", WTERMSIG(status));
        status = 1;
    } else {
        status = WEXITSTATUS(status);
    }
    show(name, said, status == 0 ? "pass" : status == 2 ? "not judged" : "FAIL", status == 1 ? ALL_LINES : 1);
    weigh(j, status == 2 ? 2 : status != 0);
}

static void run(judge_t *j, const area_t *area) {
    static char said[1 << 16];
    int fd = memfd_create("said", MFD_CLOEXEC);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd, 1);
        dup2(fd, 2);
        int status = call(j, area);
        fflush(NULL);
        _exit(status);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    ssize_t n = pread(fd, said, sizeof said - 1, 0);
    close(fd);
    snprintf(said + (n > 0 ? n : 0), 2, "%s", n > 0 ? "" : "\n");
    if (area->main == zk_cost_main && WIFEXITED(status) && WEXITSTATUS(status) < 2)
        printf("%s", said), weigh(j, WEXITSTATUS(status)); /* two lines, each with its word */
    else
        tell(j, area->name, said, status);
}

/* Trains a task, and prints its table itself. */
static void run_glue(judge_t *j) {
    char *argv[MOST_WORDS + 4] = {"glue", "--plugin", (char *)(size_t)j->plugin};
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        memcpy(argv + 3, j->glue, (size_t)j->n_glue * sizeof *argv);
        _exit(zc_accuracy_main(3 + j->n_glue, argv));
    }
    int status = end_of(pid);
    printf("accuracy  %s\n", status == 0   ? "pass: the table above"
                             : status == 1 ? "FAIL: the table above"
                             : status == 3 ? "inconclusive: the table above"
                                           : "not judged: the line above says what is missing");
    weigh(j, status);
}

static void print_not_judged(const judge_t *j) {
    printf("not judged: several ranks (zf-conform shard, under mpirun), CUDA devices (zf-conform exact --device "
           "cuda)%s%s\n",
           j->chosen == SCHEDULE ? ", your own task" : ", accuracy",
           j->chosen == SCHEDULE ? "" : ", what wrong calls are told (zf-conform abi)");
    printf("%s\n", j->worst == 0   ? "CONFORMS"
                   : j->worst == 3 ? "INCONCLUSIVE"
                   : j->worst == 2 ? "INCOMPLETE"
                                   : "FAILS");
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(judge_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "the library (default: ZFPLUGIN_PATH, else libzfplugin.so.0)"),
    ZC_OPTION("profile", ZC_CHOICE_TEXT, AT(profile), "NAME",
              "schedule (default for libzfplugin), near (default for others), core; behind --, options of "
              "zf-conform glue",
              .choices = "core near schedule"),
    ZC_OPTION("help", ZC_SWITCH, AT(is_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

/* What lies behind "--" is glue's. */
static int split(judge_t *j, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            j->glue = argv + i + 1;
            j->n_glue = argc - i - 1 < MOST_WORDS ? argc - i - 1 : MOST_WORDS;
            return i;
        }
    return argc;
}

int zj_judge_main(int argc, char **argv) {
    judge_t j = {.plugin = getenv("ZFPLUGIN_PATH")};
    glue_error_t err;
    argc = split(&j, argc, argv);
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &j, &err) != 0)
        return fprintf(stderr, "zf-conform judge: %s\n", err.text), 2;
    if (j.is_help)
        return zc_options_help("zf-conform judge - may this library be deployed on this machine?", table, N_OPTIONS,
                               "0 conforms, 1 does not, 2 could not run all, 3 inconclusive");
    char *path = j.plugin ? realpath(j.plugin, NULL) : NULL;
    j.plugin = path ? path : j.plugin ? j.plugin : "libzfplugin.so.0";
    if (introduce(&j) != 0)
        return 2;
    for (int i = 0; i < N_AREAS; i++)
        if (areas[i].least <= (int)j.chosen && (int)j.chosen <= areas[i].most)
            run(&j, &areas[i]);
    if (j.chosen == SCHEDULE)
        run_glue(&j);
    print_not_judged(&j);
    free(path);
    return j.worst;
}
