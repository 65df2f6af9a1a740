/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probe.c - probes in child processes (abi_probe.h). */
#define _GNU_SOURCE /* memfd_create */
#include "abi_probe.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/clock.h"

enum { DEADLINE_S = 60, NO_END = -1 };

abi_probe_t *abi_probe_new(void) {
    abi_probe_t *probe = mmap(NULL, sizeof *probe, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED)
        abort();
    return probe;
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static void take(abi_probe_t *probe, abi_rule_t rule, abi_verdict_t verdict, const char *format, va_list args) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char detail[ABI_DETAIL_NBYTES];
    vsnprintf(detail, sizeof detail, format, args);
    for (char *s = detail; *s; s++)
        if (*s == '\n')
            *s = ' ';
    pthread_mutex_lock(&lock);
    abi_report_add(&probe->report, rule, verdict, detail);
    pthread_mutex_unlock(&lock);
}

void abi_try(abi_probe_t *probe, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(probe->tried, sizeof probe->tried, format, args);
    va_end(args);
}

int abi_check(abi_probe_t *probe, abi_rule_t rule, int is_ok, const char *format, ...) {
    va_list args;
    va_start(args, format);
    take(probe, rule, is_ok ? ABI_PASS : ABI_FAIL, is_ok ? "" : format, args);
    va_end(args);
    return is_ok;
}

void abi_skip(abi_probe_t *probe, abi_rule_t rule, const char *format, ...) {
    va_list args;
    va_start(args, format);
    take(probe, rule, ABI_SKIP, format, args);
    va_end(args);
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

static void child(abi_probe_t *probe, void (*fn)(abi_probe_t *)) {
    char said[80];
    int printed = memfd_create("printed", MFD_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (printed < 0)
        _exit(3);
    dup2(printed, 1);
    dup2(printed, 2);
    fn(probe);
    fflush(NULL);
    ssize_t n = pread(printed, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    abi_check(probe, ABI_RULE_QUIET, n == 0, "printed \"%s\"", said);
    _exit(0);
}

/* Its wait status, or NO_END: it was ended at the deadline. */
static int wait_for(pid_t pid) {
    const uint64_t end = zc_now_ns() + DEADLINE_S * UINT64_C(1000000000);
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (zc_now_ns() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return NO_END;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return status;
}

void abi_probe_run(abi_probe_t *probe, const char *name, void (*fn)(abi_probe_t *)) {
    char end[80];
    zc_progress_show(&probe->progress, name);
    abi_try(probe, "start");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        child(probe, fn);
    int status = pid > 0 ? wait_for(pid) : NO_END;
    if (status == NO_END)
        snprintf(end, sizeof end, "no end in %d s, or no process for it", DEADLINE_S);
    else if (WIFSIGNALED(status))
        snprintf(end, sizeof end, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(end, sizeof end, "exit status %d", WEXITSTATUS(status));
    abi_check(probe, ABI_RULE_CRASH, status == 0, "%s: %.300s: %s", name, probe->tried, end);
}
