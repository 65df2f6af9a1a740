/* SPDX-License-Identifier: Apache-2.0 */
/* abi_headers.c - proof 2 (abi_layout.h). One compiler run per mode: with -fsyntax-only each header is a translation
 * unit of its own, so a missing include in one of them is seen. */
#define _GNU_SOURCE /* posix_spawnp, environ */
#include "abi_layout.h"

#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi_table.h"

enum { MAX_ARGS = 64 };

/* Runs a compiler; the first line of what it says goes to `said`. Returns its exit status, or -1 if it could not run.
 */
static int run(char *const argv[], char *said, size_t nbytes) {
    posix_spawn_file_actions_t actions;
    int ends[2], status = -1, rc;
    pid_t pid;
    char sink[4096];
    size_t n = 0;
    ssize_t got;
    said[0] = '\0';
    if (pipe(ends) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    while (rc == 0 && (got = read(ends[0], sink, sizeof sink)) > 0)
        for (ssize_t i = 0; i < got && n + 1 < nbytes; i++)
            said[n++] = sink[i];
    said[n] = '\0';
    said[strcspn(said, "\n")] = '\0';
    close(ends[0]);
    if (rc != 0 || waitpid(pid, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int has_compiler(const char *compiler) {
    char said[8];
    char *argv[] = {(char *)compiler, "--version", NULL};
    return run(argv, said, sizeof said) == 0;
}

static void check_mode(abi_report_t *report, const char *dir, const char *compiler, const char *language,
                       const char *std) {
    char include[1100], standard[32], paths[16][1100], said[256], detail[ABI_DETAIL_NBYTES];
    char *argv[MAX_ARGS] = {(char *)compiler, "-x",           (char *)language, standard,        include,
                            "-fsyntax-only",  "-Wall",        "-Wextra",        "-Wpedantic",    "-Wpadded",
                            "-Wshadow",       "-Wconversion", "-Wundef",        "-fshort-enums", "-Werror"};
    int n = 0, status;
    while (argv[n])
        n++;
    snprintf(include, sizeof include, "-I%s", dir);
    snprintf(standard, sizeof standard, "-std=%s", std);
    if (strcmp(language, "c") == 0)
        argv[n++] = "-Wc++-compat", argv[n++] = "-Wstrict-prototypes";
    if (strstr(compiler, "clang"))
        argv[n++] = "-Wno-pragma-once-outside-header";
    for (size_t i = 0; abi_header_file(i) && i < 16; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", dir, abi_header_file(i));
        argv[n++] = paths[i];
    }
    status = run(argv, said, sizeof said);
    snprintf(detail, sizeof detail, "%s -std=%s: %s", compiler, std, said);
    abi_report_add(report, ABI_RULE_HEADERS, status == 0 ? ABI_PASS : ABI_FAIL, detail);
}

void abi_headers_check(abi_report_t *report, const char *dir) {
    static const struct { const char *compiler, *cxx; } compilers[] = {{"gcc", "g++"}, {"clang", "clang++"}};
    static const char *const standards[] = {"c99", "c11", "c17"};
    char path[1100], detail[ABI_DETAIL_NBYTES];
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "", abi_header_file(0));
    if (!dir || access(path, R_OK) != 0) {
        snprintf(detail, sizeof detail, "no headers in \"%s\"; name the directory with --headers DIR", dir ? dir : "");
        abi_report_add(report, ABI_RULE_HEADERS, ABI_SKIP, detail);
        return;
    }
    for (size_t c = 0; c < sizeof compilers / sizeof compilers[0]; c++) {
        if (!has_compiler(compilers[c].compiler)) {
            snprintf(detail, sizeof detail, "there is no %s here", compilers[c].compiler);
            abi_report_add(report, ABI_RULE_HEADERS, ABI_SKIP, detail);
            continue;
        }
        for (size_t s = 0; s < 3; s++)
            check_mode(report, dir, compilers[c].compiler, "c", standards[s]);
        if (has_compiler(compilers[c].cxx))
            check_mode(report, dir, compilers[c].cxx, "c++", "c++17");
        else
            abi_report_add(report, ABI_RULE_HEADERS, ABI_SKIP, "there is no C++ compiler beside it");
    }
}
