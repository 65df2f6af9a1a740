/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_no_memory.c - every allocation of create, bind, step, save, load and destroy fails once, one at a
 * time: the call says so, what was there before is whole, and the instance goes on or is poisoned and can be destroyed.
 *
 * The linker gives the plugin's calls of the C library to the __wrap_ functions below, and jansson is told to allocate
 * through them. So the sweep runs under AddressSanitizer too, which finds what a failed call forgets to free. */
#define _GNU_SOURCE
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
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

/* ---- allocations that fail ----------------------------------------------------------------------------------------
 */

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

/* The names that the linker's --wrap makes. NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *old, size_t nbytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
char *__real_realpath(const char *path, char *out);
DIR *__real_opendir(const char *path);
DIR *__real_fdopendir(int fd);
void *__real_mmap(void *at, size_t nbytes, int prot, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *old, size_t nbytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
char *__wrap_realpath(const char *path, char *out);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_fdopendir(int fd);
void *__wrap_mmap(void *at, size_t nbytes, int prot, int flags, int fd, off_t offset);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

void *__wrap_malloc(size_t nbytes) { return fails() ? NULL : __real_malloc(nbytes); }
void *__wrap_calloc(size_t n, size_t nbytes) { return fails() ? NULL : __real_calloc(n, nbytes); }
void *__wrap_realloc(void *old, size_t nbytes) { return fails() ? NULL : __real_realloc(old, nbytes); }
char *__wrap_strdup(const char *text) { return fails() ? NULL : __real_strdup(text); }
char *__wrap_strndup(const char *text, size_t n) { return fails() ? NULL : __real_strndup(text, n); }
char *__wrap_realpath(const char *path, char *out) { return fails() ? NULL : __real_realpath(path, out); }
/* What /proc says of the machine is a hint: the plugin goes on without it. */
DIR *__wrap_opendir(const char *path) {
    return strncmp(path, "/proc/", 6) != 0 && fails() ? NULL : __real_opendir(path);
}

DIR *__wrap_fdopendir(int fd) { return fails() ? NULL : __real_fdopendir(fd); }

void *__wrap_mmap(void *at, size_t nbytes, int prot, int flags, int fd, off_t offset) {
    return fails() ? MAP_FAILED : __real_mmap(at, nbytes, prot, flags, fd, offset);
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    return fails() ? EAGAIN : __real_pthread_create(out, attr, run, arg);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* ---- the host -----------------------------------------------------------------------------------------------------
 */

/* Under a sanitizer every seventh of the many allocations of a save or load. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 7 };
#else
enum { STRIDE = 1 };
#endif

static const char config[] = "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2";
static zt_rig_t rig, copy, reference;
static char path[128];

/* Small, because all of it is saved some thousand times; the third is the one that zt_state_steps() spoils at times. */
static const zt_shape_t shapes[] = {{.rows = 24, .cols = 20}, {.rows = 17}, {.rows = 8, .cols = 6, .is_bf16 = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void open_small(zt_rig_t *of, const char *zenflow) {
    char text[512];
    snprintf(text, sizeof text, "[zenflow]\n%s\n[host]\nthreads = 2\n[log]\nlevel = error\n", zenflow);
    zt_rig_start(of, shapes, N_SHAPES);
    zt_rig_open(of, text, 0);
}

static void start(void) {
    json_set_alloc_funcs(__wrap_malloc, free);
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
}

/* One call whose allocation number n fails; nothing of the test itself allocates meanwhile. Whether it came so far. */
static int try_save(int64_t n, uint32_t flags, zf_status_t *st) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags | ZF_STATE_NO_SYNC, .path = path};
    const zf_state_ext_t *state = zt_state(&rig);
    rig.err.message[0] = '\0';
    arm(n);
    *st = state->save(rig.inst, &args, NULL, &rig.err);
    return disarm();
}

static int try_load(int64_t n, zf_status_t *st) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    const zf_state_ext_t *state = zt_state(&copy);
    copy.err.message[0] = '\0';
    arm(n);
    *st = state->load(copy.inst, &args, NULL, &copy.err);
    return disarm();
}

static uint64_t saved_step(void) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    zf_state_report_t report = {.struct_size = sizeof report};
    ZT_OK(&rig, zt_state(&rig)->verify(&args, &report, &rig.err));
    return report.step;
}

/* What lies beside the checkpoint: a save that failed leaves nothing. */
static int n_beside(void) {
    DIR *dir = __real_opendir(zt_state_dir());
    int n = 0;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 3; /* ".", ".." and the checkpoint */
}

