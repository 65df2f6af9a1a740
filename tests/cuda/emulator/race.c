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
 * Cost. Cells are as large as a launch's first access to their page, in pages found by a hash table of the thread that
 * runs launches. Those of 16 bytes become smaller with the launch's first access to them that is. */
#include "internal.h"

#include <stdlib.h>

enum { IS_ATOMIC = 1, MANY_THREADS = 2, MANY_WARPS = 4, MANY_BLOCKS = 8, THREAD_AT = 4, CLOCK_AT = 14 };
enum { FIRST_SLOTS = 64, MOST_NBYTES = 1 << 24 };

typedef struct emu_cell {
    uint64_t write, read;
} cell_t;

/* Of one thread of the double: launches of a queue come one after another. */
struct emu_races {
    emu_page_t **slots; /* NULL: free */
    size_t n_slots, n_pages, nbytes;
    uint64_t clock;
};

static __thread emu_races_t races;

void emu_end_thread(void) {
    for (size_t i = 0; i < races.n_slots; i++) {
        if (races.slots[i])
            free(races.slots[i]->cells);
        free(races.slots[i]);
    }
    free(races.slots);
    races = (emu_races_t){.clock = races.clock};
}

void emu_races_begin(emu_launch_t *l) {
    if (races.nbytes > MOST_NBYTES)
        emu_end_thread();
    l->races = &races;
    l->order.launch = ++races.clock;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

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

/* ---- cells ------------------------------------------------------------------------------------------------------- */

/* Where the page is, or would be. */
static emu_page_t **slot_of(const emu_races_t *r, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15ull >> 32);
    for (;; i++) {
        emu_page_t **slot = &r->slots[i & (r->n_slots - 1)];
        if (*slot == NULL || (*slot)->key == key)
            return slot;
    }
}

static void grow(emu_races_t *r) {
    emu_page_t **old = r->slots;
    size_t n = r->n_slots;
    r->n_slots = n ? 4 * n : FIRST_SLOTS;
    r->slots = emu_zeros(r->n_slots, sizeof *r->slots);
    for (size_t i = 0; i < n; i++)
        if (old[i])
            *slot_of(r, old[i]->key) = old[i];
    free(old);
}

static cell_t *cells_of(const emu_page_t *page, uint32_t part) {
    return &page->cells[part * (EMU_PART >> page->least)];
}

/* Memory for cells of 1 << least bytes. */
static void widen(emu_races_t *r, emu_page_t *page, uint32_t least) {
    const size_t n = EMU_PAGE >> least;
    emu_page_t old = *page;
    page->cells = emu_zeros(n, sizeof *page->cells);
    page->least = least;
    r->nbytes += n * sizeof *page->cells;
    for (uint32_t i = 0; old.cells && i < EMU_PAGE / EMU_PART; i++)
        memcpy(cells_of(page, i), cells_of(&old, i), (EMU_PART >> old.shift[i]) * sizeof *page->cells);
    free(old.cells);
}

/* A part's cells become smaller, of 1 << shift bytes: each has the records of the one that it belonged to. */
static void cut(emu_races_t *r, emu_page_t *page, uint32_t part, uint32_t shift) {
    if (shift < page->least)
        widen(r, page, shift);
    cell_t *cells = cells_of(page, part);
    for (uint32_t i = EMU_PART >> shift; i-- > 0;)
        cells[i] = cells[i >> (page->shift[part] - shift)];
    page->shift[part] = (uint8_t)shift;
}

/* The page of an access, which is aligned and so within one part. It stays where it is to the launch's end. No record
 * of earlier launches counts: all cells begin as large as this launch's first access. */
emu_page_t *emu_races_page(emu_launch_t *l, uint64_t a, uint32_t nbytes) {
    emu_races_t *r = l->races;
    const uint32_t shift = (uint32_t)__builtin_ctz(nbytes);
    if (2 * r->n_pages >= r->n_slots)
        grow(r);
    emu_page_t **slot = slot_of(r, a / EMU_PAGE), *page = *slot;
    if (page == NULL) {
        r->n_pages++;
        *slot = page = emu_zeros(1, sizeof *page);
        page->key = a / EMU_PAGE;
        widen(r, page, shift);
    }
    if (page->launch != l->order.launch)
        memset(page->shift, (int)(shift > page->least ? shift : page->least), sizeof page->shift);
    page->launch = l->order.launch;
    return page;
}

