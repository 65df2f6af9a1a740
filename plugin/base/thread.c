/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/thread.c - how the plugin starts threads (contract in thread.h): the host's signal handlers never run on
 * them. */
#include "base/thread.h"

#include <signal.h>

int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(out, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*out, name);
    return rc;
}
