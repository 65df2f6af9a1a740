/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_instance.c - the life of an instance through the public table: states, re-entrance, destruction at
 * every point, several instances, nothing left behind. */
#define _GNU_SOURCE
#include <check.h>
#include <dirent.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "instance/run.h"
#include "rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40},
    {.rows = 17},
    {.rows = 32, .cols = 48, .is_bf16 = 1, .group = 1},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2},
    {.rows = 0, .cols = 5},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\n"
                             "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";

static zt_rig_t rig;

static void open_rig(const char *text, uint32_t flags) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, text, flags);
}

/* ---- negotiation and create -------------------------------------------------------------------------------------- */

START_TEST(negotiation) {
    static const uint32_t other[] = {ZF_ABI_NUMBER(7, 1), ZF_ABI_NUMBER(0, 9)};
    zf_error_t err = {.struct_size = sizeof err};
    zf_bootstrap_t boot = {
        .struct_size = sizeof boot, .magic = ZF_BOOTSTRAP_MAGIC, .abis = other, .n_abis = 2, .error = &err};
    ck_assert_int_eq(zf_plugin_negotiate(NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zf_plugin_negotiate(&boot), ZF_ERR_ABI);
    ck_assert_msg(strstr(err.message, "7.1, 0.9") && strstr(err.message, "0.1"), "%s", err.message);
    ck_assert_ptr_null(boot.plugin);
    boot.magic = 1;
    ck_assert_int_eq(zf_plugin_negotiate(&boot), ZF_ERR_ARGUMENT);
    ck_assert_ptr_eq(zt_table(), zt_table());
}
END_TEST

START_TEST(create_refuses) {
    zf_create_args_t args = {.struct_size = sizeof args, .device_type = ZF_DEVICE_CPU};
    zf_instance_t *inst = NULL;
    zt_rig_start(&rig, shapes, 1);
    ck_assert_int_eq(rig.zf->create(NULL, &inst, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_ARGUMENT); /* no host */
    args.host = &rig.host;
    ck_assert_int_eq(rig.zf->create(&args, NULL, &rig.err), ZF_ERR_ARGUMENT);
    args.flags = 0x80u;
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_UNSUPPORTED_FIELD);
    args.flags = 0;
    args.device_type = ZF_DEVICE_CUDA;
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_DEVICE);
    args.device_type = ZF_DEVICE_CPU;
    args.norm_group = 3; /* and no zf.collectives/1 */
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_RANKS);
    args.norm_group = 0;
    args.config_text = args.config_path = "x";
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_ARGUMENT);
    args.config_text = NULL;
    args.config_path = "/does/not/exist.ini";
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_CONFIG);
    args.config_path = NULL;
    args.n_overrides = 1;
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_ARGUMENT);
    args.n_overrides = 0;
    args.struct_size = 24;
    ck_assert_int_eq(rig.zf->create(&args, &inst, &rig.err), ZF_ERR_ABI);
    ck_assert_ptr_null(inst);
    ck_assert_int_eq(zt_rig_try_create(&rig, "[zenflow]\nupdate_interval = 0\n", 0), ZF_ERR_CONFIG);
    ck_assert_ptr_null(rig.inst);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(rules_and_what_they_allow) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, config, 0);
    rig.rules[2].rule = 6;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_UNSUPPORTED_FIELD, "group 2: rule = 6");
    rig.zf->destroy(rig.inst, NULL);
    for (uint32_t rule = ZF_RULE_ADAMW; rule <= ZF_RULE_LION; rule++) { /* predict: without effect from SGD on */
        zt_rig_use_rule(&rig, rule, NULL);
        zt_rig_open(&rig, "[zenflow]\npredict = auto\n", 0);
        rig.zf->destroy(rig.inst, NULL);
    }
    rig.inst = NULL;
    zt_rig_end(&rig);
}
END_TEST

