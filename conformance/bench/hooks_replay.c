/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_replay.c - replay of many small tensors against one large one.
 *
 * Two instances with the same number of elements; a repetition makes one window of each, in turn. After every step the
 * instance drains, so that the workers replay while nothing else of it runs. Time per element and update is the
 * workers' on a CPU, over replay_elems of zf.stats/1: what waits for a core that others use does not count. Beside it,
 * in the same repetition: read-modify-write of the same streams on one thread (streams.h), the limit of both. */
#include <string.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"
#include "streams.h"

enum { N_SMALL = 10000, ROWS = 20, N_RIGS = 2, LIMIT_ELEMS = 4 << 20, CHUNK_ELEMS = 32768, SLOT_PAD = 320 };

static const double bar = 1.3;

/* The streams of the limit: w, m, v, visible in long arrays, the slots of a chunk together, as in the engine. */
typedef struct limit {
    float *w, *m, *v;
    uint16_t *visible;
    char *slots;
    size_t slot_nbytes;
} limit_t;

typedef struct replay {
    rig_t rigs[N_RIGS]; /* many small tensors, one large */
    limit_t limit;
    samples_t per_elem[N_RIGS], rmw, ratio, lost; /* ns per element and update; small / large */
    uint32_t n_workers;
} replay_t;

static size_t slots_nbytes(const limit_t *limit) {
    return (size_t)(LIMIT_ELEMS / CHUNK_ELEMS) * HOOKS_WINDOW * limit->slot_nbytes;
}

static void open_limit(limit_t *limit) {
    limit->slot_nbytes = CHUNK_ELEMS * sizeof(uint16_t) + SLOT_PAD;
    limit->w = rig_allocate(LIMIT_ELEMS * sizeof(float));
    limit->m = rig_allocate(LIMIT_ELEMS * sizeof(float));
    limit->v = rig_allocate(LIMIT_ELEMS * sizeof(float));
    limit->visible = rig_allocate(LIMIT_ELEMS * sizeof(uint16_t));
    limit->slots = rig_allocate(slots_nbytes(limit));
    memset(limit->w, 0, LIMIT_ELEMS * sizeof(float));
    memset(limit->m, 0, LIMIT_ELEMS * sizeof(float));
    memset(limit->v, 0, LIMIT_ELEMS * sizeof(float));
    memset(limit->visible, 0, LIMIT_ELEMS * sizeof(uint16_t));
    memset(limit->slots, 0x3c, slots_nbytes(limit)); /* pages of its own: untouched ones are one shared page of zeros */
}

static void close_limit(limit_t *limit) {
    rig_free(limit->w, LIMIT_ELEMS * sizeof(float));
    rig_free(limit->m, LIMIT_ELEMS * sizeof(float));
    rig_free(limit->v, LIMIT_ELEMS * sizeof(float));
    rig_free(limit->visible, LIMIT_ELEMS * sizeof(uint16_t));
    rig_free(limit->slots, slots_nbytes(limit));
}

/* ns per element and update; the better of two distances of software prefetch. */
static double pass_ns(const limit_t *limit, size_t ahead_nbytes) {
    const uint64_t begin = samples_now_ns();

    for (size_t first = 0; first < LIMIT_ELEMS; first += CHUNK_ELEMS) {
        const void *grads[HOOKS_WINDOW];
        const streams_t streams = {.w = limit->w + first,
                                   .m = limit->m + first,
                                   .v = limit->v + first,
                                   .grads = grads,
                                   .n_slots = HOOKS_WINDOW,
                                   .elem_nbytes = sizeof(uint16_t),
                                   .visible = limit->visible + first,
                                   .n_elems = CHUNK_ELEMS};

        for (size_t k = 0; k < HOOKS_WINDOW; k++)
            grads[k] = limit->slots + (first / CHUNK_ELEMS * HOOKS_WINDOW + k) * limit->slot_nbytes;
        streams_read_modify_write(&streams, ahead_nbytes);
    }
    return (double)(samples_now_ns() - begin) / LIMIT_ELEMS / HOOKS_WINDOW;
}

static double limit_ns(const limit_t *limit) {
    const double plain = pass_ns(limit, 0), ahead = pass_ns(limit, 1024);

    return plain < ahead ? plain : ahead;
}

/* One window; ns of the workers' time on a CPU per element and update. */
static double window_ns(rig_t *rig) {
    const uint64_t elems = rig_counter(rig, "replay_elems"), ns = samples_named_cpu_ns("zf-worker");

    for (int s = 0; s < HOOKS_WINDOW; s++) {
        rig_deliver(rig, 0, rig->spec.n_tensors, 64, NULL);
        rig_step(rig, ZF_STEP_WAIT);
        rig_drain(rig);
    }
    return (double)(samples_named_cpu_ns("zf-worker") - ns) / (double)(rig_counter(rig, "replay_elems") - elems);
}

