/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/gathering.c - bytes of all ranks (contract in gathering.h). */
#include "ranks/gathering.h"

#include <string.h>

#include "plan/slice.h"
#include "ranks/collective.h"

static void keep_most(uint32_t *here, const uint32_t *there, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (there[i] > here[i])
            here[i] = there[i];
}

void zfi_gathering_pass(zfi_gathering_t *gathering, void *bytes, uint64_t nbytes) {
    uint64_t first, end;
    zfi_overlap(gathering->at, nbytes, gathering->first, gathering->first + gathering->n, &first, &end);
    if (gathering->packed && first < end) {
        unsigned char *here = (unsigned char *)bytes + first;
        unsigned char *there = gathering->packed + (gathering->at + first - gathering->first);
        if (gathering->is_unpacking && gathering->keeps_most)
            keep_most((void *)here, (const void *)there, (end - first) / sizeof(uint32_t));
        else if (gathering->is_unpacking)
            memcpy(here, there, end - first);
        else
            memcpy(there, here, end - first);
    }
    gathering->at += nbytes;
}

static const zfi_holders_t *holders_of(const zfi_gathering_t *gathering) {
    return &gathering->ranks->buckets->holders[gathering->holders];
}

/* Copies the stretches of a rank that go in this exchange from or to `packed`. Returns the bytes of all that it has. */
static uint64_t walk(zfi_gathering_t *gathering, uint32_t rank, unsigned char *packed) {
    gathering->at = 0;
    gathering->packed = packed;
    gathering->is_unpacking = rank != holders_of(gathering)->place.rank;
    gathering->walk(gathering, rank);
    return gathering->at;
}

static zf_status_t exchange_at_rest(zfi_engine_t *engine, const zfi_exchange_t *what) {
    return zfi_collective_call(engine, engine->values, zfi_gather_parts, what);
}

static zf_status_t gather_holders(zfi_gathering_t *gathering, zfi_collective_fn exchange, zfi_exchange_t what) {
    const zfi_holders_t *holders = holders_of(gathering);
    zfi_engine_t *engine = gathering->ranks->engine;
    uint32_t n_ranks = holders->place.n_ranks, rank = holders->place.rank;
    uint64_t room = gathering->ranks->reduction->room_nbytes, most = 0;
    unsigned char *all = gathering->ranks->reduction->room;
    zf_status_t st = ZF_OK;
    what.group = holders->group;
    what.recv = all;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = walk(gathering, r, NULL);
        most = n > most ? n : most;
    }
    for (uint64_t done = 0; done < most && !st; done += gathering->n) {
        gathering->first = done;
        gathering->n = most - done < room ? most - done : room;
        (void)walk(gathering, rank, all + zfi_part_of(engine, holders->group, rank) * gathering->n);
        what.nbytes = gathering->n;
        st = exchange(engine, &what);
        for (uint32_t r = 0; r < n_ranks && !st; r++)
            if (r != rank)
                (void)walk(gathering, r, all + zfi_part_of(engine, holders->group, r) * gathering->n);
    }
    return st;
}

static zf_status_t gather(zfi_gathering_t *gathering, zfi_collective_fn exchange, const zfi_exchange_t *what) {
    zf_status_t st = ZF_OK;
    if (!zfi_is_sharded(gathering->ranks->engine)) /* each rank has all of it */
        return ZF_OK;
    for (gathering->holders = 0; gathering->holders < gathering->ranks->buckets->n_holders && !st; gathering->holders++)
        st = gather_holders(gathering, exchange, *what);
    return st;
}

/* The control thread is idle, so its memory is free. */
zf_status_t zfi_gathering_at_rest(zfi_gathering_t *gathering) {
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_STATE, .bucket = ZF_NO_ID, .lane = ZFI_LANE_VALUES};
    return gather(gathering, exchange_at_rest, &what);
}

zf_status_t zfi_gathering_by_control(zfi_gathering_t *gathering, int32_t purpose, uint64_t step) {
    zfi_exchange_t what = {.purpose = purpose, .bucket = ZF_NO_ID, .step = step, .lane = ZFI_LANE_ENTERING};
    return gather(gathering, zfi_gather_parts, &what);
}

static void walk_counts(zfi_gathering_t *gathering, uint32_t rank) {
    uint32_t *counts = gathering->arg;
    (void)rank;
    for (uint32_t m = 0; m < gathering->ranks->plan->n_matrices; m++) {
        const zfi_matrix_t *matrix = &gathering->ranks->plan->matrices[m];
        if (matrix->holders == gathering->holders)
            zfi_gathering_pass(gathering, counts + matrix->count_base, matrix->n_counts * sizeof *counts);
    }
}

zf_status_t zfi_gathering_counts(zfi_ranks_t *ranks, uint32_t *counts) {
    zfi_gathering_t gathering = {.ranks = ranks, .walk = walk_counts, .arg = counts, .keeps_most = 1};
    return zfi_gathering_at_rest(&gathering);
}
