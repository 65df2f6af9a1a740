/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/thread.h - how the plugin starts threads. */
#pragma once

#include <pthread.h>

/* [any-thread] Starts a thread with every signal blocked, a name of at most 15 bytes and a stack of 8 MiB, whatever the
 * process's limit of stacks says; 0 or an errno value. */
int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);

typedef struct zfi_thread_why {
    char text[256];
} zfi_thread_why_t;

/* [any-thread] Says why zfi_thread_start returned rc: the limit that is met and where it is set. To be called before
 * other threads end. */
void zfi_thread_why(int rc, zfi_thread_why_t *out);
