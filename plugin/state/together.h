/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/together.h - several ranks save or load one checkpoint: who has come how far, and what failed where.
 *
 * Model. A save or load is a few pieces of work with a meeting after each. At a meeting every rank says how its piece
 * went; if one failed, all fail, with its message. Work may take longer than the deadline of an exchange. So ranks make
 * rounds: a rank at work joins one now and then (tick), a rank that waits at the meeting joins all, and the meeting is
 * over with the round in which everyone is there. A rank that dies is missed by the round after.
 *
 * What is exchanged besides goes to those whose checkpoint it is. With one rank a meeting is nothing. All of it is
 * [hook], between steps. */
#pragma once

#include "instance/engine.h"

/* A part of a model that several instances train; n = 0: all of it. */
typedef struct zfi_part {
    uint32_t number, n;
} zfi_part_t;

typedef struct zfi_together {
    zfi_engine_t *engine;
    uint32_t group; /* whose checkpoint it is: the transport's number */
    uint32_t rank, n_ranks;
    int is_alone;           /* each of them has one by itself, with all of it: in a store of its host's; rank 0 of 1 */
    int is_apart;           /* each has its share of it, and what nobody shares, in a store of its host's */
    uint32_t meeting_group; /* who meets: they, or those with whom they keep parts of what is in it (state/spread.h) */
    zfi_member_t meeting;
    uint32_t n_meetings;
    zfi_part_t part;             /* that they hold */
    uint32_t looked_crc;         /* a load, of several parts: of the index that was compared; else 0 */
    uint64_t pause_ns, round_ns; /* between rounds while there is work; when the newest began */
    struct zfi_said *all;        /* of who meets: the engine's; NULL: one rank, or broken */
    zf_status_t broken;          /* of an exchange: the instance has ended */
} zfi_together_t;

/* [control] In create: memory for what ranks say, so that none can lack it while the others wait. unmap: in destroy. */
zf_status_t zfi_together_map(zfi_engine_t *engine, zf_error_t *err);
void zfi_together_unmap(zfi_engine_t *engine);

/* One at a time. */
void zfi_together_open(zfi_engine_t *engine, uint32_t group, uint32_t meeting_group, zfi_together_t *out);

/* Whether others meet this rank. */
static inline int zfi_together_meets(const zfi_together_t *together) { return together->meeting.n_ranks > 1; }

/* From time to time during a piece of work; arg is a zfi_together_t. */
void zfi_together_tick(void *arg);

/* This rank's piece ended with st, and err says why. Returns st, or how the first other rank failed. */
zf_status_t zfi_together_meet(zfi_together_t *together, zf_status_t st, zf_error_t *err);

/* A meeting of a group by itself: what one rank refuses none of them begins. */
zf_status_t zfi_together_agree(zfi_engine_t *engine, uint32_t group, zf_status_t st, zf_error_t *err);

/* Whose words are gathered: of those whose checkpoint it is, or of all who meet. */
typedef enum zfi_among { ZFI_AMONG_OWN, ZFI_AMONG_MET } zfi_among_t;

/* A meeting, as above. If it went well, part r of *out_all[ranks][nbytes] is what rank r has said, this one `own`. It
 * is freed by zfi_together_drop, which leaves it where a broken exchange may still write to it; NULL: there is none. */
zf_status_t zfi_together_tell(zfi_together_t *together, zfi_among_t among, zf_status_t st, const void *own,
                              uint64_t nbytes, void **out_all, zf_error_t *err);
void zfi_together_drop(const zfi_together_t *together, void *all);
