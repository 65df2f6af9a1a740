/* SPDX-License-Identifier: Apache-2.0 */
/* abi_manners.c - proof 7, what a plugin may not cost or leave: files, memory per instance, time of idle threads and of
 * hooks. What is measured is compared with limits that a loaded machine does not reach: processor time, or the least
 * of many calls. */
#define _GNU_SOURCE /* unshare */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "harness/clock.h"

enum { N_SETTLE = 8, N_INSTANCES = 40, N_HOOKS = 41 };
static const double max_idle_ms = 5.0, max_hook_ms = 3.0, max_leak_nbytes = 4e6;

static double now_ms(clockid_t clock) { return 1e-6 * (double)zc_clock_ns(clock); }

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* An empty /tmp that this process alone sees. 0 = not allowed here. */
static int make_private_tmp(void) {
    if (unshare(CLONE_NEWNS) != 0)
        return 0;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", "/tmp", "tmpfs", 0, NULL) == 0;
}

static void expect_empty(abi_probe_t *p, const char *path) {
    DIR *dir = opendir(path);
    if (!abi_check(p, ABI_RULE_FILES, dir != NULL, "%s cannot be read", path))
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        abi_check(p, ABI_RULE_FILES, strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0,
                  "a life of an instance left %s/%s", path, e->d_name);
    closedir(dir);
}

static void probe_files(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    if (!make_private_tmp()) {
        abi_skip(p, ABI_RULE_FILES, "this process may not have a /tmp of its own (it takes root)");
        return;
    }
    if (chdir("/tmp") != 0 || setenv("TMPDIR", "/tmp", 1) != 0)
        return;
    abi_try(p, "an instance in an empty /tmp");
    if (abi_rig_start(rig, ABI_ACTIVE))
        abi_rig_end(rig);
    expect_empty(p, "/tmp");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void probe_leak(abi_rig_t *rig) {
    double before = 0, grown;
    for (int i = 0; i < N_SETTLE + N_INSTANCES; i++) {
        if (i == N_SETTLE)
            before = abi_data_nbytes();
        abi_rig_describe(rig, 1);
        if (!abi_rig_start(rig, ABI_BOUND))
            return;
        abi_rig_end(rig);
    }
    grown = abi_data_nbytes() - before;
    abi_check(rig->probe, ABI_RULE_LEAK, grown <= max_leak_nbytes, "%d instances left %.0f bytes each", N_INSTANCES,
              grown / N_INSTANCES);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* At rest after a step: what the process computes in a fifth of a second. */
static void probe_idle(abi_rig_t *rig) {
    double before = now_ms(CLOCK_PROCESS_CPUTIME_ID), spent;
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    spent = now_ms(CLOCK_PROCESS_CPUTIME_ID) - before;
    abi_check(rig->probe, ABI_RULE_IDLE, spent <= max_idle_ms,
              "%.1f ms of processor time in 200 ms without work, limit %.0f", spent, max_idle_ms);
}

/* Other programs make some calls slow, a slow hook makes all of them slow. */
static void check_least(abi_probe_t *p, const double *ms, const char *hook) {
    double least = ms[0];
    for (int i = 1; i < N_HOOKS; i++)
        least = ms[i] < least ? ms[i] : least;
    abi_check(p, ABI_RULE_HOOK_TIME, least <= max_hook_ms, "%s takes %.2f ms of a tiny model, limit %.0f", hook, least,
              max_hook_ms);
}

static void probe_hooks(abi_rig_t *rig) {
    static double deliver[N_HOOKS], step[N_HOOKS], poll[N_HOOKS];
    zf_step_report_t report = {.struct_size = sizeof report};
    abi_host_enter(&rig->host);
    for (int i = 0; i < N_HOOKS; i++) {
        double at = now_ms(CLOCK_MONOTONIC);
        rig->table->grads_ready(rig->instance, rig->items, ABI_RIG_TRAINED, sizeof rig->items[0], &rig->stream, NULL,
                                NULL);
        deliver[i] = now_ms(CLOCK_MONOTONIC) - at;
        at = now_ms(CLOCK_MONOTONIC);
        rig->table->step(rig->instance, &rig->step, &report, NULL);
        step[i] = now_ms(CLOCK_MONOTONIC) - at;
        at = now_ms(CLOCK_MONOTONIC);
        rig->table->poll(rig->instance, &report, NULL);
        poll[i] = now_ms(CLOCK_MONOTONIC) - at;
    }
    abi_host_left(&rig->host, ZF_OK);
    check_least(rig->probe, deliver, "grads_ready");
    check_least(rig->probe, step, "step");
    check_least(rig->probe, poll, "poll");
}

const abi_row_t abi_manners_rows[] = {{"files", ABI_OPEN, 0, probe_files},
                                      {"memory of instances", ABI_OPEN, 0, probe_leak},
                                      {"idle threads", ABI_QUIESCED, 0, probe_idle},
                                      {"time of hooks", ABI_ACTIVE, 0, probe_hooks},
                                      {NULL, ABI_NOTHING, 0, NULL}};
