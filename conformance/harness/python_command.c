/* SPDX-License-Identifier: Apache-2.0 */
/* harness/python_command.c - finds the packages and becomes Python (python_command.h). */
#define _POSIX_C_SOURCE 200809L
#include "python_command.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COULD_NOT_RUN = 2, MAX_ARGUMENTS = 200 };

static const char *python_name(void) {
    const char *name = getenv("ZF_PYTHON");
    return name != NULL && name[0] != '\0' ? name : "python3";
}

/* This program's own path; empty where the system does not tell it. */
static void find_self(char out[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
}

/* The packages first, and this program's path, beside which zf-host lies. */
static void set_environment(void) {
    const char *before = getenv("PYTHONPATH");
    char self[PATH_MAX], path[3 * PATH_MAX];
    find_self(self);
    (void)setenv("ZF_CONFORM", self, 1);
    char *slash = strrchr(self, '/');
    if (slash == NULL)
        return;
    (void)snprintf(path, sizeof path, "%.*s/python", (int)(slash - self), self);
    if (access(path, R_OK) != 0)
        return;
    if (before != NULL && before[0] != '\0')
        (void)snprintf(path, sizeof path, "%.*s/python:%.*s", (int)(slash - self), self, PATH_MAX, before);
    (void)setenv("PYTHONPATH", path, 1);
    (void)setenv("PYTHONDONTWRITEBYTECODE", "1", 0); /* a folder of a package holds what the package brought, no more */
}

int zc_accuracy_main(int argc, char **argv) {
    const char *arguments[MAX_ARGUMENTS] = {python_name(), "-m", "zfplugin.accuracy"};
    if (argc > MAX_ARGUMENTS - 4) {
        (void)fprintf(stderr, "zf-conform %s: found %d words; at most %d are taken\n", argv[0], argc,
                      MAX_ARGUMENTS - 4);
        return COULD_NOT_RUN;
    }
    memcpy(arguments + 3, argv, (size_t)argc * sizeof *arguments);
    set_environment();
    (void)execvp(arguments[0], (char **)(size_t)arguments);
    (void)fprintf(stderr,
                  "zf-conform %s: %s is not there: apt-get install python3 python3-scipy, or set "
                  "ZF_PYTHON to a Python with scipy\n",
                  argv[0], python_name());
    return COULD_NOT_RUN;
}
