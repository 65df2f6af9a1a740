/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_hosts.c - what hosts got wrong: each mistake is told by name, or is none any more. Bad calls, and
 * what create and bind_params are given, are zf-conform abi's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instance/run.h"
#include "state_rig.h"
#include "suite.h"
#include "zf/ext/config.h"
#include "zf/ext/draft/collectives.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 30, .cols = 20, .is_bf16 = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 100\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";
static const char impatient[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\n[host]\nthreads = 2\n"
                                "deadline_ms = 1000\n";

static zt_rig_t rig;

static zt_log_t said; /* warnings */

/* ---- create ------------------------------------------------------------------------------------------------------ */

/* A key that cannot have an effect is named in a warning; one that has is not. */
ZT_TEST(keys_without_effect) {
    static const struct {
        const char *text, *key;
    } tries[] = {{"mode = windows\nselect_strategy = epoch\nselect_interval = 7", "select_interval"},
                 {"mode = windows\nselect_strategy = auto\nselect_interval = 7", NULL},
                 {"topk_ratio = 0.3", "topk_ratio has no effect without [zenflow] mode = windows"},
                 {"mode = exact\ntopk_ratio = 1", "topk_ratio"},
                 {"mode = exact\nselect_interval = 7", "select_interval"},
                 {"mode = exact\nselect_strategy = epoch", "select_strategy"},
                 {"mode = exact\nfull_warm_up_rounds = 7", "full_warm_up_rounds"},
                 {"mode = exact\npredict = off", "predict"},
                 {"mode = windows\nupdate_interval = 1\ntopk_ratio = 1", NULL},
                 {"mode = exact\ntopk_ratio = 0.1\npredict = auto", NULL},
                 {"topk_ratio = 0.3\n[device]\nstate_mib = all", "topk_ratio"},
                 {"update_interval = 7\n[device]\nstate_mib = all", "update_interval"},
                 {"publish_lag = 1\n[device]\nstate_mib = all", "publish_lag"},
                 {"predict = off\n[device]\nstate_mib = all", "predict"},
                 {"[device]\nstate_mib = all\n[host]\nthreads = 3", "threads"},
                 {"[device]\nstate_mib = all\n[host]\nmoments_dtype = bfloat16", NULL},
                 {"on_overwrite = ask\n[device]\nstate_mib = all", NULL},
                 {"[device]\nstate_mib = all", NULL},
                 {"mode = windows\ntopk_ratio = 0.3\nselect_interval = 7", NULL},
                 {"", NULL}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char text[256];
        snprintf(text, sizeof text, "[zenflow]\n%s\n", tries[i].text);
        zt_rig_start(&rig, shapes, N_SHAPES);
        zt_rig_listen(&rig, &said, NULL);
        zt_rig_open(&rig, text, 0);
        ck_assert_msg(said.n == (tries[i].key != NULL), "%s: %d warnings: %s", tries[i].text, said.n, said.text);
        if (tries[i].key)
            zt_contains(said.text, tries[i].key);
        zt_rig_end(&rig);
    }
}

/* A host's table of functions, and one more that a later version appends. */
static struct {
    zf_collectives_ext_t table;
    uint64_t appended;
} offered;

static const void *offer(void *ctx, const char *id) {
    (void)ctx;
    return strcmp(id, ZF_EXT_COLLECTIVES) == 0 ? &offered : NULL;
}
static zf_status_t be_alone(void *ctx, uint32_t group, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    (void)ctx, (void)group, (void)err;
    *out_rank = 0;
    *out_size = 1;
    return ZF_OK;
}
static zf_status_t start(void *ctx, const zf_collective_t *call, uint64_t *out_request, zf_error_t *err) {
    (void)ctx, (void)call, (void)out_request, (void)err;
    return ZF_ERR_STATE;
}
static zf_status_t end(void *ctx, uint64_t request, zf_error_t *err) {
    (void)ctx, (void)request, (void)err;
    return ZF_ERR_STATE;
}

static const zf_collectives_ext_t whole_table = {
    .struct_size = sizeof whole_table, .group = be_alone, .start = start, .test = end, .abort = end};

static void refused_with(zf_collectives_ext_t table, const char *text) {
    offered.table = table;
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.host.get_extension = offer;
    ck_assert_int_eq(zt_rig_try_create(&rig, config, 0), text ? ZF_ERR_ABI : ZF_OK);
    if (text)
        zt_contains(rig.err.message, text);
    zt_rig_end(&rig);
}

/* A rank whose table of collectives is cut short would train alone: it is refused by what it lacks. A longer one is a
 * newer host's. */
ZT_TEST(tables_of_collectives) {
    static const uint32_t sizes[] = {0, 4, 8, 40, 47};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[64];
        zf_collectives_ext_t table = whole_table;
        table.struct_size = sizes[i];
        snprintf(text, sizeof text, "zf_collectives_ext_t: struct_size = %u, need at least 48", sizes[i]);
        refused_with(table, text);
    }
    static const char *const slots[] = {"group", "start", "test", "abort"};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        char text[64];
        zf_collectives_ext_t table = whole_table;
        memset((char *)&table + 16 + 8 * i, 0, 8);
        snprintf(text, sizeof text, "of the host: %s is NULL", slots[i]);
        refused_with(table, text);
    }
    refused_with((zf_collectives_ext_t){.struct_size = sizeof(zf_collectives_ext_t)}, "group is NULL");
    refused_with(whole_table, NULL);
    offered.appended = UINT64_MAX;
    zf_collectives_ext_t longer = whole_table;
    longer.struct_size = sizeof offered;
    refused_with(longer, NULL);
}

