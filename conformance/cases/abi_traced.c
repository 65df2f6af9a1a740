/* SPDX-License-Identifier: Apache-2.0 */
/* abi_traced.c - see abi_traced.h. */
#define _GNU_SOURCE
#include "abi_traced.h"

#include <errno.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_THREADS = 256, REFUSED = 87 };

typedef struct tracer {
    pid_t pid;
    void (*see)(void *, const abi_syscall_t *);
    void *ctx;
    struct thread {
        pid_t tid;
        abi_syscall_t call; /* entered, not ended */
    } threads[MOST_THREADS];
} tracer_t;

/* Through the system call itself: C libraries do not agree on the request's type. */
static long ask(int request, pid_t tid, uintptr_t address, uintptr_t data) {
    return syscall(SYS_ptrace, (long)request, (long)tid, address, data);
}

static struct thread *find(tracer_t *t, pid_t tid) {
    for (int i = 0; i < MOST_THREADS; i++) {
        if (t->threads[i].tid == 0)
            t->threads[i].tid = tid;
        if (t->threads[i].tid == tid)
            return &t->threads[i];
    }
    return NULL;
}

#ifdef PTRACE_GET_SYSCALL_INFO /* Linux 5.3 */
static void at_syscall(tracer_t *t, pid_t tid) {
    struct ptrace_syscall_info info;
    struct thread *thread = find(t, tid);
    memset(&info, 0, sizeof info);
    if (!thread || ask(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, (uintptr_t)&info) <= 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        thread->call = (abi_syscall_t){.pid = t->pid, .number = info.entry.nr};
        for (int i = 0; i < 6; i++)
            thread->call.args[i] = info.entry.args[i];
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        thread->call.result = info.exit.rval;
        t->see(t->ctx, &thread->call);
    }
}
#else
static void at_syscall(tracer_t *t, pid_t tid) { (void)find(t, tid); }
#endif

/* Which signal goes on to the thread. */
static int at_stop(tracer_t *t, pid_t tid, int status) {
    int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
        at_syscall(t, tid);
        return 0;
    }
    return signal == SIGTRAP || signal == SIGSTOP ? 0 : signal; /* a new thread begins with SIGSTOP */
}

static int follow(tracer_t *t) {
    int status;
    for (;;) {
        pid_t tid = waitpid(-1, &status, __WALL);
        if (tid < 0 && errno == EINTR)
            continue;
        if (tid < 0)
            return -1;
        if (WIFSTOPPED(status))
            ask(PTRACE_SYSCALL, tid, 0, (uintptr_t)at_stop(t, tid, status));
        else if (tid == t->pid)
            return status;
    }
}

static void be_traced(int (*fn)(void *), void *arg) {
    if (ask(PTRACE_TRACEME, 0, 0, 0) != 0)
        _exit(REFUSED);
    raise(SIGSTOP);
    _exit(fn(arg));
}

int abi_traced_run(int (*fn)(void *arg), void *arg, void (*see)(void *ctx, const abi_syscall_t *call), void *ctx) {
    static tracer_t t;
    int status;
#ifndef PTRACE_GET_SYSCALL_INFO
    return -1;
#endif
    pid_t pid = fork();
    if (pid == 0)
        be_traced(fn, arg);
    t = (tracer_t){.pid = pid, .see = see, .ctx = ctx};
    if (pid < 0 || waitpid(pid, &status, __WALL) != pid)
        return -1;
    if (!WIFSTOPPED(status))
        return WIFEXITED(status) && WEXITSTATUS(status) == REFUSED ? -1 : status;
    const uintptr_t how = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    if (ask(PTRACE_SETOPTIONS, pid, 0, how) != 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, __WALL);
        return -1;
    }
    ask(PTRACE_SYSCALL, pid, 0, 0);
    return follow(&t);
}
