/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace.c - [trace]: the file is JSON of the Trace Event Format, holds the steps that were asked for and what
 * every thread did in them and what they took, and training is the same with it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/trace.h"
#include "state_rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 48, .cols = 40}, {.rows = 40}, {.rows = 64, .cols = 33, .is_bf16 = 1, .group = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;
static void train(const char *trace_steps, int n_steps) {
    char config[512];
    snprintf(config, sizeof config,
             "[zenflow]\nupdate_interval = 2\nfull_warm_up_rounds = 2\nselect_interval = 4\n[host]\nthreads = 2\n"
             "[trace]\nfile = %s%s\n",
             zt_path("t.json"), trace_steps);
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    zt_rig_steps(&rig, n_steps);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The events of a trace; each is checked. */
static json_t *events_of(const char *name, json_t **out_whole) {
    json_error_t problem;
    json_t *whole = json_load_file(zt_path(name), JSON_REJECT_DUPLICATES, &problem), *events;
    ck_assert_msg(whole != NULL, "%s: %s", name, problem.text);
    events = json_object_get(whole, "traceEvents");
    ck_assert(json_is_array(events));
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        const char *ph = json_string_value(json_object_get(event, "ph"));
        ck_assert(ph && json_string_value(json_object_get(event, "name")));
        ck_assert(json_is_integer(json_object_get(event, "pid")) && json_is_integer(json_object_get(event, "tid")));
        ck_assert(json_is_object(json_object_get(event, "args")));
        if (strcmp(ph, "X") == 0) {
            ck_assert(json_number_value(json_object_get(event, "ts")) >= 0);
            ck_assert(json_number_value(json_object_get(event, "dur")) >= 0);
        } else {
            ck_assert_str_eq(ph, "M");
        }
    }
    *out_whole = whole;
    return events;
}

static const char *lane_of(const json_t *events, json_int_t tid) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "name")), "thread_name") == 0 &&
            json_integer_value(json_object_get(event, "tid")) == tid)
            return json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    }
    return "?";
}

/* How many events of a name are in a lane, and the last of them. */
static int find(const json_t *events, const char *lane, const char *name, const json_t **out) {
    int n = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
            strcmp(lane_of(events, json_integer_value(json_object_get(event, "tid"))), lane) == 0)
            *out = event, n++;
    }
    return n;
}

static int count(const json_t *events, const char *lane, const char *name) {
    const json_t *last;
    return find(events, lane, name, &last);
}

/* Where a viewer shows a lane. */
static json_int_t place_of(const json_t *events, const char *lane) {
    const json_t *event;
    ck_assert_int_gt(find(events, lane, "thread_sort_index", &event), 0);
    return json_integer_value(json_object_get(json_object_get(event, "args"), "sort_index"));
}

/* ---- of an instance ---------------------------------------------------------------------------------------------- */

ZT_TEST(asked_for_steps) {
    json_t *whole, *events;
    train(" steps 5..8", 20);
    zt_rig_end_flushed(&rig);
    events = events_of("t.json", &whole);
    ck_assert_int_eq(count(events, "host", "step"), 4);
    ck_assert_int_eq(count(events, "host", "grads_ready"), 4 * N_SHAPES);
    ck_assert_int_eq(count(events, "device", "scalars"), 4);
    ck_assert_int_eq(count(events, "device", "report"), 4);
    ck_assert_int_ge(count(events, "worker", "replay"), 2); /* each window closes every other step */
    ck_assert_int_ge(count(events, "down", "copy"), 4);
    ck_assert_int_ge(count(events, "up", "copy"), 1);
    ck_assert_int_ge(count(events, "control", "choose"), 1);
    ck_assert_int_eq(count(events, "host", "quiesce"), 0); /* later */
    for (int i = 1; i < 6; i++) {                          /* as work passes through them */
        static const char *const lanes[] = {"host", "device", "down", "up", "control", "worker"};
        ck_assert_int_lt(place_of(events, lanes[i - 1]), place_of(events, lanes[i]));
    }
    json_decref(whole);
}

/* Fewer steps than asked for: what there was is written at the end; 0 steps: all of them. */
ZT_TEST(until_the_end) {
    static const char *const lines[] = {" steps 3..102", " steps 0"};
    json_t *whole;
    for (int i = 0; i < 2; i++) {
        train(lines[i], 8);
        zt_rig_end_flushed(&rig);
        json_t *events = events_of("t.json", &whole);
        ck_assert_int_eq(count(events, "host", "step"), i ? 8 : 6);
        ck_assert_int_eq(count(events, "host", "quiesce"), 1); /* ours */
        ck_assert_int_eq(count(events, "host", "destroy"), 1); /* the rig's */
        json_decref(whole);
    }
}

static void refused_file(const char *path, const char *words) {
    char config[256];
    snprintf(config, sizeof config, "[trace]\nfile = %s\n", path);
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_refused(&rig.err, zt_rig_try_create(&rig, config, 0), ZF_ERR_STORAGE, words);
    zt_rig_end(&rig);
}

