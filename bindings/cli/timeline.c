/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/timeline.c - the simulator of a step (model in timeline.h). */
#include "timeline.h"

#include <stdlib.h>

/* An early replay writes elsewhere than it reads, which takes longer. */
#define EARLY_SPEED 0.88

enum { WINDOWS_BEFORE = 3, WINDOWS_COUNTED = 3, LEAST_STEPS = 4 };

typedef struct state {
    const timeline_args_t *args;
    double total_elems;
    double device, net, down, host, up; /* each is free from then on */
    double *reduced;                    /* [n_buckets] when the step's sums of a bucket are there */
    double *arrived;                    /* [n_buckets] when the step's gradients of a bucket are on the host */
    double *on_host;                    /* [n_buckets] elements whose state is there */
    double *early;                      /* [n_buckets] when an early replay ended; 0: none; -1: it was given up */
    double *due[2];                     /* [n_buckets] when the values that closed at this step (0) and the one before
                                         * (1) are in place */
    timeline_t busy;
} state_t;

static double later(double a, double b) { return a > b ? a : b; }

/* One event on a resource that is free from *free on: returns its end. */
static double run(double *free_at, double ready, double seconds, double *busy) {
    *free_at = later(*free_at, ready) + seconds;
    *busy += seconds;
    return *free_at;
}

/* A collective in which each rank has a part of nbytes: (P-1)/P of them cross each rank's network. */
static double collective_s(const timeline_args_t *args, double nbytes) {
    if (args->n_ranks < 2)
        return 0;
    return args->net_latency_s + nbytes * (args->n_ranks - 1) / args->n_ranks / args->net_nbytes_per_s;
}

/* Of each bucket, the part whose state this rank has on the host. */
static void count_on_host(state_t *state) {
    const timeline_args_t *args = state->args;
    double resident = args->resident_elems;
    for (uint32_t b = 0; b < args->n_buckets; b++) {
        double elems = args->is_sharded ? args->bucket_elems[b] / args->n_ranks : args->bucket_elems[b];
        double here = resident < elems ? resident : elems;
        state->on_host[b] = elems - here;
        resident -= here;
    }
}

static void compute(state_t *state, double elems, double seconds) {
    run(&state->device, 0, seconds * elems / state->total_elems, &state->busy.compute_s);
}

/* The first forward of a step waits for values: with lag 0 for what the last step closed, with lag 1 for what closed
 * one earlier; all at once, or bucket by bucket. */
static void forward(state_t *state, int is_first) {
    const timeline_args_t *args = state->args;
    int is_late = args->publish_lag > 0, waits_at_once = is_late || !args->fetches;
    for (uint32_t b = 0; b < args->n_buckets && is_first && waits_at_once; b++)
        state->device = later(state->device, state->due[is_late][b]);
    for (uint32_t b = 0; b < args->n_buckets; b++) {
        if (is_first && !waits_at_once)
            state->device = later(state->device, state->due[0][b]);
        compute(state, args->bucket_elems[b], args->forward_s);
    }
}

static void backward(state_t *state, int is_last) {
    const timeline_args_t *args = state->args;
    for (uint32_t b = args->n_buckets; b-- > 0;) {
        double elems = args->bucket_elems[b];
        compute(state, elems, args->backward_s);
        if (!is_last)
            continue;
        state->reduced[b] =
            run(&state->net, state->device, args->reduce_factor * collective_s(args, elems * args->grad_nbytes),
                &state->busy.reduce_s);
    }
}

/* The newest whose gradients are there at a time, that was not tried; n_buckets: none. */
static uint32_t newest(const state_t *state, double at) {
    uint32_t b = 0;
    while (b < state->args->n_buckets && (state->arrived[b] > at || state->early[b] != 0 || state->on_host[b] == 0))
        b++;
    return b;
}

/* Gives early replays up, the oldest first, until a bucket fits beside the others. */
static void make_room(state_t *state, double elems, double *used) {
    for (uint32_t b = state->args->n_buckets; b-- > 0 && *used + elems > state->args->spare_elems;)
        if (state->early[b] > 0) {
            state->early[b] = -1;
            *used -= state->on_host[b];
        }
}

