/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/fork_lock.h - a lock around a list that all instances of a process share, for a few instructions at a
 * time. After fork() the child takes it over, if a thread of the parent held it: that thread is not there. */
#pragma once

#include <stdatomic.h>

typedef struct zfi_fork_lock {
    _Atomic int holder; /* process whose thread holds it; 0: none */
} zfi_fork_lock_t;

/* [any-thread] Returns this process's number. */
int zfi_fork_lock_take(zfi_fork_lock_t *lock);
void zfi_fork_lock_give(zfi_fork_lock_t *lock);
