/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/backend/test_nccl.c - the transport over NCCL, exchange by exchange: two ranks, which are threads of this
 * process, each with a device of its own, on the doubles of the driver and of NCCL. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "device/device.h"
#include "local_ranks.h"
#include "suite.h"

extern const zfi_device_ops_t zfi_device_cuda;

enum { N_RANKS = 2, NBYTES = 4000, N_EXCHANGES = 20 };
#define DEADLINE_NS 20000000000u

static const zfi_device_ops_t *const ops = &zfi_device_cuda;
static const zfi_comm_ops_t *const nccl = &zfi_comm_nccl;
static zt_ranks_t ranks;
static pthread_barrier_t both_are_done;
enum { GROUP = 5, ANOTHER = 6 /* both of all ranks */ };

/* One rank: a thread of its own. */
typedef struct side {
    uint32_t rank;
    void (*fn)(struct side *side);
    zf_host_t host;
    _Atomic int is_poisoned;
    zfi_device_t *device;
    zfi_stream_t *stream;
    zfi_comm_t *comm;
    unsigned char *memory; /* of the device: [2][N_RANKS][NBYTES] */
    uint64_t timeout_ns;
    zf_status_t st;
    zf_error_t err;
} side_t;

static void ignore_timeout(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    (void)ctx, (void)timeline, (void)value;
}
static void ignore_failure(void *ctx, const char *what) { (void)ctx, (void)what; }
static void ignore_stuck(void *ctx, const char *stream, uint32_t n) { (void)ctx, (void)stream, (void)n; }

static void open_side(side_t *side) {
    zfi_device_env_t device_env = {.timeout_ns = DEADLINE_NS,
                                   .is_poisoned = &side->is_poisoned,
                                   .timed_out = ignore_timeout,
                                   .failed = ignore_failure,
                                   .is_stuck = ignore_stuck};
    zfi_comm_env_t env = {
        .host = &side->host, .timeout_ns = side->timeout_ns, .is_poisoned = &side->is_poisoned, .norm_group = GROUP};
    void *memory = NULL;
    ck_assert_int_eq(ops->open(0, &device_env, &side->device, &side->err), ZF_OK);
    ck_assert_int_eq(ops->stream_create(side->device, "test", &side->stream, &side->err), ZF_OK);
    ck_assert_int_eq(ops->alloc(side->device, 2 * N_RANKS * NBYTES, "test", &memory, &side->err), ZF_OK);
    side->memory = memory;
    env.ops = ops;
    env.device = side->device;
    side->st = nccl->open(&env, &side->comm, &side->err);
}

static void close_side(side_t *side) {
    nccl->close(side->comm);
    ops->free(side->device, side->memory, 2 * N_RANKS * NBYTES);
    ops->stream_destroy(side->stream);
    ops->close(side->device);
}

/* Both are in one context: to free memory waits for all of its work, so no side closes while the other's exchange may
 * wait for it. Ranks are processes of their own otherwise. */
static void *run_side(void *raw) {
    side_t *side = raw;
    open_side(side);
    if (!side->st)
        side->fn(side);
    pthread_barrier_wait(&both_are_done);
    close_side(side);
    return NULL;
}

static void run_both(void (*fn)(side_t *side), uint64_t timeout_ns, side_t *sides) {
    pthread_t threads[N_RANKS];
    zt_ranks_init(&ranks, N_RANKS);
    ck_assert_int_eq(pthread_barrier_init(&both_are_done, NULL, N_RANKS), 0);
    memset(sides, 0, N_RANKS * sizeof *sides);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        sides[r].rank = r;
        sides[r].fn = fn;
        sides[r].timeout_ns = timeout_ns;
        sides[r].err.struct_size = sizeof sides[r].err;
        sides[r].host = (zf_host_t){
            .struct_size = sizeof sides[r].host, .ctx = &ranks.ranks[r], .get_extension = zt_ranks_extension};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_side, &sides[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&both_are_done);
    zt_ranks_free(&ranks);
}

/* Bytes of the device's memory, from and to. */
static void move(side_t *side, void *host, unsigned char *device, int is_up) {
    zfi_range_t range = {is_up ? (void *)device : host, is_up ? host : (void *)device, NBYTES};
    zfi_op_t op = is_up ? zfi_op_up(&range, 1) : zfi_op_down(&range, 1);
    ck_assert_int_eq(ops->enqueue(side->device, side->stream, &op, 1), ZF_OK);
    ck_assert_int_eq(ops->synchronise(side->stream, ops->mark(side->stream), DEADLINE_NS, NULL), ZF_OK);
}

