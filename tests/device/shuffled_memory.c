/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/shuffled_memory.c - memory of the shuffling backend (contract in shuffled_memory.h). */
#include "shuffled_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shuffled_memory {
    struct shuffled_memory *next;
    shuffled_kind_t kind;
    unsigned char *base;
    uint64_t nbytes;
} shuffled_memory_t;

_Noreturn void shuffled_fail(const char *what, const void *at, uint64_t nbytes) {
    fprintf(stderr, "shuffle: %s: %" PRIu64 " bytes at %p\n", what, nbytes, at);
    abort();
}

/* Zeroed, and never NULL. */
void *shuffled_allocate(size_t nbytes) {
    void *memory = calloc(1, nbytes);
    if (!memory)
        shuffled_fail("no memory", NULL, nbytes);
    return memory;
}

void shuffled_init(shuffled_t *shuffled) {
    *shuffled = (shuffled_t){0};
    pthread_mutex_init(&shuffled->lock, NULL);
}

static int overlap(const void *a, uint64_t a_nbytes, const void *b, uint64_t b_nbytes) {
    uintptr_t at = (uintptr_t)a, other = (uintptr_t)b;
    return a_nbytes && b_nbytes && at < other + b_nbytes && other < at + a_nbytes;
}

/* [lock held] The record that holds some of these bytes, or NULL. */
static shuffled_memory_t *find_memory(const shuffled_t *shuffled, const void *at, uint64_t nbytes) {
    shuffled_memory_t *memory = shuffled->first;
    while (memory && !overlap(memory->base, memory->nbytes, at, nbytes))
        memory = memory->next;
    return memory;
}

/* [lock held] */
static void check_device_side(const shuffled_t *shuffled, const void *raw, uint64_t nbytes, int may_be_hosts,
                              const char *what) {
    const unsigned char *at = raw;
    const shuffled_memory_t *memory = find_memory(shuffled, at, nbytes);
    if (nbytes == 0 || (!memory && may_be_hosts))
        return;
    if (!memory || memory->kind != SHUFFLED_DEVICE || at < memory->base || at + nbytes > memory->base + memory->nbytes)
        shuffled_fail(what, at, nbytes);
}

/* [lock held] */
static void check_host_side(const shuffled_t *shuffled, const void *at, uint64_t nbytes) {
    const shuffled_memory_t *memory = find_memory(shuffled, at, nbytes);
    if (memory && memory->kind != SHUFFLED_PINNED)
        shuffled_fail("the host's side of a copy is device memory", at, nbytes);
}

static void check_overlap(const zfi_op_t *op) {
    for (uint32_t i = 0; i < op->n_ranges; i++)
        for (uint32_t j = 0; j < i; j++)
            if (overlap(op->ranges[i].to, op->ranges[i].nbytes, op->ranges[j].to, op->ranges[j].nbytes))
                shuffled_fail("two ranges of one copy go to the same memory", op->ranges[i].to, op->ranges[i].nbytes);
}

void shuffled_check(shuffled_t *shuffled, const zfi_op_t *op) {
    check_overlap(op);
    pthread_mutex_lock(&shuffled->lock);
    for (uint32_t i = 0; i < op->n_ranges; i++) {
        const zfi_range_t *range = &op->ranges[i];
        int is_up = op->kind == ZFI_OP_UP;
        check_device_side(shuffled, is_up ? range->to : range->from, range->nbytes, !is_up,
                          "the device's side of a copy is not device memory");
        check_host_side(shuffled, is_up ? range->from : range->to, range->nbytes);
    }
    if (op->kind == ZFI_OP_FILL)
        check_device_side(shuffled, op->to, op->nbytes, 0, "a fill sets what is not device memory");
    pthread_mutex_unlock(&shuffled->lock);
}

void shuffled_add(shuffled_t *shuffled, shuffled_kind_t kind, void *base, uint64_t nbytes) {
    shuffled_memory_t *memory = shuffled_allocate(sizeof *memory);
    pthread_mutex_lock(&shuffled->lock);
    *memory = (shuffled_memory_t){shuffled->first, kind, base, nbytes};
    shuffled->first = memory;
    pthread_mutex_unlock(&shuffled->lock);
}

void shuffled_end(shuffled_t *shuffled, shuffled_kind_t kind, void *base, uint64_t nbytes, const char *what) {
    pthread_mutex_lock(&shuffled->lock);
    shuffled_memory_t *memory = find_memory(shuffled, base, nbytes);
    if (memory && memory->kind == SHUFFLED_RELEASED && kind == SHUFFLED_DEVICE)
        memory->kind = kind;
    if (!memory || memory->kind != kind || memory->base != base || memory->nbytes != nbytes)
        shuffled_fail(what, base, nbytes);
    memory->kind = SHUFFLED_FREED;
    if (kind == SHUFFLED_DEVICE)
        memset(base, SHUFFLED_POISON, nbytes);
    else
        *memory = (shuffled_memory_t){memory->next, SHUFFLED_FREED, NULL, 0};
    pthread_mutex_unlock(&shuffled->lock);
}

void shuffled_turn(shuffled_t *shuffled, const zfi_block_t *blocks, uint32_t n, shuffled_kind_t from,
                   shuffled_kind_t to) {
    pthread_mutex_lock(&shuffled->lock);
    for (uint32_t i = 0; i < n; i++) {
        shuffled_memory_t *memory = find_memory(shuffled, blocks[i].memory, blocks[i].nbytes);
        if (!memory || memory->kind != from || memory->base != blocks[i].memory || memory->nbytes != blocks[i].nbytes)
            shuffled_fail("release or resume of what is not there", blocks[i].memory, blocks[i].nbytes);
        for (uint64_t k = 0; k < memory->nbytes && from == SHUFFLED_RELEASED; k++)
            if (memory->base[k] != SHUFFLED_POISON)
                shuffled_fail("released device memory was written", memory->base, memory->nbytes);
        memory->kind = to;
        memset(memory->base, SHUFFLED_POISON, memory->nbytes);
    }
    pthread_mutex_unlock(&shuffled->lock);
}

void shuffled_free(shuffled_t *shuffled) {
    for (shuffled_memory_t *memory = shuffled->first, *next; memory; memory = next) {
        next = memory->next;
        if (memory->kind != SHUFFLED_FREED)
            shuffled_fail("the device is closed before its memory is freed or unpinned", memory->base, memory->nbytes);
        for (uint64_t i = 0; i < memory->nbytes; i++)
            if (memory->base[i] != SHUFFLED_POISON)
                shuffled_fail("freed device memory was written", memory->base, memory->nbytes);
        free(memory->base);
        free(memory);
    }
    pthread_mutex_destroy(&shuffled->lock);
}
