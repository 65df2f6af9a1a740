/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_digest.c - zf.digest/0: what changes a digest, what does not, and where it may be called. */
#include <pthread.h>
#include <stdatomic.h>

#include "rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

enum { MOST_ELEMS = 200, N_SIZES = 4 };
static const uint32_t sizes[N_SIZES] = {1, 2, 4, 8}; /* of elements, bytes */

static const zt_shape_t shapes[] = {{.rows = 40, .cols = 70}, {.rows = 33, .cols = 17, .is_bf16 = 1}};
static zt_rig_t rig;
static const zf_digest_ext_t *ext;
static _Alignas(8) unsigned char data[512 * 1024];

static void start(void) {
    zt_rig_start(&rig, shapes, 2);
    zt_rig_create(&rig, "[zenflow]\nupdate_interval = 3\n", 0);
    ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    ck_assert_ptr_nonnull(ext);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)zt_hash(i);
}

static void end(void) { zt_rig_end(&rig); }

static void describe(zf_tensor_t *out, void *at, uint32_t elem_nbytes, const int64_t *shape, int ndim) {
    zt_tensor(out, at, shape, ndim, 0);
    out->nbytes = out->nbytes / 4 * elem_nbytes;
    out->dl.dtype = (zf_dtype_t){ZF_DTYPE_CODE_UINT, (uint8_t)(8 * elem_nbytes), 1};
}

/* Not with ck_assert: that writes to a file each time, and there are millions of calls. */
static uint64_t digest(const zf_tensor_t *tensor) {
    uint64_t out;
    if (ext->digest(rig.inst, &tensor, 1, &out, &rig.err) != ZF_OK)
        ck_abort_msg("%s", rig.err.message);
    return out;
}

static uint64_t digest_of(void *at, uint32_t elem_nbytes, int64_t n_elems) {
    zf_tensor_t tensor;
    describe(&tensor, at, elem_nbytes, &n_elems, 1);
    return digest(&tensor);
}

/* ---- what changes it --------------------------------------------------------------------------------------------- */

ZT_TEST(every_bit) {
    for (int s = 0; s < N_SIZES; s++)
        for (int64_t n = 0; n <= MOST_ELEMS; n++) {
            uint64_t before = digest_of(data, sizes[s], n);
            for (uint64_t bit = 0; bit < 8 * sizes[s] * (uint64_t)n; bit += ZT_EVERY) {
                data[bit / 8] ^= (unsigned char)(1u << bit % 8);
                if (digest_of(data, sizes[s], n) == before)
                    ck_abort_msg("bit %llu of %lld elements of %u bytes", (unsigned long long)bit, (long long)n,
                                 sizes[s]);
                data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            }
            ck_assert(digest_of(data, sizes[s], n) == before);
        }
}

/* ---- two threads, beside steps ----------------------------------------------------------------------------------- */

static _Atomic int is_over;

typedef struct reader {
    pthread_t thread;
    uint64_t want, n_calls;
    int n_wrong;
} reader_t;

static void *read_on(void *raw) {
    reader_t *reader = raw;
    int64_t n = 5000;
    zf_tensor_t tensor;
    const zf_tensor_t *list = &tensor;
    uint64_t out = 0;
    describe(&tensor, data, 4, &n, 1);
    do {
        reader->n_wrong += ext->digest(rig.inst, &list, 1, &out, NULL) != ZF_OK || out != reader->want;
        reader->n_calls++;
    } while (!atomic_load(&is_over));
    return NULL;
}

ZT_TEST(two_threads) {
    reader_t readers[2];
    zt_rig_bind(&rig);
    for (int i = 0; i < 2; i++) {
        readers[i] = (reader_t){.want = digest_of(data, 4, 5000)};
        ck_assert_int_eq(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]), 0);
    }
    for (int step = 0; step < 50; step++)
        zt_rig_step(&rig);
    atomic_store(&is_over, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(readers[i].thread, NULL), 0);
        ck_assert_int_eq(readers[i].n_wrong, 0);
        ck_assert_uint_gt(readers[i].n_calls, 0);
    }
    zt_rig_check_flushed(&rig);
}

/* Who asks what was written, and takes it over. */
ZT_TEST(questions_that_are_refused) {
    uint32_t unknown = 99;
    uint8_t found;
    zt_rig_bind(&rig);
    ck_assert_int_eq(ext->written(rig.inst, 3, NULL, 0, &found, &rig.err), ZF_ERR_UNSUPPORTED_FIELD);
    ck_assert_int_eq(ext->written(rig.inst, 0, &unknown, 1, &found, &rig.err), ZF_ERR_PARAM);
    ck_assert_int_eq(ext->written(rig.inst, 0, &unknown, 1, NULL, &rig.err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(ext->adopt(rig.inst, &unknown, 1, &rig.err), ZF_ERR_PARAM);
    zt_refused(&rig.err, ext->adopt(rig.inst, NULL, 0, &rig.err), ZF_ERR_STATE, "on_overwrite = ask");
}

ZT_SUITE_WITH("digest", start, end)
