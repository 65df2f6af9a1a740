/* SPDX-License-Identifier: Apache-2.0 */
/* team.c - see team.h. The caller owns work and arg; the two barriers publish them to the threads and their results
 * back. */
#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <kernels.h>

#include "harness/clock.h"

typedef struct member {
    team_t *team;
    int index;
    pthread_t thread;
} member_t;

struct team {
    int n_threads;
    pthread_barrier_t start, end;
    void (*work)(void *arg, int thread); /* NULL: leave */
    void *arg;
    member_t members[];
};

int team_max_threads(void) {
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
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
    team_t *team = member->team;
    pin_to(member->index);
    zfi_fp_mode_ieee();
    for (;;) {
        pthread_barrier_wait(&team->start);
        if (!team->work)
            return NULL;
        team->work(team->arg, member->index);
        pthread_barrier_wait(&team->end);
    }
}

team_t *team_new(int n_threads) {
    team_t *team = calloc(1, sizeof *team + (size_t)n_threads * sizeof team->members[0]);
    if (!team)
        return NULL;
    team->n_threads = n_threads;
    pthread_barrier_init(&team->start, NULL, (unsigned)n_threads + 1);
    pthread_barrier_init(&team->end, NULL, (unsigned)n_threads + 1);
    for (int t = 0; t < n_threads; t++) {
        team->members[t] = (member_t){.team = team, .index = t};
        if (pthread_create(&team->members[t].thread, NULL, member_main, &team->members[t]) != 0)
            abort(); /* a benchmark without its threads measures nothing */
    }
    return team;
}

void team_free(team_t *team) {
    team->work = NULL;
    pthread_barrier_wait(&team->start);
    for (int t = 0; t < team->n_threads; t++)
        pthread_join(team->members[t].thread, NULL);
    pthread_barrier_destroy(&team->start);
    pthread_barrier_destroy(&team->end);
    free(team);
}

double team_run(team_t *team, void (*work)(void *arg, int thread), void *arg) {
    uint64_t begin;
    team->work = work;
    team->arg = arg;
    begin = zc_now_ns();
    pthread_barrier_wait(&team->start);
    pthread_barrier_wait(&team->end);
    return 1e-9 * (double)(zc_now_ns() - begin);
}
