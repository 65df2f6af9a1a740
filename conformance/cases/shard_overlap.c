/* SPDX-License-Identifier: Apache-2.0 */
/* shard_overlap.c - the recorded exchanges of steps on several ranks (model in shard_overlap.h). */
#include "shard_overlap.h"

#include <stdio.h>
#include <string.h>

#include "harness/clock.h"
#include "harness/fetcher.h"

enum { N_RANKS = 4, LAYERS = 8, ROWS = 128, COLUMNS = 256, WARM_UP = 2, N_STEPS = 8, LANES = 5 };

static const uint64_t forward_ns = 16000000, backward_ns = 32000000; /* of a layer */
static const double link_ns = 12000000;                              /* a layer's reduce-scatter, or its all-gather */

typedef enum schedule { OVERLAPPED, SERIAL, INSTANT, N_SCHEDULES } schedule_t;
static const char *const schedule_names[] = {"overlapped", "serial", "instant link"};

/* Of a step, in ns: the first layer's gradients are exchanged last, its values first. */
typedef struct measured {
    uint64_t waited_ns, last_reduce_ns, first_gather_ns;
} measured_t;

/* ---- one rank among its images ----------------------------------------------------------------------------------- */

typedef struct mirror {
    zf_collectives_ext_t table; /* what the plugin is given */
    double ns_per_byte;
    zf_collective_t calls[LANES]; /* one is under way in a lane at a time */
    uint64_t begin_ns[LANES], end_ns[LANES];
    measured_t measured;
} mirror_t;

static zf_status_t find_group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    (void)ctx, (void)number, (void)err;
    *out_rank = 0;
    *out_size = N_RANKS;
    return ZF_OK;
}

/* This rank's part, from each rank. */
static zf_status_t start(void *ctx, const zf_collective_t *call, uint64_t *out_request, zf_error_t *err) {
    mirror_t *mirror = ctx;
    const uint32_t lane = call->lane % LANES;
    const void *own = call->send ? call->send : call->recv;
    (void)err;
    for (uint32_t r = 1; r < N_RANKS; r++)
        memcpy((char *)call->recv + r * call->nbytes, own, call->nbytes);
    mirror->calls[lane] = *call;
    mirror->begin_ns[lane] = zc_now_ns();
    mirror->end_ns[lane] =
        mirror->begin_ns[lane] + (uint64_t)(mirror->ns_per_byte * (double)((N_RANKS - 1) * call->nbytes));
    *out_request = lane;
    return ZF_OK;
}

static zf_status_t test(void *ctx, uint64_t lane, zf_error_t *err) {
    mirror_t *mirror = ctx;
    const zf_collective_t *call = &mirror->calls[lane];
    const uint64_t now = zc_now_ns();
    (void)err;
    if (now < mirror->end_ns[lane])
        return ZF_IN_PROGRESS;
    if (call->bucket == LAYERS - 1 && call->purpose == ZF_COLLECTIVE_FOR_GRADIENTS)
        mirror->measured.last_reduce_ns = now - mirror->begin_ns[lane];
    if (call->bucket == LAYERS - 1 && call->purpose == ZF_COLLECTIVE_FOR_VALUES)
        mirror->measured.first_gather_ns = now - mirror->begin_ns[lane];
    return ZF_OK;
}

static zf_status_t give_up(void *ctx, uint64_t lane, zf_error_t *err) {
    (void)ctx, (void)lane, (void)err;
    return ZF_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* The step that spent least in calls. */
static measured_t run(const zf_loader_t *loader, schedule_t schedule, uint32_t n_passes) {
    mirror_t mirror = {.ns_per_byte = link_ns * N_RANKS / ((N_RANKS - 1.0) * ROWS * COLUMNS * sizeof(float))};
    const fetcher_spec_t spec = {.n_layers = LAYERS,
                                 .per_layer = 1,
                                 .shape = {ROWS, COLUMNS},
                                 .dtype = zf_dtype_float32(),
                                 .n_passes = n_passes,
                                 .forward_ns = forward_ns,
                                 .backward_ns = backward_ns,
                                 .config = "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\npublish_lag = 0\n"
                                           "full_warm_up_rounds = 1\n[host]\nthreads = 1\naffinity = none\n"
                                           "[log]\nlevel = error\n[shard]\nstage = 1\nbucket_bytes = 1\n",
                                 .ranks = &mirror.table,
                                 .is_serial = schedule == SERIAL};
    measured_t least = {.waited_ns = UINT64_MAX};
    fetcher_t host;
    mirror.table = (zf_collectives_ext_t){.struct_size = sizeof mirror.table,
                                          .ctx = &mirror,
                                          .group = find_group,
                                          .start = start,
                                          .test = test,
                                          .abort = give_up};
    if (schedule == INSTANT)
        mirror.ns_per_byte = 0;
    fetcher_open(&host, loader, &spec);
    for (int i = 0; i < WARM_UP + N_STEPS; i++) {
        host.waited_ns = 0;
        fetcher_step(&host);
        mirror.measured.waited_ns = host.waited_ns;
        if (i >= WARM_UP && host.waited_ns < least.waited_ns)
            least = mirror.measured;
    }
    fetcher_close(&host);
    return least;
}

static double ms(uint64_t ns) { return 1e-6 * (double)ns; }

static int measure(const zf_loader_t *loader, uint32_t n_passes) {
    measured_t least[N_SCHEDULES];
    double may_be, exposed[N_SCHEDULES], resolution;
    for (int i = 0; i < N_SCHEDULES; i++)
        least[i] = run(loader, (schedule_t)i, n_passes);
    resolution = ms(least[INSTANT].waited_ns);
    printf(
        "%d ranks, gradients of %u pass(es):\n\n  | schedule | in calls, ms per step | exposed | last reduce-scatter "
        "| first all-gather |\n  |---|---|---|---|---|\n",
        N_RANKS, n_passes);
    for (int i = 0; i < N_SCHEDULES; i++) {
        exposed[i] = ms(least[i].waited_ns) - resolution;
        printf("  | %s | %.1f | %.1f | %.1f | %.1f |\n", schedule_names[i], ms(least[i].waited_ns), exposed[i],
               ms(least[i].last_reduce_ns), ms(least[i].first_gather_ns));
    }
    may_be = ms(least[OVERLAPPED].last_reduce_ns + least[OVERLAPPED].first_gather_ns);
    int is_missed = exposed[OVERLAPPED] > may_be + resolution;
    printf("\n  exposed: %.1f ms, may be %.1f ms, to within %.1f ms: %s; serial: %.1f ms\n\n", exposed[OVERLAPPED],
           may_be, resolution, is_missed ? "missed" : "held", exposed[SERIAL]);
    fflush(stdout);
    return is_missed;
}

int zs_overlap(const zf_loader_t *loader) {
    int is_missed = measure(loader, 1);
    return measure(loader, 8) || is_missed;
}
