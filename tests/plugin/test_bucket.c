/* SPDX-License-Identifier: Apache-2.0 */
/* test_bucket.c - parameters into buckets: order, kinds, alignment, parts (plan/bucket.h). */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bucket.h"
#include "suite.h"

static zfi_param_t make(uint32_t id, uint64_t n_elems, zfi_dtype_t grad_dtype, uint32_t flags) {
    return (zfi_param_t){.id = id,
                         .owner = id,
                         .flags = flags,
                         .dtype = n_elems % 2 ? ZFI_F32 : ZFI_BF16,
                         .grad_dtype = grad_dtype,
                         .n_elems = n_elems,
                         .has_state = n_elems > 0 && !(flags & ZF_PARAM_FROZEN)};
}

/* Every parameter with state is in one bucket of its kind, whole, aligned and apart from its neighbours; parts are
 * equal, aligned and cover the bucket. */
static void check_buckets(const zfi_param_t *params, uint32_t n, const zfi_buckets_t *buckets) {
    uint32_t n_listed = 0;
    for (uint32_t b = 0; b < buckets->n; b++) {
        const zfi_bucket_t *bucket = &buckets->all[b];
        uint64_t end = 0;
        ck_assert_uint_eq(bucket->first, n_listed);
        ck_assert_uint_eq(bucket->part_elems * buckets->n_ranks, bucket->n_elems);
        ck_assert_uint_eq(bucket->n_elems % ZFI_PART_ALIGN, 0);
        for (uint32_t i = 0; i < bucket->n_params; i++) {
            uint32_t id = buckets->params[bucket->first + i];
            ck_assert(params[id].has_state);
            ck_assert_uint_eq(buckets->of_param[id], b);
            ck_assert_int_eq((int)params[id].grad_dtype, (int)bucket->dtype);
            ck_assert_int_eq((params[id].flags & ZF_PARAM_AVERAGE) != 0, bucket->is_average);
            ck_assert_uint_eq(buckets->offset[id] % ZFI_BUCKET_ALIGN, 0);
            ck_assert(buckets->offset[id] >= end);
            end = buckets->offset[id] + params[id].n_elems;
            ck_assert_int_eq((int)params[id].dtype, (int)bucket->value_dtype);
            ck_assert(i == 0 || buckets->params[bucket->first + i - 1] > id);
        }
        ck_assert(end <= bucket->n_elems);
        ck_assert(bucket->offset_nbytes + bucket->n_elems * zfi_dtype_nbytes(bucket->dtype) <= buckets->nbytes);
        ck_assert(b == 0 || bucket->offset_nbytes >=
                                bucket[-1].offset_nbytes + bucket[-1].n_elems * zfi_dtype_nbytes(bucket[-1].dtype));
        n_listed += bucket->n_params;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!params[i].has_state)
            ck_assert_uint_eq(buckets->of_param[i], ZF_NO_ID);
        n_listed -= params[i].has_state != 0;
    }
    ck_assert_uint_eq(n_listed, 0);
}

static void try_seed(unsigned seed) {
    enum { N = 40 };
    zfi_param_t params[N];
    srand(seed);
    for (uint32_t i = 0; i < N; i++)
        params[i] = make(i, (uint64_t)(rand() % 7 ? rand() % 5000 : 0), (zfi_dtype_t)(rand() % ZFI_N_DTYPES),
                         (rand() % 5 ? 0 : ZF_PARAM_FROZEN) | (rand() % 3 ? 0 : ZF_PARAM_AVERAGE));
    for (uint32_t n_ranks = 1; n_ranks <= 9; n_ranks++)
        for (uint64_t wanted = 0; wanted <= 30000; wanted = wanted * 9 + 1) {
            zfi_buckets_t buckets;
            ck_assert_int_eq(zfi_buckets_build(params, N, wanted, &(zfi_member_t){0, n_ranks}, &buckets), ZF_OK);
            check_buckets(params, N, &buckets);
            zfi_buckets_free(&buckets);
        }
}

START_TEST(any_number_of_ranks) {
    for (unsigned seed = 1; seed < 9; seed++)
        try_seed(seed);
}
END_TEST

