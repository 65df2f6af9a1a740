/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_no_memory.c - allocations of create, bind, step, save, load and destroy fail, one at a
 * time: the call says so, what was there before is whole, and the instance goes on or is poisoned and can be destroyed.
 * After the first steps there is none that could.
 *
 * The linker gives the plugin's calls of the C library to the __wrap_ functions below. So the sweep runs under
 * AddressSanitizer too, which finds what a failed call forgets to free. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hooks/audit.h"
#include "state/audit.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"
#include "zf/ext/draft/digest.h"

/* ---- allocations that fail --------------------------------------------------------------------------------------- */

static _Atomic int is_armed;
static _Atomic int64_t n_left, n_failed; /* allocation number n_left from now on fails */

static int fails(void) {
    if (!atomic_load(&is_armed) || atomic_fetch_sub(&n_left, 1) != 0)
        return 0;
    atomic_fetch_add(&n_failed, 1);
    errno = ENOMEM;
    return 1;
}

static void arm(int64_t n) {
    atomic_store(&n_left, n);
    atomic_store(&n_failed, 0);
    atomic_store(&is_armed, 1);
}

/* Whether an allocation has failed since. */
static int disarm(void) {
    atomic_store(&is_armed, 0);
    return atomic_load(&n_failed) > 0;
}

ZT_WRAP(void *, malloc, size_t nbytes) { return fails() ? NULL : __real_malloc(nbytes); }
ZT_WRAP(void *, calloc, size_t n, size_t nbytes) { return fails() ? NULL : __real_calloc(n, nbytes); }
ZT_WRAP(void *, realloc, void *old, size_t nbytes) { return fails() ? NULL : __real_realloc(old, nbytes); }
ZT_WRAP(char *, strdup, const char *text) { return fails() ? NULL : __real_strdup(text); }
ZT_WRAP(char *, strndup, const char *text, size_t n) { return fails() ? NULL : __real_strndup(text, n); }
ZT_WRAP(char *, realpath, const char *path, char *out) { return fails() ? NULL : __real_realpath(path, out); }
/* What /proc says of the machine is a hint: the plugin goes on without it. */
ZT_WRAP(DIR *, opendir, const char *path) {
    return strncmp(path, "/proc/", 6) != 0 && fails() ? NULL : __real_opendir(path);
}

ZT_WRAP(DIR *, fdopendir, int fd) { return fails() ? NULL : __real_fdopendir(fd); }

ZT_WRAP(void *, mmap, void *at, size_t nbytes, int prot, int flags, int fd, off_t offset) {
    return fails() ? MAP_FAILED : __real_mmap(at, nbytes, prot, flags, fd, offset);
}

