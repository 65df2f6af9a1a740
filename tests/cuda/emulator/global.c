/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/global.c - races of one launch on global memory.
 *
 * Model. Every byte that a launch touches remembers its last write and its last read. Two threads that touch the same
 * byte, one of them writing without an atomic, need an order between them: a barrier of their block, a meeting of all
 * lanes of their warp, or the end of the grid. Blocks have none, whatever order they are run in here.
 *
 * Cost. Bytes are noted in lines of 32, found by a hash table of the thread that runs the launch; nothing is cleared
 * between launches, for a slot says of which launch it is. */
#include "internal.h"

#include <stdlib.h>

enum { LINE = 32, FIRST_SLOTS = 256 };

/* Whose access a byte remembers. All zero: nobody's. */
typedef struct access {
    uint32_t block;          /* + 1 */
    uint16_t thread;         /* of the block */
    uint8_t warp, is_atomic; /* several readers of one block: see is_many */
    uint32_t block_epoch : 31, is_many : 1;
    uint32_t warp_epoch : 31, is_many_warps : 1;
} access_t;

typedef struct line {
    access_t write[LINE], read[LINE];
} line_t;

typedef struct slot {
    uint64_t key; /* address / LINE */
    uint32_t launch, line;
} slot_t;

/* Of one thread of the double: launches of a queue come one after another. */
typedef struct table {
    slot_t *slots;
    line_t *lines;
    uint32_t n_slots, n_lines, lines_size, launch;
} table_t;

static __thread table_t table;

void emu_end_thread(void) {
    free(table.slots);
    free(table.lines);
    table = (table_t){0};
}

void emu_global_begin(void) {
    if (table.n_slots > FIRST_SLOTS << 8 || table.launch == UINT32_MAX)
        emu_end_thread();
    table.launch++;
    table.n_lines = 0;
}

static void *need(void *p) {
    if (p == NULL)
        abort();
    return p;
}

static slot_t *place_of(uint64_t key) {
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 40);
    for (;; i++) {
        slot_t *slot = &table.slots[i & (table.n_slots - 1)];
        if (slot->launch != table.launch || slot->key == key)
            return slot;
    }
}

static void grow(void) {
    slot_t *old = table.slots;
    uint32_t n = table.n_slots;
    table.n_slots = n ? 4 * n : FIRST_SLOTS;
    table.slots = need(calloc(table.n_slots, sizeof *table.slots));
    for (uint32_t i = 0; i < n; i++)
        if (old[i].launch == table.launch)
            *place_of(old[i].key) = old[i];
    free(old);
}

static line_t *line_at(uint64_t key) {
    if (2 * table.n_lines >= table.n_slots)
        grow();
    slot_t *slot = place_of(key);
    if (slot->launch != table.launch) {
        if (table.n_lines == table.lines_size) {
            table.lines_size = table.lines_size ? 2 * table.lines_size : FIRST_SLOTS;
            table.lines = need(realloc(table.lines, table.lines_size * sizeof *table.lines));
        }
        *slot = (slot_t){key, table.launch, table.n_lines++};
        memset(&table.lines[slot->line], 0, sizeof table.lines[slot->line]);
    }
    return &table.lines[slot->line];
}

/* `earlier` may overlap with what x does now. */
static int is_concurrent(const emu_thread_t *x, uint32_t block, const access_t *earlier) {
    const emu_launch_t *l = x->launch;
    if (earlier->block != block)
        return earlier->block != 0;
    if (earlier->block_epoch < l->block_epoch || (earlier->thread == x->index && !earlier->is_many))
        return 0;
    return earlier->is_many_warps || earlier->warp != x->warp || earlier->warp_epoch >= l->warp_epoch[x->warp];
}

static access_t access_by(const emu_thread_t *x, uint32_t block, int is_atomic) {
    return (access_t){.block = block,
                      .thread = (uint16_t)x->index,
                      .warp = (uint8_t)x->warp,
                      .is_atomic = (uint8_t)is_atomic,
                      .block_epoch = x->launch->block_epoch & 0x7fffffff,
                      .warp_epoch = x->launch->warp_epoch[x->warp] & 0x7fffffff};
}

/* One record stands for all reads since the last order; of several blocks' one that x has no order with is kept. */
static void note_read(const emu_thread_t *x, uint32_t block, access_t *read) {
    access_t now = access_by(x, block, 0);
    if (read->block == block && is_concurrent(x, block, read)) {
        now.is_many = 1;
        now.is_many_warps = read->is_many_warps || read->warp != now.warp;
    } else if (read->block && read->block != block) {
        now.block = UINT32_MAX; /* of no single block: concurrent with all */
    }
    *read = now;
}

void emu_global_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, emu_kind_t kind, int pc_line) {
    const uint32_t *n = x->nctaid, *at = x->ctaid, block = (at[2] * n[1] + at[1]) * n[0] + at[0] + 1;
    int is_atomic = kind == EMU_ATOMIC, is_strong_load = kind == EMU_LOAD_RELAXED || kind == EMU_LOAD_ORDERED;
    int writes = is_atomic || kind == EMU_STORE || kind == EMU_STORE_RELAXED || kind == EMU_STORE_ORDERED;
    if (x->launch->n_threads == 1 && n[0] * n[1] * n[2] == 1)
        return;
    line_t *line = line_at(a / LINE); /* accesses are aligned and no larger than a line */
    for (uint32_t i = a % LINE; i < a % LINE + nbytes; i++) {
        access_t *write = &line->write[i], *read = &line->read[i];
        const char *what = NULL;
        if (is_concurrent(x, block, write) && !(write->is_atomic && (is_atomic || is_strong_load)))
            what = writes ? "global memory is written by two threads of a launch without an order between them"
                          : "global memory is read and was written by another thread of the launch without an order";
        else if (writes && !is_atomic && is_concurrent(x, block, read))
            what = "global memory is written and was read by another thread of the launch without an order";
        if (what) {
            emu_complain(x, what, a, pc_line);
            return;
        }
        if (writes)
            *write = access_by(x, block, is_atomic);
        else if (!is_strong_load)
            note_read(x, block, read);
    }
}