START_TEST(forced_blocks) {
    static const zt_shape_t above[] = {{.rows = 257, .cols = 256}, {.rows = 5}}; /* two blocks as users get them */
    static const char *const bad[] = {"0", "65537", "70000", "-1", "12x", "1e3", " 7", "x", "99999999999999999999"};
    uint32_t n_matrices;
    zt_rig_start(&rig, above, 2);
    zt_rig_open(&rig, config, 0);
    n_matrices = (uint32_t)zt_rig_parts(&rig)->n_matrices;
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
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(forced_instruction_set) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    setenv("ZF_FORCE_ISA", "mmx", 1);
    zt_refused(&rig.err, zt_rig_try_create(&rig, config, 0), ZF_ERR_CONFIG, "mmx");
    setenv("ZF_FORCE_ISA", "generic", 1);
    zt_rig_open(&rig, config, 0);
    unsetenv("ZF_FORCE_ISA");
    zt_rig_steps(&rig, 12);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void expect_all_hooks(zf_status_t want) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    float out[17];
    zf_export_item_t item = {.struct_size = sizeof item, .id = 1, .dst = out, .dst_nbytes = sizeof out};
    const zf_inspect_ext_t *inspect = rig.zf->get_extension(ZF_EXT_INSPECT);
    zf_inspect_out_t state = {.struct_size = sizeof state, .n_elems = 17};
    ck_assert_int_eq(zt_rig_deliver(&rig, 1, 0, NULL), want);
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), want);
    ck_assert_int_eq(rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &fence, &rig.err), want);
    ck_assert_int_eq(rig.zf->param_release(rig.inst, NULL, 0, 0, &rig.stream, &rig.err), want);
    ck_assert_int_eq(zt_quiesce(&rig, ZF_QUIESCE_DRAIN), want);
    ck_assert_int_eq(rig.zf->export_params(rig.inst, &item, 1, sizeof item, &rig.err), want);
    ck_assert_int_eq(rig.zf->poll(rig.inst, NULL, &rig.err), want);
    ck_assert_int_eq(rig.zf->params_changed(rig.inst, NULL, 0, 0, 0, &rig.err), want);
    ck_assert_int_eq(inspect->read(rig.inst, 1, &state, &rig.err), want);
}

START_TEST(before_bind) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    expect_all_hooks(ZF_ERR_ARGUMENT); /* NULL */
    zt_rig_create(&rig, config, 0);
    expect_all_hooks(ZF_ERR_STATE);
    zt_contains(rig.err.message, "bind_params");
    zt_rig_bind(&rig);
    zt_rig_steps(&rig, 1);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(not_an_instance) {
    static uint64_t garbage[64];
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.inst = (zf_instance_t *)(void *)garbage;
    expect_all_hooks(ZF_ERR_ARGUMENT);
    rig.zf->destroy(rig.inst, NULL);
    rig.zf->destroy(NULL, NULL);
    rig.inst = NULL;
    zt_rig_end(&rig);
}
END_TEST

