/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/work.c - a call's messages on their way, in a stream. */
#define _GNU_SOURCE
#include "double.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOOK_US = 50, SLOW_US = 200000 };

static uint64_t n_exchanges, sent_nbytes, n_peers;

/* For zf-conform: bytes sent; and other ranks of each exchange, all exchanges together. */
#define EXPORTED __attribute__((visibility("default"))) uint64_t
EXPORTED fakenccl_sent_nbytes(void) { return __atomic_load_n(&sent_nbytes, __ATOMIC_RELAXED); }
EXPORTED fakenccl_n_peers(void) { return __atomic_load_n(&n_peers, __ATOMIC_RELAXED); }

static fn_mailbox_t *mailbox(const fn_comm_t *comm, int from, int to) {
    return &comm->shared->mailboxes[from * comm->n_ranks + to];
}

static unsigned char *bytes_at(uint64_t at, uint64_t nbytes) {
    unsigned char *bytes = fakecuda_device_bytes(at, nbytes);
    if (!bytes)
        fc_finding("%llu bytes at %#llx are no memory of the device", (unsigned long long)nbytes,
                   (unsigned long long)at);
    return bytes;
}

/* A piece into the mailbox, if it is empty. Whether anything moved; -1: it never will. */
static int fill(const fn_work_t *work, fn_item_t *item) {
    fn_mailbox_t *box = mailbox(work->comm, work->comm->rank, item->peer);
    uint64_t left = item->nbytes - item->n_done, n = left < FN_MAILBOX_NBYTES ? left : FN_MAILBOX_NBYTES;
    if (__atomic_load_n(&box->is_full, __ATOMIC_ACQUIRE))
        return 0;
    const unsigned char *from = bytes_at(item->at + item->n_done, n);
    if (!from)
        return -1;
    box->kind = item->kind;
    box->number = work->number;
    box->total = item->nbytes;
    box->nbytes = n;
    memcpy(box->bytes, from, n);
    __atomic_store_n(&box->is_full, 1, __ATOMIC_RELEASE);
    item->n_done += n;
    __atomic_add_fetch(&sent_nbytes, n, __ATOMIC_RELAXED);
    return 1;
}

/* The same for a piece out of it. */
static int empty(const fn_work_t *work, fn_item_t *item) {
    fn_mailbox_t *box = mailbox(work->comm, item->peer, work->comm->rank);
    if (!__atomic_load_n(&box->is_full, __ATOMIC_ACQUIRE))
        return 0;
    if (box->kind != item->kind || box->number != work->number || box->total != item->nbytes) {
        fc_finding("rank %d, call %llu: %llu bytes (%c) are awaited of rank %d, whose call %llu sends %llu (%c)",
                   work->comm->rank, (unsigned long long)work->number, (unsigned long long)item->nbytes,
                   (char)item->kind, item->peer, (unsigned long long)box->number, (unsigned long long)box->total,
                   (char)box->kind);
        return -1;
    }
    unsigned char *to = item->is_summed ? (unsigned char *)(uintptr_t)item->at + item->n_done
                                        : bytes_at(item->at + item->n_done, box->nbytes);
    if (!to)
        return -1;
    memcpy(to, box->bytes, box->nbytes);
    item->n_done += box->nbytes;
    __atomic_store_n(&box->is_full, 0, __ATOMIC_RELEASE);
    return 1;
}

/* An earlier one, the same way, is not over. */
static int is_behind(const fn_item_t *items, uint32_t i) {
    for (uint32_t k = 0; k < i; k++)
        if (items[k].is_send == items[i].is_send && items[k].peer == items[i].peer && items[k].is_over != 1)
            return 1;
    return 0;
}

/* Messages left, after each has moved as far as it could. */
static uint32_t move_all(const fn_work_t *work, fn_item_t *items) {
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < work->n_items; i++) {
        fn_item_t *item = &items[i];
        int moved = item->is_over || is_behind(items, i) ? 0 : item->is_send ? fill(work, item) : empty(work, item);
        if (moved < 0)
            item->is_over = -1; /* stands still */
        else if (moved > 0 && item->n_done == item->nbytes)
            item->is_over = 1;
        n_left += item->is_over != 1;
    }
    return n_left;
}

