/* SPDX-License-Identifier: Apache-2.0 */
/* shard_cost.c - what a step should send of gradients, by SCHEDULE.md's cut as it is made here and by the oracle's
 * selection.
 *
 * A bucket of P parts goes to the ranks that sum it: each rank sends P-1 parts. At stage 0 these are cut from the
 * bucket as it lies, and so many bytes bring the sums back. From stage 1 on a part has a rank's slices; each rank then
 * sends to every other its part of the norm and, of each bucket, as many selected elements as the rank that owns most
 * of them; at stage 3 those of whole parameters alone. A second group of Q ranks costs Q-1 parts of its buckets more;
 * with process groups parts of the norm go to all ranks, at stage 0 as well. */
#include <stdlib.h>
#include <string.h>

#include "shard.h"

enum { MOST_RANKS = 64, UNIT = 16, PART_UNIT = 16 };

typedef struct bucket {
    uint32_t params[ZX_MAX_PARAMS], n_params;
    uint64_t n_elems, elem_nbytes, value_nbytes; /* n_elems: as they lie; bytes of an element's gradient, and value */
    uint32_t size, size2;                        /* ranks of its group, and of its second one */
    uint64_t owned[MOST_RANKS];                  /* from stage 1 on: elements of each rank */
} bucket_t;

/* Of a step: the buckets, and who owns each element. */
typedef struct layout {
    bucket_t buckets[ZX_MAX_PARAMS];
    uint32_t n;
    uint8_t *owners[ZX_MAX_PARAMS]; /* [elements] */
} layout_t;

static uint64_t up_to(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static int is_sharded(const zs_ranks_t *ranks) { return ranks->stage > 0 && ranks->data_size > 1; }

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

enum { AMONG_DATA, AMONG_MODELS, AMONG_EXPERTS, N_AMONG };

/* Who exchanges a parameter's gradient: group 0, that and a second one, or a group of its own. */
static int among_of(const zs_ranks_t *ranks, uint32_t param) {
    zs_kind_t kind = ranks->kinds[param];
    return kind == ZS_SHARED ? AMONG_MODELS : kind == ZS_EXPERT ? AMONG_EXPERTS : AMONG_DATA;
}

static uint64_t most_of(const uint64_t *n, uint32_t n_ranks) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
        most = n[r] > most ? n[r] : most;
    return most;
}

static uint64_t part_elems(const zs_ranks_t *ranks, const bucket_t *bucket) {
    uint64_t unit = 128;
    if (is_sharded(ranks))
        return up_to(most_of(bucket->owned, bucket->size), PART_UNIT);
    while (unit % bucket->size)
        unit += 128;
    return up_to(bucket->n_elems, unit) / bucket->size;
}

/* Parameters of one kind, in reversed order of registration. */
static void fill_buckets(zs_ranks_t *ranks, const zx_case_t *c, zo_dtype_t dtype, zo_dtype_t value_dtype,
                         uint32_t average, int among, layout_t *out) {
    const bucket_t empty = {.elem_nbytes = zo_dtype_nbytes(dtype),
                            .value_nbytes = zo_dtype_nbytes(value_dtype),
                            .size = zs_group_size(ranks, among == AMONG_EXPERTS ? ZS_GROUP_EXPERT : ZS_GROUP_DATA),
                            .size2 = among == AMONG_MODELS ? ranks->n_models : 1};
    uint64_t wanted = ranks->bucket_bytes ? ranks->bucket_bytes : 40000000 * empty.elem_nbytes;
    bucket_t bucket = empty;
    for (uint32_t i = c->n_params; i-- > 0;) {
        const zx_param_t *p = &c->params[i];
        if (!zx_is_trainable(p) || zx_n_elems(p) == 0 || p->decl.grad_dtype != dtype || p->decl.dtype != value_dtype ||
            (p->flags & ZF_PARAM_AVERAGE) != average || among_of(ranks, i) != among)
            continue;
        bucket.params[bucket.n_params++] = i;
        bucket.n_elems = up_to(bucket.n_elems + zx_n_elems(p), 64);
        if (bucket.n_elems * bucket.elem_nbytes < wanted)
            continue;
        out->buckets[out->n++] = bucket;
        bucket = empty;
    }
    if (bucket.n_params)
        out->buckets[out->n++] = bucket;
}

