/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/double.h - the test double of NCCL, as its own files see it. What it models: ../README.md.
 *
 * Model. Ranks are processes of one machine. A communicator is a file that all of them map: a mailbox for each pair of
 * ranks. What NCCL does by a kernel is done here by a function in the stream, on the double of the driver: it fills and
 * empties mailboxes until every message of the call has passed, or the communicator is aborted. Messages carry what
 * they are for; a rank that finds another call's message in a mailbox reports a finding and stands still, as NCCL
 * would.
 *
 * Only what libzfplugin uses is here: communicators that do not block. Like NCCL it takes the device of the calling
 * thread, and a call may return ncclInProgress: then its work is on the stream only once ncclCommGetAsyncError says
 * ncclSuccess, and any other call before is a finding. */
#pragma once

#include "fake.h"

typedef enum fn_result {
    FN_SUCCESS = 0,
    FN_UNHANDLED_CUDA_ERROR = 1,
    FN_SYSTEM_ERROR = 2,
    FN_INVALID_ARGUMENT = 4,
    FN_INVALID_USAGE = 5,
    FN_REMOTE_ERROR = 6,
    FN_IN_PROGRESS = 7
} fn_result_t;

enum { FN_UINT8 = 1, FN_FLOAT16 = 6, FN_FLOAT32 = 7, FN_BFLOAT16 = 9 }; /* ncclDataType_t */
enum { FN_MAX_RANKS = 16, FN_MAILBOX_NBYTES = 1 << 18, FN_MAX_ITEMS = 8 * FN_MAX_RANKS };

/* Whether FAKENCCL_FAULT has that this rank does this wrong, at its how manieth exchange. */
int fn_does(int rank, const char *wrong, uint64_t number);

/* From one rank to another. Full from when the sender sets it until the receiver has emptied it. */
typedef struct fn_mailbox {
    uint32_t is_full;
    uint32_t kind;          /* of the call: 'g' all-gather, 'r' reduce-scatter, 's' send and receive */
    uint64_t number;        /* of the call on its communicator */
    uint64_t total, nbytes; /* of the message, and of this piece */
    unsigned char bytes[FN_MAILBOX_NBYTES];
} fn_mailbox_t;

typedef struct fn_shared {
    uint32_t n_attached, n_finalized;
    fn_mailbox_t mailboxes[]; /* [from][to] */
} fn_shared_t;

typedef struct fn_comm {
    int rank, n_ranks;
    char path[112];
    fn_shared_t *shared;
    CUcontext context;
    int32_t state;    /* fn_result_t */
    int32_t is_ended; /* aborted or destroyed: nothing touches memory any more */
    int32_t n_refs;   /* the handle, threads and work on streams */
    uint64_t n_calls;
} fn_comm_t;

void fn_comm_drop(fn_comm_t *comm);
int fn_comm_is_ended(const fn_comm_t *comm);
void fn_comm_set(fn_comm_t *comm, fn_result_t state);
/* Another number for each rank. */
uint64_t fn_random(const fn_comm_t *comm);

/* A message of a call. */
typedef struct fn_item {
    int is_send, peer;
    uint32_t kind;
    uint64_t at, nbytes, n_done; /* at: the device's memory, or in fn_sum_t's parts where it is received to be summed */
    int is_over, is_summed;
} fn_item_t;

/* What a call sums once its messages have passed. */
typedef struct fn_sum {
    unsigned char *parts; /* [n_ranks][nbytes]; NULL: nothing */
    uint64_t send, recv, nbytes;
    int type;
} fn_sum_t;

typedef struct fn_work {
    fn_comm_t *comm;
    CUstream stream;
    uint32_t n_items;
    uint64_t number;
    fn_item_t items[FN_MAX_ITEMS]; /* between two ranks one goes after the other */
    fn_sum_t sum;
} fn_work_t;

/* sum.c: of an element; 0: nothing that is summed. */
uint64_t fn_type_nbytes(int type);
/* This rank's part of the sums of parts [n_ranks][part_nbytes]. */
void fn_sum(const unsigned char *parts, uint64_t part_nbytes, int type, int rank, int n_ranks, unsigned char *out);

/* Puts it on its stream, now or a little later; takes it over. */
fn_result_t fn_work_launch(fn_work_t *work);
