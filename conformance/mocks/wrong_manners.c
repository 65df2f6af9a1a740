/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_manners.c - habits that concern the process and the host, not the training (wrong.h). Functions that a plugin
 * must not even import are looked up by name, so that such a habit breaks one rule only. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "wrong.h"

static const zf_host_t *given; /* the host's table where create found it, and a copy */
static zf_host_t host;
static void *volatile lost;

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void *sleep_on(void *unused) {
    (void)unused;
    for (;;)
        pause_ms(1000000);
    return NULL;
}

static void *spin(void *arg) {
    volatile unsigned *n = arg;
    for (;; pause_ms(10)) /* a tenth of a processor */
        for (int i = 0; i < 1000000; i++)
            ++*n;
    return NULL;
}

static void start_thread(void *(*run)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, arg) == 0)
        pthread_detach(thread);
}

static void on_signal(int number) { (void)number; }

static void install_handler(void) {
    int (*set)(int, const struct sigaction *, struct sigaction *);
    void *symbol = dlsym(RTLD_DEFAULT, "sigaction");
    struct sigaction action = {.sa_handler = on_signal};
    memcpy(&set, &symbol, sizeof set);
    set(SIGUSR2, &action, NULL);
}

static void change_environment(void) {
    int (*set)(const char *, const char *, int);
    void *symbol = dlsym(RTLD_DEFAULT, "setenv");
    memcpy(&set, &symbol, sizeof set);
    set("ZF_WRONG_SET", "1", 1);
}

static void say(const zf_host_t *to, int32_t level, const char *text) {
    if (to->log)
        to->log(to->ctx, level, "wrong", __FILE__, __LINE__, text, strlen(text));
}

static void leave_file(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

void wrong_in_negotiate(void) {
    static int is_done;
    if (is_done++)
        return;
    if (IS(negotiate_thread))
        start_thread(sleep_on, NULL);
    if (IS(negotiate_file) && open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        is_done = 0;
}

void wrong_in_create(const zf_host_t *table) {
    static unsigned counter;
    cpu_set_t one;
    given = table;
    host = *table;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    if (IS(spins))
        start_thread(spin, &counter);
    if (IS(thread_left) || IS(signals_open))
        start_thread(sleep_on, NULL);
    if (IS(affinity_changed))
        sched_setaffinity(0, sizeof one, &one);
    if (IS(signal_handler))
        install_handler();
    if (IS(sets_env))
        change_environment();
    if (IS(reads_env))
        lost = getenv("OMP_NUM_THREADS");
    if (IS(file_left))
        leave_file("/tmp/zf-wrong");
    if (IS(leak))
        (void)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (IS(prints) && write(1, "wrong: ready\n", 13) < 0)
        return;
    if (IS(loads_cuda))
        dlopen(WRONG_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (IS(log_garbage))
        say(&host, 0, "");
}

void wrong_in_bind(void) {
    if (IS(host_kept))
        say(given, ZF_LOG_INFO, "bound");
    if (IS(maps_more) || IS(takes_more))
        (void)mmap(NULL, (size_t)(IS(takes_more) ? 80 : 64) << 20, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | (IS(takes_more) ? MAP_POPULATE : 0), -1, 0);
}

void wrong_lose(int is_lost) {
    if (is_lost)
        lost = malloc(1000);
}

void wrong_lose_refused(int habit, zf_status_t st) { wrong_lose(wrong_habit == habit && st < 0); }

void wrong_end_cancelled(int habit) {
    if (wrong_habit == habit)
        pthread_testcancel();
}

static void flush_subnormals(void) {
#if defined(__x86_64__)
    unsigned mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    mxcsr ^= 0x8000u;
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
#elif defined(__aarch64__)
    unsigned long fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr ^= 1ul << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#endif
}

static void *say_late(void *unused) {
    (void)unused;
    say(&host, ZF_LOG_INFO, "late");
    return NULL;
}

static void spin_for_us(uint64_t us) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < (long)us * 1000);
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void wrong_burn(void) {
    static double last;
    double began = cpu_s(), spent = began - last;
    while (IS(burns) && last > 0 && cpu_s() - began < 9 * spent) {
    }
    last = cpu_s();
}

void wrong_in_step(uint64_t n) {
    pthread_t thread;
    if (IS(slow_step))
        pause_ms(10);
    if (IS(fp_mode) && n == 1)
        flush_subnormals();
    if (IS(log_thread) && pthread_create(&thread, NULL, say_late, NULL) == 0)
        pthread_join(thread, NULL);
    if (IS(hook_allocates) && n > 1) {
        void *volatile memory = malloc(100);
        free(memory);
    }
    if (IS(leak_per_step))
        lost = malloc(512);
    if (IS(ever_slower))
        spin_for_us(n);
    if (IS(crash) && n == 3)
        raise(SIGSEGV);
    while (IS(hang) && n == 3)
        pause_ms(1000);
}