/* ---- the cut ----------------------------------------------------------------------------------------------------- */

/* The ranks that get one unit more: the n that have least. */
static void choose(const uint64_t *of_bucket, const uint64_t *of_cohort, uint32_t n_ranks, uint64_t n, uint8_t *more) {
    memset(more, 0, n_ranks);
    for (; n > 0; n--) {
        uint32_t least = n_ranks;
        for (uint32_t r = 0; r < n_ranks; r++)
            if (!more[r] && (least == n_ranks || of_bucket[r] + of_cohort[r] < of_bucket[least] + of_cohort[least]))
                least = r;
        more[least] = 1;
    }
}

static bucket_t *bucket_with(layout_t *layout, uint32_t param) {
    for (uint32_t b = 0; b < layout->n; b++)
        for (uint32_t i = 0; i < layout->buckets[b].n_params; i++)
            if (layout->buckets[b].params[i] == param)
                return &layout->buckets[b];
    return NULL;
}

static void cut_matrix(zs_ranks_t *ranks, const zx_case_t *c, const zo_matrix_info_t *info, uint64_t *of_cohort,
                       layout_t *out) {
    const int is_one = zs_is_sharded(ranks, c, info->param) && c->params[info->param].decl.channels_are_rows;
    const uint64_t unit = is_one ? info->rows : (UNIT + info->cols - 1) / info->cols;
    const uint64_t n_units = (info->rows + unit - 1) / unit;
    bucket_t *bucket = bucket_with(out, info->param);
    uint64_t row = 0;
    uint8_t more[MOST_RANKS];
    choose(bucket->owned, of_cohort, bucket->size, n_units % bucket->size, more);
    for (uint32_t r = 0; r < bucket->size; r++) {
        const uint64_t end = row + (n_units / bucket->size + more[r]) * unit;
        for (; row < end && row < info->rows; row++) {
            memset(out->owners[info->param] + info->first + row * info->cols, (int)r, info->cols);
            bucket->owned[r] += info->cols;
            of_cohort[r] += info->cols;
        }
    }
}

static layout_t *lay_out(zs_ranks_t *ranks, const zx_case_t *c) {
    layout_t *out = zx_alloc(sizeof *out);
    uint64_t(*of_cohort)[ZO_MAX_SLOTS + 1][MOST_RANKS] = zx_alloc(2 * sizeof *of_cohort); /* an expert's by itself */

    for (int kind = 0; kind < ZO_N_DTYPES * ZO_N_DTYPES; kind++)
        for (uint32_t average = 0; average <= ZF_PARAM_AVERAGE; average += ZF_PARAM_AVERAGE)
            for (int among = 0; among < N_AMONG; among++)
                fill_buckets(ranks, c, (zo_dtype_t)(kind / ZO_N_DTYPES), (zo_dtype_t)(kind % ZO_N_DTYPES), average,
                             among, out);
    for (uint32_t i = 0; i < c->n_params && is_sharded(ranks); i++)
        out->owners[i] = zx_alloc(zx_n_elems(&c->params[i]) + 1);
    for (uint32_t m = 0; is_sharded(ranks) && m < zo_n_matrices(ranks->oracle); m++) {
        zo_matrix_info_t info;
        zo_matrix_info(ranks->oracle, m, &info);
        const zs_kind_t kind = ranks->kinds[info.param];
        uint64_t unseen[MOST_RANKS] = {0}; /* other models deal what they share without the rest of this one */
        uint64_t *of_own = of_cohort[kind == ZS_EXPERT][info.cohort];
        cut_matrix(ranks, c, &info, kind == ZS_SHARED ? unseen : of_own, out);
        for (uint32_t r = 0; kind == ZS_SHARED && r < MOST_RANKS; r++)
            of_own[r] += unseen[r];
    }
    free(of_cohort);
    return out;
}