static void repeat(replay_t *replay) {
    double ns[N_RIGS];

    for (int i = 0; i < N_RIGS; i++) {
        ns[i] = window_ns(&replay->rigs[i]);
        samples_add(&replay->per_elem[i], ns[i]);
    }
    samples_add(&replay->ratio, ns[0] / ns[1]);
    samples_add(&replay->rmw, limit_ns(&replay->limit));
    samples_add(&replay->lost, samples_lost_share(5000000));
}

static void print_row(const hooks_t *hooks, const replay_t *replay, int i) {
    const quartiles_t ns = samples_quartiles(&replay->per_elem[i]);
    const double rmw = samples_median(&replay->rmw);
    const rig_spec_t *spec = &replay->rigs[i].spec;
    const long elems = (long)(spec->shape[0] * spec->shape[1]);

    printf("%7u x %8ld | %7.4f %7.4f..%-7.4f | %7.4f %6.2f\n", spec->n_tensors, elems, ns.median, ns.q1, ns.q3, rmw,
           ns.median / rmw);
    if (hooks->json)
        fprintf(
            hooks->json,
            "%s\n  {\"tensors\": %u, \"elems\": %ld, \"ns_per_elem_update\": %.5f, \"q1_ns\": %.5f, \"q3_ns\": %.5f}",
            i ? "," : "", spec->n_tensors, elems, ns.median, ns.q1, ns.q3);
}

static void print_all(hooks_t *hooks, const replay_t *replay) {
    const quartiles_t ratio = samples_quartiles(&replay->ratio);

    printf("replay: CPU ns of the workers per element and update, bf16, S = %d, %u worker(s), medians of %d windows; "
           "limit = "
           "read-modify-write of the same streams\n",
           HOOKS_WINDOW, replay->n_workers, hooks->n_repeats);
    printf("%18s | %7s %16s | %7s %6s\n", "tensors x elements", "ns", "quartiles", "limit", "ratio");
    if (hooks->json)
        fprintf(hooks->json,
                "\"replay\": {\"slots\": %d, \"workers\": %u, \"repeats\": %d, \"rmw_ns\": %.5f, \"rows\": [",
                HOOKS_WINDOW, replay->n_workers, hooks->n_repeats, samples_median(&replay->rmw));
    for (int i = 0; i < N_RIGS; i++)
        print_row(hooks, replay, i);
    printf("  small / large, window by window: %.2f (quartiles %.2f..%.2f), bar %.1f %s; others took %.0f %% of this "
           "CPU\n",
           ratio.median, ratio.q1, ratio.q3, bar, hooks_verdict(hooks, ratio.median <= bar),
           100.0 * samples_median(&replay->lost));
    if (hooks->json)
        fprintf(hooks->json,
                "\n], \"small_over_large\": %.4f, \"q1\": %.4f, \"q3\": %.4f, \"bar\": %.1f, \"cpu_lost_share\": %.4f}",
                ratio.median, ratio.q1, ratio.q3, bar, samples_median(&replay->lost));
}

void hooks_replay(hooks_t *hooks) {
    static replay_t replay;

    for (int i = 0; i < N_RIGS; i++) {
        const int64_t rows = i ? (int64_t)ROWS * 100 : ROWS; /* 20 x 50 and 2,000 x 5,000 */
        const rig_spec_t spec = {
            .n_tensors = i ? 1 : N_SMALL,
            .ndim = 2,
            .shape = {rows, i ? (int64_t)N_SMALL * HOOKS_SMALL_ELEMS / rows : HOOKS_SMALL_ELEMS / rows},
            .dtype = zf_dtype_bfloat16(),
            .mode = RIG_ASYNC,
            .config = hooks->config};

        rig_open(&replay.rigs[i], hooks->loader, &spec);
    }
    open_limit(&replay.limit);
    for (int i = 0; i < N_RIGS; i++)
        for (int warm = 0; warm < 3; warm++) /* past the warm-up and the first touch of every slot */
            (void)window_ns(&replay.rigs[i]);
    replay.n_workers = (uint32_t)rig_counter(&replay.rigs[0], "n_workers");
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&replay);
    print_all(hooks, &replay);
    close_limit(&replay.limit);
    for (int i = 0; i < N_RIGS; i++)
        rig_close(&replay.rigs[i]);
}
