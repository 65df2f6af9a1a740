/* SPDX-License-Identifier: Apache-2.0 */
/* exact_batch.c - children that run the cases, n_jobs at a time.
 *
 * Model: the cases stand in one list, ordered by instruction set. A job is a child with a piece of the list; its lines
 * (exact_child.c) move the job's position. A child that ends early, by a signal or after a failure, or that says
 * nothing within the deadline, leaves the rest of its piece to a new child. One thread, poll(). */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exact.h"
#include "exact_array.h"
#include "harness/clock.h"
#include "harness/progress.h"

enum { BATCH = 24, MAX_JOBS = 64, LINE_NBYTES = 4096 };

typedef struct zx_item {
    int law;
    uint64_t index;
    const char *isa;
} zx_item_t;

typedef struct zx_job {
    pid_t pid; /* 0 = free */
    int fd;
    uint32_t at, end; /* cases of the list still to be done */
    int is_running;   /* begun, not done */
    int is_killed;
    double since; /* last sign of life */
    char line[LINE_NBYTES];
    size_t line_nbytes;
} zx_job_t;

typedef struct zx_pool {
    const zx_options_t *options;
    zx_totals_t *totals;
    zx_item_t *items;
    uint32_t n_items, next;
    zx_job_t jobs[MAX_JOBS];
    zc_progress_t progress;
    double shown; /* when it was, last */
    int is_greeted;
} zx_pool_t;

static double now(void) { return 1e-9 * (double)zc_now_ns(); }

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void make_list(zx_pool_t *pool) {
    const zx_options_t *o = pool->options;
    int is_one = o->only != ZX_ALL_CASES;
    uint64_t first = is_one ? o->only : 0, n = is_one ? 1 : o->n_cases;
    pool->items = zx_alloc((n * o->n_times + 1) * sizeof *pool->items);
    for (uint32_t isa = 0; isa < o->n_isas; isa++)
        for (uint64_t i = first; i < first + n; i++)
            for (uint32_t j = 0; j < o->n_times && zx_isa_of(o, i) == o->isas[isa]; j++)
                pool->items[pool->n_items++] =
                    (zx_item_t){.law = o->law ? (int)o->law : zx_law_of(i), .index = i, .isa = o->isas[isa]};
}

/* ---- children ---------------------------------------------------------------------------------------------------- */

static void become_child(const zx_pool_t *pool, uint32_t at, uint32_t end) {
    char *list = zx_alloc((end - at + 1) * 32), *p = list;
    for (uint32_t i = at; i < end; i++)
        p += sprintf(p, "%d:%" PRIu64 ",", pool->items[i].law, pool->items[i].index);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (at < end && pool->items[at].isa[0])
        setenv("ZF_FORCE_ISA", pool->items[at].isa, 1);
    zx_become_child(pool->options, list);
}

static int start_child(zx_pool_t *pool, zx_job_t *job, uint32_t at, uint32_t end) {
    int fd;
    pid_t pid = zx_fork(&fd);
    if (pid < 0)
        return -1;
    if (pid == 0)
        become_child(pool, at, end);
    *job = (zx_job_t){.pid = pid, .fd = fd, .at = at, .end = end, .since = now()};
    return 0;
}

/* ---- what children say ------------------------------------------------------------------------------------------- */

/* A case of the job is over; broken = 0 or the law. */
static void end_case(zx_pool_t *pool, zx_job_t *job, int broken) {
    const zx_item_t *item = &pool->items[job->at++];
    job->is_running = 0;
    pool->totals->n_cases[item->law]++;
    pool->totals->n_done++;
    if (broken) {
        pool->totals->n_mismatches[broken]++;
        pool->totals->n_failures++;
    }
}

static void greet(zx_pool_t *pool, int has_queue, int has_inspect, const char *file) {
    if (!pool->is_greeted && !pool->options->is_quiet)
        printf("plugin %s\n", file);
    if (!pool->is_greeted && !has_queue)
        printf("# zf.cpu/1 is missing: streams are the host's thread only\n");
    if (!pool->is_greeted && !has_inspect)
        printf("# zf.inspect/0 is missing: m, v, n, selection and importance are not compared\n");
    pool->is_greeted = 1;
}

static void take_done(zx_pool_t *pool, zx_job_t *job, const zx_done_t *done) {
    for (int i = 1; i <= ZX_N_LAWS; i++)
        pool->totals->n_values[i] += done->n_values[i];
    for (int i = 0; i < ZX_N_DRAWN; i++)
        pool->totals->n_drawn[i] += done->n_drawn[i];
    end_case(pool, job, done->broken);
}

static void take_line(zx_pool_t *pool, zx_job_t *job, const char *line) {
    int has_queue, has_inspect, used = 0;
    zx_done_t done;
    job->since = now();
    if (line[0] == '|') {
        zc_progress_end(&pool->progress);
        printf("%s\n", line + 2);
    } else if (sscanf(line, "hello %d %d %n", &has_queue, &has_inspect, &used) == 2) {
        greet(pool, has_queue, has_inspect, line + used);
    } else if (strncmp(line, "begin ", 6) == 0) {
        job->is_running = 1;
    } else if (job->at < job->end && zx_read_done(line, &done) == 0) {
        take_done(pool, job, &done);
    }
}

static void take_bytes(zx_pool_t *pool, zx_job_t *job, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') {
            if (job->line_nbytes + 1 < LINE_NBYTES)
                job->line[job->line_nbytes++] = bytes[i];
            continue;
        }
        job->line[job->line_nbytes] = '\0';
        job->line_nbytes = 0;
        take_line(pool, job, job->line);
    }
}

