/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/trace.c - recording and writing a trace (contract in trace.h).
 *
 * A thread takes a lane with its first event of a trace, and keeps the number in memory of its own. An event is written
 * into the place that its thread has taken, and is complete when its lane is stored, which the writer looks for. */
#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lines.h"

enum { USUAL_EVENTS = 1 << 20, MOST_LANES = 320, LANE_NAME = 16, MOST_FILES = 999, FILE_NBYTES = 256 };

typedef struct event {
    const char *name;
    uint64_t began_ns, ended_ns;
    zfi_trace_number_t numbers[2];
    _Atomic uint32_t lane; /* + 1; 0: not complete */
} event_t;

struct zfi_trace {
    FILE *file;
    char name[FILE_NBYTES];
    event_t *events; /* [most] */
    uint64_t most;
    uint64_t id, first_step, end_step, start_ns;
    uint32_t rank;
    _Atomic uint64_t n_events; /* places taken, those that found no room included */
    _Atomic int is_on, is_written;
    pthread_mutex_t lock; /* guards: */
    char lanes[MOST_LANES][LANE_NAME];
    uint32_t n_lanes;
};

static const char wait_value[] = "value"; /* by this number's name the writer knows a wait */
static _Atomic uint64_t n_opened;         /* a trace's id is never used again, its address may be */

/* ---- open -------------------------------------------------------------------------------------------------------- */

/* NAME.json, NAME.rank3.json, NAME.rank3.2.json: number > 1 where others are taken. */
static void name_file(const zfi_trace_wish_t *wish, unsigned number, char out[FILE_NBYTES]) {
    const char *base = strrchr(wish->file, '/'), *end = strrchr(base ? base : wish->file, '.');
    int n = end ? (int)(end - wish->file) : (int)strlen(wish->file);
    char rank[24] = "", again[16] = "";
    if (wish->n_ranks > 1)
        snprintf(rank, sizeof rank, ".rank%" PRIu32, wish->rank);
    if (number > 1)
        snprintf(again, sizeof again, ".%u", number);
    snprintf(out, FILE_NBYTES, "%.*s%s%s%s", n, wish->file, rank, again, wish->file + n);
}

/* The file, locked against other instances; NULL: errno says why. */
static FILE *create_file(const zfi_trace_wish_t *wish, char out_name[FILE_NBYTES]) {
    zfi_lines_t lines = {.fd = -1};
    FILE *file = NULL;
    int rc = EWOULDBLOCK;
    for (unsigned number = 1; number <= MOST_FILES && rc == EWOULDBLOCK; number++) {
        name_file(wish, number, out_name);
        rc = zfi_lines_open(out_name, &lines);
    }
    if (!rc)
        file = fdopen(lines.fd, "w");
    if (file)
        return file;
    rc = rc ? rc : errno;
    if (lines.fd >= 0)
        zfi_lines_close(&lines);
    errno = rc;
    return NULL;
}

static void free_trace(zfi_trace_t *trace) {
    if (trace->events != MAP_FAILED)
        munmap(trace->events, trace->most * sizeof *trace->events);
    pthread_mutex_destroy(&trace->lock);
    free(trace);
}

zf_status_t zfi_trace_open(const zfi_trace_wish_t *wish, zfi_trace_t **out, zf_error_t *err) {
    zfi_trace_t *trace = calloc(1, sizeof *trace);
    if (!trace)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a trace");
    pthread_mutex_init(&trace->lock, NULL);
    trace->most = wish->most_events ? wish->most_events : USUAL_EVENTS;
    size_t nbytes = trace->most * sizeof *trace->events;
    trace->events = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (trace->events == MAP_FAILED) {
        free_trace(trace);
        return zfi_error(err, ZF_ERR_MEMORY, "create", "cannot map %zu bytes for the events of a trace", nbytes);
    }
    trace->file = create_file(wish, trace->name);
    if (!trace->file) {
        int rc = errno, is_other = rc == ELOOP || rc == ENOTSUP || rc == ENXIO;
        free_trace(trace);
        return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, rc, "create",
                                "[trace] file = %.200s: cannot create it: %s", wish->file,
                                is_other ? "it is there and is no regular file; name another" : strerror(rc));
    }
    trace->id = atomic_fetch_add(&n_opened, 1) + 1;
    trace->first_step = wish->first_step;
    trace->end_step = wish->n_steps ? wish->first_step + wish->n_steps : UINT64_MAX;
    trace->rank = wish->rank;
    trace->start_ns = zfi_now_ns();
    *out = trace;
    return ZF_OK;
}

const char *zfi_trace_file(const zfi_trace_t *trace) { return trace->name; }

/* ---- recording --------------------------------------------------------------------------------------------------- */

int zfi_trace_step(zfi_trace_t *trace, uint64_t t) {
    if (!trace || atomic_load(&trace->is_written))
        return 0;
    if (t >= trace->end_step)
        return atomic_exchange(&trace->is_on, 0);
    if (t >= trace->first_step)
        atomic_store_explicit(&trace->is_on, 1, memory_order_relaxed);
    return 0;
}

uint64_t zfi_trace_begin(const zfi_trace_t *trace) {
    return trace && atomic_load_explicit(&trace->is_on, memory_order_relaxed) ? zfi_now_ns() : 0;
}

