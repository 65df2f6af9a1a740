/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c - see samples.h. */
#define _GNU_SOURCE
#include "samples.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/clock.h"

enum { PAUSE_NS = 5000 };

void samples_add(samples_t *samples, double value) {
    if (samples->n == SAMPLES_MAX) {
        fprintf(stderr, "samples: more than %d repetitions\n", SAMPLES_MAX);
        abort();
    }
    samples->at[samples->n++] = value;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at a fraction of sorted samples, interpolated. */
static double value_at(const double *sorted, int n, double fraction) {
    const double place = fraction * (double)(n - 1);
    const int below = (int)place;
    if (below >= n - 1)
        return sorted[n - 1];
    return sorted[below] + (place - below) * (sorted[below + 1] - sorted[below]);
}

quartiles_t samples_quartiles(const samples_t *samples) {
    double sorted[SAMPLES_MAX];
    memcpy(sorted, samples->at, (size_t)samples->n * sizeof *sorted);
    qsort(sorted, (size_t)samples->n, sizeof *sorted, compare_doubles);
    return (quartiles_t){.q1 = value_at(sorted, samples->n, 0.25),
                         .median = value_at(sorted, samples->n, 0.5),
                         .q3 = value_at(sorted, samples->n, 0.75)};
}

double samples_median(const samples_t *samples) { return samples_quartiles(samples).median; }

double samples_lost_share(uint64_t n_ns) {
    const uint64_t begin = zc_now_ns();
    uint64_t last = begin, lost = 0;
    while (last - begin < n_ns) {
        const uint64_t now = zc_now_ns();
        if (now - last > PAUSE_NS)
            lost += now - last;
        last = now;
    }
    return (double)lost / (double)(last - begin);
}

static int is_named(const char *task, const char *name) {
    char path[64], got[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", task);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (!fgets(got, sizeof got, file))
        got[0] = '\0';
    fclose(file);
    got[strcspn(got, "\n")] = '\0';
    return strcmp(got, name) == 0;
}

static uint64_t task_cpu_ns(const char *task) {
    char path[64];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%llu", &ns) != 1)
        ns = 0;
    if (file)
        fclose(file);
    return ns;
}

uint64_t samples_named_cpu_ns(const char *name) {
    DIR *tasks = opendir("/proc/self/task");
    uint64_t ns = 0;
    for (const struct dirent *task = tasks ? readdir(tasks) : NULL; task; task = readdir(tasks))
        if (task->d_name[0] != '.' && is_named(task->d_name, name))
            ns += task_cpu_ns(task->d_name);
    if (tasks)
        closedir(tasks);
    return ns;
}
