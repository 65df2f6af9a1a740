/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/thread.c - how the plugin starts threads (contract in thread.h): the host's signal handlers never run on
 * them. */
#include "base/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "lib/cgroup.h"

enum { STACK_MIB = 8 }; /* what a process has by default, for a host's callbacks run on these threads, too */

int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg) {
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    int rc = pthread_attr_setstacksize(&attributes, (size_t)STACK_MIB << 20);
    if (rc == 0)
        rc = pthread_create(out, &attributes, main, arg);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*out, name);
    return rc;
}

/* The system gives one errno value for each of these limits. */
void zfi_thread_why(int rc, zfi_thread_why_t *out) {
    zf_cgroup_t cgroup;
    struct rlimit mapped, threads;
    char more[160];
    zf_cgroup_read("", &cgroup);
    if (cgroup.threads_left == 0)
        snprintf(more, sizeof more,
                 "the control group of this process has the %" PRIu64
                 " threads that it may have (pids.max; docker run --pids-limit)",
                 cgroup.threads_limit);
    else if (!getrlimit(RLIMIT_AS, &mapped) && mapped.rlim_cur != RLIM_INFINITY)
        snprintf(more, sizeof more, "a stack takes %d MiB, and this process may map %" PRIu64 " MiB (ulimit -v)",
                 STACK_MIB, (uint64_t)mapped.rlim_cur >> 20);
    else if (!getrlimit(RLIMIT_NPROC, &threads) && threads.rlim_cur != RLIM_INFINITY)
        snprintf(more, sizeof more,
                 "this user may have %" PRIu64 " threads (ulimit -u), and the system has a limit, too "
                 "(sysctl kernel.threads-max)",
                 (uint64_t)threads.rlim_cur);
    else
        snprintf(more, sizeof more, "the system has a limit (sysctl kernel.threads-max, kernel.pid_max)");
    snprintf(out->text, sizeof out->text, "%s%s%s", strerror(rc), rc == EAGAIN ? ": " : "", rc == EAGAIN ? more : "");
}