/* The child died in a case, or had to be ended. */
static void report_death(zx_pool_t *pool, zx_job_t *job, const char *why) {
    const zx_item_t *item = &pool->items[job->at];
    zc_progress_end(&pool->progress);
    printf("law %d: case %" PRIu64 ": %s\n", item->law, item->index, why);
    zx_print_repeat("  ", pool->options, item->law, item->index, item->isa);
    end_case(pool, job, item->law);
}

static void describe_death(int status, char *out, size_t nbytes) {
    if (WIFSIGNALED(status))
        snprintf(out, nbytes, "the process ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, nbytes, "the process ended with exit status %d", WEXITSTATUS(status));
}

/* End of file from a child. Returns -1 where it could not run at all. */
static int reap(zx_pool_t *pool, zx_job_t *job) {
    char why[128];
    int status = 0, cannot_run;
    close(job->fd);
    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR)
        ;
    job->pid = 0;
    cannot_run = WIFEXITED(status) && WEXITSTATUS(status) == 2 && !job->is_running;
    if (job->at < job->end && !job->is_killed && (job->is_running || status != 0) && !cannot_run) {
        describe_death(status, why, sizeof why);
        report_death(pool, job, why);
    }
    return cannot_run ? -1 : 0;
}

static int refill(zx_pool_t *pool, zx_job_t *job) {
    uint32_t end;
    if (pool->totals->n_failures >= pool->options->max_failures)
        return 0;
    if (job->at < job->end)
        return start_child(pool, job, job->at, job->end);
    if (pool->next == pool->n_items)
        return 0;
    for (end = pool->next; end < pool->n_items && end < pool->next + BATCH; end++)
        if (pool->items[end].isa != pool->items[pool->next].isa)
            break;
    if (start_child(pool, job, pool->next, end) != 0)
        return -1;
    pool->next = end;
    return 0;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void show_progress(zx_pool_t *pool) {
    char what[48];
    if (pool->options->is_quiet || now() - pool->shown < 0.5)
        return;
    pool->shown = now();
    pool->progress.n_done = pool->totals->n_done;
    snprintf(what, sizeof what, "%" PRIu64 " mismatches", pool->totals->n_failures);
    zc_progress_show(&pool->progress, what);
}

/* SIGUSR2 ends a child, or makes it write its stacks to stderr (tests/cuda/kit/stacks.c), within two seconds. */
static void end_child(pid_t pid) {
    siginfo_t info = {.si_pid = 0};
    kill(pid, SIGUSR2);
    for (int i = 0; i < 200 && info.si_pid == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
            break;
    }
    kill(pid, SIGKILL);
}

static void end_silent(zx_pool_t *pool, zx_job_t *job) {
    char why[96];
    if (job->is_killed || now() - job->since < (double)pool->options->deadline_s)
        return;
    end_child(job->pid);
    job->is_killed = 1;
    if (job->at < job->end) {
        snprintf(why, sizeof why, "no answer within %u s: hangs", pool->options->deadline_s);
        report_death(pool, job, why);
    }
}

static int serve(zx_pool_t *pool, zx_job_t *job, short events) {
    char bytes[4096];
    if (!(events & (POLLIN | POLLHUP | POLLERR)))
        return 0;
    ssize_t n = read(job->fd, bytes, sizeof bytes);
    if (n > 0) {
        take_bytes(pool, job, bytes, (size_t)n);
        return 0;
    }
    return reap(pool, job) != 0 || refill(pool, job) != 0 ? -1 : 0;
}

static int turn(zx_pool_t *pool) {
    struct pollfd fds[MAX_JOBS];
    zx_job_t *jobs[MAX_JOBS];
    nfds_t n = 0;
    if (pool->totals->n_failures >= pool->options->max_failures)
        return 1;
    for (uint32_t i = 0; i < pool->options->n_jobs; i++)
        if (pool->jobs[i].pid) {
            jobs[n] = &pool->jobs[i];
            fds[n++] = (struct pollfd){.fd = pool->jobs[i].fd, .events = POLLIN};
        }
    if (n == 0)
        return 1;
    if (poll(fds, n, 200) < 0 && errno != EINTR)
        return -1;
    for (nfds_t i = 0; i < n; i++) {
        if (serve(pool, jobs[i], fds[i].revents) != 0)
            return -1;
        if (jobs[i]->pid)
            end_silent(pool, jobs[i]);
    }
    show_progress(pool);
    return 0;
}

static void end_all(zx_pool_t *pool) {
    for (uint32_t i = 0; i < MAX_JOBS; i++)
        if (pool->jobs[i].pid) {
            kill(pool->jobs[i].pid, SIGKILL);
            waitpid(pool->jobs[i].pid, NULL, 0);
            close(pool->jobs[i].fd);
        }
}

int zx_run_batches(const zx_options_t *options, zx_totals_t *out) {
    zx_pool_t *pool = zx_alloc(sizeof *pool);
    int st = 0;
    memset(out, 0, sizeof *out);
    pool->options = options;
    pool->totals = out;
    make_list(pool);
    pool->progress = (zc_progress_t){.area = "exact", .n_all = pool->n_items};
    for (uint32_t i = 0; st == 0 && i < options->n_jobs && i < MAX_JOBS; i++)
        st = refill(pool, &pool->jobs[i]);
    while (st == 0)
        st = turn(pool);
    end_all(pool);
    zc_progress_end(&pool->progress);
    free(pool->items);
    free(pool);
    return st < 0 ? -1 : 0;
}
