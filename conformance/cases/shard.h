/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h - law 4: P ranks against the oracle of one rank, bit for bit, under mpirun.
 *
 * Model. Every rank runs the same case: the same parameters, the same calls, the same oracle. What differs is the
 * gradient: a rank delivers its share of it, such that the shares of all ranks sum to the oracle's exactly, whatever
 * the order; some ranks deliver no share of a parameter at all. In a call, the order of parameters is drawn per rank.
 * The plugin reaches the other ranks through a table that notes every exchange before it passes it on to MPI: after
 * each case the ranks compare what they started, and count the bytes against the layout of buckets as it is laid out
 * here, and against the selection of the oracle.
 *
 * Process groups: with --groups some cases spread a model over instances. Of P ranks, M models of D = P / M ranks each
 * stand for what tensor or pipeline parallelism makes: they train the same parameters from the same values, but model m
 * has 2^m times the gradients, so that each model's share of the norm is another one; some parameters are shared by all
 * models, as those of sequence parallelism are, or are duplicates that each model has by itself. In a model, experts
 * are parameters of which rank d has number d mod E, with gradients of their own. The oracle of a rank knows of the
 * others by a factor of each parameter's squares.
 *
 * Checkpoints: with --save each case saves once, at a step that its seed says, and goes on; with --load another run, on
 * any number of ranks and at any stage, comes to that step without calling the plugin, loads, and goes on. Such cases
 * are the same for every number of ranks. With --split a part of the state is resident, another one with each number of
 * ranks: --load is told how many have saved. */
#pragma once

#include <stdatomic.h>
#include <string.h>

#include "exact_case.h"
#include "zf/ext/draft/collectives.h"

/* What a rank does wrong on purpose, at its third step or before. */
typedef enum zs_fault {
    ZS_NO_FAULT = 0,
    ZS_KILL,    /* dies in an exchange, in whichever step */
    ZS_STOP,    /* is stopped */
    ZS_LATE,    /* comes later than the deadline */
    ZS_CONFIG,  /* another configuration */
    ZS_NAME,    /* another parameter */
    ZS_VALUES,  /* other weights */
    ZS_HYPER,   /* another learning rate at one step */
    ZS_DISCARD, /* discards a step alone */
    ZS_FLUSH,   /* flushes alone */
    ZS_FETCH,   /* stage 3: fetches in an order of its own from there on */
    ZS_N_FAULTS
} zs_fault_t;

enum { ZS_LANES = 5, ZS_FAULT_STEP = 3, ZS_DEADLINE_MS = 4000 };

/* Process groups, as the host numbers them. */
enum { ZS_GROUP_DATA = 0, ZS_GROUP_ALL = 1, ZS_GROUP_MODELS = 2, ZS_GROUP_EXPERT = 3 };

/* Which ranks hold a parameter, and have shares of its gradient. */
typedef enum zs_kind {
    ZS_OWN = 0,   /* those of a model */
    ZS_SHARED,    /* all: each model has a share (reduce_group2) */
    ZS_DUPLICATE, /* those of a model, and other models have the same by themselves (NOT_IN_NORM but in the first) */
    ZS_EXPERT     /* those of a model that have the same expert (reduce_group) */
} zs_kind_t;

/* The ranks as a case sees them. */
typedef struct zs_ranks {
    uint32_t rank, size; /* in all */
    uint32_t data_rank, data_size, model, n_models, expert, n_experts;
    int draws_groups, is_grouped; /* --groups; and in this case */
    zs_kind_t kinds[ZX_MAX_PARAMS];
    const zf_collectives_ext_t *mpi;
    zf_collectives_ext_t noting;     /* what the plugin is given */
    zs_fault_t fault;                /* of this rank */
    int has_fault;                   /* of any rank */
    const char *transport;           /* [shard] transport, or NULL */
    uint32_t hold_us;                /* every exchange begins as late as up to that, on each rank by itself */
    const char *save_to, *load_from; /* directories that hold a checkpoint per case, or NULL */
    uint32_t split_by;               /* --split: ranks that save; 0: what is resident follows from declarations */
    /* of the case that runs */
    uint32_t stage;
    uint32_t bucket_bytes; /* 0: auto */
    uint32_t whole_bytes;
    zx_rng_t rng; /* this rank's own */
    uint64_t expected_nbytes, expected_value_nbytes;
    const zo_t *oracle; /* of the run: its matrices are cut */
    uint64_t moves_at;  /* the step after which it is saved or loaded; 0: not, or no more */
    int keeps_open;
    char moves_through[512]; /* the checkpoint */
    /* ZS_KILL: this rank ends in the step after dies_from, so long after an exchange began (0: before it does) */
    zx_rng_t end_rng;
    uint64_t dies_from;
    uint32_t dies_after_us;
    _Atomic uint32_t n_exchanges, dies_in;
    /* noted on the plugin's thread, read once the instance is gone */
    uint64_t order[ZS_LANES]; /* digest of what was started in each lane, in order */
    uint64_t n_started[ZS_LANES], gradient_nbytes, value_nbytes;
} zs_ranks_t;

