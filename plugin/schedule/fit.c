/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/fit.c - update_interval = fit (contract in fit.h).
 *
 * Model. Per step 1/S of the model is replayed, in the order of its state, from when its gradients are in host memory,
 * travels up meanwhile, and is merged by the device as it comes. With lag 0 a share x of the state has come down +
 * x * work / S after the step; the device, which is asked for it at some time, has merged what lies before it then. If
 * it is early it waits, and all later work of the trainer moves by as much: so the step loses the longest of these
 * waits. With lag 1 the whole step is there for the work. */
#include "schedule/fit.h"

#include <stddef.h>

const zfi_fit_choice_t zfi_fit_choices[ZFI_FIT_CHOICES] = {{1, 0}, {2, 0}, {3, 0}, {4, 0},
                                                           {1, 1}, {2, 1}, {3, 1}, {4, 1}};

static double longer(double a, double b) { return a > b ? a : b; }

static double stall_of(const zfi_fit_times_t *times, int at_fetch, zfi_fit_choice_t choice) {
    double work = (longer(times->replay_s[choice.interval], times->travel_s) - times->merge_s) / choice.interval;
    double wait = longer(0, times->down_s + work - (choice.lag || at_fetch ? times->step_s : 0));
    for (uint32_t i = 0; at_fetch && !choice.lag && i < times->n_points; i++)
        wait = longer(wait, times->down_s + times->points[i].share * work - times->points[i].at_s);
    return wait;
}

void zfi_fit_costs(const zfi_fit_times_t *times, int publishes_at_fetch, zfi_fit_cost_t out[ZFI_FIT_CHOICES]) {
    for (uint32_t i = 0; i < ZFI_FIT_CHOICES; i++) {
        zfi_fit_choice_t choice = zfi_fit_choices[i];
        out[i].stall = stall_of(times, publishes_at_fetch, choice) / times->step_s;
        out[i].extra = times->merge_s * (1.0 / choice.interval - 1.0 / ZFI_FIT_MOST) / times->step_s;
    }
}

static int is_allowed(const zfi_config_t *config, uint32_t most, zfi_fit_choice_t choice) {
    if (choice.interval > most)
        return 0;
    if (config->publish_lag != ZFI_PUBLISH_LAG_AUTO)
        return choice.lag == config->publish_lag;
    return choice.lag || config->can_fetch;
}

static uint32_t fallback(const zfi_config_t *config, uint32_t most) {
    uint32_t number = 0;
    while (!is_allowed(config, most, zfi_fit_choices[number]))
        number++;
    while (zfi_fit_choices[number].interval < ZFI_FIT_FALLBACK && is_allowed(config, most, zfi_fit_choices[number + 1]))
        number++;
    return number;
}

uint32_t zfi_fit_choose(const zfi_config_t *config, uint32_t most, const zfi_fit_cost_t costs[ZFI_FIT_CHOICES]) {
    uint32_t best = ZFI_FIT_CHOICES;
    double least = 0;
    for (uint32_t i = 0; costs && i < ZFI_FIT_CHOICES; i++) {
        double cost = costs[i].stall + costs[i].extra;
        if (!is_allowed(config, most, zfi_fit_choices[i]))
            continue;
        if (cost <= config->max_stall)
            return i;
        if (best == ZFI_FIT_CHOICES || cost < least) {
            best = i;
            least = cost;
        }
    }
    return best < ZFI_FIT_CHOICES ? best : fallback(config, most);
}
