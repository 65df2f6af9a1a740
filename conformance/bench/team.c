/* SPDX-License-Identifier: Apache-2.0 */
/* team.c - see team.h. */
#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <kernels.h>

#include "harness/clock.h"

typedef struct member {
    int index;
    void (*work)(void *arg, int thread);
    void *arg;
    pthread_barrier_t *start;
    pthread_t thread;
    uint64_t begin_ns, end_ns;
} member_t;

int team_max_threads(void) {
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    return n < TEAM_MAX_THREADS ? n : TEAM_MAX_THREADS;
}

/* Pins the calling thread to the index-th CPU that the process may use. */
static void pin_to(int index) {
    cpu_set_t cpus, one;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && index-- == 0)
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static void *member_main(void *arg) {
    member_t *member = arg;
    pin_to(member->index);
    zfi_fp_mode_ieee();
    pthread_barrier_wait(member->start);
    member->begin_ns = zc_now_ns();
    member->work(member->arg, member->index);
    member->end_ns = zc_now_ns();
    return NULL;
}

double team_run(int n_threads, void (*work)(void *arg, int thread), void *arg) {
    member_t members[TEAM_MAX_THREADS];
    pthread_barrier_t start;
    uint64_t begin = UINT64_MAX, end = 0;
    pthread_barrier_init(&start, NULL, (unsigned)n_threads);
    for (int t = 0; t < n_threads; t++) {
        members[t] = (member_t){.index = t, .work = work, .arg = arg, .start = &start};
        if (pthread_create(&members[t].thread, NULL, member_main, &members[t]) != 0)
            abort(); /* a benchmark without its threads measures nothing */
    }
    for (int t = 0; t < n_threads; t++) {
        pthread_join(members[t].thread, NULL);
        begin = members[t].begin_ns < begin ? members[t].begin_ns : begin;
        end = members[t].end_ns > end ? members[t].end_ns : end;
    }
    pthread_barrier_destroy(&start);
    return 1e-9 * (double)(end - begin);
}
