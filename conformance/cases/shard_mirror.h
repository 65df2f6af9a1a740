/* SPDX-License-Identifier: Apache-2.0 */
/* shard_mirror.h - one rank of several, the others of which do what it does, at the same time: a mirror.
 *
 * What they would send is what it sends itself, so nothing but the link and the plugin decides what a step shows. Every
 * exchange takes bytes sent / rate; one is under way in a lane at a time. */
#pragma once

#include <stdint.h>

#include "zf/ext/collectives.h"

enum { ZS_MIRROR_LANES = 4, ZS_MIRROR_BUCKETS = 64 };

typedef struct zs_span {
    uint64_t begin_ns, end_ns;
} zs_span_t;

typedef struct zs_mirror {
    uint32_t rank, n_ranks;
    double ns_per_byte;
    zf_collectives_ext_t table; /* what the plugin is given */
    zf_collective_t calls[ZS_MIRROR_LANES];
    zs_span_t spans[ZS_MIRROR_LANES];
    zs_span_t reduced[ZS_MIRROR_BUCKETS], gathered[ZS_MIRROR_BUCKETS]; /* the newest of each bucket */
} zs_mirror_t;

/* The mirror stays where it is until the instance is destroyed. */
void zs_mirror_init(zs_mirror_t *mirror, uint32_t rank, uint32_t n_ranks, double ns_per_byte);
