/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/trace.c - zf trace FILE: what a trace ([trace] file) says, in a terminal: how busy each lane was, what
 * took the time there, and what was waited for.
 *
 * Events of a lane may lie inside one another (a wait inside a hook). A lane is busy where any event covers the time
 * and none of them is a wait. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "progress.h"

enum { MOST_LANES = 512, MOST_KINDS = 512, KINDS_SHOWN = 4 };
static const uint64_t LARGEST = (uint64_t)1 << 30;

typedef struct span {
    uint32_t lane;
    int is_wait;
    double begin, end; /* microseconds */
    const char *name;
} span_t;

typedef struct lane {
    json_int_t tid;
    const char *name;
    double covered, waited; /* microseconds */
    json_int_t place;
} lane_t;

/* What happened in a lane under one name. */
typedef struct kind {
    uint32_t lane;
    const char *name;
    double total, longest;
    uint64_t n;
} kind_t;

typedef struct trace {
    const char *path;
    json_t *json;
    span_t *spans;
    size_t n_spans;
    lane_t lanes[MOST_LANES];
    uint32_t n_lanes;
    kind_t kinds[MOST_KINDS];
    uint32_t n_kinds;
    uint64_t n_steps;
    double begin, end;
} trace_t;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static uint32_t lane_of(trace_t *trace, json_int_t tid) {
    for (uint32_t i = 0; i < trace->n_lanes; i++)
        if (trace->lanes[i].tid == tid)
            return i;
    if (trace->n_lanes == MOST_LANES)
        return MOST_LANES - 1;
    trace->lanes[trace->n_lanes] = (lane_t){.tid = tid, .name = "?", .place = MOST_LANES};
    return trace->n_lanes++;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void take_metadata(trace_t *trace, const json_t *event) {
    lane_t *lane = &trace->lanes[lane_of(trace, json_integer_value(json_object_get(event, "tid")))];
    const json_t *args = json_object_get(event, "args");
    if (strcmp(text_of(event, "name"), "thread_name") == 0)
        lane->name = text_of(args, "name");
    if (strcmp(text_of(event, "name"), "thread_sort_index") == 0)
        lane->place = json_integer_value(json_object_get(args, "sort_index"));
}

static void take_span(trace_t *trace, const json_t *event) {
    span_t *span = &trace->spans[trace->n_spans++];
    span->lane = lane_of(trace, json_integer_value(json_object_get(event, "tid")));
    span->name = text_of(event, "name");
    span->is_wait = strcmp(text_of(event, "cat"), "wait") == 0;
    span->begin = json_number_value(json_object_get(event, "ts"));
    span->end = span->begin + json_number_value(json_object_get(event, "dur"));
    if (trace->n_spans == 1 || span->begin < trace->begin)
        trace->begin = span->begin;
    if (trace->n_spans == 1 || span->end > trace->end)
        trace->end = span->end;
}

/* 0, or 1 after a message. */
static int take_events(trace_t *trace) {
    const json_t *events = json_object_get(trace->json, "traceEvents");
    if (!json_is_array(events))
        return zf_cli_complain(trace->path, "has no list \"traceEvents\": it is no trace");
    trace->spans = calloc(json_array_size(events) + 1, sizeof *trace->spans);
    if (!trace->spans)
        return zf_cli_complain(trace->path, "no memory for %zu events", json_array_size(events));
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *phase = text_of(event, "ph");
        if (strcmp(phase, "X") == 0 &&
            (!json_is_number(json_object_get(event, "ts")) || !json_is_number(json_object_get(event, "dur")) ||
             json_number_value(json_object_get(event, "dur")) < 0))
            return zf_cli_complain(trace->path, "event %zu has no \"ts\" or \"dur\"", i);
        if (strcmp(phase, "X") == 0)
            take_span(trace, event);
        else if (strcmp(phase, "M") == 0)
            take_metadata(trace, event);
    }
    return trace->n_spans ? 0 : zf_cli_complain(trace->path, "holds no event: was a step made that [trace] asks for?");
}

static int read_trace(trace_t *trace) {
    json_error_t problem;
    size_t nbytes;
    char *text;
    int status;
    zf_cli_progress_begin("reading", trace->path);
    text = zf_cli_read_file(trace->path, LARGEST, &nbytes);
    if (!text)
        return 1;
    trace->json = json_loadb(text, nbytes, 0, &problem);
    free(text);
    if (!trace->json)
        return zf_cli_complain(trace->path, "line %d: %s", problem.line, problem.text);
    status = take_events(trace);
    zf_cli_progress_end();
    return status;
}

