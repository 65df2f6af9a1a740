/* SPDX-License-Identifier: Apache-2.0 */
/* shard_ranks.c - MPI, opened where it is needed only, and the table that notes what the plugin exchanges. */
#include "shard.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static zs_ranks_t *opened;
static void *library, *handle;

/* ---- the table that the plugin is given -------------------------------------------------------------------------- */

static void note(zs_ranks_t *ranks, const zf_collective_t *call) {
    const uint64_t words[] = {
        (uint64_t)call->kind, (uint64_t)call->purpose, call->bucket, call->step, call->number, call->nbytes,
        call->group};
    const unsigned char *bytes = (const unsigned char *)words;
    uint64_t *order = &ranks->order[call->lane % ZS_LANES];
    for (size_t i = 0; i < sizeof words; i++)
        *order = (*order ^ bytes[i]) * 0x100000001B3u; /* FNV-1a */
    ranks->n_started[call->lane % ZS_LANES]++;
    if (call->purpose == ZF_COLLECTIVE_FOR_GRADIENTS || call->purpose == ZF_COLLECTIVE_FOR_SUMS ||
        call->purpose == ZF_COLLECTIVE_FOR_NORM)
        ranks->gradient_nbytes += (zs_group_size(ranks, call->group) - 1) * call->nbytes;
    if (call->purpose == ZF_COLLECTIVE_FOR_VALUES)
        ranks->value_nbytes += (zs_group_size(ranks, call->group) - 1) * call->nbytes;
}

static zf_status_t group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    zs_ranks_t *ranks = ctx;
    return ranks->mpi->group(ranks->mpi->ctx, number, out_rank, out_size, err);
}

/* Some exchanges come late, other ones on each rank: at most 3 ms, or with hold_us every one, at most that. */
static void tarry(const zs_ranks_t *ranks, const zf_collective_t *call) {
    zx_rng_t rng = zx_rng(call->number, call->lane, ranks->rank);
    if (ranks->hold_us)
        nanosleep(&(struct timespec){.tv_nsec = (long)zx_below(&rng, ranks->hold_us) * 1000}, NULL);
    else if (zx_chance(&rng, 12))
        nanosleep(&(struct timespec){.tv_nsec = (long)zx_between(&rng, 1, 30) * 100000}, NULL);
}

/* ZS_KILL: this rank ends in this exchange. */
static int is_last(zs_ranks_t *ranks, const zf_collective_t *call) {
    atomic_fetch_add(&ranks->n_exchanges, 1);
    if (!ranks->dies_in || atomic_fetch_sub(&ranks->dies_in, 1) != 1)
        return 0;
    printf("rank %u ends in an exchange for %d of group %u\n", ranks->rank, call->purpose, call->group);
    fflush(stdout);
    return 1;
}

static zf_status_t start(void *ctx, const zf_collective_t *call, uint64_t *out_request, zf_error_t *err) {
    zs_ranks_t *ranks = ctx;
    int ends = is_last(ranks, call);
    zf_status_t st = ZF_OK;
    note(ranks, call);
    tarry(ranks, call);
    if (!ends || ranks->dies_after_us)
        st = ranks->mpi->start(ranks->mpi->ctx, call, out_request, err);
    if (ends)
        usleep(ranks->dies_after_us);
    return ends ? raise(SIGKILL) : st;
}

static zf_status_t test(void *ctx, uint64_t request, zf_error_t *err) {
    zs_ranks_t *ranks = ctx;
    return ranks->mpi->test(ranks->mpi->ctx, request, err);
}

static zf_status_t give_up(void *ctx, uint64_t request, zf_error_t *err) {
    zs_ranks_t *ranks = ctx;
    return ranks->mpi->abort(ranks->mpi->ctx, request, err);
}

const void *zs_ranks_extension(void *ctx, const char *id) {
    (void)ctx;
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &opened->noting : NULL;
}

/* ---- process groups ---------------------------------------------------------------------------------------------- */

uint32_t zs_group_size(const zs_ranks_t *ranks, uint32_t group_number) {
    switch (group_number) {
    case ZS_GROUP_ALL:
        return ranks->size;
    case ZS_GROUP_MODELS:
        return ranks->n_models;
    case ZS_GROUP_EXPERT:
        return ranks->data_size / ranks->n_experts;
    case ZF_GROUP_NODE:
        return ranks->data_size / zs_n_machines(ranks);
    case ZF_GROUP_ACROSS:
        return zs_n_machines(ranks);
    default:
        return ranks->data_size;
    }
}

typedef int (*split_fn)(void *mpi, uint32_t number, int color, int key, char *text, size_t nbytes);

