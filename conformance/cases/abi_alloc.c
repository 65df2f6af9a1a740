/* SPDX-License-Identifier: Apache-2.0 */
/* abi_alloc.c - the program's own allocators, which stand before the C library's for the plugin, too: they count what a
 * thread asks for (abi_probes.h) and call glibc's own names. Sanitizers have allocators of their own. */
#include <errno.h>
#include <stdlib.h>

#include "abi_probes.h"

#if defined(__GLIBC__)

static _Thread_local unsigned long n_calls;

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *old, size_t nbytes);
void *__libc_memalign(size_t alignment, size_t nbytes);

unsigned long abi_n_allocations(void) { return n_calls; }

void *malloc(size_t nbytes) {
    n_calls++;
    return __libc_malloc(nbytes);
}

void *calloc(size_t n, size_t nbytes) {
    n_calls++;
    return __libc_calloc(n, nbytes);
}

void *realloc(void *old, size_t nbytes) {
    n_calls++;
    return __libc_realloc(old, nbytes);
}

void *aligned_alloc(size_t alignment, size_t nbytes) {
    n_calls++;
    return __libc_memalign(alignment, nbytes);
}

int posix_memalign(void **out, size_t alignment, size_t nbytes) {
    void *p = aligned_alloc(alignment, nbytes);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

#endif
