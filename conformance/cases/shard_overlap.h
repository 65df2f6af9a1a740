/* SPDX-License-Identifier: Apache-2.0 */
/* shard_overlap.h - zf-conform shard --overlap: how much communication a step shows, beside what it may show.
 *
 * Model. One rank of several, the others of which do what it does, at the same time: what they would send is what it
 * sends itself. An exchange takes bytes sent / rate of the link. The host (harness/fetcher.h) sleeps while it computes;
 * a layer has a bucket of its own. Gradients are handed over layer by layer and parameters fetched so, but by a serial
 * host: all after the backward pass, and all before the next one. Gradients and values do not share the link.
 *
 * Exposed is the time between two ends of a backward pass in which the host does not compute, less that of the same
 * host on a link that takes no time; each in the step that has least of it, since whatever else runs on the machine
 * only adds; on a busy machine up to three runs are made. Where windows of several steps take turns, it is the worst
 * step of a period. It may be as long as what nothing can hide, both as recorded, and 10 % more: the last
 * reduce-scatter of a step and the first all-gather after it, or all of them where the host does not fetch, or none
 * with publish_lag = 1, which has a whole step for them. */
#pragma once

#include "zf_loader.h"

/* Prints a line for each setting, or for that one `only`. 0: exposed no more than may be in those that are judged; 1:
 * more. */
int zs_overlap(const zf_loader_t *loader, uint32_t only);
