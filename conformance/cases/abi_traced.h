/* SPDX-License-Identifier: Apache-2.0 */
/* abi_traced.h - the system calls of another process, of all its threads, one after the other (ptrace). */
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef struct abi_syscall {
    pid_t pid; /* of the traced process */
    uint64_t number, args[6];
    int64_t result;
} abi_syscall_t;

/* Runs fn(arg) in a child, whose exit status is what it returns, and gives each system call that has ended to `see`;
 * its thread waits meanwhile, the others go on. The child's wait status, or -1: processes may not be traced here. */
int abi_traced_run(int (*fn)(void *arg), void *arg, void (*see)(void *ctx, const abi_syscall_t *call), void *ctx);
