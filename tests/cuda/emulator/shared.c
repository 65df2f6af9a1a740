/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/shared.c - races on shared memory.
 *
 * Model. Every byte remembers its last writer and its last readers. Two accesses of different threads, one of them a
 * write, have to be ordered: by a barrier of the block between them, or, within a warp, by a meeting of all its lanes.
 * Threads run one after the other here, so the order that is seen says nothing; only barriers count. */
#include "internal.h"

#include <stdlib.h>

enum { NOBODY = 0, MANY = 0xffff }; /* else thread + 1 */

typedef struct access {
    uint16_t thread;
    uint16_t is_atomic;
    uint16_t warp; /* of all that `thread` stands for; MANY: several warps */
    uint32_t block_epoch, warp_epoch;
} access_t;

struct emu_shadow {
    uint32_t nbytes;
    struct {
        access_t write, read;
    } bytes[];
};

emu_shadow_t *emu_shadow_new(uint32_t nbytes) {
    emu_shadow_t *s = malloc(sizeof *s + nbytes * sizeof s->bytes[0]);
    if (s == NULL)
        abort();
    s->nbytes = nbytes;
    return s;
}

void emu_shadow_free(emu_shadow_t *s) { free(s); }

void emu_shadow_new_block(emu_shadow_t *s) { memset(s->bytes, 0, s->nbytes * sizeof s->bytes[0]); }

/* `earlier` may overlap with what x does now. */
static int is_concurrent(const emu_thread_t *x, const access_t *earlier) {
    const emu_launch_t *l = x->launch;
    if (earlier->thread == NOBODY || earlier->thread == x->index + 1 || earlier->block_epoch < l->block_epoch)
        return 0;
    return earlier->warp != x->warp || earlier->warp_epoch >= l->warp_epoch[x->warp];
}

static access_t access_by(const emu_thread_t *x, int is_atomic) {
    return (access_t){.thread = (uint16_t)(x->index + 1),
                      .is_atomic = (uint16_t)is_atomic,
                      .warp = (uint16_t)x->warp,
                      .block_epoch = x->launch->block_epoch,
                      .warp_epoch = x->launch->warp_epoch[x->warp]};
}

/* One record stands for all reads since the last barrier. */
static void note_read(const emu_thread_t *x, access_t *read) {
    access_t now = access_by(x, 0);
    if (is_concurrent(x, read)) {
        now.thread = MANY;
        if (read->warp != now.warp)
            now.warp = MANY;
    }
    *read = now;
}

void emu_shadow_access(emu_thread_t *x, uint32_t at, uint32_t nbytes, emu_kind_t kind, int line) {
    int is_atomic = kind == EMU_ATOMIC;
    int writes = is_atomic || kind == EMU_STORE || kind == EMU_STORE_RELAXED || kind == EMU_STORE_ORDERED;
    for (uint32_t i = at; i < at + nbytes; i++) {
        access_t *write = &x->launch->shadow->bytes[i].write, *read = &x->launch->shadow->bytes[i].read;
        const char *what = NULL;
        if (write->thread == NOBODY && (!writes || is_atomic))
            what = "shared memory is read before it is written";
        else if (is_concurrent(x, write) && !(is_atomic && write->is_atomic))
            what = writes ? "shared memory is written by two threads without a barrier between them"
                          : "shared memory is read and was written by another thread without a barrier since";
        else if (writes && is_concurrent(x, read))
            what = "shared memory is written and was read by another thread without a barrier since";
        if (what) {
            emu_complain(x, what, i, line);
            break;
        }
        if (writes)
            *write = access_by(x, is_atomic);
        else
            note_read(x, read);
    }
}
