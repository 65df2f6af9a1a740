/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/trace.c - when the trace of an instance begins and ends (contract in trace.h). */
#include "hooks/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "state/text.h"

zf_status_t zfi_tracing_begin(zfi_engine_t *engine, zf_error_t *err) {
    const zfi_config_t *config = &engine->config;
    zfi_trace_wish_t wish = {.file = config->trace_file,
                             .first_step = config->trace_first_step,
                             .n_steps = config->trace_steps,
                             .rank = zfi_rank(engine),
                             .n_ranks = zfi_n_ranks(engine)};
    if (!*config->trace_file)
        return ZF_OK;
    zf_status_t st = zfi_trace_open(&wish, &engine->trace, err);
    if (st)
        return st;
    zfi_log(engine, ZF_LOG_INFO, "trace", "%" PRIu32 " steps (0: all) from %" PRIu32 " on are traced to %s%s",
            config->trace_steps, config->trace_first_step, zfi_trace_file(engine->trace),
            engine->device_type == ZF_DEVICE_CPU ? "" : ": hooks and the host's threads; the device's streams are not");
    zfi_tracing_step(engine, 1);
    return ZF_OK;
}

/* The figures of the traced steps, as JSON to be freed; NULL: no memory. */
static char *tell(zfi_engine_t *engine) {
    const zfi_traced_t *traced = &engine->traced;
    zfi_text_t text = {0};
    zfi_text_add(&text,
                 "{\"submitted\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"seconds\": %.9g, \"stall_seconds\": %.9g, "
                 "\"update_interval\": %d, \"publish_lag\": %d}",
                 atomic_load(&engine->count.steps), (uint64_t)traced->n_steps,
                 1e-9 * (double)(traced->newest_ns - traced->began_ns),
                 1e-9 * (double)(traced->stall_ns - traced->stall_before_ns), (int)engine->policy.interval,
                 (int)engine->policy.lag);
    return text.at;
}

static void write_trace(void *raw) {
    zfi_engine_t *engine = *(zfi_engine_t **)raw;
    char *counted = engine->traced.began_ns ? tell(engine) : NULL;
    int rc = zfi_trace_write(engine->trace, counted);
    free(counted);
    if (rc)
        zfi_log(engine, ZF_LOG_WARN, "trace", "%s is not whole: %s", zfi_trace_file(engine->trace), strerror(rc));
}

static void begin_to_count(zfi_engine_t *engine) {
    engine->traced = (zfi_traced_t){.began_ns = zfi_now_ns(), .stall_before_ns = zfi_stalled_ns(&engine->count)};
    engine->traced.newest_ns = engine->traced.began_ns;
    engine->traced.stall_ns = engine->traced.stall_before_ns;
}

void zfi_tracing_step(zfi_engine_t *engine, uint64_t t) {
    int was_on = zfi_trace_begin(engine->trace) != 0, is_complete;
    if (was_on) {
        engine->traced.n_steps++;
        engine->traced.newest_ns = zfi_now_ns();
        engine->traced.stall_ns = zfi_stalled_ns(&engine->count);
    }
    is_complete = zfi_trace_step(engine->trace, t);
    if (!was_on && zfi_trace_begin(engine->trace))
        begin_to_count(engine);
    if (is_complete)
        (void)zfi_serial_start(engine->control, write_trace, &engine, sizeof(zfi_engine_t *));
}

void zfi_tracing_end(zfi_engine_t *engine, int was_bound) {
    if (!engine->trace)
        return;
    if (was_bound)
        write_trace(&engine);
    else
        zfi_trace_forget(engine->trace);
    (void)zfi_trace_close(engine->trace);
    engine->trace = NULL;
}