int zs_ranks_arrange(zs_ranks_t *ranks) {
    split_fn split = (split_fn)dlsym(library, "zf_mpi_split");
    static const uint32_t numbers[] = {ZS_GROUP_DATA,   ZS_GROUP_ALL,  ZS_GROUP_MODELS,
                                       ZS_GROUP_EXPERT, ZF_GROUP_NODE, ZF_GROUP_ACROSS};
    uint32_t colors[6], n = zs_has_two_levels(ranks) ? 6 : 4;
    char text[256] = "";
    ranks->data_size = ranks->size / ranks->n_models;
    ranks->model = ranks->rank % ranks->n_models;
    ranks->data_rank = ranks->rank / ranks->n_models;
    ranks->expert = ranks->data_rank % ranks->n_experts;
    colors[ZS_GROUP_DATA] = ranks->model;
    colors[ZS_GROUP_ALL] = 0;
    colors[ZS_GROUP_MODELS] = ranks->data_rank;
    colors[ZS_GROUP_EXPERT] = ranks->model * ranks->n_experts + ranks->expert;
    colors[4] = ranks->model * ranks->size + ranks->data_rank / zs_group_size(ranks, ZF_GROUP_NODE);
    colors[5] = ranks->model * ranks->size + ranks->data_rank % zs_group_size(ranks, ZF_GROUP_NODE);
    for (uint32_t i = 0; i < n; i++)
        if (!split || split(handle, numbers[i], (int)colors[i], (int)ranks->rank, text, sizeof text) != 0)
            return fprintf(stderr, "zf-conform shard: process group %u: %s\n", numbers[i], text), -1;
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

typedef int (*open_fn)(const void *comm, void **out, char *text, size_t nbytes);
typedef const void *(*extension_fn)(const void *mpi, const char *id);
typedef void (*close_fn)(void *mpi);

int zs_ranks_open(const char *file, zs_ranks_t *out) {
    char text[256] = "";
    library = dlopen(file, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own parts look for its symbols */
    if (!library)
        return fprintf(stderr, "zf-conform shard: %s\n", dlerror()), -1;
    open_fn open = (open_fn)dlsym(library, "zf_mpi_open");
    extension_fn extension = (extension_fn)dlsym(library, "zf_mpi_extension");
    if (!open || !extension || open(NULL, &handle, text, sizeof text) != 0)
        return fprintf(stderr, "zf-conform shard: %s: %s\n", file, text), -1;
    out->mpi = extension(handle, ZF_EXT_COLLECTIVES);
    out->noting = (zf_collectives_ext_t){
        .struct_size = sizeof out->noting, .ctx = out, .group = group, .start = start, .test = test, .abort = give_up};
    opened = out;
    out->n_models = out->n_experts = 1;
    if (out->mpi->group(out->mpi->ctx, 0, &out->rank, &out->size, NULL) != ZF_OK)
        return -1;
    return zs_ranks_arrange(out);
}

void zs_ranks_close(zs_ranks_t *ranks) {
    close_fn close = (close_fn)dlsym(library, "zf_mpi_close");
    (void)ranks;
    if (close)
        close(handle);
}

int zs_ranks_gather(zs_ranks_t *ranks, void *all, uint64_t nbytes) {
    static uint64_t number;
    zf_collective_t call = {.struct_size = sizeof call,
                            .kind = ZF_COLLECTIVE_ALL_GATHER,
                            .group = ZS_GROUP_ALL,
                            .bucket = ZF_NO_ID,
                            .number = UINT32_MAX + ++number, /* no instance counts that far */
                            .recv = all,
                            .nbytes = nbytes};
    uint64_t request;
    zf_status_t st = ranks->mpi->start(ranks->mpi->ctx, &call, &request, NULL);
    while (st == ZF_OK && (st = ranks->mpi->test(ranks->mpi->ctx, request, NULL)) == ZF_IN_PROGRESS) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        st = ZF_OK;
    }
    return st == ZF_OK ? 0 : -1;
}

uint64_t zs_ranks_nccl_nbytes(void) {
    static uint64_t before;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    uint64_t (*sent)(void), (*n_peers)(void), now;

    *(void **)&sent = nccl ? dlsym(nccl, "fakenccl_sent_nbytes") : NULL;
    *(void **)&n_peers = nccl ? dlsym(nccl, "fakenccl_n_peers") : NULL;
    if (nccl)
        dlclose(nccl);
    if (!sent || !n_peers)
        return ZS_NOT_KNOWN;
    now = sent() - n_peers() * ZS_NAME_NBYTES - before;
    before += now;
    return now;
}
