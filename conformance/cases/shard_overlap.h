/* SPDX-License-Identifier: Apache-2.0 */
/* shard_overlap.h - zf-conform shard --overlap: how much communication a step shows, beside what it may show.
 *
 * Model. One rank of several, the others of which do what it does, at the same time: what they would send is what it
 * sends itself. An exchange takes bytes sent / rate of the link. The host (harness/fetcher.h) sleeps while it computes;
 * a layer has a bucket of its own, and all windows close at every step, so that each step moves all gradients and all
 * values:
 *
 *   overlapped   gradients are handed over layer by layer, parameters are fetched layer by layer
 *   serial       all gradients are handed over after the backward pass, all parameters are fetched before the next one
 *   instant      overlapped, on a link that takes no time: what the host waits for other things
 *
 * Exposed is the time that the host spends in the plugin's calls and waiting for what they return, less that of the
 * instant link; each in the step that has least of it, since whatever else runs on the machine only adds. It may be as
 * long as what nothing can hide: the last reduce-scatter of a step and the first all-gather after it, both as they were
 * recorded, to within what the same calls take on the instant link. */
#pragma once

#include "zf_loader.h"

/* Prints the tables, of one pass per step and of eight. 0: exposed no more than may be; 1: more. */
int zs_overlap(const zf_loader_t *loader);
