/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_storage.c - a save whose file system fails, or that others disturb: the checkpoint before it
 * stays whole, and the run goes on. The C library's calls are this program's own for that (the plugin is linked
 * statically). A machine that stops in the middle of one: test_state_crash.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
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

#include "state/beside.h"
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

ssize_t write(int fd, const void *data, size_t n) {
    if (fails(WRITE))
        return -1;
    if (armed && is_short && n > 7)
        n = n / 2;
    return syscall(SYS_write, fd, data, n);
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
static int renames_left = -1;              /* renameat() ends the process instead of call number renames_left */
static int renames_that_work = -1;         /* ... fails from call number renames_that_work on, with rename_errno */
static int rename_errno = EACCES;
static int replaces_all; /* renameat() onto a directory that is not empty works */
/* Of a save in two renames: its directory gets its name; the former one is tried; the new one in its place, which
 * fails; the former one aside; the new one in its place. */
enum { TRY_RENAME = 1, RENAME_ASIDE = 3, RENAME_IN_PLACE };

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    if (strcmp(to, ZFI_BESIDE_MARK) != 0 && renames_left >= 0 && renames_left-- == 0)
        _exit(0);
    if (strcmp(to, ZFI_BESIDE_MARK) != 0 && renames_that_work >= 0 && renames_that_work-- == 0)
        return renames_that_work = 0, errno = rename_errno, -1;
    if (replaces_all && strcmp(to, ZFI_BESIDE_MARK) != 0 &&
        syscall(SYS_renameat2, from_dir, from, to_dir, to, RENAME_EXCHANGE) == 0)
        return 0;
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

static int flock_errno;            /* what flock() fails with; 0: it works */
static int is_busy_once;           /* the next one finds another's lock */
static int is_swept;               /* the next shared one does */
static void (*after_unlock)(void); /* once, when a lock was given back */

int flock(int fd, int operation) {
    if (is_swept && (operation & LOCK_SH))
        return is_swept = 0, errno = EWOULDBLOCK, -1;
    errno = is_busy_once ? EWOULDBLOCK : flock_errno;
    if (is_busy_once)
        return is_busy_once--, -1;
    if (flock_errno && !(flock_errno == EWOULDBLOCK && (operation & LOCK_SH))) /* a lock that is held shared */
        return -1;
    int rc = (int)syscall(SYS_flock, fd, operation);
    void (*then)(void) = operation == LOCK_UN ? after_unlock : NULL;
    if (then) {
        after_unlock = NULL;
        then();
    }
    return rc;
}

static int is_hasty; /* usleep() returns at once */

int usleep(useconds_t us) {
    struct timespec pause = {us / 1000000, (long)(us % 1000000) * 1000};
    return is_hasty ? 0 : nanosleep(&pause, NULL);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    int rc = fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    void (*then)(void) = atomic_exchange(&after_rename, NULL);
    if (!rc && then)
        then();
    return rc;
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

/* The same call on a file system that does not exchange two names. */
static zf_status_t save_by_renames(zt_rig_t *of) {
    arm(RENAME, EINVAL);
    zf_status_t st = save(of, 0);
    armed = NONE;
    return st;
}

static void check_nothing_beside(const char *when) {
    ck_assert_msg(zt_shell("test \"$(ls -A %s)\" = ckpt", zt_dir()) == 0, "%s: something was left", when);
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
    ZT_OK(&rig, save_by_renames(&rig)); /* a file system without RENAME_EXCHANGE */
    armed = WRITE;                      /* writes that take half of what they are given */
    left = 1 << 30;
    is_short = 1;
    zt_state_steps(&rig, 1);
    ZT_OK(&rig, save(&rig, 0));
    armed = is_short = 0;
    check_whole(12);
    check_goes_on();
}

/* The former one lies aside and cannot be put back, for now: the next load has it. */
ZT_TEST(a_save_that_cannot_go_back) {
    zt_state_steps(&rig, 2);
    ZT_OK(&rig, save(&rig, 0));
    uint64_t old = rig.step;
    zt_state_steps(&rig, 2);
    renames_that_work = RENAME_IN_PLACE;
    zf_status_t st = save_by_renames(&rig);
    renames_that_work = -1;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, strerror(EACCES));
    ZT_OK(&rig, zt_load(&rig, NULL, path, 0, NULL));
    check_whole(old);
}

/* The new checkpoint is in its place, and the former one about to be removed: another save does not come in between. */
static void save_in_between(void) { zt_refused(&copy.err, save(&copy, 0), ZF_ERR_STORAGE, "another save"); }

ZT_TEST(two_saves_at_once) {
    zt_state_open(&copy, config);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    after_rename = save_in_between;
    is_hasty = 1;
    ZT_OK(&rig, save(&rig, 0));
    is_hasty = 0;
    ck_assert_ptr_null(after_rename); /* it ran */
    check_whole(4);
    ZT_OK(&copy, save(&copy, 0)); /* the lock is gone */
    check_whole(0);
    zt_rig_end(&copy);
}

/* The new checkpoint is in its place, and another one takes that before the first save returns: what it replaces is
 * still held by the first one, so that the next save is to clear it away. */
static void save_after(void) { ZT_OK(&copy, save(&copy, 0)); }
static void save_when_unlocked(void) { after_unlock = save_after; }

ZT_TEST(a_save_replaces_one_that_has_not_returned) {
    zt_state_open(&copy, config);
    for (int is_two = 0; is_two < 2; is_two++) {
        ZT_OK(&rig, save(&rig, 0));
        zt_state_steps(&rig, 1);
        after_rename = save_when_unlocked;
        ZT_OK(&rig, save(&rig, 0));
        ck_assert_ptr_null(after_unlock); /* it ran */
        check_whole(0);
        ZT_OK(&rig, is_two ? save_by_renames(&rig) : save(&rig, 0));
        check_whole(rig.step);
        check_nothing_beside("the one that was replaced early");
    }
    zt_rig_end(&copy);
}

/* File systems and sandboxes that do not exchange two names say so in different ways. */
ZT_TEST(without_exchange) {
    static const int codes[] = {EINVAL, ENOSYS, EPERM, EOPNOTSUPP};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        for (int was = 0; was < 3; was++) { /* nothing, an empty directory, a checkpoint */
            if (was < 2)
                ck_assert_int_eq(zt_shell("rm -rf %s", path), 0);
            if (was == 1)
                ck_assert_int_eq(zt_shell("mkdir %s", path), 0);
            zt_state_steps(&rig, 1);
            arm(RENAME, codes[i]);
            ZT_OK(&rig, save(&rig, 0));
            armed = NONE;
            check_whole(rig.step);
            check_nothing_beside(strerror(codes[i]));
        }
    check_goes_on();
}

/* A mount that cannot do what the save's end needs is refused by its name before anything is written. */
static void check_refused_mount(int works, int with, const char *what) {
    uint64_t old = rig.step;
    zt_state_steps(&rig, 1);
    renames_that_work = works;
    rename_errno = with;
    zf_status_t st = save(&rig, 0);
    renames_that_work = -1;
    rename_errno = EACCES;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, what);
    ck_assert_int_eq(rig.err.native_code, with);
    ck_assert_ptr_nonnull(strstr(rig.err.message, strerror(with)));
    check_nothing_beside(what);
    check_whole(old);
    ZT_OK(&rig, save(&rig, 0));
}

