/* SPDX-License-Identifier: Apache-2.0 */
/* mock_break.c - the rules that are broken by doing something beside the work. Functions that a plugin must not even
 * import are looked up by name, so that the mock breaks one rule only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"

static void *sleeper(void *arg) {
    (void)arg;
    for (;;)
        nanosleep(&(struct timespec){.tv_sec = 1000}, NULL);
    return NULL;
}

static void start_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, NULL) == 0)
        pthread_detach(thread);
}

static void *look_up(const char *name) { return dlsym(RTLD_DEFAULT, name); }

void mock_misbehave_in_negotiate(void) {
    static int is_done;
    if (is_done++)
        return;
    if (BREAKS(negotiate_thread))
        start_thread();
    if (BREAKS(negotiate_file) && open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        is_done = 0;
}

static void on_signal(int number) { (void)number; }

static void install_handler(void) {
    int (*set)(int, const struct sigaction *, struct sigaction *);
    void *symbol = look_up("sigaction");
    struct sigaction action = {.sa_handler = on_signal};
    memcpy(&set, &symbol, sizeof set);
    set(SIGUSR2, &action, NULL);
}

static void change_environment(void) {
    int (*set)(const char *, const char *, int);
    void *symbol = look_up("setenv");
    memcpy(&set, &symbol, sizeof set);
    set("ZF_MOCK", "1", 1);
}

void mock_misbehave_in_create(const zf_host_t *host) {
    if (BREAKS(signal_handler))
        install_handler();
    if (BREAKS(sets_env))
        change_environment();
    if (BREAKS(thread_left))
        start_thread();
    if (BREAKS(prints) && write(1, "mock: ready\n", 12) < 0)
        return;
#ifdef MOCK_CUDA
    if (BREAKS(loads_cuda))
        dlopen(MOCK_CUDA, RTLD_NOW | RTLD_LOCAL);
#endif
    if (BREAKS(log_garbage) && host->log)
        host->log(host->ctx, 0, "mock", __FILE__, __LINE__, "", 0);
    else if (host->log)
        host->log(host->ctx, ZF_LOG_INFO, "mock", __FILE__, __LINE__, "ready", 5);
    if (host->get_extension)
        host->get_extension(host->ctx, "zf.memory/1");
}

static void *logger(void *arg) {
    const zf_host_t *host = arg;
    host->log(host->ctx, ZF_LOG_INFO, "mock", __FILE__, __LINE__, "late", 4);
    return NULL;
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

void mock_misbehave_in_step(zf_instance_t *instance) {
    if (BREAKS(fp_mode) && instance->n_steps == 0)
        flush_subnormals();
    if (BREAKS(log_thread) && instance->host.log) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, logger, &instance->host) == 0)
            pthread_join(thread, NULL);
    }
    if (BREAKS(hook_allocates) && instance->n_steps > 0) {
        void *volatile memory = malloc(100);
        free(memory);
    }
    if (BREAKS_ALONE(imports_exit) && instance->n_steps > 1000000)
        exit(1);
}

/* What the learning rate is multiplied by: 1, but for the mocks that share state or call through an exported name. */
static float shared_steps;
static float *shared(void) { return &shared_steps; }

__attribute__((visibility("default"), noinline)) float mock_helper(void);
float mock_helper(void) { return 1.0f; }

#ifdef MOCK_UNIQUE
float *mock_unique(void);
__asm__(".section .data\n.globl mock_shared_by_copies\n.type mock_shared_by_copies, %gnu_unique_object\n.size "
        "mock_shared_by_copies, 4\n"
        ".p2align 2\nmock_shared_by_copies: .long 0\n.previous\n");
extern float mock_shared_by_copies __attribute__((visibility("default")));
float *mock_unique(void) { return &mock_shared_by_copies; }
#else
static float *mock_unique(void) { return NULL; }
#endif

float mock_learning_rate(double lr) {
    float *sum = BREAKS(shared_state) ? shared() : BREAKS(shared_copies) ? mock_unique() : NULL;
    if (BREAKS(interposable))
        return (float)lr * mock_helper();
    if (!sum)
        return (float)lr;
    *sum += 1.0f;
    return (float)lr * *sum;
}
