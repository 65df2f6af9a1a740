/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_storage.c - a save whose file system fails, or that others disturb: the checkpoint before it
 * stays whole, and the run goes on. The C library's calls are this program's own for that (the plugin is linked
 * statically). A machine that stops in the middle of one: conformance/cases/abi_order.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "state_rig.h"
#include "suite.h"

#ifdef __SANITIZE_THREAD__ /* children that are to be killed start threads */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

static const char config[] = "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2";
static zt_rig_t rig, copy;

/* ---- failing calls ----------------------------------------------------------------------------------------------- */

enum { NONE, WRITE, FSYNC, PREAD, RENAME };
static _Atomic int armed, left, code, is_short; /* call `armed` fails with `code` after `left` more of its kind */

static int fails(int call) {
    if (armed != call || left-- > 0)
        return 0;
    errno = code;
    return 1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    if (fails(WRITE))
        return -1;
    if (armed && is_short && n > 7)
        n = n / 2;
    return syscall(SYS_pwrite64, fd, data, n, at);
}

static int directory_sync_errno; /* what fsync() of a directory fails with; 0: it works */

int fsync(int fd) {
    struct stat info;
    if (directory_sync_errno && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
        return errno = directory_sync_errno, -1;
    return fails(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

static void (*after_reads)(void);
static int reads_left; /* pread() calls before after_reads() runs */

ssize_t pread(int fd, void *out, size_t n, off_t at) {
    void (*then)(void) = after_reads && reads_left-- == 0 ? after_reads : NULL;
    if (then) {
        after_reads = NULL;
        then();
    }
    return fails(PREAD) ? -1 : syscall(SYS_pread64, fd, out, n, at);
}

static void (*_Atomic after_rename)(void); /* once, in whichever thread renames next */
static int calls_left = -1;                /* a call that changes names ends the process instead of number calls_left */

static void end_here(void) {
    if (calls_left >= 0 && calls_left-- == 0)
        _exit(0);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    end_here();
    int rc = fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    void (*then)(void) = atomic_exchange(&after_rename, NULL);
    if (!rc && then)
        then();
    return rc;
}

int unlinkat(int dir, const char *name, int flags) {
    end_here();
    return (int)syscall(SYS_unlinkat, dir, name, flags);
}

static void (*before_claim)(void); /* once, before a save makes its first file */

int openat(int dir, const char *name, int flags, ...) {
    void (*first)(void) = flags & O_EXCL && strstr(name, ".new") ? before_claim : NULL;
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (first) {
        before_claim = NULL;
        first();
    }
    return (int)syscall(SYS_openat, dir, name, flags, mode);
}

static int flock_errno; /* what flock() fails with; 0: it works */
static int is_swept;    /* another save takes the file for a killed one's before it is locked, once */

int flock(int fd, int operation) {
    if (is_swept && (operation & LOCK_EX))
        return is_swept = 0, errno = EWOULDBLOCK, -1;
    errno = flock_errno;
    return flock_errno ? -1 : (int)syscall(SYS_flock, fd, operation);
}

static char path[128];
static const zf_state_args_t there = {.struct_size = sizeof there, .path = path};

static zf_status_t save(zt_rig_t *of, uint32_t flags) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags, .path = path};
    return zt_state(of)->save(of->inst, &args, NULL, &of->err);
}

/* Before each test: a run of three steps. */
static void start(void) {
    snprintf(path, sizeof path, "%s/ckpt", zt_dir());
    zt_state_open(&rig, config);
    zt_state_steps(&rig, 3);
}

static void end(void) { zt_rig_end(&rig); }

/* The next call of this kind fails. */
static void arm(int call, int with) {
    left = 0;
    code = with;
    armed = call;
}

static void check_nothing_beside(const char *when) {
    ck_assert_msg(zt_shell("test \"$(ls -A %s)\" = ckpt && test $(ls -A %s | wc -l) = 2", zt_dir(), path) == 0,
                  "%s: something was left", when);
}

/* What is at path is whole and is of step n. */
static void check_whole(uint64_t n) {
    zf_state_report_t report = {.struct_size = sizeof report};
    ZT_OK(&rig, zt_state(&rig)->verify(&there, &report, &rig.err));
    ck_assert_uint_eq(report.step, n);
}

static void check_goes_on(void) {
    zt_state_open_copy(&copy, config, 1);
    ZT_OK(&copy, zt_load(&copy, NULL, path, 0, NULL));
    zt_state_check_equal(&rig, &copy, "loaded");
    zt_state_steps(&rig, 5);
    zt_state_steps(&copy, 5);
    zt_state_check_equal(&rig, &copy, "went on");
    zt_rig_end(&copy);
}

/* The first, second, ... of a kind of call fails until a save gets through. */
static void fail_each(int call, int with, uint64_t old) {
    int n = 0;
    for (;; n += ZT_EVERY) {
        arm(call, with);
        left = n;
        zf_status_t st = save(&rig, 0);
        armed = NONE;
        if (st == ZF_ERR_STORAGE && strstr(rig.err.message, "may be lost")) /* of the index's name: the last one */
            st = save(&rig, 0);
        check_nothing_beside("a call that failed");
        if (st == ZF_OK)
            break;
        zt_refused(&rig.err, st, ZF_ERR_STORAGE, strerror(with));
        ck_assert_int_eq(rig.err.native_code, with);
        check_whole(old);
    }
    ck_assert_int_gt(n, 0); /* it did fail */
}

ZT_TEST(failing_calls) {
    zt_state_steps(&rig, 2);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 2);
    fail_each(WRITE, ENOSPC, 5);
    zt_state_steps(&rig, 1);
    fail_each(WRITE, EIO, 7);
    zt_state_steps(&rig, 1);
    fail_each(FSYNC, EIO, 8);
    zt_state_steps(&rig, 1);
    fail_each(RENAME, EACCES, 9);
    check_whole(10);
    arm(PREAD, EIO);
    zt_refused(&rig.err, zt_load(&rig, NULL, path, 0, NULL), ZF_ERR_STORAGE, strerror(EIO));
    armed = NONE;
    zt_state_steps(&rig, 1);
    armed = WRITE; /* writes that take half of what they are given */
    left = 1 << 30;
    is_short = 1;
    ZT_OK(&rig, save(&rig, 0));
    armed = is_short = 0;
    check_whole(11);
    check_goes_on();
}

