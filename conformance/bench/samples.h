/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h - repetitions of one measurement and their quartiles; what others take of the CPUs.
 *
 * Every figure of zf-bench-hooks is the median over all repetitions of one run; the quartiles beside it say how steady
 * the machine was. */
#pragma once

#include <stdint.h>

enum { SAMPLES_MAX = 255 };

typedef struct samples {
    int n;
    double at[SAMPLES_MAX];
} samples_t;

typedef struct quartiles {
    double q1, median, q3;
} quartiles_t;

/* Adds a value; what exceeds SAMPLES_MAX is a bug of the caller and ends the program. */
void samples_add(samples_t *samples, double value);

/* Of at least one sample; the order of the samples is kept. */
quartiles_t samples_quartiles(const samples_t *samples);
double samples_median(const samples_t *samples);

/* Time on a CPU, in ns, of all threads of this process that have this name. */
uint64_t samples_named_cpu_ns(const char *name);

/* Looks at the clock without pause for n_ns: the share of that time in which this thread was not running (pauses of
 * more than 5 us), 0..1. What other programs and the hypervisor take from it. */
double samples_lost_share(uint64_t n_ns);
