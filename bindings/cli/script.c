/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/script.c - commands that are written in Python: finds GROUP.py, which does it, and becomes Python.
 *
 * Python is ZF_PYTHON, else python3. The script lies beside this program in a build, else where it is installed. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { MOST_WORDS = 100 };

/* Finds the path of this program, and that of the script, for which 0 is returned where it is. */
static int find_script(const char *name, char self[PATH_MAX], char out[2 * PATH_MAX]) {
    static const char *const places[] = {"", ZF_SCRIPTS};
    ssize_t n = readlink("/proc/self/exe", self, PATH_MAX - 1);
    self[n > 0 ? n : 0] = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *slash = strrchr(self, '/');
        snprintf(out, 2 * PATH_MAX, "%.*s/%s%s.py", (int)(slash ? slash - self : 0), self, places[i], name);
        if (access(out, R_OK) == 0)
            return 0;
    }
    return zf_cli_complain(out, "%s: it belongs to this command; install it again", strerror(errno));
}

int zf_cli_run_script(zf_cli_t *cli, const zf_cli_command_t *command, int argc, char **argv) {
    const char *name = command->group, *python = getenv("ZF_PYTHON"), *words[MOST_WORDS];
    int n = 2;
    char self[PATH_MAX], script[2 * PATH_MAX];
    if (argc > MOST_WORDS - 4)
        return zf_cli_misuse("%s: %d words, at most %d are taken", name, argc, MOST_WORDS - 4);
    if (find_script(name, self, script))
        return 1;
    words[0] = python && *python ? python : "python3";
    words[1] = script;
    if (command->name)
        words[n++] = command->name;
    memcpy(words + n, argv, (size_t)argc * sizeof *words);
    words[n + argc] = NULL;
    setenv("ZF_COMMAND", self, 1);
    if (cli->plugin)
        setenv("ZFPLUGIN_PATH", cli->plugin, 1);
    execvp(words[0], (char **)(size_t)words);
    return zf_cli_complain(words[0], "%s: apt-get install python3, or set ZF_PYTHON", strerror(errno));
}
