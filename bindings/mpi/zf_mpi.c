/* SPDX-License-Identifier: Apache-2.0 */
/* zf_mpi.c - exchanges as messages between each two ranks (contract in zf_mpi.h).
 *
 * Model. A request is a receive from and a send to every other rank, all started at once. Non-blocking collectives of
 * MPI move the same bytes, but wait for all before any part is there, cannot be given up, and pair whatever two ranks
 * call next.
 * Here the tag of a message is made of what it is for (kind, purpose, bucket, step, number, size): ranks that do
 * different things wait for each other until the plugin's deadline instead of taking one thing for another, but for one
 * pair in as many as MPI has tags (2^31 in Open MPI). Each lane of each instance has a communicator of its own, where
 * all ranks make the same calls in the same order: there equal tags of two calls that are under way do no harm.
 *
 * Messages are at most PIECE bytes, since MPI counts in int. */
#define _POSIX_C_SOURCE 199309L /* nanosleep */

#include "zf_mpi.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGE = 1 << 16, N_ASKED = 16, PAUSE_NS = 20000 };
enum { PIECE = 1 << 30, N_LANES = 5, N_INSTANCES = 4, LEAST_TAG_UB = 32767, MOST_GROUPS = 16 };

/* A process group. */
typedef struct circle {
    uint32_t number;
    MPI_Comm comms[N_INSTANCES][N_LANES];
    int rank, size;
    int is_of_nodes; /* made of group 0 (split_nodes) */
} circle_t;

struct zf_mpi {
    MPI_Comm all; /* what groups are split from */
    circle_t groups[MOST_GROUPS];
    int n_groups, tag_mask;
    int has_initialised;
    _Atomic int is_failed;
    zf_collectives_ext_t table;
};

typedef struct request {
    const circle_t *group;
    int n; /* messages: the receives, then as many sends */
    int n_pieces;
    int n_asked; /* by one test, with pauses between: MPI moves bytes while it is asked, and at no other time */
    MPI_Request messages[];
} request_t;

static zf_status_t refuse(zf_error_t *err, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (!err || err->struct_size < sizeof *err)
        return ZF_ERR_RANKS;
    if (code != MPI_SUCCESS)
        MPI_Error_string(code, text, &n);
    err->status = ZF_ERR_RANKS;
    err->native_code = code;
    snprintf(err->origin, sizeof err->origin, "zf_mpi");
    snprintf(err->message, sizeof err->message, "%s: %.300s", what, text);
    return ZF_ERR_RANKS;
}

static zf_status_t fail(zf_mpi_t *mpi, zf_error_t *err, int code, const char *what) {
    mpi->is_failed = 1;
    return refuse(err, code, what);
}

/* ---- zf.collectives/0 -------------------------------------------------------------------------------------------- */

static circle_t *find_group(zf_mpi_t *mpi, uint32_t number) {
    for (int i = 0; i < mpi->n_groups; i++)
        if (mpi->groups[i].number == number)
            return &mpi->groups[i];
    return NULL;
}

/* A communicator for each lane of each instance: made here, as making one is a call of all ranks without a deadline. */
static int fill_group(circle_t *group, MPI_Comm comm) {
    for (int i = 0; i < N_INSTANCES * N_LANES; i++) {
        MPI_Comm *made = &group->comms[i / N_LANES][i % N_LANES];
        if (MPI_Comm_dup(comm, made) != MPI_SUCCESS)
            return -1;
        MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(comm, &group->rank);
    MPI_Comm_size(comm, &group->size);
    return 0;
}

static void free_group(circle_t *group) {
    for (int i = 0; i < N_INSTANCES * N_LANES; i++)
        MPI_Comm_free(&group->comms[i / N_LANES][i % N_LANES]);
}

/* Takes what comm's ranks become as process group `number`, in the place of `found` where there is one. Frees comm. */
static int put_group(zf_mpi_t *mpi, circle_t *found, uint32_t number, MPI_Comm comm, int is_of_nodes) {
    circle_t made = {.number = number, .is_of_nodes = is_of_nodes};
    int is_bad = fill_group(&made, comm) != 0;
    MPI_Comm_free(&comm);
    if (is_bad)
        return -1;
    if (found)
        free_group(found);
    else
        found = &mpi->groups[mpi->n_groups++];
    *found = made;
    return 0;
}

/* The ranks of group 0 on this machine, and those of the same place on each. Collective. */
static int split_nodes(zf_mpi_t *mpi) {
    MPI_Comm all = mpi->groups[0].comms[0][0], node, across;
    int place;
    if (mpi->n_groups > MOST_GROUPS - 2 ||
        MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, mpi->groups[0].rank, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return -1;
    MPI_Comm_rank(node, &place);
    if (put_group(mpi, NULL, ZF_GROUP_NODE, node, 1) != 0 ||
        MPI_Comm_split(all, place, mpi->groups[0].rank, &across) != MPI_SUCCESS)
        return -1;
    return put_group(mpi, NULL, ZF_GROUP_ACROSS, across, 1);
}

/* Group 0 will have other ranks: those on one machine are found again. */
static void forget_nodes(zf_mpi_t *mpi) {
    int n = 0;
    for (int i = 0; i < mpi->n_groups; i++)
        if (mpi->groups[i].is_of_nodes)
            free_group(&mpi->groups[i]);
        else
            mpi->groups[n++] = mpi->groups[i];
    mpi->n_groups = n;
}

static zf_status_t group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    zf_mpi_t *mpi = ctx;
    const circle_t *found = find_group(mpi, number);
    const char *why = "zf_mpi_split has not made a group of that number";
    if (mpi->is_failed) { /* a later instance might take them for its own */
        found = NULL;
        why = "an exchange was given up, and messages of it may still come: open another zf_mpi (zf_mpi_open), on "
              "every rank";
    } else if (!found && (number == ZF_GROUP_NODE || number == ZF_GROUP_ACROSS) && split_nodes(mpi) == 0)
        found = find_group(mpi, number);
    if (!found) {
        if (err && err->struct_size >= sizeof *err)
            snprintf(err->message, sizeof err->message, "%s", why);
        return ZF_ERR_RANKS;
    }
    *out_rank = (uint32_t)found->rank;
    *out_size = (uint32_t)found->size;
    return ZF_OK;
}

/* FNV-1a of what the call is for. */
static int tag_of(const zf_mpi_t *mpi, const zf_collective_t *call) {
    const uint64_t words[] = {(uint64_t)call->kind,
                              (uint64_t)call->purpose,
                              call->bucket,
                              call->step,
                              call->number,
                              call->nbytes,
                              call->lane};
    const unsigned char *bytes = (const unsigned char *)words;
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < sizeof words; i++)
        hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return (int)((hash ^ hash >> 32) & (uint64_t)mpi->tag_mask);
}

