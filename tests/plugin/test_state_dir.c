/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_dir.c - where a checkpoint may be saved and from where it is loaded. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

static zt_rig_t rig;
static zt_memory_store_t store;
static const zf_state_ext_t *state;
static zf_status_t answers[3] = {1, 1, 1}; /* 1: no call ended */

static void check_refused(const char *path, const zf_state_store_t *of, zf_status_t status, const char *what) {
    zt_refused(&rig.err, zt_save(&rig, of, path, 0, NULL), status, what);
}

/* What a directory holds besides stays, with names like a checkpoint's too. Links are followed. */
ZT_TEST(directories) {
    static const char *const own[] = {"thesis.tex",       "zf_state_notes.txt",       "zf_state-1.safetensors",
                                      "zf_state-007.new", "zf_state-1-1.safetensors", "zf_state-00003.safetensors/"};
    char path[128];
    zt_state_open(&rig, zt_state_configs[0]);
    snprintf(path, sizeof path, "%s/mine", zt_dir());
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        ck_assert_int_eq(zt_shell("mkdir -p %s && cd %s && case %s in */) mkdir %s;; *) touch %s;; esac", path, path,
                                  own[i], own[i], own[i]),
                         0);
    for (int k = 0; k < 3; k++)
        ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        ck_assert_msg(zt_shell("test -e %s/%s", path, own[i]) == 0, "%s is gone", own[i]);
    ck_assert_int_eq(zt_shell("test $(ls %s | wc -l) = 8", path), 0);
    ZT_OK(&rig, zt_load(&rig, NULL, path, 0, NULL));
    snprintf(path, sizeof path, "%s/link", zt_dir());
    ck_assert_int_eq(zt_shell("ln -s nowhere %s", path), 0);
    check_refused(path, NULL, ZF_ERR_STORAGE, "cannot open the directory"); /* and it stays a link */
    ck_assert_int_eq(zt_shell("mkdir %s/nowhere && test -L %s", zt_dir(), path), 0);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    ck_assert_int_eq(zt_shell("test -L %s && test -e %s/nowhere/zf_state.json", path, zt_dir()), 0);
    check_refused("/proc/no/such", NULL, ZF_ERR_STORAGE, "cannot make the directory");
    check_refused("", NULL, ZF_ERR_ARGUMENT, "path is empty");
    check_refused(NULL, NULL, ZF_ERR_ARGUMENT, "path and store are NULL");
    check_refused(path, &store.table, ZF_ERR_ARGUMENT, "both");
    ck_assert_int_eq(zt_load(&rig, NULL, "/no/such", 0, NULL), ZF_ERR_STORAGE);
    ck_assert_int_eq(zt_load(&rig, NULL, path, ZF_STATE_KEEP_OPEN, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    zt_rig_end(&rig);
}

/* A bare name in the working directory, and so small files that each parameter has its own; synced and not. */
ZT_TEST(several_files_and_a_bare_name) {
    zt_rig_t copy;
    const char *dir = zt_dir();
    zf_state_args_t args = {.struct_size = sizeof args, .path = "bare"};
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_open(&copy, zt_state_configs[0]);
    setenv("ZF_STATE_FILE_NBYTES", "1000", 1);
    ck_assert_int_eq(chdir(dir), 0);
    for (int k = 0; k < 4; k++) {
        zt_state_steps(&rig, 2);
        args.flags = k % 2 ? ZF_STATE_NO_SYNC : 0;
        ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err));
        ck_assert_int_eq(zt_shell("test $(ls bare | grep -c -- '0000[1-6].safetensors$') = 6"), 0);
        ck_assert_int_eq(zt_shell("test \"$(ls -A)\" = bare"), 0);
        ZT_OK(&copy, zt_load(&copy, NULL, k < 2 ? "bare" : "./bare//", ZF_STATE_CONTINUE, NULL));
        zt_state_check_equal(&rig, &copy, "several files");
        if (k == 1)
            setenv("ZF_STATE_FILE_NBYTES", "1", 1);
    }
    unsetenv("ZF_STATE_FILE_NBYTES");
    args.flags = 0;
    ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err)); /* of one file again: the others go */
    ck_assert_int_eq(zt_shell("test $(ls bare | wc -l) = 2"), 0);
    ck_assert_int_eq(chdir(".."), 0);
    zt_rig_end(&copy);
    zt_rig_end(&rig);
}

/* ---- descriptor 0 ------------------------------------------------------------------------------------------------ */

/* A daemon has no standard input: one of the files that are opened gets its number. Here the n-th does. */
static int n_opened, which;

ZT_WRAP(int, openat, int dir, const char *name, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = (mode_t)va_arg(rest, int);
        va_end(rest);
    }
    int fd = __real_openat(dir, name, flags, mode);
    if (fd < 0 || which == 0 || ++n_opened != which)
        return fd;
    ck_assert_int_eq(dup2(fd, 0), 0);
    close(fd);
    return 0;
}

static void save_and_load(void) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = "bare", .flags = ZF_STATE_NO_SYNC};
    ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err));
    ZT_OK(&rig, zt_load(&rig, NULL, "bare", ZF_STATE_CONTINUE, NULL));
}

ZT_TEST(descriptor_0_is_one_like_others) {
    enum { FEWEST = 5 };
    int n_all;
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, 2);
    ck_assert_int_eq(chdir(zt_dir()), 0);
    save_and_load();
    for (which = 1, n_all = INT_MAX; which <= n_all; which++) {
        ck_assert_int_eq(zt_shell("touch bare/zf_state-900.new"), 0); /* what a killed process leaves */
        n_opened = 0;
        save_and_load();
        n_all = n_opened;
        ck_assert_msg(which > n_all || fcntl(0, F_GETFD) < 0, "file %d of %d stays open", which, n_all);
        ck_assert_msg(access("bare/zf_state-900.new", F_OK) < 0, "it is still there, file %d", which);
        if (fcntl(0, F_GETFD) < 0)
            ck_assert_int_eq(open("/dev/null", O_RDONLY), 0);
    }
    which = 0;
    ck_assert_int_ge(n_all, FEWEST);
    ck_assert_int_eq(chdir(".."), 0);
    zt_rig_end(&rig);
}

/* A thread that is to end asks a checkpoint without an instance: each question opens files, which allows it to end. Its
 * frames stay as they are, which the address sanitizer minds: they hold nothing. */
static void *ask_while_cancelled(void *path) {
    static zf_state_args_t args = {.struct_size = sizeof args};
    static char note[64];
    static float value;
    args.path = path;
    pthread_cancel(pthread_self());
    answers[0] = state->verify(&args, NULL, &rig.err);
    answers[1] = state->note(&args, note, sizeof note, &rig.err);
    answers[2] = state->weights(&args, "no such", &value, 1, &rig.err);
    pthread_testcancel();
    return NULL;
}

/* Files would stay open otherwise, and a lock that no later save gets. */
ZT_TEST(a_cancelled_question) {
    char path[128];
    pthread_t thread;
    void *result = NULL;
    zt_state_open(&rig, zt_state_configs[0]);
    snprintf(path, sizeof path, "%s/asked", zt_dir());
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    state = zt_state(&rig);
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_while_cancelled, path), 0);
    pthread_join(thread, &result);
    ck_assert_ptr_eq(result, PTHREAD_CANCELED);
    ck_assert_int_eq(answers[0], ZF_OK);
    ck_assert_int_eq(answers[1], ZF_OK);
    ck_assert_int_eq(answers[2], ZF_ERR_PARAM);
    zt_rig_end(&rig);
}

ZT_SUITE("state_dir")