/* A link that somebody planted at the path is not followed, and what is no regular file is not written. */
ZT_TEST(no_regular_file) {
    static const char *const plants[] = {"ln -s precious t.json", "mkfifo t.json", "ln -s /dev/null t.json"};
    refused_file("/no/such/folder/t.json", "[trace] file = /no/such/folder/t.json: cannot create it: No such file");
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        ck_assert_int_eq(zt_shell("cd %s && rm -f t.json && printf kept >precious && %s", zt_dir(), plants[i]), 0);
        refused_file(zt_path("t.json"), "no regular file");
        ck_assert_int_eq(zt_shell("cd %s && test $(cat precious) = kept", zt_dir()), 0);
    }
}

/* ---- of the module ----------------------------------------------------------------------------------------------- */

static zfi_trace_t *open_trace(const char *name, uint64_t first, uint64_t n, uint32_t rank, uint32_t n_ranks) {
    zfi_trace_wish_t wish = {zt_path(name), first, n, rank, n_ranks, 64};
    zf_error_t err = {.struct_size = sizeof err};
    zfi_trace_t *trace = NULL;
    ck_assert_msg(zfi_trace_open(&wish, &trace, &err) == ZF_OK, "%s", err.message);
    return trace;
}

/* Ranks, and instances of one process, do not write to the same file; what lay there is replaced. */
ZT_TEST(files) {
    zfi_trace_t *traces[4];
    static const char *const names[] = {"a.json", "a.2.json", "a.rank1.json", "b"};
    traces[0] = open_trace("a.json", 1, 1, 0, 1);
    traces[1] = open_trace("a.json", 1, 1, 0, 1);
    traces[2] = open_trace("a.json", 1, 1, 1, 2);
    traces[3] = open_trace("b", 1, 1, 0, 1);
    for (int i = 0; i < 4; i++) {
        json_t *whole;
        ck_assert_str_eq(zfi_trace_file(traces[i]), zt_path(names[i]));
        ck_assert_int_eq(zfi_trace_close(traces[i]), 0);
        ck_assert_uint_eq(json_array_size(events_of(names[i], &whole)), 1);
        json_decref(whole);
    }
}

/* What finds no room is counted. */
ZT_TEST(full) {
    enum { ROOM = 64, MORE = 7 };
    json_error_t problem;
    zfi_trace_t *trace = open_trace("t.json", 1, 0, 0, 1);
    ck_assert_int_eq(zfi_trace_step(trace, 1), 0);
    for (uint64_t i = 0; i < ROOM + MORE; i++)
        zfi_trace_end(trace, 1, "x", ZFI_TRACE_NONE, ZFI_TRACE_NONE);
    ck_assert_int_eq(zfi_trace_close(trace), 0);
    json_t *whole = json_load_file(zt_path("t.json"), 0, &problem);
    ck_assert_msg(whole != NULL, "%s", problem.text);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(whole, "otherData"), "lost_events")), MORE);
    json_decref(whole);
}

/* ---- what the steps took ----------------------------------------------------------------------------------------- */

static double counted_of(const json_t *whole, const char *name) {
    const json_t *value = json_object_get(json_object_get(json_object_get(whole, "otherData"), "counted"), name);
    ck_assert_msg(json_is_number(value), "%s", name);
    return json_number_value(value);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The traced steps are counted for themselves, nothing before or behind them; to the last of them, or to the end. */
ZT_TEST(what_steps_took) {
    static const char *const steps[] = {"11..26", "11..1000"};
    for (int k = 0; k < 2; k++) {
        double began = 0, took = 0;
        char lines[64];
        json_t *whole;
        snprintf(lines, sizeof lines, " steps %s\n", steps[k]);
        train(lines, 9);
        usleep(100000);
        for (int i = 10; i <= (k ? 26 : 36); i++) {
            if (i == 10)
                began = now_s(); /* the step from whose end on is counted */
            if (i == 20)
                usleep(30000);
            zt_rig_step(&rig);
            if (i == 26)
                took = now_s() - began;
            if (i == 26)
                usleep(k ? 100000 : 0);
        }
        zt_rig_end(&rig);
        (void)events_of("t.json", &whole);
        ck_assert(counted_of(whole, "steps") == 16);
        ck_assert(k == 0 || counted_of(whole, "submitted") == 26);
        ck_assert_double_ge(counted_of(whole, "seconds"), 0.03);
        ck_assert_double_le(counted_of(whole, "seconds"), took);
        ck_assert_double_ge(counted_of(whole, "stall_seconds"), 0);
        ck_assert_double_le(counted_of(whole, "stall_seconds"), took);
        ck_assert(counted_of(whole, "update_interval") == 2 && counted_of(whole, "publish_lag") == 0);
        json_decref(whole);
    }
}

ZT_SUITE("trace")
