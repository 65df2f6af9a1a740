/* SPDX-License-Identifier: Apache-2.0 */
/* perf_area.h - the area "perf" of zf-conform: what a plugin moves and occupies, against the formulas of its design.
 *
 * Bytes decide, time never does: the stall and the step time are printed beside them. Each configuration is measured
 * in a process of its own (perf_child.c), so that its memory can be read from outside; perf_main.c starts them, holds
 * the results against the formulas and prints. */
#ifndef ZF_CONFORMANCE_CASES_PERF_AREA_H
#define ZF_CONFORMANCE_CASES_PERF_AREA_H

#include <stddef.h>

typedef struct zp_setting {
    const char *plugin, *config;
    const char *const *sets; /* the user's, applied before the interval */
    size_t n_sets;
    unsigned interval;      /* S, update_interval */
    unsigned gradient_size; /* 2 = bfloat16, 4 = float32; parameters are bfloat16 */
    double millions;        /* about so many parameters */
} zp_setting_t;

/* Entry point; argv[0] is the area's name. Returns the exit status of zf-conform. */
int zp_perf_main(int argc, char **argv);

/* Measures one setting in this process and prints one JSON object. Returns an exit status. */
int zp_perf_child(const zp_setting_t *setting);

#endif
