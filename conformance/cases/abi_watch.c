/* SPDX-License-Identifier: Apache-2.0 */
/* abi_watch.c - a look at the process (abi_watch.h), through /proc and the C library's questions. */
#define _GNU_SOURCE
#include "abi_watch.h"

#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t hash(uint64_t h, const void *data, size_t nbytes) { /* FNV-1a */
    for (size_t i = 0; i < nbytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return h;
}

static int count_entries(const char *path) {
    DIR *dir = opendir(path);
    int n = 0;
    if (!dir)
        return -1;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static uint64_t hash_signals(void) {
    uint64_t h = 0xcbf29ce484222325u;
    sigset_t mask;
    for (int i = 1; i < NSIG; i++) {
        struct sigaction action = {0};
        if (sigaction(i, NULL, &action) != 0)
            continue;
        h = hash(h, &action.sa_handler, sizeof action.sa_handler);
        h = hash(h, &action.sa_flags, sizeof action.sa_flags);
    }
    sigemptyset(&mask);
    sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < NSIG; i++) {
        int is_blocked = sigismember(&mask, i);
        h = hash(h, &is_blocked, sizeof is_blocked);
    }
    return h;
}

static void watch_fp(abi_watch_t *out) {
    out->rounding = fegetround();
#if defined(__x86_64__) || defined(__i386__)
    unsigned mxcsr;
    unsigned short control;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    __asm__ volatile("fnstcw %0" : "=m"(control));
    out->fp_control = mxcsr & ~0x3Fu;
    out->x87_control = control;
#elif defined(__aarch64__)
    unsigned long fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    out->fp_control = (uint32_t)fpcr;
#endif
}

void abi_watch(abi_watch_t *out) {
    mode_t mask = umask(0);
    umask(mask);
    memset(out, 0, sizeof *out);
    out->n_threads = count_entries("/proc/self/task");
    out->n_files = count_entries("/proc/self/fd");
    out->environment = 0xcbf29ce484222325u;
    for (char **e = environ; e && *e; e++)
        out->environment = hash(out->environment, *e, strlen(*e) + 1);
    out->signals = hash_signals();
    snprintf(out->locale, sizeof out->locale, "%s", setlocale(LC_ALL, NULL));
    out->thread_locale = uselocale((locale_t)0);
    if (!getcwd(out->directory, sizeof out->directory))
        out->directory[0] = '\0';
    out->umask = mask;
    sched_getaffinity(0, sizeof out->affinity, &out->affinity);
    out->policy = sched_getscheduler(0);
    out->nice = getpriority(PRIO_PROCESS, 0);
    watch_fp(out);
}

int abi_watch_threads(int want) {
    int n = count_entries("/proc/self/task");
    for (int i = 0; i < 100 && n > want; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        n = count_entries("/proc/self/task");
    }
    return n;
}

/* Of a line of /proc/self/status, in bytes. */
static double status_nbytes(const char *name) {
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtod(line + strlen(name), NULL);
    if (f)
        fclose(f);
    return 1024.0 * kib;
}

double abi_data_nbytes(void) { return status_nbytes("VmData:"); }

double abi_held_nbytes(void) { return status_nbytes("RssAnon:") + status_nbytes("RssShmem:"); }

double abi_heap_nbytes(void) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
#else
    return 0;
#endif
}