/* The index is in its place, and another save comes before the first one returns: what is there at the end is the
 * second's, whole, and the next save leaves nothing else. */
static void save_in_between(void) { ZT_OK(&copy, save(&copy, 0)); }

ZT_TEST(a_save_replaces_one_that_has_not_returned) {
    zt_state_open(&copy, config);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    after_rename = save_in_between;
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_ptr_null(after_rename); /* it ran */
    check_whole(0);
    ZT_OK(&rig, save(&rig, 0));
    check_whole(rig.step);
    check_nothing_beside("the one that was replaced early");
    zt_rig_end(&copy);
}

/* Another save takes the number that this one was about to take, and is over: its name is free again. */
ZT_TEST(a_number_that_was_taken_is_not_used) {
    zt_state_open(&copy, config);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    before_claim = save_in_between;
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_ptr_null(before_claim); /* it ran */
    check_whole(rig.step);
    check_nothing_beside("the one that was over");
    zt_rig_end(&copy);
}

/* A first save that is refused leaves no directory. */
ZT_TEST(a_first_save_that_fails) {
    arm(FSYNC, EIO);
    zt_refused(&rig.err, save(&rig, 0), ZF_ERR_STORAGE, strerror(EIO));
    armed = NONE;
    ck_assert_int_eq(zt_shell("test ! -e %s", path), 0);
}

/* Mounts that do not sync directories: passed over, and said once. Any other error of it is the save's. */
ZT_TEST(directories_that_refuse_to_sync) {
    static const int codes[] = {EINVAL, ENOTSUP, ENOSYS};
    zt_log_t said;
    zt_rig_start(&copy, zt_state_shapes, zt_n_state_shapes);
    zt_rig_listen(&copy, &said, "does not sync directories");
    zt_rig_open(&copy, "[host]\nthreads = 1\n", 0);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        directory_sync_errno = codes[i];
        ZT_OK(&copy, save(&copy, 0));
        check_whole(copy.step);
        check_nothing_beside(strerror(codes[i]));
        ck_assert_int_eq(said.n, 1);
    }
    zt_rig_end(&copy);
    directory_sync_errno = 0;
    ZT_OK(&rig, save(&rig, 0));
    uint64_t old = rig.step;
    zt_state_steps(&rig, 1);
    directory_sync_errno = EIO;
    zf_status_t st = save(&rig, 0);
    directory_sync_errno = 0;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, strerror(EIO));
    check_nothing_beside("a directory that cannot be synced");
    check_whole(old);
}

/* The names of the index cannot be synced once it is in its place: both checkpoints' files stay. */
static void lose_syncs(void) { directory_sync_errno = EIO; }

ZT_TEST(an_index_that_may_be_lost) {
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    after_rename = lose_syncs;
    zf_status_t st = save(&rig, 0);
    directory_sync_errno = 0;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, "the new checkpoint is in its place");
    check_whole(rig.step);
    ck_assert_int_eq(zt_shell("test $(ls %s | wc -l) = 3", path), 0);
    ZT_OK(&rig, save(&rig, 0));
    check_nothing_beside("what stayed");
}

