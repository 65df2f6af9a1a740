/* SPDX-License-Identifier: Apache-2.0 */
/* test_mpi.c - two instances at the same time over one zf_mpi_t, on each rank from one thread or from a thread each:
 * the bits of each alone; and none where an exchange was given up. Run by mpirun, CK_FORK=no. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "suite.h"
#include "zf_mpi.h"

enum { N = 2, STEPS = 12, N_ELEMS = 96 * 40 };
static const zt_shape_t shape = {.rows = 96, .cols = 40, .flags = ZF_PARAM_AVERAGE};
static const char *const configs[] = {"[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 2\nfull_warm_up_rounds = "
                                      "1\nselect_interval = 3\n[host]\nthreads = 1\n"
                                      "[shard]\nbucket_bytes = 1000\n",
                                      "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 2\nfull_warm_up_rounds = "
                                      "1\nselect_interval = 3\n[host]\nthreads = 1\n"
                                      "[shard]\nbucket_bytes = 1000\nstage = 1\n"};

static zf_mpi_t *mpi;

static const void *extension(void *ctx, const char *id) {
    (void)ctx;
    return zf_mpi_extension(mpi, id);
}

/* Instances have gradients of their own. */
static void open_rig(zt_rig_t *rig, const char *config, uint64_t number) {
    const zt_shape_t shapes[N] = {shape, shape};
    zt_rig_start(rig, shapes, N);
    rig->host.get_extension = extension;
    rig->step = 1000 * number;
    zt_rig_open(rig, config, 0);
}

static void *train(void *raw) {
    zt_rig_t *rig = raw;
    for (int t = 0; t < STEPS; t++)
        ZT_OK(rig, zt_rig_try_step(rig));
    return NULL;
}

static void close_rig(zt_rig_t *rig, float out[N][N_ELEMS]) {
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_FLUSH));
    for (int i = 0; i < N; i++)
        memcpy(out[i], rig->params[i].visible, sizeof out[i]);
    zt_rig_end(rig);
}

static void train_both(zt_rig_t rigs[2], int has_threads) {
    pthread_t threads[2];
    for (int t = 0; t < STEPS && !has_threads; t++)
        for (int i = 0; i < 2; i++)
            ZT_OK(&rigs[i], zt_rig_try_step(&rigs[i]));
    for (int i = 0; i < 2 && has_threads; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, train, &rigs[i]), 0);
    for (int i = 0; i < 2 && has_threads; i++)
        pthread_join(threads[i], NULL);
}

static void compare(const char *config) {
    static float alone[2][N][N_ELEMS], beside[2][N][N_ELEMS];
    static zt_rig_t rigs[2];
    for (uint64_t i = 0; i < 2; i++) {
        open_rig(&rigs[i], config, i);
        train(&rigs[i]);
        close_rig(&rigs[i], alone[i]);
    }
    ck_assert_int_ne(memcmp(alone[0], alone[1], sizeof alone[0]), 0);
    for (int has_threads = 0; has_threads < 2; has_threads++) {
        for (uint64_t i = 0; i < 2; i++)
            open_rig(&rigs[i], config, i);
        train_both(rigs, has_threads);
        for (int i = 0; i < 2; i++)
            close_rig(&rigs[i], beside[i]);
        ck_assert_mem_eq(alone, beside, sizeof alone);
    }
}

/* What was given up may still come: a later instance over the same communicators would take it for its own. */
static void check_given_up(void) {
    static float parts[2];
    zt_rig_t rig;
    const zf_collectives_ext_t *table = zf_mpi_extension(mpi, ZF_EXT_COLLECTIVES);
    zf_collective_t call = {.struct_size = sizeof call,
                            .kind = ZF_COLLECTIVE_ALL_GATHER,
                            .purpose = ZF_COLLECTIVE_FOR_STEP,
                            .recv = parts,
                            .nbytes = sizeof *parts};
    uint64_t request = 0;
    ck_assert_int_eq(table->start(table->ctx, &call, &request, NULL), ZF_OK);
    (void)table->abort(table->ctx, request, NULL);
    zt_rig_start(&rig, &shape, 1);
    rig.host.get_extension = extension;
    zt_refused(&rig.err, zt_rig_try_create(&rig, configs[0], 0), ZF_ERR_RANKS, "open another zf_mpi");
    zt_rig_end(&rig);
}

/* Of the ranks of group 0 those on this machine, as many as group 0 has. */
static void check_nodes(uint32_t n_ranks) {
    const zf_collectives_ext_t *table = zf_mpi_extension(mpi, ZF_EXT_COLLECTIVES);
    uint32_t rank, size;
    ck_assert_int_eq(table->group(table->ctx, ZF_GROUP_NODE, &rank, &size, NULL), ZF_OK);
    ck_assert_uint_eq(size, n_ranks);
    ck_assert_int_eq(table->group(table->ctx, ZF_GROUP_ACROSS, &rank, &size, NULL), ZF_OK);
    ck_assert_uint_eq(size, 1);
}

static void open_mpi(void) {
    char text[256] = "";
    ck_assert_msg(zf_mpi_open(NULL, &mpi, text, sizeof text) == 0, "%s", text);
}

ZT_TEST(two_instances_are_kept_apart) {
    open_mpi();
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        compare(configs[i]);
    zf_mpi_t *first = mpi;
    open_mpi();
    check_nodes(zf_mpi_size(mpi));
    ck_assert_int_eq(zf_mpi_split(mpi, 0, (int)zf_mpi_rank(mpi), 0, NULL, 0), 0);
    check_nodes(1);
    ck_assert_int_eq(zf_mpi_split(mpi, 0, 0, 0, NULL, 0), 0);
    check_given_up();
    zf_mpi_close(first);
}

ZT_SUITE("mpi")