static unsigned char byte_of(uint32_t from, uint32_t to, uint64_t turn) {
    return (unsigned char)(1 + from * 50 + to * 20 + turn);
}

/* NBYTES per rank, to where the device's memory begins unless it says otherwise. */
static zf_status_t exchange(side_t *side, zfi_exchange_t what) {
    what.recv = what.recv ? what.recv : side->memory;
    what.nbytes = NBYTES;
    what.stream = side->stream;
    return nccl->exchange(side->comm, &what, &side->err);
}

static void all_are_ok(const side_t *sides) {
    for (uint32_t r = 0; r < N_RANKS; r++)
        ck_assert_msg(sides[r].st == ZF_OK, "rank %u: %s", r, sides[r].err.message);
}

/* ---- what is moved ----------------------------------------------------------------------------------------------- */

static void put(side_t *side, unsigned char *at, unsigned char byte) {
    unsigned char bytes[NBYTES];
    memset(bytes, byte, sizeof bytes);
    move(side, bytes, at, 1);
}

static void expect(side_t *side, unsigned char *at, unsigned char byte) {
    unsigned char bytes[NBYTES], wanted[NBYTES];
    memset(wanted, byte, sizeof wanted);
    move(side, bytes, at, 0);
    ck_assert_mem_eq(bytes, wanted, NBYTES);
}

/* Part r of send goes to rank r, one's own part is not touched; an all-gather is in place. */
static void exchange_all(side_t *side) {
    unsigned char *send = side->memory, *recv = side->memory + N_RANKS * NBYTES;
    uint32_t own = side->rank, other = 1 - own;
    for (uint64_t turn = 0; turn < N_EXCHANGES; turn++) {
        zfi_exchange_t all_to_all = {
            .purpose = ZF_COLLECTIVE_FOR_GRADIENTS, .step = turn + 1, .send = send, .recv = recv};
        zfi_exchange_t all_gather = {
            .purpose = ZF_COLLECTIVE_FOR_VALUES, .step = turn + 1, .recv = recv, .lane = ZFI_LANE_VALUES};
        put(side, send + other * NBYTES, byte_of(own, other, turn));
        put(side, recv + own * NBYTES, 250);
        ck_assert_int_eq(exchange(side, all_to_all), ZF_OK);
        expect(side, recv + other * NBYTES, byte_of(other, own, turn));
        expect(side, recv + own * NBYTES, 250);
        put(side, recv + own * NBYTES, byte_of(own, own, turn));
        ck_assert_int_eq(exchange(side, all_gather), ZF_OK);
        expect(side, recv + other * NBYTES, byte_of(other, other, turn));
        expect(side, recv + own * NBYTES, byte_of(own, own, turn));
    }
}

ZT_TEST(bytes_come_to_where_they_belong) {
    side_t sides[N_RANKS];
    run_both(exchange_all, DEADLINE_NS, sides);
    all_are_ok(sides);
}

/* ---- process groups ---------------------------------------------------------------------------------------------- */

static void gather_in(side_t *side, uint32_t group, uint32_t lane, unsigned char byte) {
    unsigned char *recv = side->memory;
    put(side, recv + side->rank * NBYTES, (unsigned char)(byte + side->rank));
    side->st =
        exchange(side, (zfi_exchange_t){.purpose = ZF_COLLECTIVE_FOR_SUMS, .step = byte, .lane = lane, .group = group});
    for (uint32_t r = 0; r < N_RANKS && !side->st; r++)
        expect(side, recv + r * NBYTES, (unsigned char)(byte + r));
}

/* Ranks join in orders of their own; exchanges have one. */
static void exchange_in_groups(side_t *side) {
    uint32_t index[3] = {0}, names[] = {GROUP, ANOTHER, ZT_ALONE}, again;
    unsigned char byte = 1;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t k = side->rank ? 2 - i : i;
        ck_assert_int_eq(nccl->join(side->comm, names[k], &index[k], &side->err), ZF_OK);
        ck_assert_int_eq(nccl->join(side->comm, names[k], &again, &side->err), ZF_OK);
        ck_assert_uint_eq(again, index[k]);
    }
    ck_assert_uint_eq(nccl->place(side->comm, index[2]).n_ranks, 1);
    ck_assert_uint_eq(nccl->place(side->comm, index[0]).n_ranks, N_RANKS);
    for (int turn = 0; turn < 3 && !side->st; turn++)
        for (uint32_t k = 0; k < 4 && !side->st; k++, byte += 5)
            gather_in(side, k == 2 ? 0 : index[k % 2], k == 1 ? ZFI_LANE_VALUES : ZFI_LANE_GRADIENTS, byte);
    if (!side->st) { /* with itself alone: nothing moves */
        put(side, side->memory, 77);
        side->st = exchange(side, (zfi_exchange_t){.purpose = ZF_COLLECTIVE_FOR_NORM, .group = index[2]});
        expect(side, side->memory, 77);
    }
}