/* What is replayed before the norm is known. */
static void replay_early(state_t *state, double all) {
    const timeline_args_t *args = state->args;
    double used = 0;
    for (uint32_t b = 0; b < args->n_buckets; b++)
        state->early[b] = 0;
    for (uint32_t last = args->n_buckets; args->spare_elems > 0 && state->host < all;) {
        uint32_t b = newest(state, state->host);
        if (b < args->n_buckets) {
            make_room(state, state->on_host[b], &used);
            used += state->on_host[b];
            state->early[b] = run(&state->host, 0, state->on_host[b] / (EARLY_SPEED * args->replay_elems_per_s),
                                  &state->busy.replay_s);
        } else if (last > 0) {
            state->host = later(state->host, state->arrived[--last]); /* they arrive from the last on */
        } else {
            break;
        }
    }
}

static void replay(state_t *state) {
    const timeline_args_t *args = state->args;
    double all = state->device, slowest, *before = state->due[1];
    for (uint32_t b = args->n_buckets; b-- > 0;) {
        state->arrived[b] = run(&state->down, state->reduced[b],
                                state->on_host[b] * args->grad_nbytes / args->down_nbytes_per_s, &state->busy.down_s);
        all = later(all, state->arrived[b]);
    }
    state->due[1] = state->due[0];
    state->due[0] = before;
    slowest = all;
    replay_early(state, all);
    for (uint32_t b = 0; b < args->n_buckets; b++) {
        double mine = state->on_host[b];
        double closed_nbytes = args->value_nbytes / args->update_interval;
        double end = all; /* where the device has all of it */
        if (state->early[b] > 0)
            end = later(all, state->early[b]);
        else if (mine > 0)
            end = run(&state->host, all, mine / args->replay_elems_per_s, &state->busy.replay_s);
        if (state->early[b] <= 0)
            slowest += mine * args->most_close * args->update_interval / args->replay_elems_per_s;
        end = later(end, slowest);
        end = run(&state->up, end, mine * closed_nbytes / args->up_nbytes_per_s, &state->busy.up_s);
        if (args->is_sharded && args->n_ranks > 1)
            end =
                run(&state->net, end, collective_s(args, args->bucket_elems[b] * closed_nbytes), &state->busy.gather_s);
        state->due[0][b] = end;
    }
}

static void step(state_t *state) {
    uint32_t n = state->args->n_micro_batches;
    for (uint32_t i = 0; i < n; i++) {
        forward(state, i == 0);
        backward(state, i + 1 == n);
    }
    replay(state);
    run(&state->device, 0, state->args->own_s, &state->busy.own_s);
}

int timeline_run(const timeline_args_t *args, timeline_t *out) {
    uint32_t n = args->n_buckets, period = args->update_interval > LEAST_STEPS ? args->update_interval : LEAST_STEPS;
    uint32_t n_counted = WINDOWS_COUNTED * period;
    double *memory = calloc(6 * (size_t)n, sizeof *memory), start;
    state_t state = {.args = args,
                     .reduced = memory,
                     .arrived = memory + n,
                     .on_host = memory + 2 * (size_t)n,
                     .early = memory + 3 * (size_t)n,
                     .due = {memory + 4 * (size_t)n, memory + 5 * (size_t)n}};
    if (!memory)
        return 0;
    count_on_host(&state);
    for (uint32_t b = 0; b < n; b++)
        state.total_elems += args->bucket_elems[b];
    for (uint32_t i = 0; i < WINDOWS_BEFORE * period; i++)
        step(&state);
    start = state.device;
    state.busy = (timeline_t){0};
    for (uint32_t i = 0; i < n_counted; i++)
        step(&state);
    *out = (timeline_t){.step_s = (state.device - start) / n_counted,
                        .compute_s = state.busy.compute_s / n_counted,
                        .reduce_s = state.busy.reduce_s / n_counted,
                        .down_s = state.busy.down_s / n_counted,
                        .replay_s = state.busy.replay_s / n_counted,
                        .up_s = state.busy.up_s / n_counted,
                        .gather_s = state.busy.gather_s / n_counted,
                        .own_s = state.busy.own_s / n_counted};
    free(memory);
    return 1;
}
