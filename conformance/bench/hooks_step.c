/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_step.c - the step and param_fetch hooks on the calling thread against the number of tensors.
 *
 * A repetition visits every number of tensors once. The gradients of a step are handed over and taken before the clock
 * starts, so that the hook finds an idle instance; it returns as soon as the step is submitted. Steps take all places
 * in the window in turn (closes are staggered over it). Limit: an empty hook (poll). */
#define _GNU_SOURCE /* asprintf */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { N_SIZES = 5, FENCE_TIMEOUT_S = 60, N_POLLS = 1000 };

static const uint32_t sizes[N_SIZES] = {1, 10, 100, 1000, 10000};

typedef struct step {
    rig_t rigs[N_SIZES];
    samples_t step[N_SIZES], step_cpu[N_SIZES], process[N_SIZES], fetch[N_SIZES], poll, lost;
} step_t;

/* Instances with files need one each: a @ in the text becomes the number of tensors. To be freed. */
static char *config_of(const char *text, uint32_t n_tensors) {
    const char *at = text ? strchr(text, '@') : NULL;
    char *out = NULL;
    int n = at ? asprintf(&out, "%.*s%u%s", (int)(at - text), text, n_tensors, at + 1)
               : asprintf(&out, "%s", text ? text : "");

    return n < 0 ? NULL : out;
}

static void deliver_and_wait(rig_t *rig) {
    zf_fence_t done = {.struct_size = sizeof done};
    zf_error_t err = {.struct_size = sizeof err};

    rig_deliver(rig, 0, rig->spec.n_tensors, 64, &done);
    rig_check(zf_loader_fence_wait(rig->loader, &done, FENCE_TIMEOUT_S * UINT64_C(1000000000), &err), &err);
}

static uint64_t fetch_ns(rig_t *rig) {
    zf_fence_t ready = {.struct_size = sizeof ready};
    zf_error_t err;
    uint64_t begin;

    err.struct_size = sizeof err;
    begin = samples_now_ns();
    rig_check(rig->zf->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &ready, &err), &err);
    return samples_now_ns() - begin;
}

static void time_one(rig_t *rig, samples_t *step, samples_t *step_cpu, samples_t *process, samples_t *fetch) {
    uint64_t wall, cpu, all = samples_process_cpu_ns();

    deliver_and_wait(rig);
    cpu = samples_thread_cpu_ns();
    wall = samples_now_ns();
    rig_step(rig, 0);
    wall = samples_now_ns() - wall;
    cpu = samples_thread_cpu_ns() - cpu;
    samples_add(step, (double)wall);
    samples_add(step_cpu, (double)cpu);
    samples_add(fetch, (double)fetch_ns(rig));
    rig_drain(rig);
    samples_add(process, (double)(samples_process_cpu_ns() - all));
}

static void time_poll(const rig_t *rig, samples_t *samples) {
    zf_error_t err;
    uint64_t wall;

    err.struct_size = sizeof err;
    wall = samples_now_ns();
    for (int i = 0; i < N_POLLS; i++)
        rig_check(rig->zf->poll(rig->instance, NULL, &err), &err);
    samples_add(samples, (double)(samples_now_ns() - wall) / N_POLLS);
}

static void print_row(const hooks_t *hooks, const step_t *step, int i) {
    const quartiles_t wall = samples_quartiles(&step->step[i]);
    const double cpu = samples_median(&step->step_cpu[i]), fetch = samples_median(&step->fetch[i]);
    const double poll = samples_median(&step->poll);

    printf("%7u | %9.1f %7.1f..%-7.1f %9.1f | %10.1f %8.0f | %9.2f\n", sizes[i], 1e-3 * wall.median, 1e-3 * wall.q1,
           1e-3 * wall.q3, 1e-3 * cpu, wall.median / sizes[i], wall.median / poll, 1e-3 * fetch);
    if (hooks->json)
        fprintf(hooks->json,
                "%s\n  {\"tensors\": %u, \"step_ns\": %.0f, \"q1_ns\": %.0f, \"q3_ns\": %.0f, \"cpu_ns\": %.0f, "
                "\"process_cpu_ns\": %.0f, \"fetch_ns\": %.0f}",
                i ? "," : "", sizes[i], wall.median, wall.q1, wall.q3, cpu, samples_median(&step->process[i]), fetch);
}

static void print_all(const hooks_t *hooks, const step_t *step) {
    const double poll = samples_median(&step->poll), lost = samples_median(&step->lost);

    printf("step: us on the calling thread against the number of tensors of %d elements, medians of %d\n",
           HOOKS_SMALL_ELEMS, hooks->n_repeats);
    printf("  in the same run: empty hook (poll) %.0f ns; others took %.0f %% of this CPU\n", poll, 100.0 * lost);
    printf("%7s | %9s %16s %9s | %10s %8s | %9s\n", "tensors", "step us", "quartiles", "cpu us", "ns/tensor", "x poll",
           "fetch us");
    if (hooks->json)
        fprintf(hooks->json,
                "\"step\": {\"elems\": %d, \"repeats\": %d, \"poll_ns\": %.1f, \"cpu_lost_share\": %.4f, "
                "\"rows\": [",
                HOOKS_SMALL_ELEMS, hooks->n_repeats, poll, lost);
    for (int i = 0; i < N_SIZES; i++)
        print_row(hooks, step, i);
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}

void hooks_step(hooks_t *hooks) {
    static step_t step;
    static samples_t ignored[4];

    for (int i = 0; i < N_SIZES; i++) {
        char *config = config_of(hooks->config, sizes[i]);
        const rig_spec_t spec = {.n_tensors = sizes[i],
                                 .ndim = 2,
                                 .shape = {20, HOOKS_SMALL_ELEMS / 20},
                                 .dtype = zf_dtype_bfloat16(),
                                 .mode = RIG_ASYNC,
                                 .config = config};

        rig_open(&step.rigs[i], hooks->loader, &spec);
        free(config);
        for (int warm = 0; warm < 2 * HOOKS_WINDOW; warm++)
            time_one(&step.rigs[i], &ignored[0], &ignored[1], &ignored[2], &ignored[3]);
    }
    for (int r = 0; r < hooks->n_repeats; r++) {
        time_poll(&step.rigs[0], &step.poll);
        samples_add(&step.lost, samples_lost_share(5000000));
        for (int i = 0; i < N_SIZES; i++)
            time_one(&step.rigs[i], &step.step[i], &step.step_cpu[i], &step.process[i], &step.fetch[i]);
    }
    print_all(hooks, &step);
    for (int i = 0; i < N_SIZES; i++)
        rig_close(&step.rigs[i]);
}