ZT_WRAP(int, pthread_create, pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    return fails() ? EAGAIN : __real_pthread_create(out, attr, run, arg);
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

/* Of the many allocations of a save or load every third, under a sanitizer every thirteenth. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 13 };
#else
enum { STRIDE = 3 };
#endif

static const char config[] = "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2";
static const char whole[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\n"
                            "full_warm_up_rounds = 2\n[host]\nthreads = 2\n";
static zt_rig_t rig, reference;
static const zf_state_ext_t *state;
static char path[128];
static const zf_state_args_t args = {.struct_size = sizeof args, .path = path};

/* Small, because all of it is saved some thousand times; the third is the one that zt_state_steps() spoils at times. */
static const zt_shape_t shapes[] = {{.rows = 24, .cols = 20}, {.rows = 17}, {.rows = 8, .cols = 6, .is_bf16 = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void open_small(zt_rig_t *of, const char *zenflow) {
    char text[512];
    snprintf(text, sizeof text, "[zenflow]\n%s\n[host]\nthreads = 2\n", zenflow);
    zt_rig_make(of, shapes, N_SHAPES, text, 0);
    state = zt_state(of);
}

/* A run of n steps, and a checkpoint of it. */
static void open_saved(int n) {
    open_small(&rig, config);
    zt_state_steps(&rig, n);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
}

/* Another run, which nothing failed in and which is saved after these steps, comes to the same. */
static void end_as_reference(uint64_t first, uint64_t second, const char *when) {
    zt_memory_store_t store;
    zt_memory_store_start(&store);
    open_small(&reference, config);
    while (reference.step < rig.step) {
        zt_state_steps(&reference, 1);
        if (reference.step == first || reference.step == second)
            ZT_OK(&reference, zt_save(&reference, &store.table, NULL, 0, NULL));
    }
    zt_memory_store_clear(&store);
    zt_state_check_equal(&rig, &reference, when);
    zt_rig_end(&reference);
    zt_rig_end(&rig);
}

static void start(void) { snprintf(path, sizeof path, "%s/ckpt", zt_dir()); }

static void nothing(void) {}

/* ---- the sweep --------------------------------------------------------------------------------------------------- */

/* A call on rig, of which one allocation fails at a time, until it gets through. Nothing of the test itself allocates
 * in it. before: each time; failed: what must hold when it has. */
typedef struct sweep {
    const char *name;
    void (*before)(void);
    zf_status_t (*call)(void);
    void (*failed)(int64_t n);
    int64_t stride, least; /* it takes more allocations than `least` */
} sweep_t;

static void sweep(const sweep_t *s) {
    int64_t n = 0;
    for (int is_over = 0; !is_over; n += s->stride) {
        s->before();
        rig.err.message[0] = '\0';
        arm(n);
        zf_status_t st = s->call();
        is_over = !disarm();
        if (is_over) {
            ZT_OK(&rig, st);
            continue;
        }
        ck_assert_msg(st == ZF_ERR_MEMORY && strlen(rig.err.message) >= 10,
                      "%s: allocation %lld failed, and the call returned %d (%s)", s->name, (long long)n, st,
                      rig.err.message);
        s->failed(n);
    }
    ck_assert_int_gt(n, s->least);
}

static void passes(int64_t n) { (void)n; }

static zt_image_t image; /* of what may not change */

/* Of many allocations every second time, for it is long. */
static void has_not_changed(int64_t n) {
    if (n <= 100 || n % 2 == 0)
        zt_state_check_image(&rig, &image, "an allocation failed");
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static uint64_t saved_step(void) {
    zf_state_report_t report = {.struct_size = sizeof report};
    ZT_OK(&rig, state->verify(&args, &report, &rig.err));
    return report.step;
}

/* What was saved before is whole, and nothing lies beside it. */
static void is_as_saved(int64_t n) {
    DIR *dir = __real_opendir(zt_dir());
    int n_names = 0;
    while (readdir(dir))
        n_names++;
    closedir(dir);
    ck_assert_msg(saved_step() == 5 && n_names == 3, "allocation %lld failed: step %llu at the path, %d names",
                  (long long)n, (unsigned long long)saved_step(), n_names);
}

static zf_state_args_t saves = {.struct_size = sizeof saves, .path = path};
static zf_status_t save_it(void) { return state->save(rig.inst, &saves, NULL, &rig.err); }

static void sweep_save(uint32_t flags) {
    open_saved(5);
    zt_state_steps(&rig, 1);
    saves.flags = flags | ZF_STATE_NO_SYNC;
    sweep(&(sweep_t){"save", nothing, save_it, is_as_saved, STRIDE, 40});
    ck_assert_uint_eq(saved_step(), 6);
    end_as_reference(5, flags ? 0 : 6, "after failed saves");
    open_small(&rig, config);
    ZT_OK(&rig, zt_load(&rig, NULL, path, 0, NULL));
    zt_rig_end(&rig);
}

ZT_TEST(save) {
    sweep_save(0);
    sweep_save(ZF_STATE_KEEP_OPEN);
}

static zf_status_t load_it(void) { return state->load(rig.inst, &args, NULL, &rig.err); }

/* Into an instance of so many steps and another configuration, or the same. */
static void sweep_load(int n_steps, const char *into) {
    open_small(&rig, into);
    zt_state_steps(&rig, n_steps);
    image = zt_state_image(&rig);
    sweep(&(sweep_t){"load", nothing, load_it, has_not_changed, STRIDE, 40});
    free(image.bytes);
    rig.step = 6;
    zt_state_steps(&rig, 3);
    if (into == config)
        end_as_reference(6, 0, "loaded at last");
    else
        zt_rig_end(&rig);
}

ZT_TEST(load) {
    open_saved(6);
    zt_rig_end(&rig);
    sweep_load(0, config);
    sweep_load(3, config);
    sweep_load(0, "topk_ratio = 0.3\nupdate_interval = 3\nfull_warm_up_rounds = 1");
}

static char note[16];
static float values[24 * 20];

static zf_status_t verify_it(void) { return state->verify(&args, NULL, &rig.err); }
static zf_status_t read_note(void) { return state->note(&args, note, sizeof note, &rig.err); }
static zf_status_t read_weights(void) {
    return state->weights(&args, rig.params[0].name, values, rig.params[0].n_elems, &rig.err);
}

ZT_TEST(without_an_instance) {
    open_saved(6);
    sweep(&(sweep_t){"verify", nothing, verify_it, passes, 1, 10});
    sweep(&(sweep_t){"note", nothing, read_note, passes, 1, 5});
    sweep(&(sweep_t){"weights", nothing, read_weights, passes, 1, 10});
    zt_rig_end(&rig);
}

/* ---- create, bind, step, destroy --------------------------------------------------------------------------------- */

static void start_small(void) { zt_rig_start(&rig, shapes, N_SHAPES); }
static zf_status_t create_it(void) { return zt_rig_try_create(&rig, whole, 0); }
static void ends_without_one(int64_t n) {
    (void)n;
    ck_assert_ptr_null(rig.inst);
    zt_rig_end(&rig);
}

ZT_TEST(create) {
    sweep(&(sweep_t){"create", start_small, create_it, ends_without_one, 1, 5});
    zt_rig_end(&rig);
}

static zf_status_t bind_it(void) {
    zf_bind_args_t binds = zt_rig_bind_args(&rig);
    return rig.zf->bind_params(rig.inst, &binds, NULL, NULL, &rig.err);
}

/* The instance takes the same call again, and then it trains. */
ZT_TEST(bind) {
    start_small();
    zt_rig_create(&rig, whole, 0);
    sweep(&(sweep_t){"bind_params", nothing, bind_it, passes, 1, 15});
    for (uint32_t i = 0; i < rig.n_params; i++)
        rig.params[i].id = i;
    zt_state_steps(&rig, 7);
    end_as_reference(0, 0, "bound at last");
}

/* A second bind of a running instance: it stays as it is until one gets through. */
ZT_TEST(bind_again) {
    open_small(&rig, config);
    zt_state_steps(&rig, 5);
    image = zt_state_image(&rig);
    rig.decls[0].group = 1; /* what is bound as it was is not made again */
    sweep(&(sweep_t){"the second bind_params", nothing, bind_it, has_not_changed, 1, 20});
    zt_state_steps(&rig, 5);
    free(image.bytes);
    zt_rig_end(&rig);
}

static void open_fresh(void) { open_small(&rig, config); }

static zf_status_t step_it(void) {
    zf_status_t st = zt_rig_deliver_all(&rig, NULL);
    return st < 0 ? st : zt_rig_submit(&rig, ZF_STEP_WAIT, NULL);
}

static void ends(int64_t n) {
    (void)n;
    zt_rig_end(&rig);
}

/* Hooks allocate at most while an instance is young: what fails there is an error, and destroy frees all of it. */
ZT_TEST(step_and_destroy) {
    sweep(&(sweep_t){"step", open_fresh, step_it, ends, 1, 0});
    zt_rig_end(&rig);
    open_small(&rig, config);
    zt_state_steps(&rig, 5);
    arm(0);
    rig.zf->destroy(rig.inst, NULL);
    ck_assert_msg(!disarm(), "destroy needs memory");
    rig.inst = NULL;
    zt_rig_end(&rig);
}

/* No memory for the digests of what was bound: nothing is audited, and training goes on. */
ZT_TEST(audit) {
    char text[256];
    int has_failed = 1;
    snprintf(text, sizeof text, "%s\n[audit]\nfile = %s/audit every 1\n", config, zt_dir());
    open_small(&rig, text);
    for (int64_t n = 0; has_failed; n++) {
        arm(n);
        zfi_auditing_bound(rig.inst);
        has_failed = disarm();
        ck_assert(has_failed == !rig.inst->engine.audit->sums);
        zt_state_steps(&rig, 1);
        ck_assert(has_failed || n > 2);
    }
    end_as_reference(0, 0, "audited at last");
}

/* ---- when nothing may be allocated ------------------------------------------------------------------------------- */

static zf_status_t worst; /* of the calls of a step; Check allocates where it asserts */
static void note_error(zf_status_t st) { worst = st < 0 ? st : worst; }

/* A step of all that hooks are given: a hole, parts, gradients that are not finite or dropped, a fetch, a digest. */
static void varied_step(void) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    const zf_tensor_t *first = &rig.params[0].grad_tensor;
    zf_fence_t read = {.struct_size = sizeof read}, ready = {.struct_size = sizeof ready};
    uint64_t step = rig.step + 1, digest;
    for (uint32_t i = 0; i < rig.n_params; i++) {
        int is_parted = i == 1 && step % 3 == 0;
        if (i == 0 && step % 5 == 3)
            continue;
        zt_rig_fill_grad(&rig, i, step);
        if (i == 2 && step % 7 == 2)
            memset(rig.params[i].grad, 0xFF, 2);
        if (is_parted)
            note_error(zt_rig_deliver(&rig, i, ZF_GRAD_PART | ZF_GRAD_MORE, NULL));
        note_error(zt_rig_deliver(&rig, i, is_parted ? ZF_GRAD_PART | ZF_GRAD_LAST : 0, &read));
    }
    if (step % 11 == 5)
        note_error(zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
    note_error(zt_rig_submit(&rig, 0, NULL));
    note_error(rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &ready, &rig.err));
    note_error(ext->digest(rig.inst, &first, 1, &digest, &rig.err));
    note_error(rig.zf->fence_wait(rig.inst, &read, 60000000000u, &rig.err)); /* gradients may be filled again */
}

/* By no hook and no thread of the plugin, once there were parts, whose sums are mapped when they first come. */
ZT_TEST(later_steps) {
    static const char *const modes[] = {"windows", "mean"};
    for (int k = 0; k < 4; k++) {
        char text[256];
        snprintf(text, sizeof text,
                 "[zenflow]\nmode = %s\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 5\n"
                 "full_warm_up_rounds = 4\n[host]\nthreads = 2\n",
                 modes[k % 2]);
        zt_rig_make(&rig, shapes, N_SHAPES, text, ZF_CREATE_CAP_FETCH | (k / 2 ? ZT_ON_QUEUE : 0));
        while (rig.step < 3)
            varied_step();
        zt_rig_sync(&rig);
        arm(INT64_MAX);
        while (rig.step < 200)
            varied_step();
        (void)disarm();
        ZT_OK(&rig, worst);
        ck_assert_msg(n_left == INT64_MAX, "%s, queue %d: %lld allocations", modes[k % 2], k / 2,
                      (long long)(INT64_MAX - n_left));
        ck_assert_uint_gt(zt_rig_counter(&rig, "reselects"), 20); /* what this test is about did happen */
        ck_assert_uint_gt(zt_rig_counter(&rig, "steps_skipped"), 10);
        zt_rig_end(&rig);
    }
}

ZT_SUITE_WITH("no_memory", start, NULL)
