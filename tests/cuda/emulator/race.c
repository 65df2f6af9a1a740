/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/race.c - races of a launch on global memory, and of a block on shared memory.
 *
 * Model. Every cell of memory remembers its last write and its last reads. Two threads that touch the same cell, one of
 * them writing without an atomic, need an order between them: a barrier of their block, a meeting of all lanes of their
 * warp, or the end of the grid. Blocks have none, whatever order they are run in here. Threads run one after the other,
 * so the order that is seen says nothing.
 *
 * A record is one number: when, by a clock that every launch, block, barrier and meeting of a warp sets forward, by
 * which thread, and what else it stands for. Blocks run one after another, so the clock says whose block it was, too;
 * what is older than the launch (of shared memory: than the block) is nobody's. So nothing is cleared.
 *
 * Cost. Cells are of four bytes, in pages found by a hash table of the thread that runs launches. A page's cells become
 * smaller with the first access to it that is. */
#include "internal.h"

#include <stdlib.h>

enum { IS_ATOMIC = 1, MANY_THREADS = 2, MANY_WARPS = 4, MANY_BLOCKS = 8, THREAD_AT = 4, CLOCK_AT = 14 };
enum { PAGE = 1024, FIRST_SLOTS = 64, MOST_NBYTES = 1 << 24 };

typedef struct cell {
    uint64_t write, read;
} cell_t;

typedef struct page {
    uint64_t key;  /* address / PAGE */
    cell_t *cells; /* NULL: the slot is free */
    uint32_t shift;
} page_t;

/* Of one thread of the double: launches of a queue come one after another. */
struct emu_races {
    page_t *slots;
    size_t n_slots, n_pages, nbytes;
    uint64_t clock;
};

static __thread emu_races_t races;

void emu_end_thread(void) {
    for (size_t i = 0; i < races.n_slots; i++)
        free(races.slots[i].cells);
    free(races.slots);
    races = (emu_races_t){.clock = races.clock};
}

void emu_races_begin(emu_launch_t *l) {
    if (races.nbytes > MOST_NBYTES)
        emu_end_thread();
    l->races = &races;
    l->order.launch = ++races.clock;
}

/* ---- order ---------------------------------------------------------------------------------------------------------
 */

void emu_races_new_block(emu_launch_t *l) {
    l->order.block = l->order.barrier = ++l->races->clock;
    memset(l->order.warps, 0, sizeof l->order.warps);
}

void emu_races_barrier(emu_launch_t *l) { l->order.barrier = ++l->races->clock; }

void emu_races_warp(emu_launch_t *l, uint32_t warp) { l->order.warps[warp] = ++l->races->clock; }

static inline uint64_t record_by(const emu_thread_t *x, uint64_t flags) {
    return x->launch->races->clock << CLOCK_AT | (uint64_t)x->tid << THREAD_AT | flags;
}

/* What `earlier` stands for may overlap with what x does now. Before `since` it is nobody's. */
static inline int is_concurrent(const emu_thread_t *x, uint64_t since, uint64_t earlier) {
    const emu_order_t *order = &x->launch->order;
    uint64_t when = earlier >> CLOCK_AT;
    uint32_t thread = (uint32_t)(earlier >> THREAD_AT) % EMU_MAX_THREADS;
    if (when < since)
        return 0;
    if (when < order->block || earlier & MANY_BLOCKS)
        return 1;
    if (when < order->barrier || (thread == x->tid && !(earlier & MANY_THREADS)))
        return 0;
    return earlier & MANY_WARPS || thread / EMU_WARP_SIZE != x->warp || when >= order->warps[x->warp];
}

/* One record stands for all reads since the last order; of several blocks' it is concurrent with all. */
static inline uint64_t read_after(const emu_thread_t *x, uint64_t since, uint64_t earlier) {
    uint64_t flags = 0, when = earlier >> CLOCK_AT;
    if (when < since)
        return record_by(x, 0);
    if (when < x->launch->order.block || earlier & MANY_BLOCKS)
        return record_by(x, MANY_BLOCKS);
    if (is_concurrent(x, since, earlier)) {
        int is_of_warp = (earlier >> THREAD_AT) % EMU_MAX_THREADS / EMU_WARP_SIZE == x->warp;
        flags = MANY_THREADS | (earlier & MANY_WARPS) | (is_of_warp ? 0u : MANY_WARPS);
    }
    return record_by(x, flags);
}

/* ---- cells ---------------------------------------------------------------------------------------------------------
 */

static page_t *slot_of(emu_races_t *r, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15ull >> 32);
    for (;; i++) {
        page_t *page = &r->slots[i & (r->n_slots - 1)];
        if (page->cells == NULL || page->key == key)
            return page;
    }
}

static void grow(emu_races_t *r) {
    page_t *old = r->slots;
    size_t n = r->n_slots;
    r->n_slots = n ? 4 * n : FIRST_SLOTS;
    r->slots = emu_zeros(r->n_slots, sizeof *r->slots);
    for (size_t i = 0; i < n; i++)
        if (old[i].cells)
            *slot_of(r, old[i].key) = old[i];
    free(old);
}

