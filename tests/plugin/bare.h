/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/bare.h - a run without workers: configuration, a CPU device, parameters, plan, memory, tables and
 * clocks, so that modules of the engine can be called one by one on the test's own thread. Streams and the control
 * thread have nothing to do but what the test gives them. */
#ifndef ZT_BARE_H
#define ZT_BARE_H

#include "instance/run.h"
#include "rig.h"

/* Parses config, opens the device, builds params, plan and memory, starts the clocks, sends the tables. Ends the test
 * on an error. */
zfi_run_t *zt_bare_create(const zt_rig_t *rig, const char *config);
void zt_bare_destroy(zfi_run_t *run);

/* The stream stands still until the gate reaches 1. */
void zt_bare_hold(zfi_run_t *run, zfi_stream_t *stream, zfi_timeline_t *gate);

/* A timeline that everyone has passed. */
void zt_bare_pass(zfi_timeline_t *timeline);

#endif
