/* SPDX-License-Identifier: Apache-2.0 */
/* abi_training.c - proof 5, what right calls must say and must not do: step reports, poll while a step is under way,
 * gradients that are not finite, allocations in hooks. */
#define _GNU_SOURCE /* environ */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_rig.h"

enum { N_REPORTS = 6, N_COUNTED_STEPS = 12 };

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static void set_bf16(abi_rig_t *rig, int i, size_t element, uint16_t bits) {
    memcpy((char *)rig->grads[i] + 2 * element, &bits, sizeof bits);
}

static void set_fp32(abi_rig_t *rig, int i, size_t element, float x) {
    memcpy((char *)rig->grads[i] + 4 * element, &x, sizeof x);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

/* Of the first n gradients of the rig, which are float32 but for b.weight. */
static double norm_of(const abi_rig_t *rig, uint32_t n) {
    static const size_t n_elems[ABI_RIG_TRAINED] = {30, 32, 5};
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < n_elems[i]; k++) {
            uint32_t bits = 0;
            float x;
            if (i == 1)
                bits = (uint32_t)((const uint16_t *)(const void *)rig->grads[i])[k] << 16;
            else
                memcpy(&bits, (const char *)rig->grads[i] + 4 * k, 4);
            memcpy(&x, &bits, 4);
            sum += (double)x * (double)x;
        }
    return sqrt(sum);
}

static void check_report(abi_rig_t *rig, const zf_step_report_t *r, uint32_t n_present) {
    abi_probe_t *p = rig->probe;
    double norm = norm_of(rig, n_present);
    int is_missed;
    abi_check(p, ABI_RULE_REPORT, r->has_report && r->step == rig->n_steps && r->submitted_step == rig->n_steps,
              "step %u with WAIT: has_report %d, step %llu, submitted_step %llu", rig->n_steps, r->has_report,
              (unsigned long long)r->step, (unsigned long long)r->submitted_step);
    abi_check(p, ABI_RULE_REPORT, r->applied == 1 && r->skip_reason == ZF_SKIP_NONE,
              "step %u: applied %d, skip_reason %d", rig->n_steps, r->applied, r->skip_reason);
    abi_check(p, ABI_RULE_REPORT, r->nonfinite_param == ZF_NO_ID, "step %u was applied, nonfinite_param is %u",
              rig->n_steps, r->nonfinite_param);
    abi_check(p, ABI_RULE_REPORT, r->n_present == n_present, "step %u: n_present %u of %u gradients", rig->n_steps,
              r->n_present, n_present);
    abi_check(p, ABI_RULE_REPORT, fabs(r->grad_norm - norm) <= 1e-5 * norm && r->clip_factor == 1.0,
              "step %u: grad_norm %g of %g, clip_factor %g without clipping", rig->n_steps, r->grad_norm, norm,
              r->clip_factor);
    is_missed = rig->n_steps == 2; /* c.bias had one in step 1; from then on it is known to come at times */
    abi_check(p, ABI_RULE_REPORT,
              r->n_missing == (is_missed ? 1u : 0u) && r->first_missing == (is_missed ? rig->ids[2] : ZF_NO_ID),
              "step %u: n_missing %u, first_missing %u", rig->n_steps, r->n_missing, r->first_missing);
}

static void run_reports(abi_rig_t *rig) {
    zf_error_t err = {.struct_size = sizeof err};
    for (uint32_t s = 0; s < N_REPORTS; s++) {
        zf_step_report_t report;
        uint32_t n_present = ABI_RIG_TRAINED - s % 2;
        zf_status_t st;
        abi_rig_set_gradients(rig);
        st = abi_rig_step(rig, n_present, &report, &err);
        if (!abi_check(rig->probe, ABI_RULE_VALID, st == ZF_OK, "a right step returned %d: %s", st, err.message))
            return;
        check_report(rig, &report, n_present);
    }
}

/* ---- non-finite gradients ---------------------------------------------------------------------------------------- */

