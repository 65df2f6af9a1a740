/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probe.h - one probe: a function that runs in a child process of its own, so that a crash or a hang of the plugin
 * is a finding and not the end. The child writes its findings into a report that it shares with its parent, which waits
 * meanwhile; its stdout and stderr are caught: a plugin that prints breaks rule QUIET. */
#pragma once

#include "abi_report.h"
#include "harness/progress.h"

typedef struct abi_probe {
    const char *plugin;     /* path of the .so under test */
    const char *mocks;      /* directory of the mocks, or NULL */
    int is_core;            /* right calls alone, in float32, of any vendor's plugin */
    const char *scratch;    /* one for what probes write */
    zc_progress_t progress; /* which probe comes next */
    abi_report_t report;
    char tried[512]; /* what was tried last */
} abi_probe_t;

/* In memory that child processes share; lives as long as the program, which ends where there is none. */
abi_probe_t *abi_probe_new(void);

/* Runs fn in a child. name appears in messages about crashes. */
void abi_probe_run(abi_probe_t *probe, const char *name, void (*fn)(abi_probe_t *));

/* What is tried next, for the message if it crashes. */
void abi_try(abi_probe_t *probe, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One check, of any thread. The message is kept when it fails. Returns is_ok. */
int abi_check(abi_probe_t *probe, abi_rule_t rule, int is_ok, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A check that cannot be done here, and why. */
void abi_skip(abi_probe_t *probe, abi_rule_t rule, const char *format, ...) __attribute__((format(printf, 3, 4)));
