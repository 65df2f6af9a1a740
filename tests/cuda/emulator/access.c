/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/access.c - an address of a kernel becomes one of this process, if the kernel may use it. */
#include "internal.h"

static int fail(emu_thread_t *x, const char *what, uint64_t a, int line) {
    emu_complain(x, what, a, line);
    x->launch->has_failed = 1;
    return 0;
}

/* An access of `nbytes` at a is wholly within the place. */
static inline int is_in(const emu_place_t *place, uint64_t a, uint32_t nbytes) {
    uint64_t at = a - place->lo;
    return at < place->nbytes && place->nbytes - at >= nbytes;
}

/* The place of address a, within its page; 0 where the kernel may not use it. */
static int find_place(emu_thread_t *x, emu_place_t *place, uint64_t a, uint32_t nbytes, int line) {
    emu_launch_t *l = x->launch;
    int is_shared = a - EMU_SHARED_BASE <= EMU_SHARED_MASK;
    emu_range_t range = {EMU_SHARED_BASE, EMU_SHARED_BASE + l->kernel->shared_nbytes, l->shared};
    uint64_t lo = a / EMU_PAGE * EMU_PAGE, hi = lo + EMU_PAGE;
    if (!is_shared && !l->config->find(a, &range))
        return fail(x, "address outside all memory of the device", a, line);
    lo = lo > range.lo ? lo : range.lo;
    hi = hi < range.hi ? hi : range.hi;
    *place = (emu_place_t){
        .lo = lo, .nbytes = hi > lo ? hi - lo : 0, .bytes = range.bytes + (lo - range.lo), .is_shared = is_shared};
    if (!is_in(place, a, nbytes)) {
        place->nbytes = 0;
        return fail(x, is_shared ? "address past the end of shared memory" : "address outside all memory of the device",
                    a, line);
    }
    place->page = emu_races_page(l, a, nbytes);
    return 1;
}

unsigned char *emu_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, emu_kind_t kind, int line) {
    emu_launch_t *l = x->launch;
    uint64_t number = (uint64_t)line * EMU_PLACES_OF_LINE + a / EMU_PAGE % EMU_PLACES_OF_LINE;
    emu_place_t *place = &l->places[number % EMU_N_PLACES];
    if (a & (nbytes - 1)) {
        (void)fail(x, "misaligned address", a, line);
        return l->nowhere;
    }
    if (!is_in(place, a, nbytes) && !find_place(x, place, a, nbytes, line))
        return l->nowhere;
    unsigned char *p = place->bytes + (a - place->lo);
    if (l->traffic && !place->is_shared)
        emu_traffic_add(l->traffic, x, a, nbytes, line);
    emu_races_access(x, place, a, nbytes, kind, line);
    if (l->is_watched && !place->is_shared)
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
