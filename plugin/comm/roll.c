/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/roll.c - what the answers to a roll call say (contract in comm/roll.h). */
#include "comm/roll.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"

uint64_t zfi_roll_after_ns(const zfi_comm_env_t *env) { return env->timeout_ns / 4 * 3; }
uint64_t zfi_roll_lasts_ns(const zfi_comm_env_t *env) { return env->timeout_ns - zfi_roll_after_ns(env); }

/* ---- posts ------------------------------------------------------------------------------------------------------- */

/* Never 0. */
static uint64_t check_of(const zfi_post_t *post) {
    uint64_t words[] = {(uint64_t)post->purpose << 32 | post->bucket, post->step,
                        (uint64_t)post->lane << 32 | post->group};
    uint64_t check = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        check = (check ^ words[i] ^ check >> 29) * 0xBF58476D1CE4E5B9u;
    return check | 1;
}

zfi_post_t zfi_post_of(const zfi_exchange_t *exchange, uint32_t group) {
    zfi_post_t post = {.purpose = exchange->purpose,
                       .bucket = exchange->bucket,
                       .step = exchange->step,
                       .lane = exchange->lane,
                       .group = group};
    post.check = check_of(&post);
    return post;
}

static int is_same_line(const zfi_post_t *a, const zfi_post_t *b) { return a->lane == b->lane && a->group == b->group; }

static int is_same(const zfi_post_t *a, const zfi_post_t *b) {
    return is_same_line(a, b) && a->purpose == b->purpose && a->bucket == b->bucket && a->step == b->step;
}

/* is_any: also in another lane or group. */
static uint32_t find_other(const zfi_post_t *posts, zfi_member_t self, int is_any, zfi_exchange_t *out_there) {
    const zfi_post_t *own = &posts[self.rank];
    for (uint32_t r = 0; r < self.n_ranks; r++) {
        const zfi_post_t *post = &posts[r];
        *out_there = (zfi_exchange_t){.purpose = post->purpose, .bucket = post->bucket, .step = post->step};
        if (!is_same(post, own) && (is_any || is_same_line(post, own)))
            return r;
    }
    return ZF_NO_ID;
}

uint32_t zfi_find_elsewhere(const zfi_post_t *posts, zfi_member_t self, zfi_exchange_t *out_there) {
    return find_other(posts, self, 0, out_there);
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static uint32_t count_silent(const zfi_roll_t *roll, uint32_t *out_first) {
    uint32_t n = 0;
    for (uint32_t r = roll->self.n_ranks; r-- > 0;)
        if (roll->answers[r].check != check_of(&roll->answers[r])) {
            *out_first = r;
            n++;
        }
    return n;
}

static zf_status_t report_silent(const zfi_roll_t *roll, const char *name, uint32_t n_silent, uint32_t first,
                                 zf_error_t *err) {
    char who[32] = "a rank", others[96] = "";
    if (n_silent == 1)
        snprintf(who, sizeof who, "rank %" PRIu32, first);
    else
        snprintf(others, sizeof others, "; %" PRIu32 " of %" PRIu32 " ranks do not answer, which of them is not known",
                 n_silent, roll->self.n_ranks);
    zfi_error_scoped(
        err, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "ranks",
        "%s%s has not come to %s within %" PRIu64
        " ms (two thirds of [host] deadline_ms): it is dead, stopped, late, or does something else (this is %s)%s",
        who, n_silent == 1 ? roll->group_name : "", name, zfi_roll_after_ns(roll->env) / 1000000, roll->self_name,
        others);
    return zfi_error_on_rank(err, ZF_ERR_TIMEOUT, n_silent == 1 ? first : ZF_NO_ID);
}

/* All have answered. Two exchanges of one lane contradict each other; of two lanes, a rank may stand in both. Returns
 * the rank that does something else, or ZF_NO_ID. */
static uint32_t describe(const zfi_roll_t *roll, const char *name, char *out, size_t nbytes) {
    char there_name[96];
    zfi_exchange_t there;
    uint32_t who = find_other(roll->answers, roll->self, 0, &there);
    int is_contrary = who != ZF_NO_ID;
    if (!is_contrary)
        who = find_other(roll->answers, roll->self, 1, &there);
    zfi_exchange_name(&there, there_name, sizeof there_name);
    if (is_contrary)
        snprintf(out, nbytes, "rank %" PRIu32 "%s has not come to %s but to %s", who, roll->group_name, name,
                 there_name);
    else if (who != ZF_NO_ID)
        snprintf(out, nbytes, "every rank waits, rank %" PRIu32 "%s for %s: %s has not ended", who, roll->group_name,
                 there_name, name);
    else
        snprintf(out, nbytes, "every rank waits, but %s has not ended", name);
    return is_contrary ? who : ZF_NO_ID;
}

zf_status_t zfi_roll_report(const zfi_roll_t *roll, zf_error_t *err) {
    char name[96], what[256];
    uint32_t first = ZF_NO_ID, n_silent = count_silent(roll, &first);
    zfi_exchange_name(roll->exchange, name, sizeof name);
    if (n_silent)
        return report_silent(roll, name, n_silent, first, err);
    first = describe(roll, name, what, sizeof what);
    zfi_error_scoped(err, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "ranks",
                     "%s within %" PRIu64 " ms (two thirds of [host] deadline_ms)%s (this is %s)", what,
                     zfi_roll_after_ns(roll->env) / 1000000, roll->advice, roll->self_name);
    return zfi_error_on_rank(err, ZF_ERR_TIMEOUT, first);
}
