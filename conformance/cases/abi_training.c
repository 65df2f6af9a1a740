/* SPDX-License-Identifier: Apache-2.0 */
/* abi_training.c - proof 5, what right calls must say and must not do: step reports, poll while a step is under way,
 * gradients that are not finite, allocations in hooks. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_probes.h"
#include "abi_rig.h"

enum { N_REPORTS = 6, N_COUNTED_STEPS = 12 };

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void check_report(abi_rig_t *rig, const zf_step_report_t *r, uint32_t n_present) {
    abi_probe_t *p = rig->probe;
    abi_check(p, ABI_RULE_REPORT, r->has_report && r->step == rig->n_steps && r->submitted_step == rig->n_steps,
              "step %u with WAIT: has_report %d, step %llu, submitted_step %llu", rig->n_steps, r->has_report,
              (unsigned long long)r->step, (unsigned long long)r->submitted_step);
    abi_check(p, ABI_RULE_REPORT, r->applied == 1 && r->skip_reason == ZF_SKIP_NONE,
              "step %u: applied %d, skip_reason %d", rig->n_steps, r->applied, r->skip_reason);
    abi_check(p, ABI_RULE_REPORT, r->nonfinite_param == ZF_NO_ID, "step %u was applied, nonfinite_param is %u",
              rig->n_steps, r->nonfinite_param);
    abi_check(p, ABI_RULE_REPORT, r->n_present == n_present && r->clip_factor == 1.0,
              "step %u: n_present %u of %u gradients, clip_factor %g without clipping", rig->n_steps, r->n_present,
              n_present, r->clip_factor);
    int is_missed = rig->n_steps == 2; /* c.bias had one in step 1; from then on it is known to come at times */
    abi_check(p, ABI_RULE_REPORT,
              r->n_missing == (is_missed ? 1u : 0u) && r->first_missing == (is_missed ? rig->ids[2] : ZF_NO_ID),
              "step %u: n_missing %u, first_missing %u", rig->n_steps, r->n_missing, r->first_missing);
}

static void run_reports(abi_rig_t *rig) {
    for (uint32_t s = 0; s < N_REPORTS; s++) {
        zf_step_report_t report;
        uint32_t n_present = ABI_RIG_TRAINED - s % 2;
        abi_rig_set_gradients(rig);
        zf_status_t st = abi_rig_step(rig, n_present, &report);
        if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "a right step", st))
            return;
        check_report(rig, &report, n_present);
    }
}

/* ---- non-finite gradients ---------------------------------------------------------------------------------------- */

/* NaN in the last elements of a.weight and c.bias: in warm-up nothing is deferred, so no weight may move; what is
 * counted for the choice of channels may. */
static void run_nonfinite(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    zf_step_report_t report;
    size_t n;
    if (!abi_rig_train(rig, 1, ABI_RULE_VALID))
        return;
    unsigned char *before = abi_rig_state(rig, &n);
    abi_rig_set_gradients(rig);
    ((float *)(void *)rig->grads[0])[29] = ((float *)(void *)rig->grads[2])[4] = NAN;
    zf_status_t st = abi_rig_step(rig, ABI_RIG_TRAINED, &report);
    abi_rig_check(rig, ABI_RULE_NONFINITE, st == ZF_SKIPPED, "step with WAIT, to be skipped,", st);
    abi_check(p, ABI_RULE_NONFINITE, report.has_report && !report.applied && report.skip_reason == ZF_SKIP_NONFINITE,
              "has_report %d, applied %d, skip_reason %d", report.has_report, report.applied, report.skip_reason);
    abi_check(p, ABI_RULE_NONFINITE, report.nonfinite_param == rig->ids[0], "the report names parameter %u, not %u",
              report.nonfinite_param, rig->ids[0]);
    unsigned char *after = abi_rig_state(rig, &n);
    abi_check(p, ABI_RULE_NONFINITE, !before || !after || memcmp(before, after, sizeof rig->memory) == 0,
              "a skipped step changed a weight");
    free(before);
    free(after);
    abi_rig_train(rig, 3, ABI_RULE_USABLE);
}

/* ---- poll -------------------------------------------------------------------------------------------------------- */

static void wait_for_gate(void *gate) {
    while (sem_wait(gate) != 0) {
    }
}

