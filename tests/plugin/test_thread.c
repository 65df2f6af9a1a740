/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_thread.c - a thread's stack, and what is said where none can be started: by the system itself,
 * under limits of a process of its own. */
#define _GNU_SOURCE
#include "base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/cgroup.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"

static uint64_t threads_limit = UINT64_MAX; /* of the control group */

ZT_WRAP(void, zf_cgroup_read, const char *root, zf_cgroup_t *out) {
    __real_zf_cgroup_read(root, out);
    out->threads_limit = threads_limit;
    out->threads_left = threads_limit == UINT64_MAX ? UINT64_MAX : 0;
}

static void *read_stack(void *out) {
    pthread_attr_t attributes;
    ck_assert_int_eq(pthread_getattr_np(pthread_self(), &attributes), 0);
    ck_assert_int_eq(pthread_attr_getstacksize(&attributes, out), 0);
    pthread_attr_destroy(&attributes);
    return NULL;
}

/* ulimit -s 4, and ulimit -s 1048576 */
ZT_TEST(a_stack_has_a_fixed_size) {
    static const size_t defaults[] = {64 << 10, 1 << 30};
    for (size_t i = 0; i < 2; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        size_t nbytes = 0;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, defaults[i]);
        ck_assert_int_eq(pthread_setattr_default_np(&attributes), 0);
        ck_assert_int_eq(zfi_thread_start(&thread, "stack", read_stack, &nbytes), 0);
        pthread_join(thread, NULL);
        ck_assert(nbytes > 7 << 20 && nbytes <= 8 << 20);
        pthread_attr_destroy(&attributes);
    }
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static void limit(int resource, rlim_t to) {
    struct rlimit limits;
    ck_assert_int_eq(getrlimit(resource, &limits), 0);
    limits.rlim_cur = to;
    ck_assert_int_eq(setrlimit(resource, &limits), 0);
}

static void expect(const char *words) {
    pthread_t thread;
    zfi_thread_why_t why;
    size_t nbytes;
    int rc = zfi_thread_start(&thread, "refused", read_stack, &nbytes);
    ck_assert_int_eq(rc, EAGAIN);
    zfi_thread_why(rc, &why);
    zt_contains(why.text, strerror(EAGAIN));
    zt_contains(why.text, words);
}

/* Lets the sanitizer look for leaks at exit: it starts a thread, which traces this process. */
static void unlimit_this_user(void) {
    struct rlimit limits;
    ck_assert_int_eq(getrlimit(RLIMIT_NPROC, &limits), 0);
    limit(RLIMIT_NPROC, limits.rlim_max);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0);
}

/* Another user's limit would not hold for root. */
static void limit_this_user(void) {
    if (geteuid() == 0)
        ck_assert_int_eq(setuid(65534), 0);
    limit(RLIMIT_NPROC, 1);
}

ZT_TEST(the_limit_of_a_user_is_named) {
    limit_this_user();
    expect("this user may have 1 threads (ulimit -u)");
    unlimit_this_user();
}

ZT_TEST(the_limit_of_a_control_group_is_named) {
    limit_this_user();
    threads_limit = 64;
    expect("has the 64 threads that it may have (pids.max; docker run --pids-limit)");
    unlimit_this_user();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map more than any machine has */
ZT_TEST(the_limit_of_a_process_is_named) {
    char line[64];
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file && fgets(line, sizeof line, file) && sscanf(line, "%lu", &pages) == 1);
    fclose(file);
    limit(RLIMIT_AS, (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (4 << 20));
    expect("a stack takes 8 MiB, and this process may map");
}
#endif

/* ---- workers ----------------------------------------------------------------------------------------------------- */

static int n_left = -1; /* threads that may be started yet; below 0: all */

ZT_WRAP(int, pthread_create, pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    return n_left-- == 0 ? EAGAIN : __real_pthread_create(out, attr, run, arg);
}

ZT_TEST(the_key_of_workers_is_named) {
    static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};
    zt_rig_t rig;
    zt_rig_start(&rig, shapes, 1);
    zt_rig_create(&rig, "[host]\nthreads = 5\n", 0);
    n_left = 2;
    threads_limit = 64;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_MEMORY, "cannot start worker 3 of 5: ");
    zt_contains(rig.err.message, "64 threads that it may have");
    zt_contains(rig.err.message, "; raise that, or set [host] threads lower");
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_OK);
    zt_rig_end(&rig);
}

ZT_SUITE("thread")
