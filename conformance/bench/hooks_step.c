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

#include "harness/clock.h"
#include "harness/rig.h"
#include "hooks.h"
#include "table.h"

enum { N_SIZES = 5 };

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

static void time_one(rig_t *rig, samples_t *step, samples_t *step_cpu, samples_t *process, samples_t *fetch) {
    zf_fence_t done = {.struct_size = sizeof done}, ready = {.struct_size = sizeof ready};
    zf_error_t err = {.struct_size = sizeof err};
    uint64_t wall, cpu, all = zc_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    rig_deliver(rig, 0, rig->spec.n_tensors, 64, &done);
    rig_wait(rig, &done);
    cpu = zc_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    wall = zc_now_ns();
    rig_step(rig, 0);
    samples_add(step, (double)(zc_now_ns() - wall));
    samples_add(step_cpu, (double)(zc_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu));
    wall = zc_now_ns();
    rig_check(rig->zf->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &ready, &err), &err);
    samples_add(fetch, (double)(zc_now_ns() - wall));
    rig_quiesce(rig, ZF_QUIESCE_DRAIN);
    samples_add(process, (double)(zc_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - all));
}

static void print_all(const hooks_t *hooks, const step_t *step) {
    static const column_t columns[] = {{"tensors", 0}, {"step_ns", 0},  {"q1_ns", 0},          {"q3_ns", 0},
                                       {"cpu_ns", 0},  {"fetch_ns", 0}, {"process_cpu_ns", 0}, {NULL, 0}};
    table_t table = table_begin(hooks->json, "step",
                                "on the calling thread against the number of tensors of 1,000 elements", columns);
    for (int i = 0; i < N_SIZES; i++) {
        const quartiles_t wall = samples_quartiles(&step->step[i]);
        table_row(&table, NULL,
                  (const double[]){sizes[i], wall.median, wall.q1, wall.q3, samples_median(&step->step_cpu[i]),
                                   samples_median(&step->fetch[i]), samples_median(&step->process[i])},
                  NULL);
    }
    table_end(&table, (const figure_t[]){{"repeats", hooks->n_repeats},
                                         {"poll_ns", samples_median(&step->poll)},
                                         {"cpu_lost_share", samples_median(&step->lost)},
                                         {NULL, 0}});
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
        samples_add(&step.poll, rig_poll_ns(&step.rigs[0]));
        samples_add(&step.lost, samples_lost_share(5000000));
        for (int i = 0; i < N_SIZES; i++)
            time_one(&step.rigs[i], &step.step[i], &step.step_cpu[i], &step.process[i], &step.fetch[i]);
    }
    print_all(hooks, &step);
    for (int i = 0; i < N_SIZES; i++)
        rig_close(&step.rigs[i]);
}
