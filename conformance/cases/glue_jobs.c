/* SPDX-License-Identifier: Apache-2.0 */
/* glue_jobs.c - starts child processes, waits for them, shows how far it is (glue_jobs.h). */
#define _GNU_SOURCE /* wait4 */
#include "glue_jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_AT_ONCE = 64, BAR_WIDTH = 30 };

typedef struct running {
    pid_t pid;
    size_t job;
} running_t;

typedef struct pool {
    running_t running[MAX_AT_ONCE];
    size_t n_running, n_ended, next;
    double start;
    int is_terminal;
} pool_t;

static double now_seconds(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* In the child. Only calls that are safe between fork and exec. */
static void become(const zg_job_t *job, char **environment) {
    int in = open("/dev/null", O_RDONLY), out = open(job->log_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    (void)execve(job->arguments[0], (char **)(size_t)job->arguments, environment);
    _exit(127);
}

/* The environment with one thread of matrix products. Release with free. */
static char **make_environment(void) {
    static char one[] = "OPENBLAS_NUM_THREADS=1";
    size_t n = 0, used = 0;
    char **list;

    while (environ[n] != NULL)
        n++;
    list = malloc((n + 2) * sizeof *list);
    if (list == NULL)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "OPENBLAS_NUM_THREADS=", 21) != 0)
            list[used++] = environ[i];
    list[used++] = one;
    list[used] = NULL;
    return list;
}

static void show_bar(const zg_jobs_t *jobs, const pool_t *p) {
    size_t n_all = jobs->n + jobs->n_kept, n_done = jobs->n_kept + p->n_ended;
    size_t n_full = n_all > 0 ? BAR_WIDTH * n_done / n_all : BAR_WIDTH;
    double elapsed = now_seconds() - p->start;

    if (!p->is_terminal)
        return;
    (void)fputs("\r  [", stderr);
    for (size_t i = 0; i < BAR_WIDTH; i++)
        (void)fputc(i < n_full ? '#' : '.', stderr);
    (void)fprintf(stderr, "] %zu of %zu runs", n_done, n_all);
    if (p->n_ended > 0)
        (void)fprintf(stderr, ", about %.0f s left", elapsed / (double)p->n_ended * (double)(jobs->n - p->n_ended));
    (void)fputs("\033[K", stderr);
    (void)fflush(stderr);
}

static void show_end(const zg_jobs_t *jobs, const pool_t *p, const char *line) {
    (void)fprintf(stderr, "%s  %zu of %zu: %s\n", p->is_terminal ? "\r\033[K" : "", jobs->n_kept + p->n_ended,
                  jobs->n + jobs->n_kept, line);
    show_bar(jobs, p);
}

static int start_next(zg_jobs_t *jobs, pool_t *p, char **environment, glue_error_t *err) {
    pid_t pid = fork();

    if (pid == 0)
        become(&jobs->list[p->next], environment);
    if (pid < 0)
        return glue_fail(err, "cannot start a process: %s", strerror(errno));
    p->running[p->n_running++] = (running_t){.pid = pid, .job = p->next++};
    return 0;
}

static int wait_for_one(zg_jobs_t *jobs, pool_t *p, glue_error_t *err) {
    char line[512] = "";
    struct rusage usage;
    int status;
    pid_t pid = wait4(-1, &status, 0, &usage);

    if (pid < 0)
        return errno == EINTR ? 0 : glue_fail(err, "cannot wait for a process: %s", strerror(errno));
    for (size_t i = 0; i < p->n_running; i++) {
        size_t job = p->running[i].job;

        if (p->running[i].pid != pid)
            continue;
        p->running[i] = p->running[--p->n_running];
        jobs->list[job].exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        jobs->list[job].peak_rss_nbytes = 1024.0 * (double)usage.ru_maxrss;
        p->n_ended++;
        if (jobs->on_end(jobs->ctx, job, line, sizeof line, err) != 0)
            return -1;
        show_end(jobs, p, line);
        return 0;
    }
    return 0;
}

static void end_running(pool_t *p) {
    for (size_t i = 0; i < p->n_running; i++) {
        (void)kill(p->running[i].pid, SIGTERM);
        (void)waitpid(p->running[i].pid, NULL, 0);
    }
}

int zg_jobs_run(zg_jobs_t *jobs, glue_error_t *err) {
    pool_t p = {.start = now_seconds(), .is_terminal = isatty(STDERR_FILENO)};
    size_t n_at_once = jobs->n_at_once < MAX_AT_ONCE ? jobs->n_at_once : MAX_AT_ONCE;
    char **environment = make_environment();
    int st = 0;

    if (environment == NULL)
        return glue_fail(err, "out of memory");
    (void)fflush(stdout);
    show_bar(jobs, &p);
    while (st == 0 && (p.next < jobs->n || p.n_running > 0)) {
        if (p.next < jobs->n && p.n_running < n_at_once)
            st = start_next(jobs, &p, environment, err);
        else
            st = wait_for_one(jobs, &p, err);
    }
    if (p.is_terminal)
        (void)fputs("\r\033[K", stderr);
    end_running(&p);
    free(environment);
    return st;
}
