/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/param_shards.h - stage 3: parameters that live as shards, and the memory that shows them. */
#pragma once

#include "instance/run_memory.h"

/* Memory of a whole bucket of parameters. */
typedef struct zfi_fetch_buffer {
    zfi_arena_t arena;
    uint32_t bucket; /* whose values it has; ZF_NO_ID: nobody's */
    uint64_t used;   /* the larger, the later */
} zfi_fetch_buffer_t;

/* Memory of the parts of a bucket that is being gathered. */
typedef struct zfi_fetch_parts {
    zfi_arena_t arena;
    zfi_mirror_t mirror;
    uint32_t bucket; /* whose; ZF_NO_ID: nobody's */
    uint64_t number; /* they are there, or it is free, when `shared` reaches this */
} zfi_fetch_parts_t;

/* A bucket of parameters. */
typedef struct zfi_shard {
    uint32_t buffer;            /* ZF_NO_ID: not fetched */
    uint32_t n_sharded, n_held; /* parameters; tied ones are held each by itself */
    uint64_t at;                /* of this rank's part: bytes from the arena's start */
} zfi_shard_t;

/* Stage 3: parameters live as shards (ranks/shards.h). The host's thread's. */
typedef struct zfi_shards {
    zfi_arena_t arena;           /* this rank's parts */
    uint64_t nbytes;             /* of it */
    zfi_shard_t *all;            /* [buckets]; NULL: nothing is sharded */
    uint8_t *is_held;            /* [n_params] fetched, not released */
    uint32_t *n_holders;         /* [n_params] of an owner: held, of itself and what is tied to it */
    zfi_fetch_buffer_t *buffers; /* [buckets] the first n_buffers are mapped */
    uint32_t n_buffers;
    zfi_fetch_parts_t parts;
    uint32_t n_whole;                     /* buckets with a sharded parameter */
    uint64_t buffer_nbytes, parts_nbytes; /* the most that one takes in a buffer, and its parts */
    uint32_t active;                      /* the bucket that was fetched last, or ZF_NO_ID */
    int direction; /* from the active bucket to the next one: -1 in forward, 1 in backward order */
    uint64_t n_uses;
    uint64_t newest; /* mark on the device stream: what was fetched is there */
} zfi_shards_t;