/* Another process saves, and ends at its n-th call that changes names. 0: the save was over before. */
static int kill_at_call(int n) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        zt_state_open(&copy, config);
        calls_left = n;
        _exit(save(&copy, 0) ? 2 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

/* One whole checkpoint is there, whenever a save was killed; the next save clears away what that left. */
ZT_TEST(a_save_after_a_kill) {
    int n = 0;
    ZT_OK(&rig, save(&rig, 0));
    for (; kill_at_call(n); n++) {
        check_whole(n ? 0 : rig.step);
        ck_assert_int_eq(zt_shell("test $(ls %s | wc -l) -gt 2", path), 0);
        zt_state_steps(&rig, 1);
        ZT_OK(&rig, save(&rig, 0));
        check_whole(rig.step);
        check_nothing_beside("a save after a kill");
    }
    ck_assert_int_ge(n, 2);
}

/* Another process takes the save's first file for one that was left over: the save goes on under another number. */
ZT_TEST(a_number_that_is_swept_is_not_used) {
    is_swept = 1;
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_int_eq(is_swept, 0);
    check_whole(rig.step);
    ZT_OK(&rig, save(&rig, 0));
    check_nothing_beside("what was swept");
}

/* ---- at the same time -------------------------------------------------------------------------------------------- */

enum { N_SAVES = ZT_FEWER(80), N_LOADS = ZT_FEWER(20) }; /* at least so many of each, however slow the others are */
static _Atomic int n_savers, n_loads;

static void *save_again_and_again(void *arg) {
    zt_rig_t *of = arg;
    for (int i = 0; i < N_SAVES || atomic_load(&n_loads) < N_LOADS; i++) {
        zf_status_t st = save(of, i % 8 ? ZF_STATE_NO_SYNC : 0);
        if (st)
            ck_abort_msg("save %d: %s", i, of->err.message);
    }
    atomic_fetch_sub(&n_savers, 1);
    return NULL;
}

/* So many instances, one or two, save to one path while another reads it: every save and every load succeeds, and what
 * a load finds is one of the two, whole. */
static void save_and_load(const char *when, int n_saving) {
    zt_rig_t other, *saving[] = {&rig, &other};
    pthread_t threads[2];
    int n = 0;
    zt_state_open(&other, config);
    zt_state_open(&copy, config);
    zt_state_steps(&other, 5);
    ZT_OK(&rig, save(&rig, ZF_STATE_NO_SYNC));
    atomic_store(&n_loads, 0);
    atomic_store(&n_savers, n_saving);
    for (int i = 0; i < n_saving; i++)
        pthread_create(&threads[i], NULL, save_again_and_again, saving[i]);
    for (; atomic_load(&n_savers) > 0; n = atomic_fetch_add(&n_loads, 1) + 1) {
        zf_state_report_t report = {.struct_size = sizeof report};
        zf_status_t st = n % 2 ? zt_state(&copy)->load(copy.inst, &there, &report, &copy.err)
                               : zt_state(&copy)->verify(&there, &report, &copy.err);
        if (st)
            ck_abort_msg("%s, load %d: %s", when, n, copy.err.message);
        ck_assert_msg(report.step == 3 || report.step == 5, "step %llu", (unsigned long long)report.step);
    }
    for (int i = 0; i < n_saving; i++)
        pthread_join(threads[i], NULL);
    ZT_OK(&rig, save(&rig, 0)); /* clears away what a reader held */
    check_nothing_beside(when);
    zt_rig_end(&other);
    zt_rig_end(&copy);
}

ZT_TEST(saves_and_loads_at_once) { save_and_load("with locks", 2); }

/* A reader without locks begins again where a save took its files away. */
ZT_TEST(loads_without_locks) {
    flock_errno = ENOLCK;
    save_and_load("without locks", 1);
    flock_errno = 0;
}

static void save_meanwhile(void) { ZT_OK(&rig, save(&rig, ZF_STATE_NO_SYNC)); }

/* A load goes on with the files that it began with, although they are replaced meanwhile. */
ZT_TEST(a_save_in_the_middle_of_a_load) {
    zt_state_open(&copy, config);
    setenv("ZF_STATE_FILE_NBYTES", "1000", 1); /* not all of them are open */
    for (reads_left = 0; reads_left < 9; reads_left += 2) {
        zf_state_report_t report = {.struct_size = sizeof report};
        uint64_t step = rig.step;
        int n = reads_left;
        ZT_OK(&rig, save(&rig, 0));
        zt_state_steps(&rig, 1);
        after_reads = save_meanwhile;
        ZT_OK(&copy, zt_load(&copy, NULL, path, 0, &report));
        ck_assert_ptr_null(after_reads);
        ck_assert_uint_eq(report.step, n ? step : step + 1); /* the first read is that of the index */
        check_whole(step + 1);
        reads_left = n;
    }
    unsetenv("ZF_STATE_FILE_NBYTES");
    ZT_OK(&rig, save(&rig, 0));
    check_nothing_beside("what the reader held was cleared away");
    zt_rig_end(&copy);
}

ZT_SUITE_WITH("state_storage", start, end)