static int piece_nbytes(uint64_t nbytes, int piece) {
    uint64_t left = nbytes - (uint64_t)piece * PIECE;
    return left < PIECE ? (int)left : PIECE;
}

/* Messages from or to one rank. */
static int start_pieces(const zf_mpi_t *mpi, const zf_collective_t *call, int peer, int is_receive,
                        request_t *request) {
    const unsigned char *send = call->send
                                    ? (const unsigned char *)call->send + (uint64_t)peer * call->nbytes
                                    : (const unsigned char *)call->recv + (uint64_t)request->group->rank * call->nbytes;
    unsigned char *recv = (unsigned char *)call->recv + (uint64_t)peer * call->nbytes;
    MPI_Comm comm = request->group->comms[call->instance][call->lane % N_LANES];
    int tag = tag_of(mpi, call);
    for (int i = 0; i < request->n_pieces; i++) {
        uint64_t at = (uint64_t)i * PIECE;
        int n = piece_nbytes(call->nbytes, i), code;
        if (is_receive)
            code = MPI_Irecv(recv + at, n, MPI_BYTE, peer, tag, comm, &request->messages[request->n]);
        else
            code = MPI_Isend(send + at, n, MPI_BYTE, peer, tag, comm, &request->messages[request->n]);
        if (code != MPI_SUCCESS)
            return code;
        request->n++;
    }
    return MPI_SUCCESS;
}

/* In the order of distance, so that not all send to the same rank first. */
static int start_all(const zf_mpi_t *mpi, const zf_collective_t *call, request_t *request) {
    const circle_t *of = request->group;
    int code = MPI_SUCCESS;
    for (int d = 1; d < of->size && code == MPI_SUCCESS; d++)
        code = start_pieces(mpi, call, (of->rank + of->size - d) % of->size, 1, request);
    for (int d = 1; d < of->size && code == MPI_SUCCESS; d++)
        code = start_pieces(mpi, call, (of->rank + d) % of->size, 0, request);
    return code;
}

static zf_status_t start(void *ctx, const zf_collective_t *call, uint64_t *out_request, zf_error_t *err) {
    zf_mpi_t *mpi = ctx;
    int n_pieces = (int)((call->nbytes + PIECE - 1) / PIECE);
    const circle_t *of = find_group(mpi, call->group);
    size_t n = of ? 2 * (size_t)n_pieces * (size_t)(of->size - 1) : 0;
    request_t *request = calloc(1, sizeof *request + n * sizeof *request->messages);
    if (!of || !request || call->instance >= N_INSTANCES) {
        const char *what = !of ? "unknown process group" : "more than four instances over one transport";
        what = of && !request ? "no memory for a request" : what;
        free(request);
        return refuse(err, MPI_SUCCESS, what); /* nothing was sent */
    }
    request->group = of;
    request->n_pieces = n_pieces;
    request->n_asked = call->nbytes < LARGE ? 1 : N_ASKED;
    int code = start_all(mpi, call, request);
    *out_request =
        (uint64_t)(uintptr_t)request; /* even after a failure: some messages may be under way, and are given up */
    return code == MPI_SUCCESS ? ZF_OK : fail(mpi, err, code, "a message could not be started");
}