/* Cells of 1 << shift bytes for the page. */
static void cut(emu_races_t *r, page_t *page, uint32_t shift) {
    size_t n = PAGE >> shift;
    cell_t *cells = emu_zeros(n, sizeof *cells);
    for (size_t i = 0; page->cells && i < n; i++)
        cells[i] = page->cells[i >> (page->shift - shift)];
    free(page->cells);
    r->nbytes += n * sizeof *cells;
    page->cells = cells;
    page->shift = shift;
}

/* The page of an access, which is aligned and so within one; with cells no larger than the access. */
static page_t *page_of(emu_races_t *r, uint64_t a, uint32_t nbytes) {
    if (2 * r->n_pages >= r->n_slots)
        grow(r);
    page_t *page = slot_of(r, a / PAGE);
    if (page->cells == NULL) {
        r->n_pages++;
        page->key = a / PAGE;
        cut(r, page, nbytes < 4 ? (uint32_t)__builtin_ctz(nbytes) : 2);
    } else if (nbytes >> page->shift == 0)
        cut(r, page, (uint32_t)__builtin_ctz(nbytes));
    return page;
}

static inline int writes(emu_kind_t kind) {
    return kind == EMU_ATOMIC || kind == EMU_STORE || kind == EMU_STORE_RELAXED;
}

/* ---- both memories -------------------------------------------------------------------------------------------------
 */

static inline const char *global_cell(const emu_thread_t *x, cell_t *c, emu_kind_t kind) {
    int is_atomic = kind == EMU_ATOMIC, is_strong_load = kind == EMU_LOAD_RELAXED;
    uint64_t since = x->launch->order.launch;
    if (is_concurrent(x, since, c->write) && !(c->write & IS_ATOMIC && (is_atomic || is_strong_load)))
        return writes(kind) ? "global memory is written by two threads of a launch without an order between them"
                            : "global memory is read and was written by another thread of the launch without an order";
    if (writes(kind) && !is_atomic && is_concurrent(x, since, c->read))
        return "global memory is written and was read by another thread of the launch without an order";
    if (writes(kind))
        c->write = record_by(x, is_atomic ? IS_ATOMIC : 0);
    else if (!is_strong_load)
        c->read = read_after(x, since, c->read);
    return NULL;
}

static inline const char *shared_cell(const emu_thread_t *x, cell_t *c, emu_kind_t kind) {
    int is_atomic = kind == EMU_ATOMIC;
    uint64_t since = x->launch->order.block;
    if (c->write >> CLOCK_AT < since && (!writes(kind) || is_atomic))
        return "shared memory is read before it is written";
    if (is_concurrent(x, since, c->write) && !(is_atomic && c->write & IS_ATOMIC))
        return writes(kind) ? "shared memory is written by two threads without a barrier between them"
                            : "shared memory is read and was written by another thread without a barrier since";
    if (writes(kind) && is_concurrent(x, since, c->read))
        return "shared memory is written and was read by another thread without a barrier since";
    if (writes(kind))
        c->write = record_by(x, is_atomic ? IS_ATOMIC : 0);
    else
        c->read = read_after(x, since, c->read);
    return NULL;
}

/* Most accesses, in short: plain ones to cells of which no write counts any more. */
static inline int is_plain(const emu_thread_t *x, cell_t *c, int is_shared, emu_kind_t kind, uint64_t now) {
    const emu_order_t *order = &x->launch->order;
    uint64_t since = is_shared ? order->block : order->launch, begin = since << CLOCK_AT;
    uint64_t barrier = order->barrier << CLOCK_AT;
    if (is_shared ? c->write < begin || c->write >= barrier : c->write >= begin)
        return 0;
    if (kind == EMU_STORE && c->read < begin)
        c->write = now;
    else if (kind != EMU_LOAD)
        return 0;
    else if (c->read < begin)
        c->read = now;
    else if (c->read != now && !(c->read & MANY_BLOCKS) && !(c->read & MANY_WARPS && c->read >= barrier))
        c->read = read_after(x, since, c->read); /* else it stands for this thread, too */
    return 1;
}

/* 0, 1 or 2: whether an access is the launch's first that reads the cell, and its first that writes it. What an atomic
 * reads, and a volatile load, leaves no record: it counts with the first write, and not at all. */
static inline uint64_t n_first(const emu_thread_t *x, const cell_t *c, emu_kind_t kind) {
    uint64_t begin = x->launch->order.launch << CLOCK_AT;
    int is_first_write = writes(kind) && c->write < begin;
    int is_read = kind == EMU_LOAD || (kind == EMU_ATOMIC && is_first_write);
    return (uint64_t)is_first_write + (is_read && c->read < begin);
}

void emu_races_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, int is_shared, emu_kind_t kind, int line) {
    page_t *page = page_of(x->launch->races, a, nbytes);
    cell_t *c = &page->cells[a % PAGE >> page->shift], *end = c + (nbytes >> page->shift);
    uint64_t now = record_by(x, 0);
    for (; c < end; c++) {
        if (!is_shared)
            x->launch->touched_nbytes += n_first(x, c, kind) << page->shift;
        if (is_plain(x, c, is_shared, kind, now))
            continue;
        const char *what = is_shared ? shared_cell(x, c, kind) : global_cell(x, c, kind);
        if (what) {
            emu_complain(x, what, a, line);
            return;
        }
    }
}
