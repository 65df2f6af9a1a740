/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/trace.c - when the trace of an instance begins and ends (contract in trace.h). */
#include "hooks/trace.h"

#include <inttypes.h>
#include <string.h>

zf_status_t zfi_tracing_begin(zfi_engine_t *engine, zf_error_t *err) {
    const zfi_config_t *config = &engine->config;
    zfi_trace_wish_t wish = {.file = config->trace_file,
                             .first_step = config->trace_first_step,
                             .n_steps = config->trace_steps,
                             .rank = zfi_rank(engine),
                             .n_ranks = zfi_n_ranks(engine)};
    zf_status_t st;
    if (!*config->trace_file)
        return ZF_OK;
    st = zfi_trace_open(&wish, &engine->trace, err);
    if (st)
        return st;
    zfi_log(engine, ZF_LOG_INFO, "trace", "steps from %" PRIu32 " on, %" PRIu32 " of them (0: all), are traced to %s%s",
            config->trace_first_step, config->trace_steps, zfi_trace_file(engine->trace),
            engine->device_type == ZF_DEVICE_CPU ? "" : ": hooks and the host's threads; the device's streams are not");
    zfi_tracing_step(engine, 1);
    return ZF_OK;
}

static void report(const zfi_engine_t *engine, int rc) {
    if (rc)
        zfi_log(engine, ZF_LOG_WARN, "trace", "%s is not whole: %s", zfi_trace_file(engine->trace), strerror(rc));
}

static void write_trace(void *raw) {
    zfi_engine_t *engine = *(zfi_engine_t **)raw;
    report(engine, zfi_trace_write(engine->trace));
}

void zfi_tracing_step(zfi_engine_t *engine, uint64_t t) {
    if (zfi_trace_step(engine->trace, t))
        (void)zfi_serial_start(engine->control, write_trace, &engine, sizeof(zfi_engine_t *));
}

void zfi_tracing_end(zfi_engine_t *engine) {
    if (!engine->trace)
        return;
    report(engine, zfi_trace_write(engine->trace));
    (void)zfi_trace_close(engine->trace);
    engine->trace = NULL;
}
