/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/gathering.c - bytes of all ranks (contract in gathering.h). */
#include "ranks/gathering.h"

#include <string.h>

#include "plan/slice.h"
#include "ranks/collective.h"
#include "ranks/ranks.h"

void zfi_gathering_pass(zfi_gathering_t *gathering, void *bytes, uint64_t nbytes) {
    uint64_t first, end;
    zfi_overlap(gathering->at, nbytes, gathering->first, gathering->first + gathering->n, &first, &end);
    if (gathering->packed && first < end) {
        unsigned char *here = (unsigned char *)bytes + first;
        unsigned char *there = gathering->packed + (gathering->at + first - gathering->first);
        if (gathering->is_unpacking)
            memcpy(here, there, end - first);
        else
            memcpy(there, here, end - first);
    }
    gathering->at += nbytes;
}

static const zfi_holders_t *holders_of(const zfi_gathering_t *gathering) {
    return &gathering->ranks->buckets->holders[gathering->holders];
}

/* What of a rank goes in this exchange, from or to `packed`. Returns all that it has. */
static uint64_t walk(zfi_gathering_t *gathering, uint32_t rank, unsigned char *packed) {
    gathering->at = 0;
    gathering->packed = packed;
    gathering->is_unpacking = rank != holders_of(gathering)->place.rank;
    gathering->walk(gathering, rank);
    return gathering->at;
}

typedef zf_status_t (*exchange_fn)(zfi_engine_t *engine, uint32_t group, uint64_t step, void *all, uint64_t nbytes);

static zf_status_t gather_holders(zfi_gathering_t *gathering, exchange_fn exchange, uint64_t step) {
    const zfi_holders_t *holders = holders_of(gathering);
    zfi_engine_t *engine = gathering->ranks->engine;
    uint32_t n_ranks = holders->place.n_ranks, rank = holders->place.rank;
    uint64_t room = gathering->ranks->reduction->room_nbytes, most = 0;
    unsigned char *all = gathering->ranks->reduction->room;
    zf_status_t st = ZF_OK;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = walk(gathering, r, NULL);
        most = n > most ? n : most;
    }
    for (uint64_t done = 0; done < most && !st; done += gathering->n) {
        gathering->first = done;
        gathering->n = most - done < room ? most - done : room;
        (void)walk(gathering, rank, all + zfi_part_of(engine, holders->group, rank) * gathering->n);
        st = exchange(engine, holders->group, step, all, gathering->n);
        for (uint32_t r = 0; r < n_ranks && !st; r++)
            if (r != rank)
                (void)walk(gathering, r, all + zfi_part_of(engine, holders->group, r) * gathering->n);
    }
    return st;
}

static zf_status_t gather(zfi_gathering_t *gathering, exchange_fn exchange, uint64_t step) {
    zf_status_t st = ZF_OK;
    for (gathering->holders = 0; gathering->holders < gathering->ranks->buckets->n_holders && !st; gathering->holders++)
        st = gather_holders(gathering, exchange, step);
    return st;
}

static zf_status_t exchange_at_rest(zfi_engine_t *engine, uint32_t group, uint64_t step, void *all, uint64_t nbytes) {
    (void)step;
    return zfi_ranks_gather_parts_at_rest(engine, group, all, nbytes);
}

static zf_status_t exchange_entering(zfi_engine_t *engine, uint32_t group, uint64_t step, void *all, uint64_t nbytes) {
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_ENTERING,
                           .bucket = ZF_NO_ID,
                           .step = step,
                           .recv = all,
                           .nbytes = nbytes,
                           .lane = ZFI_LANE_ENTERING,
                           .group = group};
    return zfi_gather_parts(engine, &what);
}

/* The control thread is idle, so its memory is free. */
zf_status_t zfi_gathering_at_rest(zfi_gathering_t *gathering) { return gather(gathering, exchange_at_rest, 0); }

zf_status_t zfi_gathering_enter(zfi_gathering_t *gathering, uint64_t step) {
    return gather(gathering, exchange_entering, step);
}