ZT_TEST(mounts_that_lack_rename) {
    ZT_OK(&rig, save(&rig, 0));
    check_refused_mount(0, ENOSYS, "name a directory on another mount");
    check_refused_mount(0, EXDEV, "cannot rename a directory beside");
    check_refused_mount(TRY_RENAME, EXDEV, "in a lower layer of an overlay");
    check_refused_mount(TRY_RENAME, EBUSY, "a file system is mounted there: name a directory in it");
    check_refused_mount(TRY_RENAME, EPERM, "mend its permissions");
    uint64_t old = rig.step;
    zt_state_steps(&rig, 1);
    replaces_all = 1;
    zf_status_t st = save(&rig, 0);
    replaces_all = 0;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, strerror(EOPNOTSUPP));
    check_nothing_beside("a mount that replaces everything");
    check_whole(old);
}

/* The names are exchanged and renamed by the mount in no way: it is known at the end only. */
ZT_TEST(an_exchange_across_layers) {
    ZT_OK(&rig, save(&rig, 0));
    uint64_t old = rig.step;
    zt_state_steps(&rig, 1);
    renames_that_work = RENAME_ASIDE;
    rename_errno = EXDEV;
    arm(RENAME, EXDEV);
    zf_status_t st = save(&rig, 0);
    armed = NONE;
    renames_that_work = -1;
    rename_errno = EACCES;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, "in a lower layer of an overlay");
    check_nothing_beside("an exchange across layers");
    check_whole(old);
    arm(RENAME, EXDEV); /* the exchange alone */
    ZT_OK(&rig, save(&rig, 0));
    armed = NONE;
    check_nothing_beside("two renames");
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
    directory_sync_errno = EIO;
    zf_status_t st = save(&rig, 0);
    directory_sync_errno = 0;
    zt_refused(&rig.err, st, ZF_ERR_STORAGE, strerror(EIO));
    check_nothing_beside("a directory that cannot be synced");
    check_whole(rig.step);
}

