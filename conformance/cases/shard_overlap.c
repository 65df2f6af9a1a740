/* SPDX-License-Identifier: Apache-2.0 */
/* shard_overlap.c - the recorded exchanges of steps on several ranks (model in shard_overlap.h). */
#include "shard_overlap.h"

#include <stdio.h>
#include <string.h>

#include "harness/clock.h"
#include "harness/fetcher.h"

enum {
    N_RANKS = 4,
    LAYERS = 8,
    ROWS = 128,
    COLUMNS = 256,
    WARM_UP = 4,
    N_STEPS = 8,
    LANES = 5,
    MOST_PERIOD = 2,
    TRIES = 3
};

static const uint64_t forward_ns = 16000000, backward_ns = 32000000; /* of a layer */
static const double link_ns = 12000000;                              /* a layer's reduce-scatter, or its all-gather */
static const double slow_link_ns = 20000000;                         /* ... which takes longer than its forward */
static const double slack = 1.1;

typedef struct setting {
    const char *name, *config;
    uint32_t n_passes, period; /* steps after which the same happens again; 0: 1 */
    uint32_t n_gathers;        /* of a step, that may be waited for */
    int is_stated;             /* and not judged */
    int is_serial, cannot_fetch;
    int shards_params; /* stage 3 */
    uint32_t n_late;   /* gathers of a slow link that begin behind another one, and take longer than a forward */
} setting_t;

#define EVERY_STEP "mode = windows\nupdate_interval = 1\n"
static const setting_t settings[] = {
    {"defaults", "", .n_gathers = 1},
    {"defaults, eight passes", "", .n_passes = 8, .n_gathers = 1},
    {"windows of one step, topk_ratio = 0.95", EVERY_STEP "topk_ratio = 0.95\n", .n_gathers = 1},
    {"mode = windows", "mode = windows\n", .period = 2, .n_gathers = 1},
    {"state_mib = all", "[device]\nstate_mib = all\n", .n_gathers = 1},
    {"defaults, a host that does not fetch", "", .n_gathers = LAYERS, .is_stated = 1, .cannot_fetch = 1},
    {"defaults, a serial host", "", .n_gathers = 1, .is_stated = 1, .is_serial = 1},
    {"publish_lag = 1", EVERY_STEP "publish_lag = 1\n", .n_gathers = 0},
    {"publish_lag = 1, a host that does not fetch", EVERY_STEP "publish_lag = 1\n", .cannot_fetch = 1},
    {"stage = 3", "", .n_gathers = 1, .shards_params = 1},
    {"stage = 3, a link slower than forward", "", .n_gathers = 1, .shards_params = 1, .n_late = LAYERS - 1},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

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
    if (call->bucket == LAYERS - 1 &&
        (call->purpose == ZF_COLLECTIVE_FOR_VALUES || call->purpose == ZF_COLLECTIVE_FOR_PARAMETERS))
        mirror->measured.first_gather_ns = now - mirror->begin_ns[lane];
    return ZF_OK;
}

