/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/bind.c - the ways of a run's steps (contract in updater.h). */
#include "step/publisher.h"
#include "step/updater.h"

void zfi_step_bind(zfi_run_t *run) {
    const zfi_config_t *config = &run->engine->config;
    run->updater = zfi_config_defers_nothing(config) ? &zfi_updater_whole : &zfi_updater_windows;
    if (zfi_config_publishes_at_fetch(config))
        run->publisher = zfi_is_sharded(run->engine) ? &zfi_publisher_gathered : &zfi_publisher_at_fetch;
    else
        run->publisher = config->publish_lag ? &zfi_publisher_next_step : &zfi_publisher_at_step;
}
