/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/waits.c - waits that nobody asked for (contract in waits.h). */
#include "hooks/waits.h"

#include <inttypes.h>

enum { SETTLE = 8, WATCHED = 24 }; /* steps after warm-up: threads and caches come to rest; then waits are counted */

static const double LEAST_SHARE = 0.03, LEAST_S = 1e-3; /* of a step; below, nobody minds */

static void say(zf_instance_t *inst, double wait_s, double step_s) {
    zfi_log(&inst->engine, ZF_LOG_WARN, "step",
            "each step waits %.2f ms of %.2f (%.0f %%) for its updates: %s[device] state_mib keeps part of the state "
            "on the device, [zenflow] mode = windows or a longer update_interval updates the rest less often; zf plan "
            "and zf tune say what a machine hides",
            1e3 * wait_s, 1e3 * step_s, 100 * wait_s / step_s,
            inst->engine.config.can_fetch ? ""
                                          : "this trainer does not fetch parameters: call param_fetch before they are "
                                            "read (PyTorch: model=) and forward hides it; else ");
}

void zfi_waits_watch(zf_instance_t *inst) {
    const zfi_config_t *config = &inst->engine.config;
    uint64_t first = zfi_config_warm_up(config) + SETTLE, t = inst->run->clock.t + inst->run->clock.steps_before;
    if (!config->waits_unasked || inst->waits.is_said || t < first)
        return;
    uint64_t now = zfi_now_ns();
    uint64_t stall = atomic_load(&inst->engine.count.stall_replay_ns);
    if (!inst->waits.began_ns) {
        inst->waits = (zfi_waits_t){.began_ns = now, .stall_ns = stall, .first_step = t};
    } else if (t >= inst->waits.first_step + WATCHED) {
        double n = 1e9 * (double)(t - inst->waits.first_step), wait_s = (double)(stall - inst->waits.stall_ns) / n;
        double step_s = (double)(now - inst->waits.began_ns) / n;
        inst->waits.is_said = 1;
        if (wait_s > LEAST_SHARE * step_s && wait_s > LEAST_S)
            say(inst, wait_s, step_s);
    }
}
