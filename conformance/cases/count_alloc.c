/* SPDX-License-Identifier: Apache-2.0 */
/* count_alloc.c - zf_count_alloc.so: counts allocations of a process that preloads it, for the area "abi".
 *
 * Stands before the C library's functions and calls glibc's own names for them, so it needs no look-up at start. */
#define _GNU_SOURCE /* syscall */
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* [0] by the first thread, which calls the hooks; [1] by any other. */
extern unsigned long zfc_allocations[2];
unsigned long zfc_allocations[2];

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *old, size_t nbytes);
void *__libc_memalign(size_t alignment, size_t nbytes);

void *malloc(size_t nbytes);
void *calloc(size_t n, size_t nbytes);
void *realloc(void *old, size_t nbytes);
void *aligned_alloc(size_t alignment, size_t nbytes);
int posix_memalign(void **out, size_t alignment, size_t nbytes);

static void count(void) {
    int is_other = syscall(SYS_gettid) != getpid();
    (void)__atomic_fetch_add(&zfc_allocations[is_other], 1, __ATOMIC_RELAXED);
}

void *malloc(size_t nbytes) {
    count();
    return __libc_malloc(nbytes);
}

void *calloc(size_t n, size_t nbytes) {
    count();
    return __libc_calloc(n, nbytes);
}

void *realloc(void *old, size_t nbytes) {
    count();
    return __libc_realloc(old, nbytes);
}

void *aligned_alloc(size_t alignment, size_t nbytes) {
    count();
    return __libc_memalign(alignment, nbytes);
}

int posix_memalign(void **out, size_t alignment, size_t nbytes) {
    void *p = aligned_alloc(alignment, nbytes);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}
