/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/local_ranks.c - exchanges between threads (contract in local_ranks.h). A rank copies what it receives
 * once all have posted a call, of a roll call as they come; the call is over when all have copied, since then every
 * buffer is free again. */
#include "local_ranks.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

static uint32_t n_nodes(const zt_ranks_t *all) { return all->size / all->node_ranks; }
static uint32_t node_of(const zt_ranks_t *all, uint32_t rank) {
    return all->is_dealt ? rank % n_nodes(all) : rank / all->node_ranks;
}
static uint32_t place_of(const zt_ranks_t *all, uint32_t rank) {
    return all->is_dealt ? rank / n_nodes(all) : rank % all->node_ranks;
}
static uint32_t rank_at(const zt_ranks_t *all, uint32_t node, uint32_t place) {
    return all->is_dealt ? place * n_nodes(all) + node : node * all->node_ranks + place;
}

static int is_pair(const zt_ranks_t *all, uint32_t group) {
    return group == ZT_PAIRS || (group == 0 && all->is_spread == 2);
}

/* Member i of this rank's group. */
static uint32_t member(const zt_rank_t *rank, uint32_t group, uint32_t i) {
    if (group == ZF_GROUP_NODE)
        return rank_at(rank->all, node_of(rank->all, rank->rank), i);
    if (group == ZF_GROUP_ACROSS)
        return rank_at(rank->all, i, place_of(rank->all, rank->rank));
    if (group == ZT_ACROSS_PAIRS)
        return 2 * i + rank->rank % 2;
    return is_pair(rank->all, group) ? rank->rank / 2 * 2 + i : i;
}
static uint32_t members(const zt_ranks_t *all, uint32_t group) {
    return group == ZF_GROUP_NODE     ? all->node_ranks
           : group == ZF_GROUP_ACROSS ? n_nodes(all)
           : group == ZT_ACROSS_PAIRS ? all->size / 2
           : is_pair(all, group)      ? 2
                                      : all->size;
}
static uint32_t own_place(const zt_rank_t *rank, uint32_t group) {
    return group == ZF_GROUP_NODE      ? place_of(rank->all, rank->rank)
           : group == ZF_GROUP_ACROSS  ? node_of(rank->all, rank->rank)
           : group == ZT_ACROSS_PAIRS  ? rank->rank / 2
           : is_pair(rank->all, group) ? rank->rank % 2
                                       : rank->rank;
}

static zf_status_t group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    const zt_rank_t *rank = ctx;
    (void)err;
    if (number == ZF_GROUP_NODE || number == ZF_GROUP_ACROSS) {
        *out_rank = rank->all->node_ranks ? own_place(rank, number) : 0;
        *out_size = !rank->all->node_ranks ? 0 : rank->says_size ? rank->says_size : members(rank->all, number);
        return rank->all->node_ranks ? ZF_OK : ZF_ERR_RANKS;
    }
    pthread_mutex_lock(&rank->all->lock);
    int is_alone =
        number == 0 ? rank->all->is_spread == 1 : number == ZT_ALONE || (number == 1 && rank->all->is_norm_alone);
    pthread_mutex_unlock(&rank->all->lock);
    *out_rank = is_alone ? 0 : own_place(rank, number);
    *out_size = is_alone ? 1 : rank->says_size && !rank->all->node_ranks ? rank->says_size : members(rank->all, number);
    return ZF_OK;
}

static int is_roll(const zf_collective_t *what) {
    return what->purpose == ZF_COLLECTIVE_FOR_TRANSPORT && what->nbytes <= sizeof(((struct zt_call *)0)->answers[0]);
}

/* Every other rank has sent the same, but for its place in a machine (zfi_nodes_open). */
static void copy_images(const zt_rank_t *rank, const zf_collective_t *what) {
    const zt_ranks_t *all = rank->all;
    uint32_t own = own_place(rank, what->group);
    const char *part = (const char *)(what->send ? what->send : what->recv) + own * what->nbytes;
    for (uint32_t i = 0; i < members(all, what->group); i++) {
        uint32_t *there = (void *)((char *)what->recv + i * what->nbytes);
        if (i != own)
            memcpy(there, part, what->nbytes);
        if (all->node_ranks && what->purpose == ZF_COLLECTIVE_FOR_BIND && what->nbytes == 4 * sizeof *there &&
            there[1] == all->node_ranks && there[3] == n_nodes(all))
            there[0] = place_of(all, i), there[2] = node_of(all, i);
    }
}

static uint32_t line_of(const zt_rank_t *rank, uint32_t group) {
    return is_pair(rank->all, group) ? 1 + rank->rank / 2 : 0;
}