ZT_TEST(groups_have_communicators_of_their_own) {
    side_t sides[N_RANKS];
    uint64_t began = zfi_now_ns();
    run_both(exchange_in_groups, DEADLINE_NS, sides);
    all_are_ok(sides);
    ck_assert_uint_lt(zfi_now_ns() - began, DEADLINE_NS); /* nor do they end in the same order */
}

/* Rank 1 has joined it, and never comes: neither to the start of NCCL nor later. */
static void exchange_alone_in_a_group(side_t *side) {
    uint32_t index;
    ck_assert_int_eq(nccl->join(side->comm, GROUP, &index, &side->err), ZF_OK);
    if (side->rank == 0)
        gather_in(side, index, ZFI_LANE_GRADIENTS, 1);
}

ZT_TEST(a_group_that_does_not_begin_is_named) {
    side_t sides[N_RANKS];
    run_both(exchange_alone_in_a_group, 2000000000u, sides);
    ck_assert_int_eq(sides[0].st, ZF_ERR_TIMEOUT);
    ck_assert_msg(strstr(sides[0].err.message, "rank 1 has not come to the start of the transport") != NULL &&
                      strstr(sides[0].err.message, "this is rank 0 of 2 of process group 5") != NULL,
                  "%s", sides[0].err.message);
}

/* ---- what does not belong together ------------------------------------------------------------------------------- */

/* As many bytes of another bucket. */
static void exchange_unlike(side_t *side) {
    side->st = exchange(side, (zfi_exchange_t){.purpose = ZF_COLLECTIVE_FOR_PARAMETERS,
                                               .bucket = 3 + side->rank,
                                               .step = 9,
                                               .lane = ZFI_LANE_VALUES});
}

ZT_TEST(what_two_ranks_call_by_different_names_is_an_error) {
    side_t sides[N_RANKS];
    run_both(exchange_unlike, DEADLINE_NS, sides);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        char wanted[160];
        snprintf(wanted, sizeof wanted,
                 "rank %u has not come to the gathering of parameters (stage 3), bucket %u, step 9 but to the "
                 "gathering of parameters (stage 3), bucket %u, step 9",
                 1 - r, 3 + r, 4 - r);
        ck_assert_int_eq(sides[r].st, ZF_ERR_RANKS);
        ck_assert_msg(strstr(sides[r].err.message, wanted) != NULL, "%s", sides[r].err.message);
    }
}

/* Rank 1 never comes. */
static void exchange_alone(side_t *side) {
    const zfi_exchange_t norm = {.purpose = ZF_COLLECTIVE_FOR_NORM, .bucket = ZF_NO_ID, .step = 4};
    if (side->rank != 0)
        return;
    side->st = exchange(side, norm);
    zf_error_t first = side->err;
    ck_assert_int_eq(exchange(side, norm), ZF_ERR_RANKS); /* it has ended */
    side->err = first;
}

ZT_TEST(a_rank_that_does_not_come_is_named) {
    side_t sides[N_RANKS];
    run_both(exchange_alone, 2000000000u, sides);
    ck_assert_int_eq(sides[0].st, ZF_ERR_TIMEOUT);
    ck_assert_msg(strstr(sides[0].err.message, "rank 1 has not come to the norm, step 4 within 1500 ms") != NULL, "%s",
                  sides[0].err.message);
}

/* Somebody else has ended the instance: what is under way ends soon, and without an error of its own. */
static void exchange_poisoned(side_t *side) {
    side->is_poisoned = 1;
    exchange_alone(side);
}

ZT_TEST(poison_ends_an_exchange) {
    side_t sides[N_RANKS];
    uint64_t began = zfi_now_ns();
    run_both(exchange_poisoned, 2 * DEADLINE_NS, sides);
    ck_assert_uint_lt(zfi_now_ns() - began, DEADLINE_NS);
    ck_assert_int_eq(sides[0].st, ZF_ERR_POISONED);
}

ZT_SUITE("nccl")
