/* SPDX-License-Identifier: Apache-2.0 */
/* shard_cost.c - what a step should send of gradients, by the layout of buckets as it is laid out here and by the
 * oracle's selection.
 *
 * A bucket of P parts goes to the ranks that sum it: each rank sends P-1 parts. At stage 0 so do the sums. At stage 1
 * each rank then sends to every other its part of the norm and, of each bucket, as many selected elements as the rank
 * that owns most of them; at stage 3 those of residents alone. A second group of Q ranks costs Q-1 parts of its buckets
 * more; with process groups parts of the norm go to all ranks, at stage 0 as well. */
#include <stdlib.h>
#include <string.h>

#include "shard.h"

typedef struct bucket {
    uint32_t params[ZX_MAX_PARAMS], n_params;
    uint64_t offset[ZX_MAX_PARAMS];              /* elements from the bucket's start */
    uint64_t n_elems, elem_nbytes, value_nbytes; /* bytes of an element's gradient, and value */
    uint32_t size, size2;                        /* ranks of its group, and of its second one */
} bucket_t;

typedef void (*bucket_fn)(zs_ranks_t *ranks, const zx_case_t *c, const bucket_t *bucket);

static uint64_t up_to(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static uint64_t part_elems(const bucket_t *bucket) {
    uint64_t unit = 128;

    while (unit % bucket->size)
        unit += 128;
    return up_to(bucket->n_elems, unit) / bucket->size;
}

static int is_sharded(const zs_ranks_t *ranks) { return ranks->stage > 0 && ranks->data_size > 1; }

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

enum { AMONG_DATA, AMONG_MODELS, AMONG_EXPERTS, N_AMONG };

/* Who exchanges a parameter's gradient: group 0, that and a second one, or a group of its own. */
static int among_of(const zs_ranks_t *ranks, uint32_t param) {
    zs_kind_t kind = ranks->kinds[param];

    return kind == ZS_SHARED ? AMONG_MODELS : kind == ZS_EXPERT ? AMONG_EXPERTS : AMONG_DATA;
}

/* Parameters of one kind, in reversed order of registration. */
static void fill_buckets(zs_ranks_t *ranks, const zx_case_t *c, zo_dtype_t dtype, zo_dtype_t value_dtype,
                         uint32_t average, int among, bucket_fn fn) {
    bucket_t bucket = {.elem_nbytes = zo_dtype_nbytes(dtype),
                       .value_nbytes = zo_dtype_nbytes(value_dtype),
                       .size = zs_group_size(ranks, among == AMONG_EXPERTS ? ZS_GROUP_EXPERT : ZS_GROUP_DATA),
                       .size2 = among == AMONG_MODELS ? ranks->n_models : 1};
    uint64_t wanted = ranks->bucket_bytes ? ranks->bucket_bytes : 40000000 * bucket.elem_nbytes;

    for (uint32_t i = c->n_params; i-- > 0;) {
        const zx_param_t *p = &c->params[i];

        if (!zx_is_trainable(p) || p->decl.grad_dtype != dtype || p->decl.dtype != value_dtype ||
            (p->flags & ZF_PARAM_AVERAGE) != average || among_of(ranks, i) != among)
            continue;
        bucket.offset[bucket.n_params] = bucket.n_elems;
        bucket.params[bucket.n_params++] = i;
        bucket.n_elems = up_to(bucket.n_elems + zx_n_elems(p), 64);
        if (bucket.n_elems * bucket.elem_nbytes < wanted)
            continue;
        fn(ranks, c, &bucket);
        bucket.n_params = 0;
        bucket.n_elems = 0;
    }
    fn(ranks, c, &bucket);
}

static void for_each_bucket(zs_ranks_t *ranks, const zx_case_t *c, bucket_fn fn) {
    for (int kind = 0; kind < ZO_N_DTYPES * ZO_N_DTYPES; kind++)
        for (uint32_t average = 0; average <= ZF_PARAM_AVERAGE; average += ZF_PARAM_AVERAGE)
            for (int among = 0; among < N_AMONG; among++)
                fill_buckets(ranks, c, (zo_dtype_t)(kind / ZO_N_DTYPES), (zo_dtype_t)(kind % ZO_N_DTYPES), average,
                             among, fn);
}

static void count_reduction(zs_ranks_t *ranks, const zx_case_t *c, const bucket_t *bucket) {
    uint64_t exchanges = is_sharded(ranks) ? 1 : 2;

    (void)c;
    ranks->expected_nbytes +=
        (exchanges * (bucket->size - 1) + bucket->size2 - 1) * part_elems(bucket) * bucket->elem_nbytes;
}

void zs_count_step(zs_ranks_t *ranks, const zx_case_t *c) { for_each_bucket(ranks, c, count_reduction); }

/* ---- selected channels ------------------------------------------------------------------------------------------- */

void zs_note_selection(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle) {
    for (uint32_t i = 0; i < c->n_params && is_sharded(ranks); i++) {
        uint64_t n = zo_n_elems(oracle, i);
        zo_state_t state = {.selected = zx_alloc(n + 1)};

        if (zo_is_trainable(oracle, i))
            zo_read(oracle, i, &state);
        ranks->selected[i] = state.selected;
    }
}

/* Elements that rank r owns of what is selected in the present parameters. */
static uint64_t count_owned(const zs_ranks_t *ranks, const zx_case_t *c, const bucket_t *bucket, uint32_t r) {
    uint64_t part = part_elems(bucket), n = 0;

    for (uint32_t i = 0; i < bucket->n_params; i++) {
        uint32_t id = bucket->params[i];

        if (zs_is_sharded(ranks, c, id)) /* whoever owns a selected element updates it */
            continue;
        for (uint64_t e = 0; e < zx_n_elems(&c->params[id]) && ranks->selected[id]; e++)
            n += ranks->selected[id][e] && (bucket->offset[i] + e) / part == r;
    }
    return n;
}

static void count_selected(zs_ranks_t *ranks, const zx_case_t *c, const bucket_t *bucket) {
    uint64_t most = 0;

    for (uint32_t r = 0; r < bucket->size; r++) {
        uint64_t n = count_owned(ranks, c, bucket, r);

        most = n > most ? n : most;
    }
    ranks->expected_nbytes += (bucket->size - 1) * most * bucket->elem_nbytes;
}

void zs_count_selected(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle) {
    enum { NORM_PART_NBYTES = 16 };

    if (ranks->is_grouped ? !zs_is_by_nccl(ranks) : is_sharded(ranks))
        ranks->expected_nbytes += (ranks->size - 1) * NORM_PART_NBYTES;
    if (!is_sharded(ranks))
        return;
    for (uint32_t i = 0; i < c->n_params; i++)
        if (!zo_step_grad(oracle, i)) { /* a hole */
            free(ranks->selected[i]);
            ranks->selected[i] = NULL;
        }
    for_each_bucket(ranks, c, count_selected);
    for (uint32_t i = 0; i < c->n_params; i++) {
        free(ranks->selected[i]);
        ranks->selected[i] = NULL;
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* By bucket: as many elements as the rank that owns most of the matrices that are sent. */
static void count_sent(zs_ranks_t *ranks, const zx_case_t *c, const bucket_t *bucket) {
    uint64_t part = part_elems(bucket), n_owned[64] = {0}, most = 0;

    for (uint32_t m = 0; bucket->n_params && m < zo_n_matrices(ranks->oracle); m++) {
        zo_matrix_info_t info;
        uint32_t i = 0;

        zo_matrix_info(ranks->oracle, m, &info);
        while (i < bucket->n_params && bucket->params[i] != info.param)
            i++;
        if (i < bucket->n_params && zs_is_sharded(ranks, c, info.param)) /* fetched instead */
            continue;
        for (uint64_t e = 0; i < bucket->n_params && info.is_sent && e < info.rows * info.cols; e++)
            n_owned[(bucket->offset[i] + info.first + e) / part]++;
    }
    for (uint32_t r = 0; r < bucket->size; r++)
        most = n_owned[r] > most ? n_owned[r] : most;
    ranks->expected_value_nbytes += (bucket->size - 1) * most * bucket->value_nbytes;
}

void zs_count_values(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle) {
    ranks->oracle = oracle;
    if (is_sharded(ranks))
        for_each_bucket(ranks, c, count_sent);
}