/* shard_ranks.c: MPI through FILE (libzf_mpi.so); 0, or -1 with a message on stderr. */
int zs_ranks_open(const char *file, zs_ranks_t *out);
void zs_ranks_close(zs_ranks_t *ranks);
const void *zs_ranks_extension(void *ctx, const char *id); /* zf_host_t.get_extension; of the ranks opened last */
/* The groups of a case, from n_models and n_experts. All ranks call it, while no instance lives. 0, or -1. */
int zs_ranks_arrange(zs_ranks_t *ranks);
/* Ranks of a process group. */
uint32_t zs_group_size(const zs_ranks_t *ranks, uint32_t group);
/* Part r of all[size][nbytes] is rank r's when it returns; 0, or -1. No instance may live. */
int zs_ranks_gather(zs_ranks_t *ranks, void *all, uint64_t nbytes);

/* Bytes that NCCL's double (tests/cuda/fakenccl) has sent for this process since the last call, but for the names of
 * exchanges: so many bytes to each other rank. */
#define ZS_NOT_KNOWN UINT64_MAX /* it is not the double */
enum { ZS_NAME_NBYTES = 32 };
uint64_t zs_ranks_nccl_nbytes(void);

/* shard_share.c: the part of a case that is law 4's alone. */
void zs_case_prepare(zs_ranks_t *ranks, zx_case_t *c, uint32_t stage); /* stage: or any above 3, to be drawn */
/* The run that saved it ends: what is resident is this one's from here on. */
void zs_take_over(const zs_ranks_t *ranks, zx_case_t *c);
static inline int zs_moves(const zs_ranks_t *ranks) { return ranks->save_to || ranks->load_from; }
/* This rank's share of a delivery, in place; 0: it delivers nothing of this parameter at this step. */
int zs_share(zs_ranks_t *ranks, const zx_case_t *c, uint32_t param, uint64_t step, void *values);
/* Items of a call in an order of this rank's own, which keeps each parameter's. */
void zs_shuffle(zs_ranks_t *ranks, zf_grad_item_t *items, uint32_t n);
/* What is declared of a parameter's groups. */
void zs_declare(const zs_ranks_t *ranks, uint32_t param, zf_param_decl_t *decl);
/* Does what this rank does wrong: before a step is submitted. ZS_FLUSH, ZS_FETCH: what the host is to do. */
zs_fault_t zs_misbehave(zs_ranks_t *ranks, uint64_t step, zf_group_hyper_t *hyper, uint32_t *flags);
const char *zs_fault_name(zs_fault_t fault);

/* What ranks exchange, but for a grouped norm, goes by NCCL. */
static inline int zs_is_by_nccl(const zs_ranks_t *ranks) {
    return ranks->transport && strstr(ranks->transport, "nccl") && ranks->data_size > 1;
}
/* Gradients are summed in two levels: four ranks and more, an even number, are two machines. */
static inline int zs_has_two_levels(const zs_ranks_t *ranks) {
    return ranks->transport && strstr(ranks->transport, "two_level");
}
static inline uint32_t zs_n_machines(const zs_ranks_t *ranks) {
    return ranks->data_size > 3 && ranks->data_size % 2 == 0 ? 2 : 1;
}

/* Parameters live as shards; one of them does. */
static inline int zs_shards_params(const zs_ranks_t *ranks) { return ranks->stage == 3 && ranks->data_size > 1; }
int zs_is_sharded(const zs_ranks_t *ranks, const zx_case_t *c, uint32_t param);

/* shard_cost.c: what a step should send of gradients, norm and values. */
void zs_count_step(zs_ranks_t *ranks, const zx_case_t *c); /* a step's, or DISCARD's, reductions */
/* The same of the selected channels, before the oracle makes the step. */
void zs_count_selected(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle);
void zs_count_norm(zs_ranks_t *ranks);                                           /* a submitted step's */
void zs_count_values(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle); /* after a step, or FLUSH */

/* shard_main.c */
int zs_shard_main(int argc, char **argv);