/* The last registered parameter comes first, and a bucket is closed once it is large enough. */
START_TEST(in_the_order_of_backward) {
    zfi_param_t params[] = {make(0, 1000, ZFI_F32, 0), make(1, 64, ZFI_F32, 0), make(2, 100, ZFI_BF16, 0),
                            make(3, 200, ZFI_F32, 0), make(4, 64, ZFI_F32, 0)};
    zfi_buckets_t buckets;
    ck_assert_int_eq(zfi_buckets_build(params, 5, 1200, &(zfi_member_t){0, 3}, &buckets), ZF_OK);
    ck_assert_uint_eq(buckets.n, 3);
    ck_assert_uint_eq(buckets.of_param[4], 0);
    ck_assert_uint_eq(buckets.of_param[3], 0);
    ck_assert_uint_eq(buckets.offset[3], 64);
    ck_assert_uint_eq(buckets.all[0].n_elems, 384); /* 64 + 256, to 3 * 128 */
    ck_assert_uint_eq(buckets.of_param[1], 1);
    ck_assert_uint_eq(buckets.of_param[0], 1);
    ck_assert_uint_eq(buckets.of_param[2], 2); /* what stays open follows */
    zfi_buckets_free(&buckets);
}
END_TEST

/* What stays open follows by kind, whichever kind came first: models with other parameters have the same order. */
START_TEST(what_stays_open_has_one_order) {
    for (int is_turned = 0; is_turned < 2; is_turned++) {
        zfi_param_t params[4];
        zfi_buckets_t buckets;
        uint32_t at[4];
        for (uint32_t kind = 0; kind < 4; kind++) {
            at[kind] = is_turned ? 3 - kind : kind;
            params[at[kind]] = make(at[kind], 65, kind / 2 ? ZFI_BF16 : ZFI_F32, kind % 2 ? ZF_PARAM_AVERAGE : 0);
        }
        ck_assert_int_eq(zfi_buckets_build(params, 4, 100000, &(zfi_member_t){0, 2}, &buckets), ZF_OK);
        ck_assert_uint_eq(buckets.n, 4);
        for (uint32_t kind = 0; kind < 4; kind++)
            ck_assert_uint_eq(buckets.of_param[at[kind]], kind);
        zfi_buckets_free(&buckets);
    }
}
END_TEST

/* More ranks than elements: parts of padding alone. */
START_TEST(more_ranks_than_elements) {
    zfi_param_t params[] = {make(0, 1, ZFI_F16, 0)};
    zfi_buckets_t buckets;
    ck_assert_int_eq(zfi_buckets_build(params, 1, 0, &(zfi_member_t){0, 300}, &buckets), ZF_OK);
    ck_assert_uint_eq(buckets.n, 1);
    ck_assert_uint_eq(buckets.all[0].n_elems % 300, 0);
    check_buckets(params, 1, &buckets);
    zfi_buckets_free(&buckets);
}
END_TEST

/* auto: what ends the backward pass travels in ever smaller buckets, and a large parameter keeps nothing waiting. */
START_TEST(smaller_towards_the_end) {
    enum { N = 60, MILLION = 1000000 };
    static const uint64_t halves[] = {30, 15, 8, 4, 3};
    zfi_param_t params[N];
    zfi_buckets_t buckets;
    for (uint32_t i = 0; i < N; i++)
        params[i] = make(i, MILLION, ZFI_BF16, 0);
    ck_assert_int_eq(zfi_buckets_build(params, N, 0, &(zfi_member_t){0, 2}, &buckets), ZF_OK);
    check_buckets(params, N, &buckets);
    ck_assert_uint_eq(buckets.n, 5);
    for (uint32_t b = 0; b < 5; b++)
        ck_assert_uint_eq(buckets.all[b].n_params, halves[b]);
    zfi_buckets_free(&buckets);
    ck_assert_int_eq(zfi_buckets_build(params, N, 60 * MILLION, &(zfi_member_t){0, 2}, &buckets), ZF_OK);
    ck_assert_uint_eq(buckets.n, 2); /* a size that is given is that of all */
    ck_assert_uint_eq(buckets.all[0].n_params, 30);
    zfi_buckets_free(&buckets);
    params[49] = make(49, 12 * MILLION, ZFI_BF16, 0); /* it comes last, after ten of a million */
    ck_assert_int_eq(zfi_buckets_build(params + 49, 11, 0, &(zfi_member_t){0, 2}, &buckets), ZF_OK);
    ck_assert_uint_eq(buckets.n, 2);
    ck_assert_uint_eq(buckets.all[0].n_params, 10);
    zfi_buckets_free(&buckets);
}
END_TEST

ZT_MAIN("bucket", any_number_of_ranks, in_the_order_of_backward, what_stays_open_has_one_order,
        more_ranks_than_elements, smaller_towards_the_end)
