/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/engine.c - what every hook and thread shares: logging, poison, waits (contract in engine.h). */
#include "instance/engine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/utf8.h"

void zfi_log_at(const zfi_engine_t *engine, int32_t level, const char *component, const char *file, int32_t line,
                const char *format, ...) {
    char text[512];
    va_list args;
    if (!engine->host->log)
        return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= 0)
        engine->host->log(engine->host->ctx, level, component, file, line, text, zfi_utf8_mend(text));
}

/* ---- device ------------------------------------------------------------------------------------------------------ */

static void poison_timeout(zfi_engine_t *engine, const char *what, uint64_t value);

static void on_timeout(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    poison_timeout(ctx, timeline->name, value);
}

static void on_stuck(void *ctx, const char *stream, uint32_t n_waiting) {
    zfi_engine_t *engine = ctx;
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "device",
                     "stream %s took no command for %u ms ([host] deadline_ms): %u are waiting in it", stream,
                     engine->config.deadline_ms, n_waiting);
    zfi_poison(engine, &error);
}

static void on_failed(void *ctx, const char *what) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, ZF_ERR_DEVICE, ZF_SCOPE_INSTANCE, 0, "device", "%s", what);
    zfi_poison(ctx, &error);
}

static uint64_t host_busy_ns(void *ctx) {
    zfi_engine_t *engine = ctx;
    pthread_mutex_lock(&engine->watch_lock); /* the stream does not end meanwhile */
    uint64_t busy = engine->watched ? engine->ops->host_busy_ns(engine->watched) : 0;
    busy += engine->exchanged_ns + (engine->n_exchanging ? zfi_now_ns() - engine->told_ns : 0);
    pthread_mutex_unlock(&engine->watch_lock);
    return busy;
}

void zfi_engine_exchanging(zfi_engine_t *engine, int begins) {
    uint64_t now = zfi_now_ns();
    pthread_mutex_lock(&engine->watch_lock);
    engine->exchanged_ns += engine->n_exchanging ? now - engine->told_ns : 0;
    engine->told_ns = now;
    engine->n_exchanging += begins ? 1 : UINT32_MAX;
    pthread_mutex_unlock(&engine->watch_lock);
}

static void watch(zfi_engine_t *engine, zfi_stream_t *stream) {
    pthread_mutex_lock(&engine->watch_lock);
    engine->watched = stream;
    pthread_mutex_unlock(&engine->watch_lock);
}

void zfi_use_stream(zfi_engine_t *engine, zfi_stream_t *stream) {
    if (stream == engine->stream)
        return;
    engine->stream = stream;
    watch(engine, stream);
}

static void open_lists(zfi_engine_t *engine) {
    zfi_list_init(&engine->to_device, engine->ops, engine->device, &engine->stream);
    zfi_list_init(&engine->to_down, engine->ops, engine->device, &engine->down_stream);
    zfi_list_init(&engine->to_up, engine->ops, engine->device, &engine->up_stream);
    zfi_list_init(&engine->to_enter, engine->ops, engine->device, &engine->enter_stream);
    zfi_list_join(&engine->to_device, &engine->to_down);
    zfi_list_join(&engine->to_down, &engine->to_up);
}

/* The transport, and its thread where there are other ranks. Its deadline passes before those of the threads that wait
 * for it, so that its error, which says more, comes first. */
static zf_status_t open_ranks(zfi_engine_t *engine, zf_error_t *err) {
    zfi_comm_env_t env = {engine->host,           engine->timeout_ns - engine->timeout_ns / 8,
                          &engine->poison.is_set, engine->ops,
                          engine->device,         engine->norm_group};
    zf_status_t st = engine->comm_ops->open(&env, &engine->comm, err);
    if (!st && engine->norm_group)
        st = engine->comm_ops->join(engine->comm, engine->norm_group, &engine->norm_index, err);
    if (st || !zfi_has_peers(engine))
        return st;
    if (zfi_exchanges_on_device(engine))
        st = engine->ops->stream_create(engine->device, "zf-ranks", &engine->ranks_stream, err);
    if (!st && zfi_exchanges_on_device(engine))
        st = engine->ops->stream_create(engine->device, "zf-values", &engine->values_stream, err);
    if (!st)
        st = zfi_serial_create(&engine->ranks, "zf-ranks", err);
    if (!st)
        st = zfi_serial_create(&engine->values, "zf-values", err);
    return st ? st : zfi_serial_create(&engine->steps, "zf-steps", err);
}

static void log_image(const zfi_engine_t *engine) {
    zfi_device_info_t info;
    engine->ops->info(engine->device, &info);
    if (info.image)
        zfi_log(engine, ZF_LOG_INFO, "create", "kernels: %s", info.image);
}

