/* tests/plugin/test_state_storage.c - a save that is killed or whose file system fails: the checkpoint before it stays
 * whole, and the run goes on. The C library's calls are this program's own for that (the plugin is linked statically).
 */
#define _GNU_SOURCE
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state_rig.h"
#include "suite.h"
#include "timeline.h"

static const char config[] = "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2";
static zt_rig_t rig, copy;

/* ---- failing calls --------------------------------------------------------------------------------------------------
 */

enum { NONE, WRITE, FSYNC, PREAD, RENAME, OPENAT, N_CALLS };
static int armed, left, code, is_short; /* call `armed` fails with `code` after `left` more of its kind */

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

int fsync(int fd) { return fails(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd); }

ssize_t pread(int fd, void *out, size_t n, off_t at) {
    return fails(PREAD) ? -1 : syscall(SYS_pread64, fd, out, n, at);
}

static void (*after_rename)(void);

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    int rc = fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    void (*then)(void) = after_rename;
    after_rename = NULL;
    if (!rc && then)
        then();
    return rc;
}

/* ----
 * ------------------------------------------------------------------------------------------------------------------ */

static char path[128];

static zf_status_t save(zt_rig_t *of, uint32_t flags) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags, .path = path};
    return zt_state(of)->save(of->inst, &args, NULL, &of->err);
}

/* What is at path is whole and is of step n. */
static void check_whole(uint64_t n) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    zf_state_report_t report = {.struct_size = sizeof report};
    ZT_OK(&rig, zt_state(&rig)->verify(&args, &report, &rig.err));
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
    zf_status_t st = ZF_ERR_STORAGE;
    int n = 0;
    while (st == ZF_ERR_STORAGE) {
        left = n++;
        code = with;
        armed = call;
        st = save(&rig, 0);
        armed = NONE;
        if (st != ZF_OK && st != ZF_ERR_STORAGE)
            ck_abort_msg("call %d failed with %s: save returned %d", call, strerror(with), st);
        if (st == ZF_ERR_STORAGE && !strstr(rig.err.message, strerror(with)))
            ck_abort_msg("no \"%s\" in \"%s\"", strerror(with), rig.err.message);
        if (st == ZF_ERR_STORAGE && rig.err.native_code != with)
            ck_abort_msg("native_code %lld", (long long)rig.err.native_code);
        if (st == ZF_ERR_STORAGE && !strstr(rig.err.message, "entry"))
            check_whole(old);
    }
    ck_assert_int_gt(n, 1); /* it did fail */
}

START_TEST(failing_calls) {
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    zt_state_open(&rig, config);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 2);
    fail_each(WRITE, ENOSPC, 5);
    check_whole(7);
    zt_state_steps(&rig, 1);
    fail_each(WRITE, EIO, 7);
    zt_state_steps(&rig, 1);
    fail_each(FSYNC, EIO, 8);
    zt_state_steps(&rig, 1);
    fail_each(RENAME, EACCES, 9);
    check_whole(10);
    zt_state_steps(&rig, 1);
    armed = RENAME; /* a file system without RENAME_EXCHANGE */
    left = 0;
    code = EINVAL;
    ZT_OK(&rig, save(&rig, 0));
    armed = WRITE; /* writes that take half of what they are given */
    left = 1 << 30;
    is_short = 1;
    zt_state_steps(&rig, 1);
    ZT_OK(&rig, save(&rig, 0));
    armed = is_short = 0;
    check_whole(12);
    check_goes_on();
    zt_rig_end(&rig);
}
END_TEST

/* The former checkpoint becomes the temporary directory, just before it is removed: another save must not begin to
 * write there. */
static void save_in_between(void) {
    ck_assert_int_eq(save(&copy, 0), ZF_ERR_STORAGE);
    ck_assert_msg(strstr(copy.err.message, "another save") != NULL, "%s", copy.err.message);
}

START_TEST(two_saves_at_once) {
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    zt_state_open(&rig, config);
    zt_state_open(&copy, config);
    zt_state_steps(&rig, 3);
    ZT_OK(&rig, save(&rig, 0));
    zt_state_steps(&rig, 1);
    after_rename = save_in_between;
    ZT_OK(&rig, save(&rig, 0));
    ck_assert_ptr_null(after_rename); /* it ran */
    check_whole(4);
    ZT_OK(&copy, save(&copy, 0)); /* the lock is gone */
    check_whole(0);
    zt_rig_end(&copy);
    zt_rig_end(&rig);
}
END_TEST

