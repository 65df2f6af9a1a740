/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/local_ranks.h - ranks that are threads of one process: zf.collectives/0 by memcpy, so that sanitizers
 * see all of it. Any rank can be made to fail. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "rig.h"
#include "zf/ext/draft/collectives.h"

/* Groups of each rank by itself, as 0 and 1 may be, and of ranks 2r and 2r + 1; every other is all of them. */
enum { ZT_ALONE = 3, ZT_PAIRS = 100, ZT_ACROSS_PAIRS };
enum { ZT_PURPOSES = ZF_COLLECTIVE_FOR_TRANSPORT + 1, ZT_MAX_INSTANCES = 3 };
enum { ZT_MAX_RANKS = 8, ZT_LANES = 5, ZT_CALLS = 4 /* of a rank, that others may still be busy with */ };
enum { ZT_LINES = 1 + ZT_MAX_RANKS / 2 }; /* of all ranks, and of each pair: a pair's calls are its own */

struct zt_ranks;

typedef struct zt_rank {
    struct zt_ranks *all;
    uint32_t rank;
    uint64_t n_started[ZT_MAX_INSTANCES][ZT_LANES][ZT_LINES];
    /* exchanges, and what they have sent to each other rank, by purpose */
    uint64_t n_of[ZT_PURPOSES], nbytes_of[ZT_PURPOSES];
    uint64_t abroad_of[ZT_PURPOSES]; /* bytes that it has sent to other machines, where these are known */
    atomic_uint n_given_up;
    int fails_to_start;  /* set by the test; 2: when the exchange is under way */
    int fails_to_abort;  /* ... */
    uint32_t says_size;  /* 0: as it is */
    uint32_t tarries_ms; /* ... before its part of the norm is sent */
    uint32_t flags;      /* ... of create */
    zf_collectives_ext_t table;
} zt_rank_t;

typedef struct zt_ranks {
    void *jobs;
    size_t job_nbytes;
    pthread_mutex_t lock; /* guards: */
    uint32_t size;
    uint32_t node_ranks; /* of each machine; 0: nobody knows */
    int is_dealt;        /* ranks r, r + machines ... share a machine, not neighbours */
    int is_norm_alone;   /* group 1 is each rank by itself */
    int is_spread;       /* each rank is a model by itself: alone in group 0; 2: each pair is */
    uint64_t held_from;  /* values published at this step or later (0: none) do not come, ... */
    uint32_t n_let_go;   /* ... until every rank has let them go, ... */
    int fails_held;      /* ... or fail then */
    struct zt_call {
        uint64_t number; /* of the newest call here, from 1 */
        zf_collective_t what[ZT_MAX_RANKS];
        uint32_t n_posted, n_copied;
        uint8_t is_posted[ZT_MAX_RANKS], is_copied[ZT_MAX_RANKS];
        char answers[ZT_MAX_RANKS][64]; /* of a roll call: they outlive the call of whoever gives up */
    } calls[ZT_MAX_INSTANCES][ZT_LANES][ZT_LINES][ZT_CALLS];
    zt_rank_t ranks[ZT_MAX_RANKS];
} zt_ranks_t;

void zt_ranks_init(zt_ranks_t *ranks, uint32_t size);
/* Ranks that run. */
static inline uint32_t zt_n_there(const zt_ranks_t *ranks) { return ranks->size > ZT_MAX_RANKS ? 1 : ranks->size; }
/* They keep instances apart (ZF_COLLECTIVES_INSTANCES). */
void zt_ranks_keep_apart(zt_ranks_t *ranks);
void zt_ranks_free(zt_ranks_t *ranks);
/* zf_host_t.get_extension, with ctx = a zt_rank_t */
const void *zt_ranks_extension(void *ctx, const char *id);
/* Runs a function of every rank in a thread of its own, with its job of so many bytes; returns when all have ended. */
void zt_ranks_run(uint32_t n, void *(*run)(void *), void *jobs, size_t job_nbytes);
/* A rig that was started becomes this rank: create and bind, up to the first error. */
zf_status_t zt_ranks_try_open(zt_rank_t *rank, zt_rig_t *rig, const char *config, int uses_queue);

/* What every job begins with: struct job { ZT_JOB; more }. */
#define ZT_JOB                                                                                                         \
    zt_rig_t rig;                                                                                                      \
    zt_rank_t *rank;                                                                                                   \
    const char *config;                                                                                                \
    int uses_queue;                                                                                                    \
    zf_status_t st /* of the newest call: create and bind first */
typedef struct zt_job {
    ZT_JOB;
} zt_job_t;

/* Ranks 0 to n - 1 get a job each, all as `as` is (NULL: as they are). Of more than ZT_MAX_RANKS the last one alone
 * gets one: all others are images of it, which send what it sends. */
void zt_jobs_start(zt_ranks_t *ranks, uint32_t n, void *jobs, size_t job_nbytes, const void *as);
/* Starts the job's rig and opens it; 0 where that failed. */
int zt_job_open(void *job, const zt_shape_t *shapes, uint32_t n_shapes);
/* Runs a function of every job; may_fail: else every one ends without an error. */
void zt_jobs_run(zt_ranks_t *ranks, void *(*run)(void *), int may_fail);
/* Ends the rigs. */
void zt_jobs_end(zt_ranks_t *ranks);
