/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/launch.c - runs the threads of a grid and brings together those that meet. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { READY, WAITING, ENDED };

/* One block as it runs. */
typedef struct block {
    emu_launch_t *launch;
    emu_thread_t *threads;
    unsigned char *registers;
    uint8_t *state;
    uint32_t *order;
    uint32_t n, n_ended, n_in_warps; /* threads that wait for lanes of their warp */
} block_t;

/* ---- modules and findings ---------------------------------------------------------------------------------------- */

static emu_module_t *modules;

void emu_add_module(emu_module_t *module) {
    module->next = modules;
    modules = module;
}

const emu_module_t *emu_find_module(uint64_t hash) {
    const emu_module_t *module = modules;
    while (module && module->hash != hash)
        module = module->next;
    return module;
}

void emu_complain(emu_thread_t *x, const char *what, uint64_t a, int line) {
    static const char *kernels[64];
    static int lines[64];
    static uint32_t n_places;
    const char *kernel = x->launch->kernel->name;
    uint32_t n = __atomic_load_n(&n_places, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < 64; i++)
        if (kernels[i] == kernel && lines[i] == line)
            return;
    if (n < 64) {
        kernels[n] = kernel, lines[n] = line;
        __atomic_store_n(&n_places, n + 1, __ATOMIC_RELAXED);
    }
    fc_finding("%s, PTX line %d: %s; thread %u of block %u, address %#llx, seed %llu", kernel, line, what, x->tid,
               x->ctaid, (unsigned long long)a, (unsigned long long)x->launch->config->seed);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static uint32_t draw(emu_launch_t *l, uint32_t below) {
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return (uint32_t)((l->random >> 32) * below >> 32);
}

static void shuffle(emu_launch_t *l, uint32_t *order, uint32_t n) {
    if (l->config->seed == 0)
        return;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = draw(l, i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

/* ---- meetings of a warp ------------------------------------------------------------------------------------------ */

/* The lane that x takes its value from; *out_in_range as the shuffle's predicate. */
static uint32_t source_lane(const emu_thread_t *x, uint32_t *out_in_range) {
    uint32_t b = x->meet.argument & 31, clamp = x->meet.clamp & 31, segment = x->meet.clamp >> 8 & 31;
    uint32_t least = x->lane & segment, most = least | (clamp & ~segment);
    uint32_t lane = x->meet.kind == EMU_SHFL_BFLY ? x->lane ^ b : least | (b & ~segment);
    *out_in_range = lane <= most;
    return *out_in_range ? lane : x->lane;
}

/* Gives every lane of `mask` its result. lanes[i] is lane i's thread or NULL. */
static void exchange(emu_thread_t *lanes[EMU_WARP_SIZE], uint32_t mask) {
    emu_thread_t *first = lanes[__builtin_ctz(mask)];
    emu_meeting_t kind = first->meet.kind;
    uint32_t ballot = 0;
    for (uint32_t i = 0; i < EMU_WARP_SIZE; i++)
        if (mask >> i & 1)
            ballot |= (uint32_t)(lanes[i]->meet.value != 0) << i;
    for (uint32_t i = 0; i < EMU_WARP_SIZE; i++) {
        if (!(mask >> i & 1))
            continue;
        emu_thread_t *x = lanes[i];
        if (kind == EMU_SHFL_BFLY || kind == EMU_SHFL_IDX) {
            uint32_t from = source_lane(x, &x->result_pred);
            if (!(mask >> from & 1))
                emu_complain(x, "shuffle from a lane outside the mask", from, x->meet.line);
            x->result = mask >> from & 1 ? lanes[from]->meet.value : 0xdeadbeefu;
        } else
            x->result = ballot;
    }
}

/* Lets go on the lanes of a warp that have all come; 1 where there were some. */
static int meet_in_warp(block_t *b, uint32_t warp) {
    emu_thread_t *lanes[EMU_WARP_SIZE] = {NULL};
    uint32_t all = 0, start = warp * EMU_WARP_SIZE;
    for (uint32_t i = 0; i < EMU_WARP_SIZE && start + i < b->n; i++) {
        all |= 1u << i;
        if (b->state[start + i] != WAITING || b->threads[start + i].meet.kind < EMU_WARP)
            continue;
        lanes[i] = &b->threads[start + i];
    }
    for (uint32_t i = 0; i < EMU_WARP_SIZE; i++) {
        if (lanes[i] == NULL)
            continue;
        uint32_t mask = lanes[i]->meet.mask & all, here = 0;
        for (uint32_t j = 0; j < EMU_WARP_SIZE; j++)
            if (lanes[j] && lanes[j]->meet.site == lanes[i]->meet.site && lanes[j]->meet.mask == lanes[i]->meet.mask)
                here |= 1u << j;
        if (!(mask >> i & 1))
            emu_complain(lanes[i], "the lane is not in its own mask", mask, lanes[i]->meet.line);
        if (mask == 0 || (here & mask) != mask)
            continue;
        exchange(lanes, mask);
        for (uint32_t j = 0; j < EMU_WARP_SIZE; j++)
            if (mask >> j & 1)
                b->state[start + j] = READY;
        b->n_in_warps -= (uint32_t)__builtin_popcount(mask);
        if (mask == all)
            emu_races_warp(b->launch, warp);
        return 1;
    }
    return 0;
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static int is_at_barrier(const block_t *b, uint32_t t) {
    return b->state[t] == WAITING && b->threads[t].meet.kind == EMU_BARRIER;
}

/* Lets the block go on where every thread that has not ended is at a barrier; 1 where it did. */
static int meet_in_block(block_t *b) {
    uint32_t is_any = 0, n_here = 0;
    emu_thread_t *first = NULL;
    for (uint32_t t = 0; t < b->n; t++) {
        if (b->state[t] == ENDED)
            continue;
        if (!is_at_barrier(b, t))
            return 0;
        if (first == NULL)
            first = &b->threads[t];
        if (b->threads[t].meet.site != first->meet.site)
            emu_complain(&b->threads[t], "threads of a block wait at different barriers", 0, b->threads[t].meet.line);
        is_any |= b->threads[t].meet.value != 0;
        n_here++;
    }
    if (first == NULL)
        return 0;
    if (n_here < b->n)
        emu_complain(first, "a barrier that some threads of the block never reach", 0, first->meet.line);
    for (uint32_t t = 0; t < b->n; t++) {
        b->threads[t].result = is_any;
        b->state[t] = b->state[t] == ENDED ? ENDED : READY;
    }
    emu_races_barrier(b->launch);
    return 1;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void start_block(block_t *b, uint32_t number) {
    emu_launch_t *l = b->launch;
    size_t each = l->kernel->registers_nbytes;
    b->n_ended = b->n_in_warps = 0;
    memset(l->shared, (int)draw(l, 255) + 1, l->kernel->shared_nbytes);
    emu_races_new_block(l);
    memset(b->registers, (int)draw(l, 255) + 1, b->n * each);
    for (uint32_t t = 0; t < b->n; t++) {
        b->threads[t] = (emu_thread_t){.tid = t,
                                       .ntid = b->n,
                                       .ctaid = number,
                                       .nctaid = l->config->n_blocks,
                                       .lane = t % EMU_WARP_SIZE,
                                       .warp = t / EMU_WARP_SIZE,
                                       .launch = l};
        memset(b->registers + t * each + l->kernel->pc_offset, 0, each - l->kernel->pc_offset);
        b->state[t] = READY;
        b->order[t] = t;
    }
}

/* Every thread that can goes on to its next meeting or its end; 1 where one did. */
static int run_ready(block_t *b) {
    int moved = 0;
    shuffle(b->launch, b->order, b->n);
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t t = b->order[i];
        if (b->state[t] != READY)
            continue;
        moved = 1;
        int outcome = b->launch->kernel->run(b->registers + t * b->launch->kernel->registers_nbytes, &b->threads[t]);
        b->state[t] = outcome == EMU_ENDS ? ENDED : WAITING;
        b->n_ended += outcome == EMU_ENDS;
        b->n_in_warps += outcome != EMU_ENDS && b->threads[t].meet.kind >= EMU_WARP;
    }
    return moved;
}

static void report_stuck(block_t *b) {
    for (uint32_t t = 0; t < b->n; t++)
        if (b->state[t] == WAITING) {
            emu_complain(&b->threads[t], "threads wait here for others that never come", b->threads[t].meet.mask,
                         b->threads[t].meet.line);
            break;
        }
    b->launch->has_failed = 1;
}

static void run_block(block_t *b, uint32_t number) {
    start_block(b, number);
    while (b->n_ended < b->n && !b->launch->has_failed) {
        int moved = run_ready(b);
        for (uint32_t w = 0; w * EMU_WARP_SIZE < b->n && b->n_in_warps; w++)
            while (meet_in_warp(b, w))
                moved = 1;
        moved |= meet_in_block(b);
        if (!moved)
            report_stuck(b);
    }
    emu_traffic_end_block(b->launch->traffic);
}

static void run_blocks(emu_launch_t *l) {
    uint32_t n_blocks = l->config->n_blocks, *order = emu_zeros(n_blocks, sizeof *order);
    block_t b = {.launch = l, .n = l->config->n_threads};
    b.threads = emu_zeros(b.n, sizeof *b.threads);
    b.registers = emu_zeros(b.n, l->kernel->registers_nbytes);
    b.state = emu_zeros(b.n, 1);
    b.order = emu_zeros(b.n, sizeof *b.order);
    for (uint32_t i = 0; i < n_blocks; i++)
        order[i] = i;
    shuffle(l, order, n_blocks);
    for (uint32_t i = 0; i < n_blocks && !l->has_failed; i++)
        run_block(&b, order[i]);
    free(b.order);
    free(b.state);
    free(b.registers);
    free(b.threads);
    free(order);
}

int emu_run(const emu_kernel_t *kernel, const emu_config_t *config, const void *params) {
    emu_launch_t *l = emu_zeros(1, sizeof *l);
    l->kernel = kernel;
    l->config = config;
    l->params = params;
    l->shared = emu_zeros(kernel->shared_nbytes + 1, 1);
    l->traffic = emu_traffic_start(kernel);
    l->is_watched = emu_tsan_is_there();
    emu_races_begin(l);
    l->random = config->seed * 0x9e3779b97f4a7c15ull | 1;
    run_blocks(l);
    int failed = l->has_failed;
    emu_traffic_finish(l->traffic, l->touched_nbytes);
    free(l->shared);
    free(l);
    return failed;
}