/* ---- what the environment forces --------------------------------------------------------------------------------- */

ZT_TEST(forced_blocks) {
    static const zt_shape_t above[] = {{.rows = 257, .cols = 256}, {.rows = 5}}; /* two blocks as users get them */
    static const char *const bad[] = {"0", "65537", "70000", "-1", "12x", "1e3", " 7", "x", "99999999999999999999"};
    zt_rig_make(&rig, above, 2, config, 0);
    uint32_t n_matrices = (uint32_t)zt_rig_parts(&rig)->n_matrices;
    ck_assert_uint_eq(n_matrices, 3);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig.zf->destroy(rig.inst, NULL);
        setenv("ZF_TEST_BLOCK_ELEMS", bad[i], 1);
        zt_rig_open(&rig, config, 0);
        ck_assert_msg(zt_rig_parts(&rig)->n_matrices == n_matrices, "\"%s\" is not ignored", bad[i]);
    }
    rig.zf->destroy(rig.inst, NULL);
    setenv("ZF_TEST_BLOCK_ELEMS", "256", 1);
    zt_rig_open(&rig, config, 0);
    unsetenv("ZF_TEST_BLOCK_ELEMS");
    ck_assert_uint_eq(zt_rig_parts(&rig)->n_matrices, 258);
    zt_rig_steps(&rig, 12);
    zt_rig_end_flushed(&rig);
}

ZT_TEST(an_unknown_instruction_set) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    setenv("ZF_FORCE_ISA", "mmx", 1);
    zt_refused(&rig.err, zt_rig_try_create(&rig, config, 0), ZF_ERR_CONFIG, "mmx");
    zt_rig_end(&rig);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

#if defined(__clang__)
#define COMPILER_VERSION __clang_version__
#else
#define COMPILER_VERSION __VERSION__
#endif

