/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/fit.h - update_interval = fit: what each choice would make the trainer wait, and which one is taken
 * (SCHEDULE.md, "When windows close"). Pure arithmetic: what is measured comes from offload/pace.c. */
#ifndef ZFI_FIT_H
#define ZFI_FIT_H

#include "config/config.h"

enum { ZFI_FIT_CHOICES = 2 * ZFI_FIT_MOST, ZFI_FIT_POINTS = 64 };

typedef struct zfi_fit_choice {
    uint32_t interval, lag;
} zfi_fit_choice_t;

/* In the order of their lateness, the least first. */
extern const zfi_fit_choice_t zfi_fit_choices[ZFI_FIT_CHOICES];

/* A fetch: seconds after the end of the step, and which share of the state lies before the end of what it names. */
typedef struct zfi_fit_point {
    double at_s, share;
} zfi_fit_point_t;

/* Seconds, as warm-up measured them. */
typedef struct zfi_fit_times {
    double step_s;                     /* from visible weights to the next gradient norm: forward and backward */
    double down_s;                     /* from there until the last gradient is in host memory */
    double replay_s[ZFI_FIT_MOST + 1]; /* [S] of all windows of the model, S slots each */
    double travel_s;                   /* until all values of the model are on the device, where that takes longer */
    double merge_s;                    /* the device's own work, to make all of the model visible */
    uint32_t n_points;
    zfi_fit_point_t points[ZFI_FIT_POINTS];
} zfi_fit_times_t;

typedef struct zfi_fit_cost {
    double stall; /* what the device would wait per step, as a share of step_s */
    double extra; /* its work beyond what windows of ZFI_FIT_MOST steps give it, the same */
} zfi_fit_cost_t;

/* [any-thread] Of each choice. publishes_at_fetch: with lag 0 what is not fetched has until the next step; else the
 * closing step waits. */
void zfi_fit_costs(const zfi_fit_times_t *times, int publishes_at_fetch, zfi_fit_cost_t out[ZFI_FIT_CHOICES]);

/* [any-thread] The first choice that the configuration allows which costs at most max_stall; if there is none, the
 * allowed one that costs least. most: steps of the longest window that has room. costs = NULL, where nothing was
 * measured: the fallback. Returns its number. */
uint32_t zfi_fit_choose(const zfi_config_t *config, uint32_t most, const zfi_fit_cost_t costs[ZFI_FIT_CHOICES]);

#endif