static zf_status_t give_up(void *ctx, uint64_t lane, zf_error_t *err) {
    (void)ctx, (void)lane, (void)err;
    return ZF_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static uint32_t period_of(const setting_t *setting) { return setting->period ? setting->period : 1; }

/* Of each step of a period, the one that waited least. */
static void run(const zf_loader_t *loader, const setting_t *setting, int is_instant, measured_t least[MOST_PERIOD]) {
    mirror_t mirror = {.ns_per_byte = is_instant ? 0
                                                 : (setting->n_late ? slow_link_ns : link_ns) * N_RANKS /
                                                       ((N_RANKS - 1.0) * ROWS * COLUMNS * sizeof(float))};
    char config[256];
    const fetcher_spec_t spec = {.n_layers = LAYERS,
                                 .per_layer = 1,
                                 .shape = {ROWS, COLUMNS},
                                 .dtype = zf_dtype_float32(),
                                 .n_passes = setting->n_passes ? setting->n_passes : 1,
                                 .forward_ns = forward_ns,
                                 .backward_ns = backward_ns,
                                 .config = config,
                                 .ranks = &mirror.table,
                                 .is_serial = setting->is_serial,
                                 .goes_by_shards = setting->shards_params,
                                 .cannot_fetch = setting->cannot_fetch};
    fetcher_t host;
    snprintf(config, sizeof config,
             "[host]\nthreads = 1\n[shard]\nstage = %d\nbucket_bytes = 1\n"
             "[zenflow]\nfull_warm_up_rounds = 1\n%s",
             setting->shards_params ? 3 : 1, setting->config);
    mirror.table = (zf_collectives_ext_t){.struct_size = sizeof mirror.table,
                                          .ctx = &mirror,
                                          .group = find_group,
                                          .start = start,
                                          .test = test,
                                          .abort = give_up};
    for (uint32_t i = 0; i < period_of(setting); i++)
        least[i].waited_ns = UINT64_MAX;
    fetcher_open(&host, loader, &spec);
    for (uint32_t i = 0; i < WARM_UP + N_STEPS * period_of(setting); i++) {
        measured_t *best = &least[i % period_of(setting)];
        fetcher_step(&host);
        mirror.measured.waited_ns = host.waited_ns;
        if (i >= WARM_UP && host.waited_ns < best->waited_ns)
            *best = mirror.measured;
    }
    fetcher_close(&host);
}

static double ms(uint64_t ns) { return 1e-6 * (double)ns; }

/* Of the step of a period that shows most of what it may show. */
typedef struct outcome {
    double exposed, may_be;
    measured_t step;
} outcome_t;

static outcome_t measure(const zf_loader_t *loader, const setting_t *setting) {
    measured_t least[MOST_PERIOD], instant[MOST_PERIOD];
    outcome_t worst = {.may_be = 1};
    run(loader, setting, 0, least);
    run(loader, setting, 1, instant);
    for (uint32_t i = 0; i < period_of(setting); i++) {
        double shown = ms(least[i].waited_ns) - ms(instant[i].waited_ns);
        double may_show = setting->n_late * 1e-6 * (slow_link_ns - (double)forward_ns) + ms(least[i].last_reduce_ns) +
                          setting->n_gathers * ms(least[i].first_gather_ns);
        if (shown * worst.may_be >= worst.exposed * may_show)
            worst = (outcome_t){shown, may_show, least[i]};
    }
    return worst;
}

/* Prints what a setting comes to. Returns whether it is missed, each of a few times. */
static int judge(const zf_loader_t *loader, const setting_t *setting) {
    outcome_t found = measure(loader, setting);
    for (int i = 1; i < TRIES && !setting->is_stated && found.exposed > slack * found.may_be; i++)
        found = measure(loader, setting);
    int is_missed = !setting->is_stated && found.exposed > slack * found.may_be;
    printf("  | %s | %.1f | %.1f | %.1f | %.1f | %s |\n", setting->name, found.exposed, found.may_be,
           ms(found.step.last_reduce_ns), ms(found.step.first_gather_ns),
           setting->is_stated ? "stated"
           : is_missed        ? "missed"
                              : "held");
    fflush(stdout);
    return is_missed;
}

int zs_overlap(const zf_loader_t *loader, uint32_t only) {
    int is_missed = 0;
    printf("%d ranks, ms per step, exposed at most %.0f %% more than may be:\n\n"
           "  | setting | exposed | may be | last reduce-scatter | first all-gather | |\n  |---|---|---|---|---|---|\n",
           N_RANKS, 100 * (slack - 1));
    for (uint32_t i = 0; i < N_SETTINGS; i++)
        if (only >= N_SETTINGS || only == i)
            is_missed |= judge(loader, &settings[i]);
    return is_missed;
}
