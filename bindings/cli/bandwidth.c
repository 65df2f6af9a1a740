/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/bandwidth.c - plain reading and copying by several threads (contract in speed.h). Each thread has memory
 * of its own, which it touches first, so that it lies on its NUMA node. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "progress.h"
#include "speed.h"

enum { ROUNDS = 2, MOST_THREADS = 256, LINE_WORDS = 8 };

typedef struct team {
    pthread_barrier_t barrier;
    uint64_t nbytes; /* of each of a thread's two halves */
    uint64_t start_ns[2 * ROUNDS], end_ns[2 * ROUNDS][MOST_THREADS];
    _Atomic int has_failed;
} team_t;

typedef struct member {
    team_t *team;
    uint32_t number;
    uint64_t sum; /* keeps the reading from being left out */
} member_t;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t read_all(const uint64_t *words, uint64_t n) {
    uint64_t sum[LINE_WORDS] = {0}, all = 0;
    for (uint64_t i = 0; i + LINE_WORDS <= n; i += LINE_WORDS)
        for (int k = 0; k < LINE_WORDS; k++)
            sum[k] ^= words[i + (uint64_t)k];
    for (int k = 0; k < LINE_WORDS; k++)
        all ^= sum[k];
    return all;
}

static void *run(void *raw) {
    member_t *member = raw;
    team_t *team = member->team;
    const uint64_t n = team->nbytes;
    unsigned char *memory = mmap(NULL, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        team->has_failed = 1;
    } else {
        madvise(memory, 2 * n, MADV_HUGEPAGE);
        memset(memory, 1, 2 * n);
    }
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pthread_barrier_wait(&team->barrier);
        if (member->number == 0)
            team->start_ns[round] = now_ns();
        pthread_barrier_wait(&team->barrier);
        if (memory != MAP_FAILED && round % 2 == 0)
            member->sum ^= read_all((const uint64_t *)(const void *)memory, 2 * n / 8);
        else if (memory != MAP_FAILED)
            memcpy(memory + (round % 4 == 1 ? n : 0), memory + (round % 4 == 1 ? 0 : n), n);
        team->end_ns[round][member->number] = now_ns();
    }
    if (memory != MAP_FAILED)
        munmap(memory, 2 * n);
    return NULL;
}

/* The best round of a kind: 0 reads, 1 copies. Both move 2 * nbytes per thread. */
static double best(const team_t *team, uint32_t n_threads, int kind) {
    double most = 0;
    for (int round = kind; round < 2 * ROUNDS; round += 2) {
        uint64_t end = 0;
        double rate;
        for (uint32_t i = 0; i < n_threads; i++)
            end = team->end_ns[round][i] > end ? team->end_ns[round][i] : end;
        rate = 2.0 * (double)team->nbytes * n_threads / (double)(end - team->start_ns[round] + 1);
        most = rate > most ? rate : most;
    }
    return most;
}

int zf_speed_bandwidth(uint32_t n_threads, uint64_t nbytes, double *out_read, double *out_copy) {
    static team_t team;
    static member_t members[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    uint32_t n = n_threads > MOST_THREADS ? MOST_THREADS : n_threads, n_started = 1;
    team.nbytes = nbytes / n / 2 / 4096 * 4096 + 4096;
    team.has_failed = 0;
    if (pthread_barrier_init(&team.barrier, NULL, n) != 0)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        members[i] = (member_t){.team = &team, .number = i};
    for (uint32_t i = 1; i < n; i++, n_started++)
        if (pthread_create(&threads[i], NULL, run, &members[i]) != 0)
            break;
    if (n_started < n) { /* those that started wait for ever: the process ends with a message */
        zf_cli_progress_end();
        fprintf(stderr, "zf: cannot start %u threads: raise the limit of processes (ulimit -u)\n", n);
        exit(1);
    }
    run(&members[0]);
    for (uint32_t i = 1; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team.barrier);
    if (team.has_failed) {
        zf_cli_progress_end();
        fprintf(stderr, "zf: no memory to measure with: need %llu MiB\n", (unsigned long long)(nbytes >> 20));
        return 0;
    }
    *out_read = best(&team, n, 0);
    *out_copy = best(&team, n, 1);
    return 1;
}