ZT_TEST(build_is_described) {
    zf_description_t what = {.struct_size = sizeof what};
    zt_rig_start(&rig, shapes, N_SHAPES);
    ZT_OK(&rig, rig.zf->describe(&what, &rig.err));
    zt_contains(what.build, "cpu backend (generic");
    zt_contains(what.build, COMPILER_VERSION);
    zt_contains(what.build, "-ffp-contract=off");
    zt_contains(what.build, "; git ");
#if defined(__x86_64__)
    zt_contains(what.build, "avx2, avx512");
#elif defined(__aarch64__)
    zt_contains(what.build, "generic, neon");
#endif
    zt_rig_end(&rig);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static zf_step_report_t step_without(uint32_t mask) {
    zf_step_report_t report = {.struct_size = sizeof report};
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        if (mask & 1u << i)
            continue;
        zt_rig_fill_grad(&rig, i, rig.step + 1);
        ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, NULL));
    }
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, &report));
    return report;
}

/* Absent from the first step on is how it is meant, and once by now it is known. Of each kind the host is warned once;
 * the report goes on saying it. */
ZT_TEST(gradients_that_are_missing) {
    static const struct {
        uint32_t n_steps, without[5], n_present[5], n_missing[5], first[5];
        int n_said[5];
        const char *words[2];
    } runs[] = {{5,
                 {1, 1, 5, 5, 2},
                 {2, 2, 1, 1, 2},
                 {0, 0, 1, 0, 1},
                 {0, 0, 2, 0, 1},
                 {0, 0, 1, 1, 1},
                 {"\"layer.2.weight\"", "step 3"}},
                {2, {7, 7}, {0, 0}, {0, 0}, {0, 0}, {1, 1}, {"grads_ready", "step 1"}}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        zt_rig_start(&rig, shapes, N_SHAPES);
        zt_rig_listen(&rig, &said, NULL);
        zt_rig_open(&rig, config, 0);
        for (uint32_t t = 0; t < runs[i].n_steps; t++) {
            zf_step_report_t r = step_without(runs[i].without[t]);
            ck_assert(r.n_present == runs[i].n_present[t] && r.n_missing == runs[i].n_missing[t]);
            ck_assert_uint_eq(r.first_missing, r.n_missing ? runs[i].first[t] : ZF_NO_ID);
            ck_assert_int_eq(said.n, runs[i].n_said[t]);
        }
        zt_contains(said.text, runs[i].words[0]);
        zt_contains(said.text, runs[i].words[1]);
        zt_rig_end(&rig);
    }
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* Stacked gradients by ranges of their matrices: every wrong order is refused without a trace, and a load drops ranges.
 * That the bits are those of whole ones is zf-conform exact's.
 * Parameters 0 and 2 are stacks of vectors. */
static void open_stacked(void) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.decls[0].n_batch_axes = rig.decls[2].n_batch_axes = 1;
    zt_rig_open(&rig, config, 0);
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_rig_fill_grad(&rig, i, 1);
}

static zf_status_t deliver_range(uint32_t param, uint32_t first, uint32_t n, uint32_t flags) {
    return zt_rig_deliver_range(&rig, param, first, n, flags, NULL);
}

ZT_TEST(wrong_ranges) {
    const uint32_t last = ZF_GRAD_TOTAL | ZF_GRAD_LAST;
    open_stacked();
    zt_refused(&rig.err, deliver_range(0, 20, 5, last), ZF_ERR_SHAPE, "\"layer.0.weight\"");
    zt_refused(&rig.err, deliver_range(0, 0xFFFFFFFFu, 2, last), ZF_ERR_SHAPE, "has 24");
    zt_refused(&rig.err, deliver_range(0, 3, 0, last), ZF_ERR_SHAPE, "has 24");
    zt_refused(&rig.err, deliver_range(1, 0, 2, last), ZF_ERR_SHAPE, "has 1");
    zt_refused(&rig.err, deliver_range(0, 0, 8, ZF_GRAD_TOTAL), ZF_ERR_ARGUMENT, "LAST");
    ZT_OK(&rig, deliver_range(0, 8, 8, last));
    zt_refused(&rig.err, deliver_range(0, 20, 4, last), ZF_ERR_STATE, "20..23 do not adjoin");
    zt_refused(&rig.err, deliver_range(0, 8, 4, last), ZF_ERR_STATE, "8..11 do not adjoin");
    zt_refused(&rig.err, deliver_range(0, 0, 0, last), ZF_ERR_STATE, "all matrices after a range");
    zt_refused(&rig.err, zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE, "matrices 8..15 of 24");
    ck_assert_uint_eq(zt_rig_counter(&rig, "steps"), 0);
    ZT_OK(&rig, deliver_range(0, 16, 8, last));
    ZT_OK(&rig, deliver_range(0, 0, 8, last));
    zt_refused(&rig.err, deliver_range(0, 0, 8, last), ZF_ERR_STATE, "with LAST before");
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    ZT_OK(&rig, deliver_range(0, 8, 8, last)); /* dropped with the step */
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    zt_rig_steps(&rig, 6);
    zt_rig_end_flushed(&rig);
}

