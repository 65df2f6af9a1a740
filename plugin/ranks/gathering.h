/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/gathering.h - bytes of which each rank has some, in host memory: all of them, on every rank.
 *
 * Model. A walk says which bytes a rank has, stretch by stretch, in an order that is the same on every rank. They are
 * packed one behind the other and gathered in as few exchanges as reduction.room_nbytes of each rank allows:
 *
 *   memory  | a a | b b b | c | a | b b |         of ranks a, b, c
 *   sent    | a a a | b b b b b | c |             each padded to the longest
 *
 * Ranks are those that hold the same parameters (plan/bucket.h), each kind of them in turn: a walk gives what
 * zfi_gathering_slice() says.
 *
 * Cost: a walk for each rank and exchange, and one more to count. */
#pragma once

#include "instance/run.h"

typedef struct zfi_gathering zfi_gathering_t;

/* Calls zfi_gathering_pass for each stretch that a rank has, of its slices. */
typedef void (*zfi_gathering_fn)(zfi_gathering_t *gathering, uint32_t rank);

struct zfi_gathering {
    zfi_ranks_t *ranks;
    zfi_gathering_fn walk;
    void *arg;
    int keeps_most; /* numbers, uint32_t, that every rank has: the largest of each stays */
    /* its own: */
    uint32_t holders;      /* who exchanges, by their number */
    unsigned char *packed; /* NULL: stretches are counted */
    uint64_t at, first, n; /* bytes before the present stretch; which of them go in this exchange */
    int is_unpacking;
};

/* The slice of a matrix that a rank owns; empty where those who exchange do not hold it. */
static inline zfi_slice_t zfi_gathering_slice(const zfi_gathering_t *gathering, const zfi_matrix_t *matrix,
                                              uint32_t rank) {
    return matrix->holders == gathering->holders ? matrix->slices[rank] : (zfi_slice_t){0};
}

void zfi_gathering_pass(zfi_gathering_t *gathering, void *bytes, uint64_t nbytes);

/* [hook] While the run rests. Nothing happens where each rank has all of the state, one rank among them. */
zf_status_t zfi_gathering_at_rest(zfi_gathering_t *gathering);
/* [own threads: control] At a step. */
zf_status_t zfi_gathering_by_control(zfi_gathering_t *gathering, int32_t purpose, uint64_t step);

/* [hook] While the run rests. Where each rank keeps a part of the state, one that has nothing of a cohort does not
 * count its updates: so each matrix's count becomes the largest of any rank. */
zf_status_t zfi_gathering_counts(zfi_ranks_t *ranks, uint32_t *counts);
