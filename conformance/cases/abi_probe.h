/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probe.h - one probe: a function that runs in a child process of its own, so that a crash or a hang of the plugin
 * is a finding and not the end. The child sends its findings through a pipe; its stdout and stderr are caught: a plugin
 * that prints breaks rule QUIET. */
#pragma once

#include "abi_report.h"
#include "harness/progress.h"

typedef struct abi_env {     /* what every probe may know */
    const char *plugin;      /* path of the .so under test */
    const char *mocks;       /* directory of the mocks, or NULL */
    zc_progress_t *progress; /* which probe comes next is shown there, or NULL */
} abi_env_t;

typedef struct abi_probe {
    const abi_env_t *env;
    int fd;
} abi_probe_t;

/* Runs fn in a child and adds what it found to the report. name appears in messages about crashes. */
void abi_probe_run(abi_report_t *report, const abi_env_t *env, const char *name, void (*fn)(abi_probe_t *));

/* In the child: what is tried next, for the message if it crashes. */
void abi_try(abi_probe_t *probe, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In the child: one check. The message is sent when it fails. Returns is_ok. */
int abi_check(abi_probe_t *probe, abi_rule_t rule, int is_ok, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* In the child: a check that cannot be done here, and why. */
void abi_skip(abi_probe_t *probe, abi_rule_t rule, const char *format, ...) __attribute__((format(printf, 3, 4)));