static void check_message(const char *what, int64_t n, zf_status_t st, const zf_error_t *err) {
    if (st != ZF_ERR_MEMORY)
        ck_abort_msg("%s: allocation %lld failed, and the call returned %d (%s)", what, (long long)n, st, err->message);
    if (strlen(err->message) < 10)
        ck_abort_msg("%s: allocation %lld failed: message \"%s\"", what, (long long)n, err->message);
}

/* ---- save ---------------------------------------------------------------------------------------------------------
 */

static void sweep_save(uint32_t flags) {
    int64_t n = 0;
    open_small(&rig, config);
    open_small(&reference, config);
    zt_state_steps(&rig, 5);
    zt_state_steps(&reference, 5);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    zt_state_steps(&rig, 1);
    zt_state_steps(&reference, 1);
    for (int is_over = 0; !is_over; n += STRIDE) {
        zf_status_t st;
        is_over = !try_save(n, flags, &st);
        if (is_over) {
            ZT_OK(&rig, st);
            continue;
        }
        check_message("save", n, st, &rig.err);
        if (saved_step() != 5 || n_beside() != 0)
            ck_abort_msg("allocation %lld failed: step %llu at the path, %d left beside it", (long long)n,
                         (unsigned long long)saved_step(), n_beside());
    }
    ck_assert_int_gt(n, 500);
    ck_assert_uint_eq(saved_step(), 6);
    zt_state_check_equal(&rig, &reference, "after failed saves");
    open_small(&copy, config);
    ZT_OK(&copy, zt_load(&copy, NULL, path, 0, NULL));
    zt_rig_end(&copy);
    zt_rig_end(&rig);
    zt_rig_end(&reference);
}

START_TEST(save) {
    start();
    sweep_save(0);
}
END_TEST

START_TEST(save_compact) {
    start();
    sweep_save(ZF_STATE_COMPACT);
}
END_TEST

/* ---- load ---------------------------------------------------------------------------------------------------------
 */

/* Into an instance of so many steps and another configuration, or the same. */
static void sweep_load(int n_steps, const char *into) {
    size_t nbytes, now_nbytes;
    unsigned char *image, *now;
    open_small(&copy, into);
    zt_state_steps(&copy, n_steps);
    image = zt_state_image(&copy, &nbytes);
    for (int64_t n = 0;; n += STRIDE) {
        zf_status_t st;
        if (!try_load(n, &st)) {
            ZT_OK(&copy, st);
            copy.step = rig.step;
            break;
        }
        check_message("load", n, st, &copy.err);
        if (n % 5 && STRIDE == 1)
            continue;
        now = zt_state_image(&copy, &now_nbytes);
        if (nbytes != now_nbytes || memcmp(now, image, nbytes) != 0)
            ck_abort_msg("load: allocation %lld failed, and the instance has changed", (long long)n);
        free(now);
    }
    if (into == config)
        zt_state_check_equal(&rig, &copy, "loaded at last");
    zt_state_steps(&copy, 3);
    free(image);
    zt_rig_end(&copy);
}

START_TEST(load) {
    start();
    open_small(&rig, config);
    zt_state_steps(&rig, 6);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    sweep_load(0, config);
    sweep_load(3, config);
    sweep_load(0, "topk_ratio = 0.3\nupdate_interval = 3\nfull_warm_up_rounds = 1");
    zt_rig_end(&rig);
}
END_TEST

/* The calls that need no instance. */
START_TEST(without_an_instance) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    char note[16];
    float *out;
    start();
    open_small(&rig, config);
    zt_state_steps(&rig, 6);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    out = calloc(rig.params[0].n_elems, sizeof *out);
    for (int call = 0, is_over; call < 3; call++)
        for (int64_t n = is_over = 0; !is_over; n++) {
            const zf_state_ext_t *state = zt_state(&rig);
            zf_status_t st;
            rig.err.message[0] = '\0';
            arm(n);
            if (call == 0)
                st = state->verify(&args, NULL, &rig.err);
            else if (call == 1)
                st = state->note(&args, note, sizeof note, &rig.err);
            else
                st = state->weights(&args, rig.params[0].name, out, rig.params[0].n_elems, &rig.err);
            is_over = !disarm();
            if (!is_over)
                check_message("verify, note or weights", n, st, &rig.err);
            else
                ZT_OK(&rig, st);
        }
    free(out);
    zt_rig_end(&rig);
}
END_TEST

/* ---- create, bind, step, destroy ----------------------------------------------------------------------------------
 */

static const char whole[] = "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\n"
                            "full_warm_up_rounds = 2\n[host]\nthreads = 2\n[log]\nlevel = error\n";