/* This thread's lane, + 1. Threads beyond the last lane share it. */
static uint32_t own_lane(zfi_trace_t *trace) {
    static _Thread_local uint64_t of;
    static _Thread_local uint32_t lane;
    char name[LANE_NAME] = "";
    if (of == trace->id)
        return lane;
    if (pthread_getname_np(pthread_self(), name, sizeof name) != 0 || strncmp(name, "zf-", 3) != 0)
        snprintf(name, sizeof name, "host");
    pthread_mutex_lock(&trace->lock);
    if (trace->n_lanes < MOST_LANES)
        memcpy(trace->lanes[trace->n_lanes++], name, sizeof name);
    lane = trace->n_lanes;
    pthread_mutex_unlock(&trace->lock);
    of = trace->id;
    return lane;
}

void zfi_trace_end(zfi_trace_t *trace, uint64_t began_ns, const char *name, zfi_trace_number_t a,
                   zfi_trace_number_t b) {
    if (!began_ns)
        return;
    uint64_t at = atomic_fetch_add_explicit(&trace->n_events, 1, memory_order_relaxed);
    if (at >= trace->most)
        return;
    event_t *event = &trace->events[at];
    event->name = name;
    event->began_ns = began_ns;
    event->ended_ns = zfi_now_ns();
    event->numbers[0] = a;
    event->numbers[1] = b;
    atomic_store_explicit(&event->lane, own_lane(trace), memory_order_release);
}

void zfi_trace_waited(zfi_trace_t *trace, uint64_t began_ns, const char *what, uint64_t value) {
    zfi_trace_end(trace, began_ns, what, (zfi_trace_number_t){wait_value, value}, ZFI_TRACE_NONE);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The place at which a viewer shows a lane: in the order in which work passes through them. */
static int place_of(const char *lane) {
    static const char *const order[] = {"host",       "zf-device", "zf-down",  "zf-up",     "zf-enter",
                                        "zf-control", "zf-steps",  "zf-ranks", "zf-values", "zf-worker"};
    int n = (int)(sizeof order / sizeof *order);
    for (int i = 0; i < n; i++)
        if (strcmp(lane, order[i]) == 0)
            return i;
    return n;
}

static void write_lanes(const zfi_trace_t *trace) {
    fprintf(trace->file,
            "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %" PRIu32
            ", \"tid\": 0, \"args\": {\"name\": \"libzfplugin, rank %" PRIu32 "\"}}",
            trace->rank, trace->rank);
    for (uint32_t i = 0; i < trace->n_lanes; i++) {
        const char *lane = trace->lanes[i];
        fprintf(trace->file,
                ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %" PRIu32 ", \"tid\": %" PRIu32
                ", \"args\": {\"name\": \"%s\"}}",
                trace->rank, i + 1, strcmp(lane, "host") == 0 ? lane : lane + 3);
        fprintf(trace->file,
                ",\n{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": %" PRIu32 ", \"tid\": %" PRIu32
                ", \"args\": {\"sort_index\": %d}}",
                trace->rank, i + 1, place_of(lane));
    }
}

/* Nanoseconds as microseconds; no decimal sign of a locale. */
static void write_us(FILE *file, const char *name, uint64_t ns) {
    fprintf(file, ", \"%s\": %" PRIu64 ".%03u", name, ns / 1000, (unsigned)(ns % 1000));
}

static void write_event(const zfi_trace_t *trace, const event_t *event, uint32_t lane) {
    const char *separator = "";
    int is_wait = event->numbers[0].name == wait_value;
    fprintf(trace->file,
            ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s%s\", \"pid\": %" PRIu32 ", \"tid\": %" PRIu32,
            is_wait ? "wait" : "work", is_wait ? "wait: " : "", event->name, trace->rank, lane);
    write_us(trace->file, "ts", event->began_ns - trace->start_ns);
    write_us(trace->file, "dur", event->ended_ns - event->began_ns);
    fputs(", \"args\": {", trace->file);
    for (int i = 0; i < 2; i++)
        if (event->numbers[i].name) {
            fprintf(trace->file, "%s\"%s\": %" PRIu64, separator, event->numbers[i].name, event->numbers[i].value);
            separator = ", ";
        }
    fputs("}}", trace->file);
}

void zfi_trace_forget(zfi_trace_t *trace) { atomic_store(&trace->is_written, 1); }

int zfi_trace_write(zfi_trace_t *trace, const char *counted) {
    uint64_t n = atomic_load(&trace->n_events), n_kept = n < trace->most ? n : trace->most;
    atomic_store(&trace->is_on, 0);
    if (atomic_exchange(&trace->is_written, 1))
        return 0;
    if (ftruncate(fileno(trace->file), 0) != 0)
        return errno;
    fprintf(trace->file, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"lost_events\": %" PRIu64 "%s%s},\n",
            n - n_kept, counted ? ", \"counted\": " : "", counted ? counted : "");
    fputs("\"traceEvents\": [\n", trace->file);
    pthread_mutex_lock(&trace->lock);
    write_lanes(trace);
    pthread_mutex_unlock(&trace->lock);
    for (uint64_t i = 0; i < n_kept; i++) {
        uint32_t lane = atomic_load_explicit(&trace->events[i].lane, memory_order_acquire);
        if (lane)
            write_event(trace, &trace->events[i], lane);
    }
    fputs("\n]}\n", trace->file);
    if (fflush(trace->file) != 0)
        return errno;
    return ferror(trace->file) ? EIO : 0;
}

int zfi_trace_close(zfi_trace_t *trace) {
    if (!trace)
        return 0;
    int rc = zfi_trace_write(trace, NULL);
    if (fclose(trace->file) != 0 && !rc)
        rc = errno;
    free_trace(trace);
    return rc;
}