/* ZF_IN_PROGRESS for so long as it says so, up to ten seconds. */
static zf_status_t poll_to_end(abi_rig_t *rig, zf_step_report_t *out_report) {
    zf_status_t st = ZF_IN_PROGRESS;
    for (int i = 0; i < 1000 && st == ZF_IN_PROGRESS; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        st = rig->table->poll(rig->instance, out_report, &rig->err);
    }
    return st;
}

/* The queue is held up before the gradients, so that the step cannot have ended when poll is called. */
static void poll_a_step(abi_rig_t *rig, const zf_cpu_ext_t *cpu, zf_cpu_queue_t *queue, sem_t *gate) {
    zf_step_report_t report;
    rig->step.flags = 0;
    cpu->queue_launch(queue, wait_for_gate, gate, NULL);
    zf_status_t submitted = abi_rig_step(rig, ABI_RIG_TRAINED, &report);
    abi_rig_check(rig, ABI_RULE_POLL, submitted == ZF_SUBMITTED, "step on a queue", submitted);
    zf_status_t held = ABI_CALL(rig, rig->table->poll(rig->instance, &report, &rig->err));
    uint64_t seen = report.has_report ? report.step : 0;
    sem_post(gate);
    zf_status_t ended = ABI_CALL(rig, poll_to_end(rig, &report));
    abi_check(rig->probe, ABI_RULE_POLL, held == ZF_IN_PROGRESS && seen + 1 == rig->n_steps,
              "step %u cannot have ended: poll returned %d and reports step %llu", rig->n_steps, held,
              (unsigned long long)seen);
    abi_check(rig->probe, ABI_RULE_POLL, ended == ZF_OK && report.step == rig->n_steps,
              "step %u has ended: poll returned %d and reports step %llu", rig->n_steps, ended,
              (unsigned long long)report.step);
}

static void run_poll(abi_rig_t *rig) {
    const zf_cpu_ext_t *cpu = rig->table->get_extension(ZF_EXT_CPU);
    zf_cpu_queue_t *queue = abi_rig_queue(rig, ABI_RULE_POLL);
    sem_t gate;
    if (!queue)
        return;
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 3; i++)
        poll_a_step(rig, cpu, queue, &gate);
    abi_rig_end(rig);
    cpu->queue_destroy(queue);
    sem_destroy(&gate);
}

/* ---- allocations ------------------------------------------------------------------------------------------------- */

static unsigned long counted;

static void begin_hook(abi_rig_t *rig) {
    abi_host_enter(&rig->host);
    counted = abi_n_allocations();
}

static void end_hook(abi_rig_t *rig, zf_status_t st, const char *hook) {
    unsigned long n = abi_n_allocations() - counted;
    abi_check(rig->probe, ABI_RULE_VALID, abi_host_left(&rig->host, st) >= 0, "%s returned %d", hook, st);
    abi_check(rig->probe, ABI_RULE_NO_ALLOC, n == 0, "step %u: %s allocated %lu times", rig->n_steps, hook, n);
}

static void count_a_step(abi_rig_t *rig) {
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st;
    abi_rig_set_gradients(rig);
    begin_hook(rig);
    st = rig->table->grads_ready(rig->instance, rig->items, ABI_RIG_TRAINED, sizeof rig->items[0], &rig->stream, &fence,
                                 NULL);
    end_hook(rig, st, "grads_ready");
    begin_hook(rig);
    st = rig->table->step(rig->instance, &rig->step, &report, NULL);
    rig->n_steps++;
    end_hook(rig, st, "step");
    begin_hook(rig);
    st = rig->table->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &fence, NULL);
    end_hook(rig, st, "param_fetch");
    begin_hook(rig);
    st = rig->table->poll(rig->instance, &report, NULL);
    end_hook(rig, st, "poll");
}

static void run_allocations(abi_rig_t *rig) {
    if (!abi_n_allocations) {
        abi_skip(rig->probe, ABI_RULE_NO_ALLOC, "sanitizers and other C libraries have allocators of their own");
        return;
    }
    if (!abi_rig_train(rig, 1, ABI_RULE_VALID))
        return;
    for (int i = 0; i < N_COUNTED_STEPS; i++)
        count_a_step(rig);
}

const abi_row_t abi_training_rows[] = {{"step reports", ABI_BOUND, 0, run_reports},
                                       {"non-finite gradient", ABI_BOUND, 0, run_nonfinite},
                                       {"poll", ABI_OPEN, 0, run_poll},
                                       {"allocations", ABI_BOUND, 0, run_allocations},
                                       {NULL, ABI_NOTHING, 0, NULL}};
