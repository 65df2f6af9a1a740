/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/access.c - an address of a kernel becomes one of this process, if the kernel may use it. */
#include "internal.h"

/* The bytes of global address a, or NULL. The ranges used last are kept: kernels stay within a few. */
static unsigned char *find_global(emu_launch_t *l, uint64_t a, uint32_t nbytes) {
    for (uint32_t i = 0; i < EMU_N_RECENT; i++)
        if (a >= l->recent[i].lo && a + nbytes <= l->recent[i].hi)
            return l->recent[i].bytes + (a - l->recent[i].lo);
    emu_range_t found;
    if (!l->config->find(a, &found) || a + nbytes > found.hi)
        return NULL;
    l->recent[l->next_recent++ % EMU_N_RECENT] = found;
    return found.bytes + (a - found.lo);
}

static unsigned char *fail(emu_thread_t *x, const char *what, uint64_t a, int line) {
    emu_complain(x, what, a, line);
    x->launch->has_failed = 1;
    return x->launch->nowhere;
}

unsigned char *emu_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, emu_kind_t kind, int line) {
    emu_launch_t *l = x->launch;
    if (a & (nbytes - 1))
        return fail(x, "misaligned address", a, line);
    if (a - EMU_SHARED_BASE <= EMU_SHARED_MASK) {
        uint32_t at = (uint32_t)(a - EMU_SHARED_BASE);
        if (at + nbytes > l->kernel->shared_nbytes)
            return fail(x, "address past the end of shared memory", a, line);
        emu_races_access(x, a, nbytes, 1, kind, line);
        return l->shared + at;
    }
    unsigned char *p = find_global(l, a, nbytes);
    if (p == NULL)
        return fail(x, "address outside all memory of the device", a, line);
    if (l->traffic)
        emu_traffic_add(l->traffic, x, a, nbytes, line);
    emu_races_access(x, a, nbytes, 0, kind, line);
    emu_tsan_access(p, nbytes, kind);
    return p;
}

const unsigned char *emu_param(const emu_thread_t *x, uint64_t a, uint32_t nbytes, int line) {
    uint64_t at = a - EMU_PARAM_BASE;
    if (at + nbytes > x->launch->kernel->params_nbytes) {
        fc_finding("%s, PTX line %d: parameter past the end", x->launch->kernel->name, line);
        return x->launch->nowhere;
    }
    return x->launch->params + at;
}

uint32_t emu_atom32(emu_thread_t *x, uint64_t a, int adds, uint32_t value, int line) {
    uint32_t *p = (uint32_t *)(void *)emu_access(x, a, sizeof *p, EMU_ATOMIC, line);
    return adds ? __atomic_fetch_add(p, value, __ATOMIC_RELAXED) : __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}

uint64_t emu_atom64(emu_thread_t *x, uint64_t a, int adds, uint64_t value, int line) {
    uint64_t *p = (uint64_t *)(void *)emu_access(x, a, sizeof *p, EMU_ATOMIC, line);
    return adds ? __atomic_fetch_add(p, value, __ATOMIC_RELAXED) : __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}
