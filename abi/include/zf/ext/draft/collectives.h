/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/collectives.h - "zf.collectives/0", a host extension: bytes exchanged among the ranks of a training job.
 *
 * A host with more than one rank offers it in zf_host_t.get_extension; without it an instance is alone. It moves bytes
 * and nothing else: what is summed over ranks the plugin sums itself, by rank index, so that every transport gives the
 * same bits. Every rank of a group makes the same calls in the same order in each lane; each call says what it is for,
 * so that a transport can refuse to pair calls that differ, and which instance it belongs to. A transport that keeps
 * instances apart says ZF_COLLECTIVES_INSTANCES. Over another one (start and ctx alike) one live instance of a process
 * at a time exchanges; create or bind_params refuses a second one.
 *
 * Threads: [lane] is the one exception to the rule that the plugin's own threads call nothing of the host: one such
 * thread per lane of an instance, between create and destroy, and with nccl create's own thread. Such a call does not
 * wait for other ranks, and must not call the plugin. group is called from create on.
 * Draft until it has run beyond one machine, for it may need that memory is registered: may change or go with any
 * release. */
#ifndef ZF_EXT_DRAFT_COLLECTIVES_H
#define ZF_EXT_DRAFT_COLLECTIVES_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_COLLECTIVES "zf.collectives/0"

/* Part r of send goes to rank r; part r of recv comes from rank r, one's own part is not touched. */
#define ZF_COLLECTIVE_ALL_TO_ALL 1
/* send is NULL; part r of recv comes from rank r, one's own is there already. */
#define ZF_COLLECTIVE_ALL_GATHER 2

/* The purpose of a call; bucket and step are ZF_NO_ID and 0 where they mean nothing. */
#define ZF_COLLECTIVE_FOR_BIND 1        /* comparing what the ranks have bound */
#define ZF_COLLECTIVE_FOR_STEP 2        /* agreeing on a step: which gradients there are */
#define ZF_COLLECTIVE_FOR_GRADIENTS 3   /* the parts of a bucket of gradients, to the rank that sums them */
#define ZF_COLLECTIVE_FOR_SUMS 4        /* the sums of a bucket, to every rank: all, or what it needs of them */
#define ZF_COLLECTIVE_FOR_NORM 5        /* every rank's part of the gradient norm */
#define ZF_COLLECTIVE_FOR_VALUES 6      /* new values of a bucket's parameters */
#define ZF_COLLECTIVE_FOR_ENTERING 7    /* optimizer state of channels that are about to run ahead */
#define ZF_COLLECTIVE_FOR_STATE 8       /* between steps: a checkpoint, or optimizer state that one call needs whole */
#define ZF_COLLECTIVE_FOR_IMPORTANCE 9  /* by which channels are chosen that several ranks have a part of */
#define ZF_COLLECTIVE_FOR_PARAMETERS 10 /* [shard] stage = 3: a bucket of parameters, for param_fetch */
/* In create: the start of another transport. In a lane of its own: the roll, when an exchange does not end. Such
 * a call may never end either, and the plugin then looks in recv for the parts that have come. A transport that writes
 * parts there as they come lets an error name the rank that is missing. */
#define ZF_COLLECTIVE_FOR_TRANSPORT 11

typedef struct zf_collective { /* input struct */
    uint32_t struct_size;
    int32_t kind;    /* ZF_COLLECTIVE_ALL_TO_ALL ... */
    uint32_t group;  /* process group; 0 = data parallel */
    int32_t purpose; /* ZF_COLLECTIVE_FOR_... */
    uint32_t bucket;
    uint32_t lane; /* calls of one lane come in one order; those of two lanes are independent of each other */
    uint64_t step;
    uint64_t number;   /* of this instance's calls of that group and lane, from 0: the same on its ranks */
    const void *send;  /* [size][nbytes] */
    void *recv;        /* [size][nbytes]; both stay as they are until test or abort returns ZF_OK */
    uint64_t nbytes;   /* of one part */
    uint32_t instance; /* lowest number from 0 that no live instance of this process has over this table: the same on
                        * every rank where all create and destroy theirs in the same order */
    uint32_t reserved0;
} zf_collective_t;

/* Process groups that the host makes by itself, for [shard] transport = ..._two_level: gradients are summed inside each
 * machine first, then between machines. All ranks of group 0 ask for the first, then for the second, in bind_params
 * (`group` may wait for the other ranks here). A host that does not know its machines fails there, and every rank is
 * refused. */
#define ZF_GROUP_NODE 0xFFFFFF00u   /* those of group 0 on this process's machine */
#define ZF_GROUP_ACROSS 0xFFFFFF01u /* those of group 0 that have this process's place in their machine's group */

#define ZF_COLLECTIVES_INSTANCES 1u /* pairs calls of the same `instance` only */

typedef struct zf_collectives_ext {
    uint32_t struct_size;
    uint32_t flags; /* ZF_COLLECTIVES_... */
    void *ctx;      /* passed back to every function */
    /* This process's place in a group.
     * [callback] */
    zf_status_t (*group)(void *ctx, uint32_t group, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err);
    /* Starts a collective and returns. *out_request is for test and abort. A start that fails when messages are under
     * way writes it as well (never 0): abort follows.
     * [lane] */
    zf_status_t (*start)(void *ctx, const zf_collective_t *collective, uint64_t *out_request, zf_error_t *err);
    /* Asks whether a collective is over. ZF_OK: it is, the request is gone. ZF_IN_PROGRESS: not yet. Negative: it
     * failed, abort is what is left.
     * [lane] */
    zf_status_t (*test)(void *ctx, uint64_t request, zf_error_t *err);
    /* Gives a request up. ZF_OK: its memory is not touched any more. Else it may be, and the plugin leaves that memory
     * mapped. Nothing is started afterwards.
     * [lane] */
    zf_status_t (*abort)(void *ctx, uint64_t request, zf_error_t *err);
} zf_collectives_ext_t;

#ifdef __cplusplus
}
#endif
#endif