/* A save that fails leaves nothing behind. */
START_TEST(nothing_is_left) {
    char command[300];
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    snprintf(command, sizeof command, "test ! -e %s.tmp", path);
    zt_state_open(&rig, config);
    zt_state_steps(&rig, 3);
    ZT_OK(&rig, save(&rig, 0));
    for (int call = WRITE; call <= RENAME; call++) {
        if (call == PREAD)
            continue;
        armed = call;
        left = 0;
        code = EIO;
        ck_assert_int_eq(save(&rig, 0), ZF_ERR_STORAGE);
        armed = NONE;
        ck_assert_msg(system(command) == 0, "call %d failed, and the temporary directory is still there", call);
    }
    zt_rig_end(&rig);
}
END_TEST

START_TEST(failing_reads) {
    size_t nbytes, now_nbytes;
    unsigned char *image, *now;
    int n = 0;
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    zt_state_open(&rig, config);
    zt_state_steps(&rig, 6);
    ZT_OK(&rig, save(&rig, ZF_STATE_NO_SYNC));
    zt_state_open(&copy, config);
    zt_state_steps(&copy, 3);
    image = zt_state_image(&copy, &nbytes);
    for (zf_status_t st = ZF_ERR_STORAGE; st == ZF_ERR_STORAGE; n++) {
        left = 5 * n;
        code = EIO;
        armed = PREAD;
        st = zt_load(&copy, NULL, path, 0, NULL);
        armed = NONE;
        if (st == ZF_OK)
            break;
        now = zt_state_image(&copy, &now_nbytes);
        if (memcmp(now, image, now_nbytes) != 0)
            ck_abort_msg("read %d failed: the instance has changed", 5 * n);
        free(now);
    }
    ck_assert_int_gt(n, 5);
    zt_state_check_equal(&rig, &copy, "read at last");
    free(image);
    zt_rig_end(&copy);
    zt_rig_end(&rig);
}
END_TEST

/* ---- kills
 * ----------------------------------------------------------------------------------------------------------- */

/* Writes a byte when it begins and one after every save. */
static void save_until_killed(int progress) {
    zt_state_open(&rig, config);
    zf_state_args_t there = {.struct_size = sizeof there, .path = path};
    if (zt_state(&rig)->verify(&there, NULL, &rig.err) == ZF_OK && zt_load(&rig, NULL, path, 0, NULL) != ZF_OK)
        _exit(3);
    while (write(progress, "", 1) == 1) {
        zt_state_steps(&rig, 1);
        if (save(&rig, rig.step % 2 ? ZF_STATE_NO_SYNC : 0))
            _exit(4);
    }
    _exit(5);
}

/* Waits for n bytes, then for a part of what a save took; returns about what a save takes, in microseconds. */
static uint64_t wait_for_saves(int progress, int n, int round, uint64_t save_us) {
    uint64_t began = zfi_now_ns();
    char byte;
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(read(progress, &byte, 1), 1);
    if (n > 0)
        save_us = (zfi_now_ns() - began) / 1000 / (unsigned)n;
    usleep((useconds_t)(zt_hash((uint64_t)round) % (save_us + 1)));
    return save_us;
}

START_TEST(killed_at_any_moment) {
    uint64_t at = 0, save_us = 10000;
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    for (int round = 0; round < 60; round++) {
        zf_state_report_t report = {.struct_size = sizeof report};
        int ends[2], status;
        pid_t pid;
        char byte;
        ck_assert_int_eq(pipe(ends), 0);
        pid = fork();
        if (pid == 0)
            save_until_killed(ends[1]);
        close(ends[1]);
        if (round > 0 && round % 5 == 0) /* while it loads, too */
            usleep((useconds_t)(zt_hash((uint64_t)round) % save_us));
        else {
            ck_assert_int_eq(read(ends[0], &byte, 1), 1);
            save_us = wait_for_saves(ends[0], round == 0 ? 2 : round % 3, round, save_us);
        }
        kill(pid, SIGKILL);
        close(ends[0]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status), "the saving process ended with %d", WEXITSTATUS(status));
        zt_state_open_copy(&copy, config, 1);
        ZT_OK(&copy, zt_load(&copy, NULL, path, 0, &report));
        ck_assert_uint_ge(report.step, at);
        at = report.step;
        if (round % 6 == 0) {
            zt_state_open(&rig, config);
            zt_state_steps(&rig, (int)at);
            zt_state_check_equal(&rig, &copy, "after a kill");
            zt_rig_end(&rig);
        }
        zt_rig_end(&copy);
    }
    ck_assert_uint_gt(at, 10);
}
END_TEST

ZT_MAIN("state_storage", failing_calls, two_saves_at_once, nothing_is_left, failing_reads, killed_at_any_moment)