static void check_skipped(abi_rig_t *rig, zf_status_t st, const zf_step_report_t *report, uint32_t named,
                          const char *what) {
    abi_probe_t *p = rig->probe;
    abi_check(p, ABI_RULE_NONFINITE, st == ZF_SKIPPED, "%s: step with WAIT returned %d, not ZF_SKIPPED", what, st);
    abi_check(p, ABI_RULE_NONFINITE, report->has_report && !report->applied && report->skip_reason == ZF_SKIP_NONFINITE,
              "%s: report: has_report %d, applied %d, skip_reason %d", what, report->has_report, report->applied,
              report->skip_reason);
    abi_check(p, ABI_RULE_NONFINITE, report->nonfinite_param == rig->ids[named],
              "%s: report names parameter %u, not %u", what, report->nonfinite_param, rig->ids[named]);
}

/* A skipped step: masters and moments keep their bits, visible values stay finite. */
static void skip_a_step(abi_rig_t *rig, uint32_t named, const char *what) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_step_report_t report;
    zf_status_t st;
    abi_try(rig->probe, "%s", what);
    st = abi_rig_step(rig, ABI_RIG_TRAINED, &report, &err);
    abi_check(rig->probe, ABI_RULE_NONFINITE, st >= 0, "%s: returned %d: %s", what, st, err.message);
    check_skipped(rig, st, &report, named, what);
    abi_rig_set_gradients(rig);
}

static int all_finite(const abi_rig_t *rig) {
    for (size_t i = 0; i < 30; i++)
        if (!isfinite(((const float *)rig->memory[0])[i]))
            return 0;
    for (size_t i = 0; i < 32; i++)
        if ((((const uint16_t *)rig->memory[1])[i] & 0x7F80) == 0x7F80)
            return 0;
    return 1;
}

/* What is counted for the choice of channels may move on in a skipped step, weights may not. */
static void compare_states(abi_rig_t *rig, const unsigned char *before, const unsigned char *after, size_t n) {
    char where[80];
    size_t i = 0;
    while (i < n && i < sizeof rig->memory && before[i] == after[i])
        i++;
    if (i == n || i == sizeof rig->memory)
        return;
    abi_rig_describe_byte(rig, i, where, sizeof where);
    abi_check(rig->probe, ABI_RULE_NONFINITE, 0, "a skipped step changed %s", where);
}

static void run_nonfinite(abi_rig_t *rig) {
    size_t n;
    unsigned char *before, *after;
    if (!abi_rig_train(rig, 1, ABI_RULE_VALID))
        return; /* in warm-up: nothing is deferred, so nothing at all may move */
    rig->stage = ABI_ACTIVE;
    before = abi_rig_state(rig, &n);
    abi_rig_set_gradients(rig);
    set_bf16(rig, 1, 13, 0x7FC0), skip_a_step(rig, 1, "NaN in b.weight");
    after = abi_rig_state(rig, &n);
    compare_states(rig, before, after, n);
    free(before);
    free(after);
    set_fp32(rig, 2, 4, NAN), skip_a_step(rig, 2, "NaN in c.bias");
    set_fp32(rig, 0, 29, NAN), set_fp32(rig, 2, 0, NAN), skip_a_step(rig, 0, "NaN in a.weight and c.bias");
    abi_rig_train(rig, 3, ABI_RULE_USABLE);
    abi_rig_set_gradients(rig);
    set_bf16(rig, 1, 13, 0x7F80), skip_a_step(rig, 1, "infinity in b.weight");
    abi_rig_train(rig, 3, ABI_RULE_USABLE);
    abi_check(rig->probe, ABI_RULE_NONFINITE, all_finite(rig), "weights are not finite after a skipped step");
}

/* ---- poll -------------------------------------------------------------------------------------------------------- */

static void wait_for_gate(void *gate) {
    while (sem_wait(gate) != 0) {
    }
}