zf_status_t zfi_engine_open(zfi_engine_t *engine, zf_error_t *err) {
    zfi_device_env_t env = {.kernels = engine->kernels,
                            .timeout_ns = engine->timeout_ns,
                            .is_poisoned = &engine->poison.is_set,
                            .ctx = engine,
                            .timed_out = on_timeout,
                            .failed = on_failed,
                            .is_stuck = on_stuck,
                            .host_busy_ns = host_busy_ns,
                            .trace = &engine->trace,
                            .is_releasable = (engine->flags & ZF_CREATE_CAP_RELEASE) != 0};
    int is_pageable;
    zf_status_t st = engine->ops->open(engine->device_id, &env, &engine->device, err);
    zfi_arena_take(&engine->pinned, 1, sizeof *engine->totals);
    if (!st)
        log_image(engine);
    if (!st)
        st = zfi_arena_map(&engine->pinned, "the device's counters", err);
    if (!st)
        st = engine->ops->pin(engine->device, engine->pinned.base, engine->pinned.total_nbytes, &is_pageable, err);
    engine->totals = (void *)engine->pinned.base;
    if (!st)
        st = open_ranks(engine, err);
    if (!st)
        st = engine->ops->stream_create(engine->device, "zf-device", &engine->own_stream, err);
    if (!st)
        st = engine->ops->stream_create(engine->device, "zf-down", &engine->down_stream, err);
    if (!st)
        st = engine->ops->stream_create(engine->device, "zf-up", &engine->up_stream, err);
    if (!st)
        st = engine->ops->stream_create(engine->device, "zf-enter", &engine->enter_stream, err);
    if (!st)
        st = zfi_serial_create(&engine->control, "zf-control", err);
    zfi_use_stream(engine, engine->own_stream);
    if (!st)
        open_lists(engine);
    return st;
}

/* A thread that feeds another stream ends before it. */
void zfi_engine_stop(zfi_engine_t *engine) {
    watch(engine, NULL); /* workers still wait, and ask how busy the host is */
    engine->ops->stream_destroy(engine->own_stream);
    zfi_serial_destroy(engine->control);
    zfi_serial_destroy(engine->ranks);
    zfi_serial_destroy(engine->values);
    zfi_serial_destroy(engine->steps);
    engine->ops->stream_destroy(engine->ranks_stream);
    engine->ops->stream_destroy(engine->values_stream);
    engine->ops->stream_destroy(engine->enter_stream);
    engine->ops->stream_destroy(engine->up_stream);
    engine->ops->stream_destroy(engine->down_stream);
}

void zfi_engine_close(zfi_engine_t *engine) {
    engine->comm_ops->close(engine->comm);
    if (engine->device && engine->pinned.base)
        engine->ops->unpin(engine->device, engine->pinned.base, engine->pinned.total_nbytes);
    zfi_arena_free(&engine->pinned);
    engine->ops->close(engine->device);
    free(engine->nodes.part_of);
    for (uint32_t i = 0; i < ZFI_MAX_GROUPS; i++)
        free(engine->members[i]);
    free(engine->residency.all);
}

/* Deadlines do not count the host's own work on its stream, nor exchanges: what was spent in them is waited for once
 * more. An exchange has a deadline of its own, and its error says which rank is to blame. */
typedef struct patience {
    uint64_t busy_ns, given_ns;
} patience_t;

static uint64_t more_time(zfi_engine_t *engine, patience_t *patience) {
    uint64_t more = host_busy_ns(engine) - patience->busy_ns;
    patience->busy_ns += more;
    if (patience->given_ns + more > ZFI_HOST_DEADLINES * engine->timeout_ns)
        return 0;
    patience->given_ns += more;
    return more;
}