/* A request is the number of its call in its line, from 1, and instance, lane and line. */
static uint64_t number_of(uint64_t request) { return request / ZT_LINES / ZT_LANES / ZT_MAX_INSTANCES; }

static struct zt_call *call_of(zt_ranks_t *all, uint64_t request) {
    return &all->calls[request / ZT_LINES / ZT_LANES % ZT_MAX_INSTANCES][request / ZT_LINES % ZT_LANES]
                      [request % ZT_LINES][(number_of(request) - 1) % ZT_CALLS];
}

/* Who makes it. */
static uint32_t callers(const zt_ranks_t *all, uint64_t request) { return request % ZT_LINES ? 2 : all->size; }

static zf_status_t start(void *ctx, const zf_collective_t *what, uint64_t *out_request, zf_error_t *err) {
    zt_rank_t *rank = ctx;
    zt_ranks_t *all = rank->all;
    uint32_t line = line_of(rank, what->group);
    uint64_t *n_started = &rank->n_started[what->instance][what->lane][line];
    uint64_t request =
        (((*n_started + 1) * ZT_MAX_INSTANCES + what->instance) * ZT_LANES + what->lane) * ZT_LINES + line;
    struct zt_call *call = call_of(all, request);
    (void)err;
    if (rank->fails_to_start == 1)
        return ZF_ERR_RANKS;
    if (what->purpose == ZF_COLLECTIVE_FOR_NORM)
        usleep(rank->tarries_ms * 1000);
    pthread_mutex_lock(&all->lock);
    rank->n_of[what->purpose]++;
    rank->nbytes_of[what->purpose] += what->nbytes;
    for (uint32_t i = 0; all->node_ranks && i < members(all, what->group); i++)
        if (node_of(all, member(rank, what->group, i)) != node_of(all, rank->rank))
            rank->abroad_of[what->purpose] += what->nbytes;
    if (all->size > ZT_MAX_RANKS) {
        copy_images(rank, what);
        pthread_mutex_unlock(&all->lock);
        return ZF_OK;
    }
    if (call->number != *n_started + 1)
        *call = (struct zt_call){.number = *n_started + 1};
    call->what[rank->rank] = *what;
    call->is_posted[rank->rank] = 1;
    call->n_posted++;
    if (is_roll(what))
        memcpy(call->answers[rank->rank], (const char *)what->recv + rank->rank * what->nbytes, what->nbytes);
    pthread_mutex_unlock(&all->lock);
    ++*n_started;
    *out_request = request;
    return rank->fails_to_start ? ZF_ERR_RANKS : ZF_OK;
}

static void copy(const zt_rank_t *rank, const struct zt_call *call) {
    const zf_collective_t *own = &call->what[rank->rank];
    for (uint32_t i = 0; i < members(rank->all, own->group); i++) {
        uint32_t r = member(rank, own->group, i);
        const zf_collective_t *from = &call->what[r];
        const char *part = is_roll(own) ? call->answers[r]
                           : from->send ? (const char *)from->send + own_place(rank, own->group) * from->nbytes
                                        : (const char *)from->recv + i * from->nbytes;
        if (r != rank->rank && call->is_posted[r])
            memcpy((char *)own->recv + i * own->nbytes, part, own->nbytes);
    }
}

/* Of messages of other sizes none arrives. */
static int has_one_size(const zt_rank_t *rank, const struct zt_call *call) {
    const zf_collective_t *own = &call->what[rank->rank];
    uint32_t n = members(rank->all, own->group), i = 0;
    while (i < n && call->what[member(rank, own->group, i)].nbytes == own->nbytes)
        i++;
    return i == n;
}

static zf_status_t test(void *ctx, uint64_t request, zf_error_t *err) {
    zt_rank_t *rank = ctx;
    zt_ranks_t *all = rank->all;
    struct zt_call *call = call_of(all, request);
    zf_status_t st = ZF_IN_PROGRESS;
    (void)err;
    if (all->size > ZT_MAX_RANKS)
        return ZF_OK;
    pthread_mutex_lock(&all->lock);
    if (call->number != number_of(request)) { /* all have copied, and gone on */
        st = ZF_OK;
    } else if (all->held_from && (all->n_let_go < all->size || all->fails_held) &&
               call->what[rank->rank].step >= all->held_from &&
               call->what[rank->rank].purpose == ZF_COLLECTIVE_FOR_VALUES) {
        st = all->n_let_go < all->size ? ZF_IN_PROGRESS : ZF_ERR_RANKS;
    } else if (call->n_posted == callers(all, request) && has_one_size(rank, call)) {
        if (!call->is_copied[rank->rank])
            copy(rank, call);
        call->n_copied += !call->is_copied[rank->rank];
        call->is_copied[rank->rank] = 1;
        st = call->n_copied == callers(all, request) ? ZF_OK : ZF_IN_PROGRESS;
    } else if (is_roll(&call->what[rank->rank])) {
        copy(rank, call);
    }
    pthread_mutex_unlock(&all->lock);
    return st;
}

