/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_roll.c - who is named when an exchange does not end. The ranks wait one after the other: an answer
 * stays when whoever gave it has given up. */
#include <string.h>

#include "base/timeline.h"
#include "comm/comm.h"
#include "comm/roll.h"
#include "local_ranks.h"
#include "suite.h"

enum { MOST = 3, SUM_BUCKET = 3, NORM = 1 };
#define TIMEOUT_NS 40000000u

static zt_ranks_t ranks;
static _Atomic int is_poisoned;
static zfi_comm_t *comms[MOST];
static zf_host_t hosts[MOST];
static char memory[MOST][64];

static void open_all(uint32_t n) {
    zf_error_t err = {.struct_size = sizeof err};
    zt_ranks_init(&ranks, n);
    is_poisoned = 0;
    for (uint32_t r = 0; r < n; r++) {
        zfi_comm_env_t env = {
            .host = &hosts[r], .timeout_ns = TIMEOUT_NS, .is_poisoned = &is_poisoned, .norm_group = NORM};
        hosts[r] =
            (zf_host_t){.struct_size = sizeof hosts[r], .ctx = &ranks.ranks[r], .get_extension = zt_ranks_extension};
        ck_assert_msg(zfi_comm_host.open(&env, &comms[r], &err) == ZF_OK, "%s", err.message);
    }
}

static void close_all(uint32_t n) {
    for (uint32_t r = 0; r < n; r++)
        zfi_comm_host.close(comms[r]);
    zt_ranks_free(&ranks);
}

static zf_status_t gather(uint32_t rank, uint32_t lane, int32_t purpose, uint32_t bucket, zf_error_t *err) {
    zfi_exchange_t all = {.purpose = purpose, .bucket = bucket, .step = 7, .lane = lane, .nbytes = 4};
    all.recv = memory[rank];
    *err = (zf_error_t){.struct_size = sizeof *err};
    return zfi_comm_host.exchange(comms[rank], &all, err);
}

static void check_says(const zf_error_t *err, const char *text, int is_said) {
    ck_assert_msg(!strstr(err->message, text) == !is_said, "\"%s\" is%s in \"%s\"", text, is_said ? " not" : "",
                  err->message);
}

/* Rank 1 dies after it has sent its part of the values. Rank 2 waits for its gradients; rank 0 has all values but those
 * of rank 2. */
ZT_TEST(a_rank_that_waits_itself_is_not_named) {
    zf_collective_t values = {.struct_size = sizeof values,
                              .kind = ZF_COLLECTIVE_ALL_GATHER,
                              .purpose = ZF_COLLECTIVE_FOR_VALUES,
                              .lane = ZFI_LANE_VALUES,
                              .recv = memory[1],
                              .nbytes = 4};
    uint64_t request;
    zf_error_t err;
    open_all(3);
    ck_assert_int_eq(ranks.ranks[1].table.start(&ranks.ranks[1], &values, &request, NULL), ZF_OK);
    ck_assert_int_eq(gather(2, ZFI_LANE_GRADIENTS, ZF_COLLECTIVE_FOR_SUMS, 0, &err), ZF_ERR_TIMEOUT);
    check_says(&err, "a rank has not come to the gathering of gradients, bucket 0, step 7", 1);
    check_says(&err, "; 2 of 3 ranks do not answer", 1);
    ck_assert_uint_eq(err.rank, ZF_NO_ID);
    ck_assert_int_eq(gather(0, ZFI_LANE_VALUES, ZF_COLLECTIVE_FOR_VALUES, 0, &err), ZF_ERR_TIMEOUT);
    check_says(&err, "rank 1 has not come to the gathering of values, bucket 0, step 7", 1);
    check_says(&err, "rank 2", 0);
    ck_assert_uint_eq(err.rank, 1);
    ck_assert_int_eq(gather(0, ZFI_LANE_VALUES, ZF_COLLECTIVE_FOR_VALUES, 1, &err), ZF_ERR_RANKS); /* it has ended */
    close_all(3);
}

/* All wait, none for the same: two lanes are no contradiction, two exchanges of one lane are. */
static void both_wait(uint32_t lane_of_1, const char *text, uint32_t rank) {
    zf_error_t err;
    open_all(2);
    ck_assert_int_eq(gather(0, ZFI_LANE_GRADIENTS, ZF_COLLECTIVE_FOR_SUMS, SUM_BUCKET, &err), ZF_ERR_TIMEOUT);
    ranks.calls[0][ZFI_LANE_GRADIENTS][0][0].number = 0; /* as a transport that pairs by what a call is for */
    ck_assert_int_eq(gather(1, lane_of_1, ZF_COLLECTIVE_FOR_NORM, ZF_NO_ID, &err), ZF_ERR_TIMEOUT);
    check_says(&err, text, 1);
    ck_assert_uint_eq(err.rank, rank);
    close_all(2);
}

ZT_TEST(ranks_that_do_different_things) {
    both_wait(ZFI_LANE_GRADIENTS, "rank 0 has not come to the norm, step 7 but to the gathering of gradients, bucket 3",
              0);
    both_wait(
        ZFI_LANE_VALUES,
        "every rank waits, rank 0 for the gathering of gradients, bucket 3, step 7: the norm, step 7 has not ended",
        ZF_NO_ID);
}

/* Whoever is asked is everyone who trains the model; a number then is of that group. */
ZT_TEST(the_widest_group_is_asked) {
    zf_error_t err;
    uint32_t index;
    open_all(3);
    for (uint32_t r = 0; r < 3; r++)
        ck_assert_int_eq(zfi_comm_host.join(comms[r], NORM, &index, &err), ZF_OK);
    ck_assert_int_eq(gather(2, ZFI_LANE_GRADIENTS, ZF_COLLECTIVE_FOR_SUMS, 0, &err), ZF_ERR_TIMEOUT);
    ck_assert_int_eq(gather(0, ZFI_LANE_GRADIENTS, ZF_COLLECTIVE_FOR_SUMS, 0, &err), ZF_ERR_TIMEOUT);
    check_says(&err, "rank 1 of process group 1 has not come to the gathering of gradients", 1);
    ck_assert_uint_eq(err.rank, 1);
    close_all(3);
}

/* Another thread of the rank has called the roll: its error is the one that is said. */
ZT_TEST(the_roll_is_called_once) {
    zf_error_t err;
    open_all(2);
    ck_assert_int_eq(gather(0, ZFI_LANE_GRADIENTS, ZF_COLLECTIVE_FOR_SUMS, 0, &err), ZF_ERR_TIMEOUT);
    uint64_t began = zfi_now_ns();
    ck_assert_int_eq(zfi_call_the_roll(comms[0], &(zfi_exchange_t){.lane = ZFI_LANE_VALUES}, "", &err),
                     ZF_ERR_RANKS); /* which nobody says here */
    ck_assert_uint_ge(zfi_now_ns() - began, TIMEOUT_NS / 4); /* the other one has had its time */
    close_all(2);
}

ZT_SUITE("roll")