START_TEST(arguments_are_checked) {
    uint32_t unknown = 77;
    zf_fence_t fence = {.struct_size = 4};
    zf_stream_t wrong;
    open_rig(config, 0);
    wrong = rig.stream;
    wrong.device_type = ZF_DEVICE_CUDA;
    ck_assert_int_eq(zt_fetch(&rig, unknown, NULL), ZF_ERR_PARAM);
    ck_assert_int_eq(rig.zf->param_fetch(rig.inst, NULL, 1, sizeof(zf_param_item_t), &rig.stream, NULL, &rig.err),
                     ZF_ERR_ARGUMENT);
    ck_assert_int_eq(rig.zf->param_fetch(rig.inst, NULL, 0, 0, NULL, NULL, &rig.err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(rig.zf->param_fetch(rig.inst, NULL, 0, 0, &wrong, NULL, &rig.err), ZF_ERR_DEVICE);
    ck_assert_int_eq(rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &fence, &rig.err), ZF_ERR_ABI);
    ck_assert_int_eq(zt_changed(&rig, unknown, 0), ZF_ERR_PARAM);
    ck_assert_int_eq(rig.zf->params_changed(rig.inst, NULL, 0, 0, 6, &rig.err), ZF_ERR_UNSUPPORTED_FIELD);
    ck_assert_int_eq(zt_quiesce(&rig, 3), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zt_rig_submit(&rig, 0x100, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    rig.groups[1].lr = -1;
    zt_refused(&rig.err, zt_rig_submit(&rig, 0, NULL), ZF_ERR_ARGUMENT, "group 1: lr = -1");
    rig.groups[1].lr = 1e-3;
    ck_assert_uint_eq(zt_rig_counter(&rig, "steps"), 0);
    zt_rig_steps(&rig, 7);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* ---- two hooks at once ------------------------------------------------------------------------------------------- */

/* ---- destroy at every point -------------------------------------------------------------------------------------- */

START_TEST(destroy_after_create) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, config, 0);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(destroy_after_any_number_of_steps) { /* warm-up, mid-window, publishes due, channels about to enter */
    for (int n = 0; n < 16; n++)
        for (int lag = 0; lag < 2; lag++)
            for (int is_queue = 0; is_queue < 2; is_queue++) {
                char text[256];
                snprintf(text, sizeof text, "%spublish_lag = %d\n",
                         "[host]\nthreads = 2\n[zenflow]\nupdate_interval = 3\n"
                         "full_warm_up_rounds = 2\nselect_interval = 2\n",
                         lag);
                zt_rig_start(&rig, shapes, N_SHAPES);
                if (is_queue)
                    zt_rig_use_queue(&rig);
                zt_rig_open(&rig, text, ZF_CREATE_CAP_FETCH);
                zt_rig_steps(&rig, n);
                zt_rig_end(&rig);
            }
}
END_TEST

START_TEST(destroy_with_gradients_not_stepped) {
    static const uint32_t how[] = {ZF_GRAD_TOTAL | ZF_GRAD_LAST, ZF_GRAD_PART | ZF_GRAD_MORE,
                                   ZF_GRAD_TOTAL | ZF_GRAD_UNKNOWN};
    for (int n = 0; n < 8; n++)
        for (size_t k = 0; k < 6; k++) {
            zt_rig_start(&rig, shapes, N_SHAPES);
            if (k >= 3)
                zt_rig_use_queue(&rig);
            zt_rig_open(&rig, config, ZF_CREATE_CAP_FETCH);
            zt_rig_steps(&rig, n);
            for (uint32_t i = 0; i < 3; i++) {
                zt_rig_fill_grad(&rig, i, rig.step + 1);
                ZT_OK(&rig, zt_rig_deliver(&rig, i, how[k % 3], NULL));
            }
            zt_rig_end(&rig);
        }
}
END_TEST

START_TEST(destroy_after_quiesce) {
    for (int mode = ZF_QUIESCE_DRAIN; mode <= ZF_QUIESCE_FLUSH; mode++)
        for (int n = 0; n < 6; n++) {
            open_rig(config, ZF_CREATE_CAP_FETCH);
            zt_rig_steps(&rig, n);
            ZT_OK(&rig, zt_quiesce(&rig, mode));
            ZT_OK(&rig, zt_quiesce(&rig, mode));
            zt_rig_end(&rig);
        }
}
END_TEST

/* A command of another queue that waits for the instance's stream must not outlive the instance. */
static void *open_gate_later(void *unused) {
    (void)unused;
    usleep(50000);
    zt_gate_open();
    return NULL;
}

START_TEST(destroy_waits_for_every_stream_it_was_given) {
    zf_cpu_queue_t *other;
    zf_stream_t stream = {.struct_size = sizeof stream};
    zf_fence_t fence = {.struct_size = sizeof fence};
    pthread_t opener;
    open_rig(config, ZF_CREATE_CAP_FETCH);
    ZT_OK(&rig, rig.cpu->queue_create(&other, &stream, &rig.err));
    zt_rig_steps(&rig, 5);
    zt_gate_close();
    ZT_OK(&rig, rig.cpu->queue_launch(other, zt_gate_pass, NULL, &rig.err));
    ZT_OK(&rig, rig.zf->param_fetch(rig.inst, NULL, 0, 0, &stream, &fence, &rig.err)); /* behind the gate on `other` */
    ck_assert_int_eq(pthread_create(&opener, NULL, open_gate_later, NULL), 0);
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    pthread_join(opener, NULL);
    ZT_OK(&rig, rig.cpu->queue_sync(other, 60000000000u, &rig.err));
    rig.cpu->queue_destroy(other);
    zt_rig_end(&rig);
}
END_TEST

/* ---- several instances, nothing left behind -----------------------------------------------------------------------
 */

START_TEST(two_at_once) {
    static zt_rig_t a, b;
    zt_rig_start(&a, shapes, N_SHAPES);
    zt_rig_start(&b, shapes, N_SHAPES);
    zt_rig_use_queue(&b);
    b.groups[0].lr = 0.02;
    zt_rig_open(&a, config, 0);
    zt_rig_open(&b, "[zenflow]\nupdate_interval = 2\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\n",
                ZF_CREATE_CAP_FETCH);
    for (int i = 0; i < 20; i++) {
        zt_rig_step(&a);
        zt_rig_step(&b);
    }
    zt_rig_check_flushed(&a);
    zt_rig_end(&a);
    zt_rig_steps(&b, 3);
    zt_rig_check_flushed(&b);
    zt_rig_end(&b);
}
END_TEST

#if defined(__SANITIZE_ADDRESS__)
/* Freed memory that AddressSanitizer holds back would look like mappings left behind. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=1"; }
#endif

static int count_entries(const char *path) {
    int n = 0;
    DIR *dir = opendir(path);
    ck_assert(dir != NULL);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int count_threads(void) { return count_entries("/proc/self/task"); }

static int count_mappings(void) {
    int n = 0, c;
    FILE *file = fopen("/proc/self/maps", "re");
    ck_assert(file != NULL);
    while ((c = getc(file)) != EOF)
        n += c == '\n';
    fclose(file);
    return n;
}

/* A thread that was joined stands in /proc, and keeps its stack, until the kernel has taken it away. */
static int settled(int (*count)(void), int most) {
    int n = count();
    for (int i = 0; i < 1000 && n > most; i++) {
        usleep(5000);
        n = count();
    }
    return n;
}

static void one_round(int i) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    if (i & 1)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, config, i & 2 ? ZF_CREATE_CAP_FETCH : 0);
    zt_rig_steps(&rig, i % 5);
    zt_rig_end(&rig);
}

START_TEST(rounds_leave_nothing_behind) {
    int n_threads = count_threads(), n_fds, n_maps;
    for (int i = 0; i < 40; i++)
        one_round(i); /* allocators and thread stacks settle, a sanitizer starts a thread of its own */
    n_threads = settled(count_threads, n_threads);
    n_fds = count_entries("/proc/self/fd");
    n_maps = count_mappings();
    for (int i = 0; i < 200; i++)
        one_round(i);
    ck_assert_int_le(settled(count_threads, n_threads), n_threads);
    ck_assert_int_eq(count_entries("/proc/self/fd"), n_fds);
    n_maps += 16; /* 200 leaked mappings or stacks would show; allocator noise may not */
    ck_assert_int_le(settled(count_mappings, n_maps), n_maps);
}
END_TEST

static void round_upward(void *arg) {
    (void)arg;
    fesetround(FE_UPWARD);
}

static void note_rounding(void *arg) { *(int *)arg = fegetround(); }

/* Steps work on the host's queue in a mode of their own; the host's functions there find what they left. */
START_TEST(the_hosts_rounding_outlives_steps) {
    int first = -1, last = -1;
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_use_queue(&rig);
    zt_rig_open(&rig, config, 0);
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, note_rounding, &first, &rig.err));
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, round_upward, NULL, &rig.err));
    zt_rig_steps(&rig, 3);
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, note_rounding, &last, &rig.err));
    zt_rig_sync(&rig);
    ck_assert_int_eq(first, FE_TONEAREST);
    ck_assert_int_eq(last, FE_UPWARD);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* What a later version may give a meaning, and what would be read far from any memory. */
