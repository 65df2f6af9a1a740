/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/thread.h - how the plugin starts threads. */
#pragma once

#include <pthread.h>

/* [any-thread] Starts a thread with every signal blocked and a name of at most 15 bytes; 0 or an errno value. */
int zfi_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg);
