/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune_run.c - a trainer as a process that is waited for, never longer than asked (contract in tune.h).
 *
 * The child leads a process group, so that whatever it starts ends with it. It is looked at with WNOWAIT before it is
 * reaped: its number, which is the group's, cannot be another's while the group is ended. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tune.h"

static const double GRACE_S = 5; /* from SIGTERM to SIGKILL */
static const long LOOK_NS = 20000000;

static volatile sig_atomic_t caught;

static void catch_signal(int number) { caught = number; }

void tune_catch_signals(void) {
    struct sigaction action = {.sa_handler = catch_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* In the child; does not return. */
static void become(const tune_process_t *process, int log) {
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
        setenv("ZF_TUNE_CONFIG", process->config_path, 1) != 0)
        _exit(126);
    if (nothing > 2)
        close(nothing);
    execl("/bin/sh", "sh", "-c", process->command, (char *)NULL);
    _exit(127);
}

static int is_over(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ? errno != EINTR : info.si_pid == pid;
}

/* On a terminal one line that counts seconds; elsewhere a line at the begin and one at the end. */
static void show(const char *what, double elapsed_s, int is_end) {
    static int shown_s;
    if (!isatty(2)) {
        if (is_end)
            fprintf(stderr, "zf: %s: %.1f s\n", what, elapsed_s);
        else if (elapsed_s == 0)
            fprintf(stderr, "zf: %s ...\n", what);
    } else if (is_end || elapsed_s == 0 || (int)elapsed_s != shown_s) {
        shown_s = (int)elapsed_s;
        fprintf(stderr, "\rzf: %s ... %d s%s", what, shown_s, is_end ? "\n" : "");
    }
}

/* 1: over before the time that now_s() shows at the end. */
static int wait_until(pid_t pid, double end_s, double began_s, const char *what) {
    struct timespec pause = {.tv_nsec = LOOK_NS};
    while (!is_over(pid)) {
        double now = now_s();
        if (now >= end_s || (what && caught))
            return 0;
        if (what)
            show(what, now - began_s, 0);
        nanosleep(&pause, NULL);
    }
    return 1;
}

/* A log that is read while it grows: it takes its place at once. -1 after a message. */
static int open_log(const char *path) {
    zf_cli_replace_t file;
    int log = -1;
    if (zf_cli_replace_begin(path, &file))
        return -1;
    log = fcntl(fileno(file.to), F_DUPFD_CLOEXEC, 3);
    if (zf_cli_replace_end(&file, log >= 0) == 0)
        return log;
    if (log >= 0)
        close(log);
    return -1;
}

tune_end_t tune_run(const tune_process_t *process, int *out_status) {
    int log = open_log(process->log_path);
    double began = now_s();
    tune_end_t end;
    pid_t pid;
    pid = log < 0 || caught ? -1 : fork();
    if (pid == 0)
        become(process, log);
    *out_status = errno;
    if (log >= 0)
        close(log);
    if (pid < 0)
        return caught ? TUNE_INTERRUPTED : TUNE_NOT_STARTED;
    setpgid(pid, pid); /* whoever of the two comes first */
    show(process->what, 0, 0);
    end = wait_until(pid, began + process->timeout_s, began, process->what) ? TUNE_OVER
          : caught                                                          ? TUNE_INTERRUPTED
                                                                            : TUNE_LATE;
    if (end != TUNE_OVER) {
        kill(-pid, SIGTERM);
        (void)wait_until(pid, now_s() + GRACE_S, began, NULL);
    }
    kill(-pid, SIGKILL); /* what is left of the group */
    while (waitpid(pid, out_status, 0) < 0 && errno == EINTR)
        ;
    show(process->what, now_s() - began, 1);
    return end;
}