/* Nobody reads this rank's memory from then on, unless it fails. What it said in a roll call stands: that is a copy. */
static zf_status_t give_up(void *ctx, uint64_t request, zf_error_t *err) {
    zt_rank_t *rank = ctx;
    zt_ranks_t *all = rank->all;
    struct zt_call *call = call_of(all, request);
    (void)err;
    rank->n_given_up++;
    if (rank->fails_to_abort)
        return ZF_ERR_RANKS;
    pthread_mutex_lock(&all->lock);
    if (call->number == number_of(request) && call->is_posted[rank->rank] && !is_roll(&call->what[rank->rank])) {
        call->is_posted[rank->rank] = 0;
        call->n_posted--;
    }
    pthread_mutex_unlock(&all->lock);
    return ZF_OK;
}

void zt_ranks_init(zt_ranks_t *ranks, uint32_t size) {
    memset(ranks, 0, sizeof *ranks);
    pthread_mutex_init(&ranks->lock, NULL);
    ranks->size = size;
    for (uint32_t r = 0; r < zt_n_there(ranks); r++) {
        zt_rank_t *rank = &ranks->ranks[r];
        rank->all = ranks;
        rank->rank = size > ZT_MAX_RANKS ? size - 1 : r;
        rank->table = (zf_collectives_ext_t){.struct_size = sizeof rank->table,
                                             .ctx = rank,
                                             .group = group,
                                             .start = start,
                                             .test = test,
                                             .abort = give_up};
    }
}

void zt_ranks_keep_apart(zt_ranks_t *ranks) {
    for (uint32_t r = 0; r < ranks->size; r++)
        ranks->ranks[r].table.flags = ZF_COLLECTIVES_INSTANCES;
}

void zt_ranks_free(zt_ranks_t *ranks) { pthread_mutex_destroy(&ranks->lock); }

const void *zt_ranks_extension(void *ctx, const char *id) {
    zt_rank_t *rank = ctx;
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &rank->table : NULL;
}

void zt_ranks_run(uint32_t n, void *(*run)(void *), void *jobs, size_t job_nbytes) {
    pthread_t threads[ZT_MAX_RANKS];
    for (uint32_t r = 0; r < n; r++)
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run, (char *)jobs + r * job_nbytes), 0);
    for (uint32_t r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
}

zf_status_t zt_ranks_try_open(zt_rank_t *rank, zt_rig_t *rig, const char *config, int uses_queue) {
    rig->host.get_extension = zt_ranks_extension;
    rig->host.ctx = rank;
    if (uses_queue)
        zt_rig_use_queue(rig);
    zf_status_t st = zt_rig_try_create(rig, config, rank->flags);
    return st >= 0 ? zt_rig_try_bind(rig) : st;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static zt_job_t *job_of(const zt_ranks_t *ranks, uint32_t rank) {
    return (zt_job_t *)(void *)((char *)ranks->jobs + rank * ranks->job_nbytes);
}

void zt_jobs_start(zt_ranks_t *ranks, uint32_t n, void *jobs, size_t job_nbytes, const void *as) {
    zt_ranks_init(ranks, n);
    ranks->jobs = jobs;
    ranks->job_nbytes = job_nbytes;
    for (uint32_t r = 0; r < zt_n_there(ranks); r++) {
        if (as)
            memcpy(job_of(ranks, r), as, job_nbytes);
        job_of(ranks, r)->rank = &ranks->ranks[r];
    }
}

int zt_job_open(void *raw, const zt_shape_t *shapes, uint32_t n_shapes) {
    zt_job_t *job = raw;
    zt_rig_start(&job->rig, shapes, n_shapes);
    job->st = zt_ranks_try_open(job->rank, &job->rig, job->config, job->uses_queue);
    return job->st >= 0;
}

void zt_jobs_run(zt_ranks_t *ranks, void *(*run)(void *), int may_fail) {
    zt_ranks_run(zt_n_there(ranks), run, ranks->jobs, ranks->job_nbytes);
    for (uint32_t r = 0; r < zt_n_there(ranks) && !may_fail; r++)
        ck_assert_msg(job_of(ranks, r)->st >= 0, "rank %u of %u: %s", r, ranks->size,
                      job_of(ranks, r)->rig.err.message);
}

void zt_jobs_end(zt_ranks_t *ranks) {
    for (uint32_t r = 0; r < zt_n_there(ranks); r++)
        zt_rig_end(&job_of(ranks, r)->rig);
    zt_ranks_free(ranks);
}