zf_status_t zfi_synchronise(zfi_engine_t *engine, int has_deadline) {
    patience_t patience = {host_busy_ns(engine), 0};
    uint64_t waited = 0, left = has_deadline ? engine->timeout_ns : UINT64_MAX, mark, began;
    zf_status_t st = zfi_send(engine);
    if (st)
        return st;
    atomic_fetch_add(&engine->count.host_waits, 1);
    began = zfi_trace_begin(engine->trace);
    mark = engine->ops->mark(engine->stream);
    do {
        st = engine->ops->synchronise(engine->stream, mark, left, &waited);
        left = st == ZF_ERR_TIMEOUT ? more_time(engine, &patience) : 0;
    } while (left);
    atomic_fetch_add(&engine->count.host_wait_ns, waited);
    zfi_trace_waited(engine->trace, began, "device stream", mark);
    if (st == ZF_ERR_TIMEOUT)
        poison_timeout(engine, "device stream", mark);
    return !st && zfi_is_poisoned(engine) ? ZF_ERR_POISONED : st;
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

void zfi_engine_init(zfi_engine_t *engine) {
    pthread_mutex_init(&engine->poison.lock, NULL);
    pthread_mutex_init(&engine->watch_lock, NULL);
#define INIT(name, counts, writer, reset) zfi_timeline_init(&engine->lines.name, #name);
    ZFI_TIMELINES(INIT)
#undef INIT
}

void zfi_engine_free(zfi_engine_t *engine) {
#define FREE(name, counts, writer, reset) zfi_timeline_free(&engine->lines.name);
    ZFI_TIMELINES(FREE)
#undef FREE
    pthread_mutex_destroy(&engine->poison.lock);
    pthread_mutex_destroy(&engine->watch_lock);
}

void zfi_poison(zfi_engine_t *engine, const zf_error_t *error) {
    zfi_poison_t *poison = &engine->poison;
    pthread_mutex_lock(&poison->lock);
    if (!atomic_load(&poison->is_set)) {
        poison->error = *error;
        poison->error.struct_size = sizeof poison->error;
        poison->error.scope = ZF_SCOPE_INSTANCE;
        atomic_store(&poison->is_set, 1);
    }
    pthread_mutex_unlock(&poison->lock);
#define POISON(name, counts, writer, reset) zfi_timeline_poison(&engine->lines.name);
    ZFI_TIMELINES(POISON)
#undef POISON
}

zf_status_t zfi_poisoned(zfi_engine_t *engine, zf_error_t *err) {
    pthread_mutex_lock(&engine->poison.lock);
    zf_status_t st = zfi_error_copy(err, &engine->poison.error);
    pthread_mutex_unlock(&engine->poison.lock);
    return st;
}

/* " name=value" of every timeline. */
static void dump_timelines(const zfi_timelines_t *lines, char *out, size_t nbytes) {
    size_t at = 0;
#define DUMP(name, counts, writer, reset)                                                                              \
    if (at < nbytes)                                                                                                   \
        at += (size_t)snprintf(out + at, nbytes - at, " %s=%" PRIu64, #name, zfi_timeline_now(&lines->name));
    ZFI_TIMELINES(DUMP)
#undef DUMP
}

/* `what`: a timeline, or a stream, whose values are marks. */
static void poison_timeout(zfi_engine_t *engine, const char *what, uint64_t value) {
    zf_error_t error = {.struct_size = sizeof error};
    char dump[sizeof error.message];
    dump_timelines(&engine->lines, dump, sizeof dump);
    zfi_error_scoped(&error, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, what,
                     "waited %u ms ([host] deadline_ms) for %s to reach %" PRIu64 ";%s", engine->config.deadline_ms,
                     what, value, dump);
    zfi_poison(engine, &error);
}

static void settle_stream(zfi_engine_t *engine, zfi_stream_t *stream, uint64_t *left_ns) {
    uint64_t waited = 0;
    (void)engine->ops->synchronise(stream, engine->ops->mark(stream), *left_ns, &waited);
    *left_ns -= waited < *left_ns ? waited : *left_ns;
}

void zfi_engine_settle(zfi_engine_t *engine, zfi_stream_t *const *host_streams, uint32_t n) {
    uint64_t left_ns = engine->timeout_ns;
    settle_stream(engine, engine->own_stream, &left_ns);
    settle_stream(engine, engine->down_stream, &left_ns);
    for (uint32_t i = 0; i < n; i++) /* those before the present one too: poison ends what orders them */
        settle_stream(engine, host_streams[i], &left_ns);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_wait(zfi_engine_t *engine, zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *waited_ns) {
    uint64_t waited = 0, left = engine->timeout_ns;
    zf_status_t st;
    if (zfi_timeline_now(timeline) >= value)
        return zfi_is_poisoned(engine) ? ZF_ERR_POISONED : ZF_OK;
    uint64_t began = zfi_trace_begin(engine->trace);
    patience_t patience = (patience_t){host_busy_ns(engine), 0};
    do {
        st = zfi_timeline_wait(timeline, value, left, &waited);
        left = st == ZF_ERR_TIMEOUT ? more_time(engine, &patience) : 0;
    } while (left);
    if (waited && waited_ns)
        atomic_fetch_add(waited_ns, waited);
    zfi_trace_waited(engine->trace, began, timeline->name, value);
    if (st == ZF_ERR_TIMEOUT)
        poison_timeout(engine, timeline->name, value);
    if (!st && zfi_is_poisoned(engine))
        st = ZF_ERR_POISONED;
    return st;
}