/* A load drops what was delivered before it, also where nothing was trained yet. */
ZT_TEST(a_load_drops_ranges) {
    static zt_memory_store_t store;
    zt_memory_store_start(&store);
    open_stacked();
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    ZT_OK(&rig, deliver_range(0, 0, 8, ZF_GRAD_TOTAL | ZF_GRAD_LAST));
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    ZT_OK(&rig, deliver_range(0, 8, 16, ZF_GRAD_TOTAL | ZF_GRAD_LAST));
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE);
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    zt_rig_steps(&rig, 5);
    zt_rig_end_flushed(&rig);
    zt_memory_store_clear(&store);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void open_blocked(const char *text) {
    zt_rig_make(&rig, shapes, N_SHAPES, text, ZT_ON_QUEUE);
    zt_rig_steps(&rig, 2);
    zt_rig_sync(&rig);
}

/* Runs while the instance comes to rest, and leaves something behind it that stands still. */
static void block_later(void *unused) {
    (void)unused;
    usleep(200000);
    zt_gate_close();
    rig.cpu->queue_launch(rig.queue, zt_gate_pass, NULL, NULL);
}

ZT_TEST(params_changed_beside_a_blocked_queue) {
    float out[24 * 40];
    open_blocked(impatient);
    for (size_t i = 0; i < 24 * 40; i++)
        ((float *)(void *)rig.params[0].visible)[i] = 0.25f;
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, block_later, NULL, &rig.err));
    ZT_OK(&rig, zt_changed(&rig, 0, 0)); /* after the drain the queue is not needed */
    zt_gate_open();
    ZT_OK(&rig, zt_try_export(&rig, 0, out));
    ck_assert_float_eq(out[17], 0.25f);
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL));
    zt_rig_end(&rig);
}

/* ---- cancelled threads ------------------------------------------------------------------------------------------- */

/* A thread that is cancelled leaves its frames as they are, which the address sanitizer minds: it is left out. */
static zf_create_args_t from_a_file = {
    .struct_size = sizeof from_a_file, .host = &rig.host, .device_type = ZF_DEVICE_CPU};

static void *create_while_cancelled(void *path) {
    from_a_file.config_path = path; /* to open it is a call that allows to be cancelled */
    pthread_cancel(pthread_self());
    (void)rig.zf->create(&from_a_file, &rig.inst, &rig.err);
    pthread_testcancel();
    return NULL;
}

/* What create opens and starts would be nobody's. */
ZT_TEST(a_cancelled_create) {
    char path[] = "/tmp/zf-test-hosts-XXXXXX";
    pthread_t thread;
    void *result = NULL;
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, config, strlen(config)), (ssize_t)strlen(config));
    close(fd);
    zt_rig_start(&rig, shapes, N_SHAPES);
    ck_assert_int_eq(pthread_create(&thread, NULL, create_while_cancelled, path), 0);
    pthread_join(thread, &result);
    unlink(path);
    ck_assert_ptr_eq(result, PTHREAD_CANCELED);
    ck_assert_ptr_nonnull(rig.inst);
    zt_rig_bind(&rig);
    zt_rig_steps(&rig, 2);
    zt_rig_end(&rig);
}

ZT_SUITE("hosts")
