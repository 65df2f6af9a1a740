/* SPDX-License-Identifier: Apache-2.0 */
/* perf_timeline.c - the sampler of the timeline (perf_timeline.h). */
#define _GNU_SOURCE /* gettid by syscall */
#include "perf_timeline.h"

#include "harness/json_file.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_US = 200, MAX_THREADS = 32, MAX_SAMPLES = 4000, MAX_SPANS = 512, MAX_STEPS = 64, NAME_NBYTES = 20 };

typedef struct sample {
    double at_us;
    double busy_us[MAX_THREADS]; /* CPU time of each thread so far */
    uint64_t down, up;           /* bytes so far */
} sample_t;

typedef struct spans {
    double from_us[MAX_SPANS], to_us[MAX_SPANS];
    size_t n;
} spans_t;

struct zp_timeline {
    const zf_plugin_t *zf;
    zf_instance_t *instance;
    struct timespec start;
    pthread_t thread;
    _Atomic int is_ending;
    pid_t ids[MAX_THREADS];
    char names[MAX_THREADS][NAME_NBYTES];
    size_t n_threads;
    sample_t *samples; /* [MAX_SAMPLES], the sampler's until it has ended */
    size_t n_samples;
    spans_t marks[ZP_N_MARKS];
    double steps_us[MAX_STEPS];
    size_t n_steps;
};

static double microseconds(const struct timespec *t) { return 1e6 * (double)t->tv_sec + 1e-3 * (double)t->tv_nsec; }

double zp_timeline_now(const zp_timeline_t *t) {
    struct timespec now;

    if (t == NULL)
        return 0.0;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return microseconds(&now) - microseconds(&t->start);
}

/* The CPU clock of a thread of this process, as the kernel numbers them (the same that pthread_getcpuclockid gives). */
static clockid_t clock_of(pid_t id) { return (clockid_t)((~(unsigned)id << 3) | 6u); }

static void read_name(pid_t id, char out[NAME_NBYTES]) {
    char path[64];
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)id);
    file = fopen(path, "r");
    (void)snprintf(out, NAME_NBYTES, "thread");
    if (file != NULL) {
        if (fgets(out, NAME_NBYTES, file) != NULL)
            out[strcspn(out, "\n")] = '\0';
        (void)fclose(file);
    }
}

/* All threads but the caller's own. */
static void find_threads(zp_timeline_t *t) {
    DIR *folder = opendir("/proc/self/task");
    pid_t self = (pid_t)syscall(SYS_gettid);
    struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL && t->n_threads < MAX_THREADS) {
        pid_t id = (pid_t)strtol(entry->d_name, NULL, 10);
        struct timespec time;

        if (id <= 0 || id == self || clock_gettime(clock_of(id), &time) != 0)
            continue;
        t->ids[t->n_threads] = id;
        if (id == getpid())
            (void)snprintf(t->names[t->n_threads++], NAME_NBYTES, "host");
        else
            read_name(id, t->names[t->n_threads++]);
    }
    if (folder != NULL)
        (void)closedir(folder);
}

static uint64_t counter(const zp_timeline_t *t, const char *name) {
    uint64_t value = 0;

    (void)zf_counter_value(t->zf, t->instance, name, &value, NULL);
    return value;
}

static void take_sample(zp_timeline_t *t, sample_t *out) {
    out->at_us = zp_timeline_now(t);
    for (size_t i = 0; i < t->n_threads; i++) {
        struct timespec time = {0, 0};

        (void)clock_gettime(clock_of(t->ids[i]), &time);
        out->busy_us[i] = microseconds(&time);
    }
    out->down = counter(t, "down_grad_nbytes") + counter(t, "down_record_nbytes");
    out->up = counter(t, "up_publish_nbytes") + counter(t, "up_enter_nbytes");
}

static void *run(void *arg) {
    zp_timeline_t *t = arg;
    const struct timespec pause = {0, 1000L * PERIOD_US};

    (void)pthread_setname_np(pthread_self(), "sampler");
    find_threads(t);
    while (!atomic_load(&t->is_ending) && t->n_samples < MAX_SAMPLES) {
        take_sample(t, &t->samples[t->n_samples++]);
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

zp_timeline_t *zp_timeline_start(const zf_plugin_t *zf, zf_instance_t *instance) {
    zp_timeline_t *t = calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    t->zf = zf;
    t->instance = instance;
    t->samples = calloc(MAX_SAMPLES, sizeof *t->samples);
    (void)clock_gettime(CLOCK_MONOTONIC, &t->start);
    if (t->samples == NULL || pthread_create(&t->thread, NULL, run, t) != 0) {
        free(t->samples);
        free(t);
        return NULL;
    }
    return t;
}

void zp_timeline_mark(zp_timeline_t *t, zp_mark_t mark, double from_us) {
    spans_t *s = t != NULL ? &t->marks[mark] : NULL;

    if (s == NULL || s->n == MAX_SPANS)
        return;
    s->from_us[s->n] = from_us;
    s->to_us[s->n++] = zp_timeline_now(t);
}

void zp_timeline_end_step(zp_timeline_t *t) {
    if (t != NULL && t->n_steps < MAX_STEPS)
        t->steps_us[t->n_steps++] = zp_timeline_now(t);
}

void zp_timeline_stop(zp_timeline_t *t) {
    atomic_store(&t->is_ending, 1);
    (void)pthread_join(t->thread, NULL);
}

void zp_timeline_free(zp_timeline_t *t) {
    if (t == NULL)
        return;
    free(t->samples);
    free(t);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void append(json_t *list, double value) { (void)json_array_append_new(list, json_integer(llround(value))); }

static json_t *hooks_of(const zp_timeline_t *t) {
    static const char *const names[ZP_N_MARKS] = {"gradients are made", "grads_ready", "step",
                                                  "waiting for parameters"};
    json_t *hooks = json_array();

    for (int i = 0; i < ZP_N_MARKS; i++) {
        const spans_t *s = &t->marks[i];
        json_t *spans = json_array();

        for (size_t j = 0; j < s->n; j++) {
            append(spans, s->from_us[j]);
            append(spans, s->to_us[j]);
        }
        (void)json_array_append_new(hooks, json_pack("{s:s, s:o}", "name", names[i], "from_to_us", spans));
    }
    return hooks;
}

static json_t *threads_of(const zp_timeline_t *t) {
    json_t *threads = json_array();

    for (size_t i = 0; i < t->n_threads; i++) {
        json_t *busy = json_array();

        for (size_t j = 1; j < t->n_samples; j++)
            append(busy, t->samples[j].busy_us[i] - t->samples[j - 1].busy_us[i]);
        (void)json_array_append_new(threads, json_pack("{s:o, s:o}", "name", zj_string(t->names[i]), "busy_us", busy));
    }
    return threads;
}

json_t *zp_timeline_json(const zp_timeline_t *t) {
    json_t *steps = json_array(), *at = json_array(), *down = json_array(), *up = json_array();

    for (size_t i = 0; i < t->n_steps; i++)
        append(steps, t->steps_us[i]);
    for (size_t j = 0; j < t->n_samples; j++)
        append(at, t->samples[j].at_us);
    for (size_t j = 1; j < t->n_samples; j++) {
        append(down, (double)(t->samples[j].down - t->samples[j - 1].down));
        append(up, (double)(t->samples[j].up - t->samples[j - 1].up));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "steps_us", steps, "hooks", hooks_of(t), "threads",
                     threads_of(t), "at_us", at, "down_bytes", down, "up_bytes", up);
}
