/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/bucket.c - parameters into buckets (contract and picture in bucket.h). */
#include "plan/bucket.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_ORDERS = 18,
    USUAL_ELEMS = 40000000,
    ELEMS_PER_RANK = 1000000,
    LEAST_SHARE = 16,
    MOST_SHARE = 16, /* of its kind, and of bytes: the memory of exchanges is a number of buckets */
    MOST_NBYTES = 512 << 20,
    CUT_ALIGN = 16,
    LINE_NBYTES = 64,
    MEMORY_ALIGN = 4096
};

/* Whether two parameters have what those of one bucket have in common. */
static int is_of_kind(const zfi_param_t *a, const zfi_param_t *b) {
    return a->grad_dtype == b->grad_dtype && a->dtype == b->dtype && !((a->flags ^ b->flags) & ZF_PARAM_AVERAGE) &&
           a->group_index[0] == b->group_index[0] && a->group_index[1] == b->group_index[1];
}

/* In which order buckets are closed that the last parameters leave open: a number that is the same on every rank. */
static uint32_t order_of(const zfi_param_t *param) {
    return ((uint32_t)param->grad_dtype * 3 + (uint32_t)param->dtype) * 2 + ((param->flags & ZF_PARAM_AVERAGE) != 0);
}

static uint64_t up_to(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

/* A bucket that is being filled; its parameters are linked, for they are not numbered yet. */
typedef struct open {
    uint64_t n_elems;
    uint64_t of_kind, to_come;      /* elements of its kind's parameters; of those that are in no bucket yet */
    uint32_t n_params, first, last; /* ids; first tells the kind, also of one that was closed */
} open_t;

typedef struct build {
    const zfi_param_t *params;
    zfi_buckets_t *out;
    const zfi_member_t *places;
    uint32_t *next; /* [n_params] the parameter that follows in its bucket */
    uint32_t n_listed;
    open_t *open; /* [n_kinds], in the order in which kinds appear */
    uint32_t n_kinds;
} build_t;

static uint32_t count_second(const zfi_buckets_t *buckets, uint32_t group2) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < buckets->n && group2; i++)
        n += buckets->all[i].group2 == group2;
    return n;
}

/* The number of those who hold a parameter; they get one with their first. */
static uint32_t holders_of(zfi_buckets_t *out, const zfi_member_t *places, uint32_t group) {
    uint32_t i = 0;
    while (i < out->n_holders && out->holders[i].group != group)
        i++;
    if (i == out->n_holders)
        out->holders[out->n_holders++] = (zfi_holders_t){group, places[group]};
    if (places[group].n_ranks > out->most_ranks)
        out->most_ranks = places[group].n_ranks;
    return i;
}

static void close_bucket(build_t *build, open_t *open) {
    zfi_buckets_t *out = build->out;
    zfi_bucket_t *bucket = &out->all[out->n];
    const zfi_param_t *param = &build->params[open->first];
    zfi_member_t place = build->places[param->group_index[0]];
    uint64_t unit = place.n_ranks / gcd(place.n_ranks, ZFI_PART_ALIGN) * ZFI_PART_ALIGN, arriving;
    uint32_t id = open->first;
    *bucket = (zfi_bucket_t){.first = build->n_listed, .n_params = open->n_params, .dtype = param->grad_dtype};
    bucket->is_average = (param->flags & ZF_PARAM_AVERAGE) != 0;
    bucket->holders = holders_of(out, build->places, param->group_index[0]);
    bucket->group = param->group_index[0];
    bucket->group2 = param->group_index[1];
    bucket->place = place;
    bucket->place2 = bucket->group2 ? build->places[bucket->group2] : (zfi_member_t){0, 1};
    bucket->number2 = count_second(out, bucket->group2);
    bucket->n_elems = up_to(open->n_elems, unit);
    bucket->own_elems = bucket->part_elems = bucket->n_elems / place.n_ranks;
    bucket->offset_nbytes = out->nbytes;
    bucket->value_dtype = param->dtype;
    for (uint32_t i = 0; i < open->n_params; i++, id = build->next[id]) {
        out->params[build->n_listed++] = id;
        out->of_param[id] = out->n;
    }
    out->n++;
    out->nbytes += up_to(bucket->n_elems * zfi_dtype_nbytes(bucket->dtype), MEMORY_ALIGN);
    out->most_nbytes = larger(bucket->n_elems * zfi_dtype_nbytes(bucket->dtype), out->most_nbytes);
    arriving = larger(place.n_ranks, bucket->place2.n_ranks) * zfi_part_nbytes(bucket);
    out->arriving_nbytes = larger(arriving, out->arriving_nbytes);
    *open = (open_t){.first = open->first, .of_kind = open->of_kind, .to_come = open->to_come};
}

static open_t *find_open(build_t *build, uint32_t id) {
    uint32_t k = 0;
    while (k < build->n_kinds && !is_of_kind(&build->params[build->open[k].first], &build->params[id]))
        k++;
    if (k == build->n_kinds)
        build->open[build->n_kinds++].first = id;
    return &build->open[k];
}

/* What the backward pass ends with has nothing to hide under, so the last buckets of auto are ever smaller: one is
 * closed when as much is in it as is still to come, and before a large parameter comes in, unless it is too small to be
 * worth an exchange. */
static int is_enough(const open_t *open, const zfi_param_t *param, uint64_t usual) {
    return open->n_elems >= usual / LEAST_SHARE &&
           (open->n_elems >= open->to_come ||
            (param && param->n_elems > open->n_elems && (param->n_elems >= usual || open->to_come <= usual)));
}

