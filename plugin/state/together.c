/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/together.c - meetings of ranks (contract in state/together.h). */
#include "state/together.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/timeline.h"
#include "ranks/ranks.h"

/* The words of a rank in a round. */
typedef struct zfi_said {
    uint32_t place; /* the meeting at which it is; 0: at work */
    int32_t status, scope;
    uint32_t reserved0;
    int64_t native_code;
    char message[sizeof(((zf_error_t *)0)->message)];
} zfi_said_t;

zf_status_t zfi_together_map(zfi_engine_t *engine, zf_error_t *err) {
    uint32_t n_ranks = zfi_n_ranks(engine), n_norm = zfi_norm_member(engine).n_ranks;
    uint32_t most = n_norm > n_ranks ? n_norm : n_ranks;
    if (most == 1)
        return ZF_OK;
    engine->said = calloc(most, sizeof *engine->said);
    return engine->said ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "create", "no memory to agree with %u ranks", most);
}

void zfi_together_unmap(zfi_engine_t *engine) { free(engine->said); }

void zfi_together_open(zfi_engine_t *engine, uint32_t group, uint32_t meeting_group, zfi_together_t *out) {
    zfi_member_t place = zfi_member(engine, group);
    *out = (zfi_together_t){.engine = engine,
                            .group = group,
                            .rank = place.rank,
                            .n_ranks = place.n_ranks,
                            .meeting_group = meeting_group,
                            .meeting = zfi_member(engine, meeting_group)};
    if (!zfi_together_meets(out))
        return;
    out->pause_ns = engine->timeout_ns / 8;
    out->round_ns = zfi_now_ns();
    out->all = engine->said;
    if (out->all)
        memset(out->all, 0, out->meeting.n_ranks * sizeof *out->all);
}

void zfi_together_drop(const zfi_together_t *together, void *all) {
    if (!all || !zfi_ranks_holds_memory(together->engine))
        free(all);
}

static zf_status_t gather(zfi_together_t *together, uint32_t group, void *all, uint64_t nbytes) {
    together->round_ns = zfi_now_ns();
    together->broken = zfi_ranks_gather(together->engine, group, ZF_COLLECTIVE_FOR_STATE, 0, all, nbytes);
    return together->broken;
}

static void make_round(zfi_together_t *together, uint32_t place, zf_status_t st, const zf_error_t *why) {
    zfi_said_t *own = &together->all[together->meeting.rank];
    *own = (zfi_said_t){.place = place, .status = st};
    if (st && why) {
        own->scope = why->scope;
        own->native_code = why->native_code;
        memcpy(own->message, why->message, sizeof own->message - 1);
    }
    if (gather(together, together->meeting_group, together->all, sizeof *own) &&
        zfi_ranks_holds_memory(together->engine))
        together->engine->said = NULL; /* a broken exchange may still write there */
}

void zfi_together_tick(void *arg) {
    zfi_together_t *together = arg;
    if (together->all && !together->broken && zfi_now_ns() - together->round_ns > together->pause_ns)
        make_round(together, 0, ZF_OK, NULL);
}

static int is_everyone_there(const zfi_together_t *together) {
    for (uint32_t r = 0; r < together->meeting.n_ranks; r++)
        if (together->all[r].place != together->n_meetings)
            return 0;
    return 1;
}

/* The exchange broke, which has ended the instance. */
static zf_status_t say_broken(const zfi_together_t *together, zf_error_t *err) {
    return zfi_error(err, together->broken, "state", "the ranks could not agree");
}

zf_status_t zfi_together_meet(zfi_together_t *together, zf_status_t st, zf_error_t *err) {
    if (!together->all)
        return st;
    together->n_meetings++;
    while (!together->broken) {
        make_round(together, together->n_meetings, st, err);
        if (is_everyone_there(together))
            break;
    }
    if (together->broken)
        return say_broken(together, err);
    for (uint32_t r = 0; r < together->meeting.n_ranks && !st; r++) {
        const zfi_said_t *said = &together->all[r];
        if (said->status)
            st = zfi_error_on_rank(err,
                                   zfi_error_scoped(err, said->status, said->scope, said->native_code, "state",
                                                    "rank %" PRIu32 " of %" PRIu32 ": %.380s", r,
                                                    together->meeting.n_ranks, said->message),
                                   r);
    }
    return st;
}

zf_status_t zfi_together_agree(zfi_engine_t *engine, uint32_t group, zf_status_t st, zf_error_t *err) {
    zfi_together_t together;
    zfi_together_open(engine, group, group, &together);
    return zfi_together_meet(&together, st, err);
}

zf_status_t zfi_together_tell(zfi_together_t *together, zfi_among_t among, zf_status_t st, const void *own,
                              uint64_t nbytes, void **out_all, zf_error_t *err) {
    int is_met = among == ZFI_AMONG_MET;
    uint32_t n = is_met ? together->meeting.n_ranks : together->n_ranks;
    unsigned char *all = calloc(n, nbytes + 1);
    *out_all = all;
    if (!st && !all)
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare ranks");
    st = zfi_together_meet(together, st, err);
    if (st)
        return st;
    memcpy(all + (is_met ? together->meeting.rank : together->rank) * nbytes, own, nbytes);
    return gather(together, is_met ? together->meeting_group : together->group, all, nbytes) ? say_broken(together, err)
                                                                                             : ZF_OK;
}