/* ZF_IN_PROGRESS for so long as it says so, up to ten seconds. */
static zf_status_t poll_to_end(abi_rig_t *rig, zf_step_report_t *out_report, zf_error_t *err) {
    zf_status_t st = ZF_IN_PROGRESS;
    for (int i = 0; i < 1000 && st == ZF_IN_PROGRESS; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        st = rig->table->poll(rig->instance, out_report, err);
    }
    return st;
}

/* The queue is held up before the gradients, so that the step cannot have ended when poll is called. */
static void poll_a_step(abi_rig_t *rig, const zf_cpu_ext_t *cpu, zf_cpu_queue_t *queue, sem_t *gate) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_step_report_t report;
    zf_status_t submitted, held, ended;
    uint64_t seen;
    rig->step.flags = 0;
    cpu->queue_launch(queue, wait_for_gate, gate, NULL);
    submitted = abi_rig_step(rig, ABI_RIG_TRAINED, &report, &err);
    abi_host_enter(&rig->host);
    held = rig->table->poll(rig->instance, &report, &err);
    seen = report.has_report ? report.step : 0;
    sem_post(gate);
    ended = poll_to_end(rig, &report, &err);
    abi_host_leave(&rig->host);
    abi_check(rig->probe, ABI_RULE_POLL, submitted == ZF_SUBMITTED, "step on a queue returned %d: %s", submitted,
              err.message);
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

/* Replaces the probe's process by one that preloads the counter, with the same pipe. */
static void run_allocations(abi_rig_t *rig) {
    abi_probe_t *probe = rig->probe;
    char self[1024], counter[1100], fd[16];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    snprintf(counter, sizeof counter, "%.*s/zf_count_alloc.so", (int)(strrchr(self, '/') - self), self);
    if (access(counter, R_OK) != 0) {
        abi_skip(probe, ABI_RULE_NO_ALLOC, "no %s beside this program (it is not built with sanitizers)", counter);
        return;
    }
    snprintf(fd, sizeof fd, "%d", probe->fd);
    setenv("LD_PRELOAD", counter, 1);
    fcntl(probe->fd, F_SETFD, 0);
    execl(self, self, "abi", "--plugin", probe->env->plugin, "--count-allocations-to", fd, (char *)NULL);
    abi_check(probe, ABI_RULE_NO_ALLOC, 0, "%s cannot be run again", self);
}

static const unsigned long *counter; /* allocations by this thread */
static unsigned long counted;

static void begin_hook(abi_rig_t *rig) {
    abi_host_enter(&rig->host);
    counted = __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void end_hook(abi_rig_t *rig, zf_status_t st, const char *hook) {
    unsigned long n = __atomic_load_n(counter, __ATOMIC_RELAXED) - counted;
    abi_host_leave(&rig->host);
    abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "%s returned %d", hook, st);
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
    begin_hook(rig);
    st = rig->table->param_release(rig->instance, NULL, 0, 0, &rig->stream, NULL);
    end_hook(rig, st, "param_release");
}

int abi_count_allocations(const char *plugin, int fd) {
    static abi_rig_t rig;
    abi_env_t env = {.plugin = plugin};
    abi_probe_t probe = {&env, fd};
    counter = dlsym(RTLD_DEFAULT, "zfc_allocations");
    if (!abi_check(&probe, ABI_RULE_NO_ALLOC, counter != NULL, "zf_count_alloc.so is not preloaded"))
        return 0;
    if (!abi_rig_open(&rig, &probe, plugin) || !abi_rig_start(&rig, ABI_BOUND) ||
        !abi_rig_train(&rig, 1, ABI_RULE_VALID))
        return 0;
    for (int i = 0; i < N_COUNTED_STEPS; i++)
        count_a_step(&rig);
    abi_rig_end(&rig);
    return 0;
}

const abi_row_t abi_training_rows[] = {{"step reports", ABI_BOUND, 0, run_reports},
                                       {"non-finite gradient", ABI_BOUND, 0, run_nonfinite},
                                       {"poll", ABI_OPEN, 0, run_poll},
                                       {"allocations", ABI_NOTHING, 0, run_allocations},
                                       {NULL, ABI_NOTHING, 0, NULL}};