/* Another process saves, and ends after so many renames. */
static void kill_after_renames(int n) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        zt_state_open(&copy, config);
        renames_left = n;
        save_by_renames(&copy);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the save came too far");
}

/* Between the new one over the former, which fails, the former aside, and the end: nothing is at the path. */
static void kill_between_two_renames(void) {
    kill_after_renames(RENAME_IN_PLACE);
    ck_assert_int_eq(zt_shell("test ! -e %s", path), 0);
}

static void check_deleted(void) {
    ck_assert_int_eq(zt_shell("rm -r %s", path), 0);
    ck_assert_int_eq(zt_state(&rig)->verify(&there, NULL, &rig.err), ZF_ERR_STORAGE);
}

/* A load and a check put back what lies aside. Where they cannot, for another program holds the lock, they read it
 * where it is. Deleted is deleted. */
ZT_TEST(a_load_after_a_kill) {
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    for (int k = 0; k < 3; k++) {
        kill_between_two_renames();
        flock_errno = k == 1 ? EWOULDBLOCK : 0;
        if (k == 2) /* a host that makes the folder before it looks into it */
            ck_assert_int_eq(zt_shell("mkdir %s", path), 0);
        zt_state_open_copy(&copy, config, 1);
        if (k)
            ZT_OK(&copy, zt_load(&copy, NULL, path, 0, NULL));
        zt_rig_end(&copy);
        check_whole(3);
        ck_assert_int_eq(zt_shell("test -e %s/zf_state.json", path) == 0, k != 1);
        flock_errno = 0;
        check_whole(3);
        ck_assert_int_eq(zt_shell("test -e %s/zf_state.json && ! test -e %s/zf_state.mark", path, path), 0);
    }
    ZT_OK(&rig, save(&rig, 0));
    check_whole(4);
    check_nothing_beside("a save after a load after a kill");
    check_deleted();
}

/* The host finds nothing at the path and starts anew: its first save puts the checkpoint back and says so, and only the
 * next one replaces it. The lock is another's when the save begins, too; a folder that the host made is in the way. */
ZT_TEST(a_save_after_a_kill) {
    ZT_OK(&rig, save(&rig, 0));
    for (int k = 0; k < 3; k++) {
        uint64_t step = rig.step;
        kill_between_two_renames();
        zt_state_steps(&rig, 1);
        if (k == 2)
            ck_assert_int_eq(zt_shell("mkdir %s", path), 0);
        is_busy_once = k == 1;
        zt_refused(&rig.err, save(&rig, 0), ZF_ERR_STORAGE, "it is back now");
        ck_assert_int_eq(is_busy_once, 0);
        ck_assert_int_eq(zt_shell("test -e %s/zf_state.json", path), 0);
        check_whole(step);
        ZT_OK(&rig, save(&rig, 0));
        check_whole(rig.step);
        check_nothing_beside("a save after a kill");
    }
    kill_between_two_renames(); /* what a user put there is in the way: nothing is replaced, nothing is lost */
    ck_assert_int_eq(zt_shell("mkdir %s && touch %s/thesis.tex", path, path), 0);
    ck_assert_int_eq(save(&rig, 0), ZF_ERR_STORAGE);
    ck_assert_int_eq(zt_shell("test -e %s/thesis.tex && rm -r %s", path, path), 0);
    check_whole(rig.step);
}