static inline int writes(emu_kind_t kind) {
    return kind == EMU_ATOMIC || kind == EMU_STORE || kind == EMU_STORE_RELAXED;
}

/* ---- both memories ----------------------------------------------------------------------------------------------- */

static const char *global_cell(const emu_thread_t *x, cell_t *c, emu_kind_t kind) {
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

static const char *shared_cell(const emu_thread_t *x, cell_t *c, emu_kind_t kind) {
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

/* 0, 1 or 2: whether an access is the launch's first that reads the cell, and its first that writes it. What an atomic
 * reads, and a volatile load, leaves no record: it counts with the first write, and not at all. */
static uint64_t n_first(uint64_t begin, const cell_t *c, emu_kind_t kind) {
    int is_first_write = writes(kind) && c->write < begin;
    int is_read = kind == EMU_LOAD || (kind == EMU_ATOMIC && is_first_write);
    return (uint64_t)is_first_write + (is_read && c->read < begin);
}

/* Plain accesses to cells of which no write counts any more. `begin` is of the launch, or of shared memory's block. */
static inline int is_plain(const emu_thread_t *x, cell_t *c, int is_shared, emu_kind_t kind, uint64_t begin,
                           uint64_t now) {
    const uint64_t barrier = x->launch->order.barrier << CLOCK_AT;
    if (is_shared ? c->write < begin || c->write >= barrier : c->write >= begin)
        return 0;
    if (kind == EMU_STORE && c->read < begin)
        c->write = now;
    else if (kind != EMU_LOAD)
        return 0;
    else if (c->read < begin)
        c->read = now;
    else if (c->read != now && !(c->read & MANY_BLOCKS) && !(c->read & MANY_WARPS && c->read >= barrier))
        c->read = read_after(x, begin >> CLOCK_AT, c->read); /* else it stands for this thread, too */
    return 1;
}

static __attribute__((noinline)) void check_cells(emu_thread_t *x, cell_t *c, uint32_t n, int is_shared,
                                                  emu_kind_t kind, uint64_t a, int line) {
    emu_launch_t *l = x->launch;
    const uint64_t begin = (is_shared ? l->order.block : l->order.launch) << CLOCK_AT, now = record_by(x, 0);
    for (cell_t *end = c + n; c < end; c++) {
        if (is_plain(x, c, is_shared, kind, begin, now))
            continue;
        const char *what = is_shared ? shared_cell(x, c, kind) : global_cell(x, c, kind);
        if (what) {
            emu_complain(x, what, a, line);
            return;
        }
    }
}

void emu_races_access(emu_thread_t *x, const emu_place_t *place, uint64_t a, uint32_t nbytes, emu_kind_t kind,
                      int line) {
    emu_launch_t *l = x->launch;
    emu_page_t *page = place->page;
    const uint32_t part = (uint32_t)(a % EMU_PAGE / EMU_PART);
    if (nbytes >> page->shift[part] == 0)
        cut(l->races, page, part, (uint32_t)__builtin_ctz(nbytes));
    const int is_shared = place->is_shared;
    const uint32_t shift = page->shift[part], n = nbytes >> shift;
    const uint64_t begin = (is_shared ? l->order.block : l->order.launch) << CLOCK_AT;
    cell_t *c = cells_of(page, part) + (a % EMU_PART >> shift);
    if (l->traffic && !is_shared)
        for (uint32_t i = 0; i < n; i++)
            l->touched_nbytes += n_first(begin, &c[i], kind) << shift;
    if (n > 1 || !is_plain(x, c, is_shared, kind, begin, record_by(x, 0)))
        check_cells(x, c, n, is_shared, kind, a, line);
}