static void stand_still(const fn_comm_t *comm) {
    while (!fn_comm_is_ended(comm))
        fc_pause_us(1000);
}

/* What this rank is to do wrong in its how manieth exchange. */
static void do_wrong(fn_work_t *work) {
    uint64_t number = __atomic_add_fetch(&n_exchanges, 1, __ATOMIC_RELAXED);
    int rank = work->comm->rank, is_error = fn_does(rank, "error", number), is_short = fn_does(rank, "short", number);
    if (fn_does(rank, "slow", number))
        fc_pause_us(SLOW_US);
    if (fn_does(rank, "die", number))
        kill(getpid(), SIGKILL);
    if (is_error)
        fn_comm_set(work->comm, FN_REMOTE_ERROR);
    for (uint32_t i = 0; i < work->n_items && is_short; i++)
        work->items[i].nbytes -= work->items[i].nbytes > 16; /* what is larger than a name */
    if (is_error || fn_does(rank, "late", number))
        stand_still(work->comm);
}

/* Once all messages have passed. */
static void sum(const fn_work_t *work) {
    const fn_sum_t *it = &work->sum;
    const fn_comm_t *comm = work->comm;
    uint64_t own_at = (uint64_t)comm->rank * it->nbytes;
    const unsigned char *own = bytes_at(it->send + own_at, it->nbytes);
    unsigned char *out = bytes_at(it->recv, it->nbytes);
    if (!own || !out)
        return;
    memcpy(it->parts + own_at, own, it->nbytes);
    fn_sum(it->parts, it->nbytes, it->type, comm->rank, comm->n_ranks, out);
}

static void drop(fn_work_t *work) {
    fn_comm_drop(work->comm);
    free(work->sum.parts);
    free(work);
}

/* [the stream's thread] */
static void CUDA_CB run(void *raw) {
    fn_work_t *work = raw;
    if (fc_config.nccl_delay_us && fn_random(work->comm) % 2)
        fc_pause_us(fn_random(work->comm) % fc_config.nccl_delay_us);
    do_wrong(work);
    __atomic_add_fetch(&n_peers, (uint64_t)work->comm->n_ranks - 1, __ATOMIC_RELAXED);
    while (!fn_comm_is_ended(work->comm) && move_all(work, work->items))
        fc_pause_us(LOOK_US);
    if (work->sum.parts && !fn_comm_is_ended(work->comm))
        sum(work);
    drop(work);
}

static fn_result_t put(fn_work_t *work) {
    CUresult rc = fn_comm_is_ended(work->comm) ? CUDA_ERROR_INVALID_HANDLE : fc_launch_work(work->stream, run, work);
    if (!rc)
        return FN_SUCCESS;
    drop(work);
    return FN_UNHANDLED_CUDA_ERROR;
}

/* [a thread of its own] A call that returned ncclInProgress. */
static void *put_later(void *raw) {
    fn_work_t *work = raw;
    fn_comm_t *comm = work->comm;
    int32_t in_progress = FN_IN_PROGRESS; /* else the work has failed already */
    __atomic_add_fetch(&comm->n_refs, 1, __ATOMIC_RELAXED);
    fc_pause_us(1 + fn_random(comm) % (fc_config.nccl_delay_us + 1));
    cuCtxPushCurrent(comm->context);
    fn_result_t rc = put(work);
    __atomic_compare_exchange_n(&comm->state, &in_progress, (int32_t)rc, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    fn_comm_drop(comm);
    return NULL;
}

fn_result_t fn_work_launch(fn_work_t *work) {
    pthread_t thread;
    __atomic_add_fetch(&work->comm->n_refs, 1, __ATOMIC_RELAXED);
    work->number = work->comm->n_calls++;
    if (fn_random(work->comm) % 2)
        return put(work);
    fn_comm_set(work->comm, FN_IN_PROGRESS);
    if (pthread_create(&thread, NULL, put_later, work) != 0)
        return FN_SYSTEM_ERROR;
    pthread_detach(thread);
    return FN_IN_PROGRESS;
}