/* Another process clears away what it takes for left over: the save writes into a folder of which it has the lock. */
ZT_TEST(a_folder_that_is_swept_is_not_used) {
    is_swept = 1;
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_int_eq(is_swept, 0);
    ck_assert_int_eq(zt_shell("test $(ls -A %s | wc -l) = 2", zt_dir()), 0); /* with the empty one, the other's */
    ZT_OK(&rig, save(&rig, 0));
    check_nothing_beside("what was swept");
}

/* Names that a user may give, a name like a save's without its mark, and a leftover that the user copied. */
ZT_TEST(a_user_s_own) {
    static const char *const own[] = {"ckpt.old", "ckpt.tmp", "ckpt.zf-save-0123456789abcdef", "ckpt.zf-save-copy"};
    const char *dir = zt_dir();
    ZT_OK(&rig, save(&rig, 0));
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(zt_shell("cp -r %s %s/%s", path, dir, own[i]), 0);
    kill_after_renames(TRY_RENAME + 1);
    ck_assert_int_eq(zt_shell("cd %s && cp -r $(ls -d ckpt.zf-save-* | grep -v 0123456789abcdef) %s", dir, own[3]), 0);
    ck_assert_int_eq(zt_shell("test $(ls %s | wc -l) = 6", dir), 0); /* with what was left */
    for (int k = 0; k < 4; k++)
        ZT_OK(&rig, k % 2 ? save_by_renames(&rig) : save(&rig, 0));
    for (size_t i = 0; i < 4; i++)
        ck_assert_msg(zt_shell("test -e %s/%s/zf_state-00001.safetensors", dir, own[i]) == 0, "%s is gone", own[i]);
    ck_assert_msg(zt_shell("test $(ls %s | wc -l) = 5", dir) == 0, "what the killed save left is still there");
    check_deleted(); /* none of them is taken for it */
}

ZT_TEST(modes_stay) {
    static const char *const modes[] = {"00700", "02770", "00755", "00500"};
    umask(022);
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_int_eq(zt_shell("test $(stat -c %%a %s) = 755", path), 0);
    for (size_t i = 0; i < 4; i++)
        for (int is_two = 0; is_two < 2; is_two++) {
            ck_assert_int_eq(zt_shell("chmod %s %s", modes[i], path), 0);
            ZT_OK(&rig, is_two ? save_by_renames(&rig) : save(&rig, 0));
            ck_assert_msg(zt_shell("test 0$(stat -c %%a %s) -eq %s", path, modes[i]) == 0, "mode %s is lost", modes[i]);
            check_nothing_beside(modes[i]);
        }
    ck_assert_int_eq(zt_shell("chmod 755 %s", path), 0);
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

ZT_TEST(saves_and_loads_at_once) {
    save_and_load("with an exchange", 2);
    arm(RENAME, EINVAL);
    save_and_load("with two renames", 2);
    armed = NONE;
}

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
    for (reads_left = 0; reads_left < 9; reads_left += 2) {
        zf_state_report_t report = {.struct_size = sizeof report};
        uint64_t step = rig.step;
        int n = reads_left;
        ZT_OK(&rig, save(&rig, 0));
        zt_state_steps(&rig, 1);
        after_reads = save_meanwhile;
        ZT_OK(&copy, zt_load(&copy, NULL, path, 0, &report));
        ck_assert_ptr_null(after_reads);
        ck_assert_uint_eq(report.step, step);
        check_whole(step + 1);
        reads_left = n;
    }
    ZT_OK(&rig, save(&rig, 0));
    check_nothing_beside("what the reader held was cleared away");
    zt_rig_end(&copy);
}

ZT_SUITE_WITH("state_storage", start, end)
