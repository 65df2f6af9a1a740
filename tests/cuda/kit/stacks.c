/* SPDX-License-Identifier: Apache-2.0 */
/* stacks.c - libzf_stacks.so, for LD_PRELOAD: on SIGUSR2 a process writes the stack of each of its threads.
 *
 * Model. The thread that gets the signal of another process lists the threads, and sends each of them the same signal
 * by tgkill. A thread that is sent it so writes its own frames and says that it is through. One that takes no signal
 * within 0.2 s is named with what the kernel says it waits in. The process then goes on. Frames are FILE(+OFFSET):
 * addr2line -e FILE OFFSET, with the build's own file, has the line.
 *
 * Nothing here takes memory or a lock of libc's: the threads that stand still may hold them. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FRAMES = 48, TRIES = 200 };

static uint32_t done; /* thread that has written its frames */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ssize_t unused = write(STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    (void)unused;
}

/* /proc/self/task/TID/NAME, at most a line of it. */
static void read_file(const char *tid, const char *name, char text[64]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%.16s/%s", tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, 63);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
}

static void write_own_frames(void) {
    void *frames[MOST_FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, MOST_FRAMES), STDERR_FILENO);
}

static void ask(pid_t pid, const char *tid) {
    uint32_t number = (uint32_t)strtoul(tid, NULL, 10);
    char name[64], place[64];
    read_file(tid, "comm", name);
    read_file(tid, "wchan", place);
    say("stack: thread %s %s in %s\n", tid, name, place);
    if ((long)number == syscall(SYS_gettid)) {
        write_own_frames();
        return;
    }
    __atomic_store_n(&done, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_tgkill, pid, number, SIGUSR2);
    for (int i = 0; i < TRIES && __atomic_load_n(&done, __ATOMIC_SEQ_CST) != number; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (__atomic_load_n(&done, __ATOMIC_SEQ_CST) != number)
        say("  takes no signal\n");
}

typedef struct entry {
    uint64_t inode, offset;
    unsigned short nbytes;
    unsigned char type;
    char name[];
} entry_t;

static void ask_all(void) {
    _Alignas(entry_t) char bytes[4096];
    pid_t pid = getpid();
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    say("stacks of process %d\n", (int)pid);
    for (long n; fd >= 0 && (n = syscall(SYS_getdents64, fd, bytes, sizeof bytes)) > 0;)
        for (long at = 0; at < n; at += ((entry_t *)(void *)(bytes + at))->nbytes) {
            const char *tid = ((entry_t *)(void *)(bytes + at))->name;
            if (tid[0] >= '0' && tid[0] <= '9')
                ask(pid, tid);
        }
    if (fd >= 0)
        close(fd);
    say("end of stacks\n");
}

static void on_signal(int number, siginfo_t *info, void *context) {
    static uint32_t is_busy;
    (void)number, (void)context;
    if (info->si_code == SI_TKILL) {
        write_own_frames();
        __atomic_store_n(&done, (uint32_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    } else if (!__atomic_exchange_n(&is_busy, 1, __ATOMIC_SEQ_CST)) {
        ask_all();
        __atomic_store_n(&is_busy, 0, __ATOMIC_SEQ_CST);
    }
}

__attribute__((constructor)) static void begin(void) {
    void *one[1];
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    (void)backtrace(one, 1); /* loads what it needs now */
    sigaction(SIGUSR2, &action, NULL);
}