/* ---- summing up -------------------------------------------------------------------------------------------------- */

static int by_lane_and_time(const void *a, const void *b) {
    const span_t *x = a, *y = b;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static kind_t *kind_of(trace_t *trace, const span_t *span) {
    for (uint32_t i = 0; i < trace->n_kinds; i++)
        if (trace->kinds[i].lane == span->lane && strcmp(trace->kinds[i].name, span->name) == 0)
            return &trace->kinds[i];
    if (trace->n_kinds == MOST_KINDS)
        return &trace->kinds[MOST_KINDS - 1];
    trace->kinds[trace->n_kinds] = (kind_t){.lane = span->lane, .name = span->name};
    return &trace->kinds[trace->n_kinds++];
}

static void sum_up(trace_t *trace) {
    double covered_until = 0;
    qsort(trace->spans, trace->n_spans, sizeof *trace->spans, by_lane_and_time);
    for (size_t i = 0; i < trace->n_spans; i++) {
        const span_t *span = &trace->spans[i];
        lane_t *lane = &trace->lanes[span->lane];
        kind_t *kind = kind_of(trace, span);
        double length = span->end - span->begin;
        double from =
            i && trace->spans[i - 1].lane == span->lane && covered_until > span->begin ? covered_until : span->begin;
        if (span->end > from) {
            lane->covered += span->end - from;
            covered_until = span->end;
        } else {
            covered_until = from;
        }
        lane->waited += span->is_wait ? length : 0;
        kind->n++;
        kind->total += length;
        kind->longest = length > kind->longest ? length : kind->longest;
        trace->n_steps += strcmp(span->name, "step") == 0 && strcmp(lane->name, "host") == 0;
    }
}

/* ---- showing ----------------------------------------------------------------------------------------------------- */

static int by_total(const void *a, const void *b) {
    const kind_t *x = a, *y = b;
    return (x->total < y->total) - (x->total > y->total);
}

static void show_lane(const trace_t *trace, uint32_t number) {
    const lane_t *lane = &trace->lanes[number];
    double all = trace->end - trace->begin;
    int n = 0;
    printf("%-8s busy %5.1f %%   waits %5.1f %%\n", lane->name, 100 * (lane->covered - lane->waited) / all,
           100 * lane->waited / all);
    for (uint32_t i = 0; i < trace->n_kinds; i++) {
        const kind_t *kind = &trace->kinds[i];
        if (kind->lane != number || n++ >= KINDS_SHOWN)
            continue;
        printf("    %10.3f ms  %6lu x  longest %9.3f ms  ", kind->total / 1000, (unsigned long)kind->n,
               kind->longest / 1000);
        zf_cli_print(stdout, kind->name);
        printf("\n");
    }
    if (n > KINDS_SHOWN)
        printf("    and %d more\n", n - KINDS_SHOWN);
}

static void show(trace_t *trace) {
    json_int_t lost = json_integer_value(json_object_get(json_object_get(trace->json, "otherData"), "lost_events"));
    double all = (trace->end - trace->begin) / 1000;
    printf("%s: %zu events in %.3f ms, %lu steps", trace->path, trace->n_spans, all, (unsigned long)trace->n_steps);
    if (trace->n_steps)
        printf(" of %.3f ms", all / (double)trace->n_steps);
    printf("\n");
    if (lost)
        printf("%lld events found no room and are missing: trace fewer steps\n", (long long)lost);
    qsort(trace->kinds, trace->n_kinds, sizeof *trace->kinds, by_total);
    for (json_int_t place = 0; place <= MOST_LANES; place++)
        for (uint32_t i = 0; i < trace->n_lanes; i++)
            if (trace->lanes[i].place == place && trace->lanes[i].covered > 0)
                show_lane(trace, i);
}

int zf_cli_trace(zf_cli_t *cli, int argc, char **argv) {
    trace_t *trace;
    int status;
    (void)cli;
    if (argc != 1)
        return zf_cli_misuse("trace: need one FILE, have %d words", argc);
    trace = calloc(1, sizeof *trace);
    if (!trace)
        return zf_cli_complain(argv[0], "no memory");
    trace->path = argv[0];
    status = read_trace(trace);
    if (!status) {
        sum_up(trace);
        show(trace);
    }
    json_decref(trace->json);
    free(trace->spans);
    free(trace);
    return status;
}
