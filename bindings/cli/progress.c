/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/progress.c - one line on stderr that says what a command is doing (contract in progress.h). */
#include "progress.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

enum { WORD_NBYTES = 256, REST_NS = 500000000 };

static struct {
    int is_on; /* the main thread's */
    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ending;
    int is_ending;
    char what[WORD_NBYTES], of[WORD_NBYTES];
    uint64_t n_done, n_all;
    double began_s;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER, .ending = PTHREAD_COND_INITIALIZER};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Under the lock. */
static void show(void) {
    double elapsed = now_s() - line.began_s;
    fprintf(stderr, "\r\033[Kzf: %s", line.what);
    if (*line.of) {
        fputc(' ', stderr);
        zf_cli_print(stderr, line.of);
    }
    if (line.n_all)
        fprintf(stderr, ", %llu of %llu", (unsigned long long)line.n_done, (unsigned long long)line.n_all);
    fprintf(stderr, " ... %.0f s", elapsed);
    if (line.n_done && line.n_done < line.n_all)
        fprintf(stderr, ", about %.0f s left", elapsed / (double)line.n_done * (double)(line.n_all - line.n_done));
    fflush(stderr);
}

static void *keep_showing(void *nothing) {
    (void)nothing;
    pthread_mutex_lock(&line.lock);
    while (!line.is_ending) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += REST_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&line.ending, &line.lock, &until);
        if (!line.is_ending)
            show();
    }
    pthread_mutex_unlock(&line.lock);
    return NULL;
}

void zf_cli_progress_begin(const char *what, const char *of) {
    zf_cli_progress_end();
    if (!isatty(STDERR_FILENO))
        return;
    line.is_on = 1;
    line.is_ending = 0;
    line.n_done = line.n_all = 0;
    line.began_s = now_s();
    snprintf(line.what, sizeof line.what, "%s", what);
    snprintf(line.of, sizeof line.of, "%s", of ? of : "");
    show();
    line.has_thread =
        pthread_create(&line.thread, NULL, keep_showing, NULL) == 0; /* without it the line stands still */
}

void zf_cli_progress_count(uint64_t n_done, uint64_t n_all) {
    pthread_mutex_lock(&line.lock);
    line.n_done = n_done;
    line.n_all = n_all;
    pthread_mutex_unlock(&line.lock);
}

void zf_cli_progress_end(void) {
    if (!line.is_on)
        return;
    pthread_mutex_lock(&line.lock);
    line.is_ending = 1;
    pthread_cond_signal(&line.ending);
    pthread_mutex_unlock(&line.lock);
    if (line.has_thread)
        pthread_join(line.thread, NULL);
    line.is_on = line.has_thread = 0;
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
}