static void add(build_t *build, uint32_t id, uint64_t wanted_nbytes) {
    const zfi_param_t *param = &build->params[id];
    open_t *open = find_open(build, id);
    uint64_t of_ranks = (uint64_t)ELEMS_PER_RANK * build->places[param->group_index[0]].n_ranks;
    uint64_t most = open->of_kind / MOST_SHARE, size = zfi_dtype_nbytes(param->grad_dtype);
    most = smaller(most, MOST_NBYTES / size);
    uint64_t usual = larger(smaller(of_ranks, most), USUAL_ELEMS);
    if (open->n_params && !wanted_nbytes && is_enough(open, param, usual))
        close_bucket(build, open);
    if (open->n_params)
        build->next[open->last] = id;
    else
        open->first = id;
    open->last = id;
    open->n_params++;
    build->out->offset[id] = open->n_elems;
    open->n_elems = up_to(open->n_elems + param->n_elems, ZFI_BUCKET_ALIGN);
    open->to_come -= param->n_elems;
    if (wanted_nbytes ? open->n_elems * size >= wanted_nbytes : open->n_elems >= usual || is_enough(open, NULL, usual))
        close_bucket(build, open);
}

static void fill(build_t *build, uint32_t n_params, uint64_t wanted_nbytes) {
    for (uint32_t i = n_params; i-- > 0;)
        if (build->params[i].has_state)
            find_open(build, i)->of_kind += build->params[i].n_elems;
    for (uint32_t k = 0; k < build->n_kinds; k++)
        build->open[k].to_come = build->open[k].of_kind;
    for (uint32_t i = n_params; i-- > 0;)
        if (build->params[i].has_state)
            add(build, i, wanted_nbytes);
    for (uint32_t order = 0; order < N_ORDERS; order++)
        for (uint32_t k = 0; k < build->n_kinds; k++)
            if (build->open[k].n_params && order_of(&build->params[build->open[k].first]) == order)
                close_bucket(build, &build->open[k]);
}

zf_status_t zfi_buckets_build(const zfi_param_t *params, uint32_t n_params, uint64_t wanted_nbytes,
                              const zfi_member_t *places, zfi_buckets_t *out) {
    build_t build = {.params = params, .out = out, .places = places, .next = calloc(n_params, sizeof *build.next)};
    build.open = calloc(n_params, sizeof *build.open);
    *out = (zfi_buckets_t){0};
    (void)holders_of(out, places, 0);
    out->all = calloc(n_params, sizeof *out->all);
    out->params = calloc(n_params, sizeof *out->params);
    out->of_param = calloc(n_params, sizeof *out->of_param);
    out->offset = calloc(n_params, sizeof *out->offset);
    out->own_at = calloc(n_params, sizeof *out->own_at);
    if (!build.next || !build.open || !out->all || !out->params || !out->of_param || !out->offset || !out->own_at) {
        free(build.next);
        free(build.open);
        zfi_buckets_free(out);
        return ZF_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n_params; i++)
        out->of_param[i] = ZF_NO_ID;
    fill(&build, n_params, wanted_nbytes);
    out->n_value_places = out->n;
    free(build.next);
    free(build.open);
    return ZF_OK;
}

void zfi_bucket_cut(zfi_buckets_t *buckets, uint32_t number, uint64_t n_elems, uint64_t n_values) {
    zfi_bucket_t *bucket = &buckets->all[number];
    uint64_t n_ranks = bucket->place.n_ranks, nbytes;
    if (number == 0)
        buckets->arriving_nbytes = buckets->parts_nbytes = 0;
    bucket->part_elems = up_to(n_elems, CUT_ALIGN);
    bucket->value_elems = up_to(n_values, CUT_ALIGN);
    nbytes = up_to(larger(n_ranks, bucket->place2.n_ranks) * zfi_part_nbytes(bucket), MEMORY_ALIGN);
    buckets->arriving_nbytes = larger(buckets->arriving_nbytes, nbytes);
    nbytes = up_to(n_ranks * zfi_part_nbytes(bucket), MEMORY_ALIGN);
    buckets->parts_nbytes = larger(buckets->parts_nbytes, nbytes);
}

static uint64_t values_nbytes(const zfi_bucket_t *bucket) {
    return up_to(bucket->place.n_ranks * bucket->value_elems * zfi_dtype_nbytes(bucket->value_dtype), LINE_NBYTES);
}

void zfi_buckets_place_values(zfi_buckets_t *buckets) {
    uint64_t part = 0;
    buckets->values_nbytes = 0;
    for (uint32_t place = 0; place < buckets->n_value_places; place++) {
        uint64_t most = 0;
        for (uint32_t b = place; b < buckets->n; b += buckets->n_value_places) {
            buckets->all[b].values_offset_nbytes = buckets->values_nbytes;
            most = larger(most, values_nbytes(&buckets->all[b]));
            part = larger(part, buckets->all[b].value_elems * zfi_dtype_nbytes(buckets->all[b].value_dtype));
        }
        buckets->values_nbytes += most;
    }
    buckets->staged_nbytes = buckets->values_wait ? up_to(part, LINE_NBYTES) : buckets->values_nbytes;
}

void zfi_buckets_free(zfi_buckets_t *buckets) {
    free(buckets->all);
    free(buckets->params);
    free(buckets->of_param);
    free(buckets->offset);
    free(buckets->own_at);
    memset(buckets, 0, sizeof *buckets);
}
