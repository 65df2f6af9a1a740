/* SPDX-License-Identifier: Apache-2.0 */
/* perf_timeline.h - what every thread of this process does over a few steps, measured from outside the plugin.
 *
 * Model: a sampler thread wakes every PERIOD_US and reads the CPU clock of each thread of the process (named by the
 * kernel, so the plugin's device, down, up, control and worker threads are told apart) and the link counters of
 * zf.stats/1. A thread that waits uses no CPU, so its share between two samples is what it worked, without its waits.
 * The host thread's hooks are marked with their own times beside it. Nothing in the plugin is changed for it; the
 * sampler takes a few microseconds per sample from one core.
 *
 * Owned by the thread that starts it; the sampler writes samples until stop has returned. */
#ifndef ZF_CONFORMANCE_CASES_PERF_TIMELINE_H
#define ZF_CONFORMANCE_CASES_PERF_TIMELINE_H

#include "zf_loader.h"

#include <jansson.h>

typedef enum zp_mark { ZP_MARK_BACKWARD, ZP_MARK_GRADS_READY, ZP_MARK_STEP, ZP_MARK_FETCH, ZP_N_MARKS } zp_mark_t;

typedef struct zp_timeline zp_timeline_t;

/* Starts sampling; NULL where memory or a thread is not to be had. */
zp_timeline_t *zp_timeline_start(const zf_plugin_t *zf, zf_instance_t *instance);
/* Now, in microseconds since the start. 0 for NULL, which the two below take too. */
double zp_timeline_now(const zp_timeline_t *timeline);
/* The host did `mark` from from_us until now. */
void zp_timeline_mark(zp_timeline_t *timeline, zp_mark_t mark, double from_us);
void zp_timeline_end_step(zp_timeline_t *timeline);

/* Ends the sampler. */
void zp_timeline_stop(zp_timeline_t *timeline);
/* What was seen, as a JSON object; NULL where memory runs out. */
json_t *zp_timeline_json(const zp_timeline_t *timeline);
void zp_timeline_free(zp_timeline_t *timeline);

#endif