static void drop(layout_t *layout) {
    for (uint32_t i = 0; i < ZX_MAX_PARAMS; i++)
        free(layout->owners[i]);
    free(layout);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

void zs_count_step(zs_ranks_t *ranks, const zx_case_t *c) {
    const uint64_t exchanges = is_sharded(ranks) ? 1 : 2;
    layout_t *layout = lay_out(ranks, c);
    for (uint32_t b = 0; b < layout->n; b++) {
        const bucket_t *bucket = &layout->buckets[b];
        ranks->expected_nbytes +=
            (exchanges * (bucket->size - 1) + bucket->size2 - 1) * part_elems(ranks, bucket) * bucket->elem_nbytes;
    }
    drop(layout);
}

/* ---- selected channels ------------------------------------------------------------------------------------------- */

/* The most elements that a rank owns of what is selected in a bucket. */
static uint64_t count_selected(const zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle, const layout_t *layout,
                               const bucket_t *bucket) {
    uint64_t n[MOST_RANKS] = {0};
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const uint32_t id = bucket->params[i];
        const uint64_t n_elems = zx_n_elems(&c->params[id]);
        zo_state_t state = {.selected = zx_alloc(n_elems + 1)};
        if (!zs_is_sharded(ranks, c, id)) /* whoever owns a selected element updates it */
            zo_read(oracle, id, &state);
        for (uint64_t e = 0; e < n_elems; e++)
            n[layout->owners[id][e]] += state.selected[e];
        free(state.selected);
    }
    return most_of(n, bucket->size);
}

void zs_count_selected(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle) {
    ranks->oracle = oracle;
    if (!is_sharded(ranks))
        return;
    layout_t *layout = lay_out(ranks, c);
    for (uint32_t b = 0; b < layout->n; b++) {
        const bucket_t *bucket = &layout->buckets[b];
        ranks->expected_nbytes +=
            (bucket->size - 1) * count_selected(ranks, c, oracle, layout, bucket) * bucket->elem_nbytes;
    }
    drop(layout);
}

void zs_count_norm(zs_ranks_t *ranks) {
    enum { NORM_PART_NBYTES = 16 };
    if (ranks->is_grouped ? !zs_is_by_nccl(ranks) : is_sharded(ranks))
        ranks->expected_nbytes += (ranks->size - 1) * NORM_PART_NBYTES;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* What travels together: what a step shows in it; what it closes for a fetch; what it closes for the next one. */
typedef enum { IN_STEP, FOR_FETCH, FOR_NEXT_STEP, N_TOGETHER } together_t;

/* At stage 3 values of whole parameters, which are few, travel in the step that shows them. */
static int travels(const zs_ranks_t *ranks, const zo_matrix_info_t *info, together_t how) {
    if (how == FOR_FETCH)
        return info->is_sent == ZO_SENT_FOR_FETCH;
    if (how == FOR_NEXT_STEP)
        return ranks->stage < 3 && info->is_due;
    return info->is_sent == ZO_SENT_NOW || (ranks->stage == 3 && info->is_sent == ZO_SENT_LATER);
}

/* The most elements that a rank owns of the matrices that are sent; those of shards are fetched instead. */
static uint64_t count_sent(const zs_ranks_t *ranks, const zx_case_t *c, layout_t *layout, const bucket_t *bucket,
                           together_t how) {
    uint64_t n[MOST_RANKS] = {0};
    for (uint32_t m = 0; m < zo_n_matrices(ranks->oracle); m++) {
        zo_matrix_info_t info;
        zo_matrix_info(ranks->oracle, m, &info);
        if (!travels(ranks, &info, how) || zs_is_sharded(ranks, c, info.param) ||
            bucket_with(layout, info.param) != bucket)
            continue;
        for (uint64_t e = 0; e < info.rows * info.cols; e++)
            n[layout->owners[info.param][info.first + e]]++;
    }
    return most_of(n, bucket->size);
}

void zs_count_values(zs_ranks_t *ranks, const zx_case_t *c, const zo_t *oracle) {
    ranks->oracle = oracle;
    if (!is_sharded(ranks))
        return;
    layout_t *layout = lay_out(ranks, c);
    for (uint32_t b = 0; b < layout->n; b++) {
        const bucket_t *bucket = &layout->buckets[b];
        for (together_t how = IN_STEP; how < N_TOGETHER; how++)
            ranks->expected_value_nbytes +=
                (bucket->size - 1) * count_sent(ranks, c, layout, bucket, how) * bucket->value_nbytes;
    }
    drop(layout);
}