START_TEST(create) {
    start();
    for (int64_t n = 0;; n++) {
        zf_status_t st;
        zt_rig_start(&rig, shapes, N_SHAPES);
        rig.err.message[0] = '\0';
        arm(n);
        st = zt_rig_try_create(&rig, whole, 0);
        if (!disarm()) {
            ZT_OK(&rig, st);
            ck_assert_int_gt(n, 5);
            zt_rig_end(&rig);
            return;
        }
        check_message("create", n, st, &rig.err);
        ck_assert_ptr_null(rig.inst);
        zt_rig_end(&rig);
    }
}
END_TEST

/* The instance takes the same call again, and then it trains. */
START_TEST(bind) {
    start();
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_create(&rig, whole, 0);
    for (int64_t n = 0;; n++) {
        zf_status_t st;
        zf_bind_args_t args = zt_rig_bind_args(&rig);
        rig.err.message[0] = '\0';
        arm(n);
        st = rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err);
        if (!disarm()) {
            ZT_OK(&rig, st);
            ck_assert_int_gt(n, 15);
            break;
        }
        check_message("bind_params", n, st, &rig.err);
    }
    for (uint32_t i = 0; i < rig.n_params; i++)
        rig.params[i].id = i;
    open_small(&reference, config);
    zt_state_steps(&reference, 7);
    zt_state_steps(&rig, 7);
    zt_state_check_equal(&rig, &reference, "bound at last");
    zt_rig_end(&reference);
    zt_rig_end(&rig);
}
END_TEST

/* A second bind of a running instance: it stays as it is until one gets through. */
START_TEST(bind_again) {
    size_t nbytes, now_nbytes;
    unsigned char *image, *now;
    start();
    open_small(&rig, config);
    zt_state_steps(&rig, 5);
    image = zt_state_image(&rig, &nbytes);
    rig.decls[0].group = 1; /* what is bound as it was is not made again */
    for (int64_t n = 0;; n++) {
        zf_status_t st;
        zf_bind_args_t args = zt_rig_bind_args(&rig);
        rig.err.message[0] = '\0';
        arm(n);
        st = rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err);
        if (!disarm()) {
            ZT_OK(&rig, st);
            ck_assert_int_gt(n, 20);
            break;
        }
        check_message("the second bind_params", n, st, &rig.err);
        now = zt_state_image(&rig, &now_nbytes);
        if (nbytes != now_nbytes || memcmp(now, image, nbytes) != 0)
            ck_abort_msg("bind_params: allocation %lld failed, and the instance has changed", (long long)n);
        free(now);
    }
    zt_state_steps(&rig, 5);
    free(image);
    zt_rig_end(&rig);
}
END_TEST

/* Hooks allocate at most while an instance is young: what fails there is an error, and destroy frees all of it. */
START_TEST(step_and_destroy) {
    start();
    for (int64_t n = 0, is_over = 0; !is_over; n++) {
        zf_status_t st = ZF_OK;
        zt_rig_start(&rig, shapes, N_SHAPES);
        zt_rig_open(&rig, whole, 0);
        for (uint32_t i = 0; i < rig.n_params; i++)
            zt_rig_fill_grad(&rig, i, 1);
        arm(n);
        for (uint32_t i = 0; i < rig.n_params && st >= 0; i++)
            if (!(rig.params[i].shape.flags & ZF_PARAM_FROZEN))
                st = zt_rig_deliver(&rig, i, 0, NULL);
        if (st >= 0)
            st = zt_rig_submit(&rig, ZF_STEP_WAIT, NULL);
        is_over = !disarm();
        if (!is_over)
            check_message("step", n, st, &rig.err);
        else
            ZT_OK(&rig, st);
        zt_rig_end(&rig);
    }
    open_small(&rig, config);
    zt_state_steps(&rig, 5);
    arm(0);
    rig.zf->destroy(rig.inst, NULL);
    ck_assert_msg(!disarm(), "destroy needs memory");
    rig.inst = NULL;
    zt_rig_end(&rig);
}
END_TEST

/* No memory for the digests of what was bound: nothing is audited, and training goes on. */
START_TEST(audit) {
    char text[256];
    int has_failed = 1;
    start();
    snprintf(text, sizeof text, "%s\n[audit]\nfile = %s/audit every 1\n", config, zt_state_dir());
    open_small(&rig, text);
    for (int64_t n = 0; has_failed; n++) {
        arm(n);
        zfi_auditing_bound(rig.inst);
        has_failed = disarm();
        ck_assert(has_failed == !rig.inst->engine.audit->sums);
        zt_state_steps(&rig, 1);
        ck_assert(has_failed || n > 20);
    }
    open_small(&reference, config);
    zt_state_steps(&reference, (int)rig.step);
    zt_state_check_equal(&rig, &reference, "audited at last");
    zt_rig_end(&reference);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("no_memory", save, save_compact, load, without_an_instance, create, bind, bind_again, step_and_destroy, audit)