START_TEST(members_that_mean_nothing) {
    zf_grad_item_t item = {.struct_size = sizeof item, .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .reserved0 = 1};
    static const zt_shape_t shape = {.rows = 6, .cols = 5};
    zt_rig_start(&rig, &shape, 1);
    rig.host.reserved0 = 1;
    ck_assert_int_eq(zt_rig_try_create(&rig, NULL, 0), ZF_ERR_UNSUPPORTED_FIELD);
    rig.host.reserved0 = 0;
    zt_rig_create(&rig, NULL, 0);
    rig.decls[0].home = 3;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_UNSUPPORTED_FIELD,
               "home = 3; allowed: 0 (plugin), 1 (resident), 2 (host)");
    rig.decls[0].home = ZF_HOME_PLUGIN;
    rig.params[0].tensor.dl.byte_offset = (uint64_t)1 << 63;
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_ERR_ARGUMENT);
    rig.params[0].tensor.dl.byte_offset = 0;
    zt_rig_bind(&rig);
    item.id = rig.params[0].id;
    item.tensor = &rig.params[0].grad_tensor;
    ck_assert_int_eq(rig.zf->grads_ready(rig.inst, &item, 1, sizeof item, &rig.stream, NULL, &rig.err),
                     ZF_ERR_UNSUPPORTED_FIELD);
    rig.groups[0].reserved0 = 1;
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    rig.groups[0].reserved0 = 0;
    rig.stream.flags = 64;
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    rig.stream.flags = 0;
    rig.stream.reserved0 = 1;
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    rig.stream.reserved0 = 0;
    rig.stream.kind = ZF_STREAM_CPU_QUEUE;
    rig.stream.handle = 0xDEADBEEF0123; /* no memory is there */
    ck_assert_int_eq(zt_rig_submit(&rig, 0, NULL), ZF_ERR_ARGUMENT);
    rig.stream.kind = ZF_STREAM_HOST_THREAD;
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("instance", members_that_mean_nothing, negotiation, create_refuses, rules_and_what_they_allow, forced_blocks,
        forced_instruction_set, before_bind, not_an_instance, arguments_are_checked, destroy_after_create,
        destroy_after_any_number_of_steps, destroy_with_gradients_not_stepped, destroy_after_quiesce,
        destroy_waits_for_every_stream_it_was_given, two_at_once, rounds_leave_nothing_behind,
        the_hosts_rounding_outlives_steps)
