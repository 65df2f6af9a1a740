/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/fork_lock.c - (contract in fork_lock.h). */
#include "base/fork_lock.h"

#include <unistd.h>

int zfi_fork_lock_take(zfi_fork_lock_t *lock) {
    int pid = (int)getpid(), holder = 0;
    while (!atomic_compare_exchange_strong(&lock->holder, &holder, pid)) {
        if (holder != pid && atomic_compare_exchange_strong(&lock->holder, &holder, pid))
            break; /* of the parent's threads none is here */
        holder = 0;
        usleep(100);
    }
    return pid;
}

void zfi_fork_lock_give(zfi_fork_lock_t *lock) { atomic_store(&lock->holder, 0); }