static zf_status_t test(void *ctx, uint64_t handle, zf_error_t *err) {
    zf_mpi_t *mpi = ctx;
    request_t *request = (request_t *)(uintptr_t)handle;
    int is_over = 0, code = MPI_SUCCESS;
    for (int i = 0; i < request->n_asked && code == MPI_SUCCESS && !is_over; i++) {
        if (i)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        code = MPI_Testall(request->n, request->messages, &is_over, MPI_STATUSES_IGNORE);
    }
    if (code != MPI_SUCCESS)
        return fail(mpi, err, code, "a message failed");
    if (!is_over)
        return ZF_IN_PROGRESS;
    free(request);
    return ZF_OK;
}

/* Receives can be cancelled as long as nothing of them has come; sends cannot. */
static zf_status_t give_up(void *ctx, uint64_t handle, zf_error_t *err) {
    zf_mpi_t *mpi = ctx;
    request_t *request = (request_t *)(uintptr_t)handle;
    int n_receives = request->n_pieces * (request->group->size - 1), n_left = 0, is_over;
    (void)err;
    mpi->is_failed = 1;
    for (int i = 0; i < request->n; i++) {
        if (request->messages[i] == MPI_REQUEST_NULL)
            continue;
        if (i < n_receives)
            MPI_Cancel(&request->messages[i]);
        is_over = 0;
        if (MPI_Test(&request->messages[i], &is_over, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_over)
            n_left++;
    }
    if (n_left)
        return ZF_ERR_RANKS; /* the request stays: MPI goes on with it */
    free(request);
    return ZF_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static int explain(char *text, size_t nbytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, nbytes, format, args);
    va_end(args);
    return -1;
}

static int initialise(zf_mpi_t *mpi, char *text, size_t nbytes) {
    int is_there = 0, level = 0;
    MPI_Initialized(&is_there);
    if (is_there)
        MPI_Query_thread(&level);
    else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return explain(text, nbytes, "MPI_Init_thread failed");
    mpi->has_initialised = !is_there;
    if (level < MPI_THREAD_MULTIPLE)
        return explain(text, nbytes, "MPI gives thread level %d: need MPI_THREAD_MULTIPLE (%d)", level,
                       MPI_THREAD_MULTIPLE);
    return 0;
}

/* The largest power of two of tags. */
static void find_tags(zf_mpi_t *mpi) {
    int *most, is_known = 0, mask = LEAST_TAG_UB;
    MPI_Comm_get_attr(mpi->all, MPI_TAG_UB, &most, &is_known);
    while (is_known && mask < *most / 2)
        mask = 2 * mask + 1;
    mpi->tag_mask = mask;
}

int zf_mpi_open(const void *comm, zf_mpi_t **out, char *text, size_t nbytes) {
    zf_mpi_t *mpi = calloc(1, sizeof *mpi);
    if (!mpi)
        return explain(text, nbytes, "no memory");
    if (initialise(mpi, text, nbytes) != 0) {
        free(mpi);
        return -1;
    }
    if (MPI_Comm_dup(comm ? *(const MPI_Comm *)comm : MPI_COMM_WORLD, &mpi->all) != MPI_SUCCESS ||
        fill_group(&mpi->groups[0], mpi->all) != 0) {
        free(mpi);
        return explain(text, nbytes, "MPI_Comm_dup failed");
    }
    mpi->n_groups = 1;
    find_tags(mpi);
    mpi->table = (zf_collectives_ext_t){.struct_size = sizeof mpi->table,
                                        .flags = ZF_COLLECTIVES_INSTANCES,
                                        .ctx = mpi,
                                        .group = group,
                                        .start = start,
                                        .test = test,
                                        .abort = give_up};
    *out = mpi;
    return 0;
}

int zf_mpi_split(zf_mpi_t *mpi, uint32_t number, int color, int key, char *text, size_t nbytes) {
    MPI_Comm comm;
    if (number == 0)
        forget_nodes(mpi);
    circle_t *found = find_group(mpi, number);
    if (!found && mpi->n_groups == MOST_GROUPS)
        return explain(text, nbytes, "process group %u: %d are all there can be", number, MOST_GROUPS);
    if (MPI_Comm_split(mpi->all, color, key, &comm) != MPI_SUCCESS)
        return explain(text, nbytes, "MPI_Comm_split failed for process group %u", number);
    if (put_group(mpi, found, number, comm, 0) != 0)
        return explain(text, nbytes, "MPI_Comm_dup failed for process group %u", number);
    return 0;
}

void zf_mpi_close(zf_mpi_t *mpi) {
    if (!mpi || mpi->is_failed)
        return;
    for (int i = 0; i < mpi->n_groups; i++)
        free_group(&mpi->groups[i]);
    MPI_Comm_free(&mpi->all);
    if (mpi->has_initialised)
        MPI_Finalize();
    free(mpi);
}

uint32_t zf_mpi_rank(const zf_mpi_t *mpi) { return (uint32_t)mpi->groups[0].rank; }
uint32_t zf_mpi_size(const zf_mpi_t *mpi) { return (uint32_t)mpi->groups[0].size; }

const void *zf_mpi_extension(const zf_mpi_t *mpi, const char *id) {
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &mpi->table : NULL;
}
