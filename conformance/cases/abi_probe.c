/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probe.c - probes in child processes (abi_probe.h). Protocol: lines "T text" (tried next), "P rule", "F rule
 * text", "S rule text"; each is one write of less than PIPE_BUF bytes. */
#define _GNU_SOURCE /* memfd_create */
#include "abi_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/clock.h"

enum { DEADLINE_MS = 60000, LINE_NBYTES = 512 };

/* ---- the child's side -------------------------------------------------------------------------------------------- */

static void send_line(abi_probe_t *probe, const char *head, const char *format, va_list args) {
    char line[LINE_NBYTES];
    size_t n = (size_t)snprintf(line, sizeof line, "%s", head);
    vsnprintf(line + n, sizeof line - n - 1, format, args);
    for (char *s = line; *s; s++)
        if (*s == '\n')
            *s = ' ';
    n = strlen(line);
    line[n++] = '\n';
    if (write(probe->fd, line, n) != (ssize_t)n)
        _exit(3);
}

void abi_try(abi_probe_t *probe, const char *format, ...) {
    va_list args;
    va_start(args, format);
    send_line(probe, "T ", format, args);
    va_end(args);
}

int abi_check(abi_probe_t *probe, abi_rule_t rule, int is_ok, const char *format, ...) {
    char head[32];
    va_list args;
    snprintf(head, sizeof head, "%c %d ", is_ok ? 'P' : 'F', (int)rule);
    va_start(args, format);
    send_line(probe, head, is_ok ? "" : format, args);
    va_end(args);
    return is_ok;
}

void abi_skip(abi_probe_t *probe, abi_rule_t rule, const char *format, ...) {
    char head[32];
    va_list args;
    snprintf(head, sizeof head, "S %d ", (int)rule);
    va_start(args, format);
    send_line(probe, head, format, args);
    va_end(args);
}

static void child(const abi_env_t *env, int fd, void (*fn)(abi_probe_t *)) {
    abi_probe_t probe = {env, fd};
    char said[80];
    ssize_t n;
    int printed = memfd_create("printed", MFD_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (printed < 0)
        _exit(3);
    dup2(printed, 1);
    dup2(printed, 2);
    fn(&probe);
    fflush(NULL);
    n = pread(printed, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    abi_check(&probe, ABI_RULE_QUIET, n == 0, "printed \"%s\"", said);
    _exit(0);
}

/* ---- the parent's side ------------------------------------------------------------------------------------------- */

static void take_line(abi_report_t *report, const char *line, char tried[LINE_NBYTES]) {
    int rule = 0, n = 0;
    if (line[0] == 'T') {
        snprintf(tried, LINE_NBYTES, "%s", line + 2);
    } else if (sscanf(line + 1, " %d %n", &rule, &n) == 1 && rule >= 0 && rule < ABI_N_RULES) {
        abi_verdict_t verdict = line[0] == 'P' ? ABI_PASS : line[0] == 'F' ? ABI_FAIL : ABI_SKIP;
        abi_report_add(report, (abi_rule_t)rule, verdict, line + 1 + n);
    }
}

static long now_ms(void) { return (long)(zc_now_ns() / 1000000); }

/* Reads lines until the child closes the pipe; 0 = the deadline passed. */
static int read_findings(abi_report_t *report, int fd, char tried[LINE_NBYTES]) {
    char buf[4096];
    size_t used = 0;
    long end = now_ms() + DEADLINE_MS;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        long left = end - now_ms();
        ssize_t got;
        char *line = buf, *stop;
        if (left <= 0 || (poll(&p, 1, (int)left) == 0))
            return 0;
        got = read(fd, buf + used, sizeof buf - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 1;
        used += (size_t)got;
        while ((stop = memchr(line, '\n', used - (size_t)(line - buf))) != NULL) {
            *stop = '\0';
            take_line(report, line, tried);
            line = stop + 1;
        }
        used -= (size_t)(line - buf);
        memmove(buf, line, used);
    }
}

void abi_probe_run(abi_report_t *report, const abi_env_t *env, const char *name, void (*fn)(abi_probe_t *)) {
    char tried[LINE_NBYTES] = "start", detail[ABI_DETAIL_NBYTES];
    int ends[2], status = 0, is_ended;
    pid_t pid;
    if (env->progress)
        zc_progress_show(env->progress, name);
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0 || (pid = fork()) < 0) {
        abi_report_add(report, ABI_RULE_CRASH, ABI_FAIL, "no process for a probe");
        return;
    }
    if (pid == 0) {
        close(ends[0]);
        child(env, ends[1], fn);
    }
    close(ends[1]);
    is_ended = read_findings(report, ends[0], tried);
    close(ends[0]);
    if (!is_ended)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!is_ended)
        snprintf(detail, sizeof detail, "%s: %.300s: no end in %d s", name, tried, DEADLINE_MS / 1000);
    else if (WIFSIGNALED(status))
        snprintf(detail, sizeof detail, "%s: %.300s: signal %d (%s)", name, tried, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(detail, sizeof detail, "%s: %.300s: exit status %d", name, tried, WEXITSTATUS(status));
    abi_report_add(report, ABI_RULE_CRASH,
                   is_ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? ABI_PASS : ABI_FAIL, detail);
}
