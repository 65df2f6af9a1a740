/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/traffic.c - how well a kernel's accesses coalesce.
 *
 * A warp's request is what its lanes ask for at one place of the kernel, at their n-th time there. It moves 32-byte
 * sectors. Where its lanes ask for different addresses, of an array, the ratio of different bytes asked for to bytes
 * moved is the kernel's coalescing; what all lanes ask for alike, or one alone, is read from a cache as a rule.
 *
 * The least that a launch has to move is each byte that it reads once, and each that it writes once: race.c knows. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_SECTORS = 64, TABLE_SIZE = 1 << 15, MAX_KERNELS = 128, N_LINES = 512 };

/* Of a kernel's launches. */
typedef struct totals {
    uint64_t n_requests, moved, least; /* moved: bytes */
    uint64_t n_arrays, n_array_sectors,
        array_used; /* requests for different addresses, their sectors, different bytes */
} totals_t;

typedef struct request {
    uint64_t key;                         /* warp, line, how often the lane has been there; 0: free */
    uint64_t sectors[MAX_SECTORS], first; /* first: address */
    uint32_t masks[MAX_SECTORS];          /* of the bytes of a sector that were asked for */
    int is_array;                         /* lanes ask for different addresses */
    uint32_t n_sectors;
} request_t;

struct emu_traffic {
    const emu_kernel_t *kernel;
    totals_t totals;
    request_t *table;
    uint32_t n_used, *used;
    uint32_t *visits; /* [threads][lines of the kernel, by hash] */
};

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static struct {
    const char *kernel;
    totals_t totals;
} results[MAX_KERNELS];
static uint32_t n_results;
static int is_wanted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void emu_traffic_count(int wanted) { is_wanted = wanted; }

emu_traffic_t *emu_traffic_start(const emu_kernel_t *kernel) {
    if (!is_wanted)
        return NULL;
    emu_traffic_t *t = emu_zeros(1, sizeof *t);
    t->kernel = kernel;
    t->table = emu_zeros(TABLE_SIZE, sizeof *t->table);
    t->used = emu_zeros(TABLE_SIZE, sizeof *t->used);
    t->visits = emu_zeros((size_t)EMU_MAX_THREADS * N_LINES, sizeof *t->visits);
    return t;
}

/* Counts what was asked for so far and forgets it: lanes that are this far apart were no request together. */
static void flush(emu_traffic_t *t) {
    totals_t *totals = &t->totals;
    for (uint32_t i = 0; i < t->n_used; i++) {
        request_t *q = &t->table[t->used[i]];
        totals->n_requests++;
        totals->moved += 32ull * q->n_sectors;
        totals->n_arrays += (uint64_t)q->is_array;
        totals->n_array_sectors += q->is_array ? q->n_sectors : 0;
        for (uint32_t k = 0; k < q->n_sectors && q->is_array; k++)
            totals->array_used += (uint64_t)__builtin_popcount(q->masks[k]);
        memset(q, 0, sizeof *q);
    }
    t->n_used = 0;
}

static request_t *request_of(emu_traffic_t *t, uint64_t key) {
    uint32_t h = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 49);
    while (t->table[h].key != 0 && t->table[h].key != key)
        h = (h + 1) % TABLE_SIZE;
    if (t->table[h].key == 0) {
        t->table[h].key = key;
        t->used[t->n_used++] = h;
    }
    return &t->table[h];
}

static void add_sectors(request_t *q, uint64_t a, uint32_t nbytes) {
    for (uint64_t s = a / 32; s <= (a + nbytes - 1) / 32; s++) {
        uint32_t i = 0;
        while (i < q->n_sectors && q->sectors[i] != s)
            i++;
        if (i == q->n_sectors && i < MAX_SECTORS)
            q->sectors[q->n_sectors++] = s;
        for (uint64_t b = a > s * 32 ? a : s * 32; b < a + nbytes && b < s * 32 + 32 && i < MAX_SECTORS; b++)
            q->masks[i] |= 1u << b % 32;
    }
}

void emu_traffic_add(emu_traffic_t *t, const emu_thread_t *x, uint64_t a, uint32_t nbytes, int line) {
    uint32_t visit = ++t->visits[(size_t)x->tid * N_LINES + (uint32_t)line % N_LINES];
    uint64_t key = (uint64_t)line << 40 | (uint64_t)(x->warp + 1) << 32 | visit;
    if (t->n_used > TABLE_SIZE / 2 && t->table[0].key != key)
        flush(t);
    request_t *q = request_of(t, key);
    q->is_array |= q->n_sectors != 0 && q->first != a;
    q->first = a;
    add_sectors(q, a, nbytes);
}

void emu_traffic_end_block(emu_traffic_t *t) {
    if (t == NULL)
        return;
    flush(t);
    memset(t->visits, 0, (size_t)EMU_MAX_THREADS * N_LINES * sizeof *t->visits);
}

static void add_totals(totals_t *to, const totals_t *from) {
    to->n_requests += from->n_requests;
    to->moved += from->moved;
    to->least += from->least;
    to->n_arrays += from->n_arrays;
    to->n_array_sectors += from->n_array_sectors;
    to->array_used += from->array_used;
}

void emu_traffic_finish(emu_traffic_t *t, uint64_t least) {
    if (t == NULL)
        return;
    t->totals.least = least;
    pthread_mutex_lock(&lock);
    uint32_t i = 0;
    while (i < n_results && strcmp(results[i].kernel, t->kernel->name) != 0)
        i++;
    if (i < MAX_KERNELS) {
        n_results = i == n_results ? i + 1 : n_results;
        results[i].kernel = t->kernel->name;
        add_totals(&results[i].totals, &t->totals);
    }
    pthread_mutex_unlock(&lock);
    free(t->visits);
    free(t->used);
    free(t->table);
    free(t);
}

void emu_traffic_print(FILE *out) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n_results; i++) {
        const totals_t *t = &results[i].totals;
        fprintf(out, "traffic %s %llu %llu %llu %llu %llu %llu\n", results[i].kernel, (unsigned long long)t->n_requests,
                (unsigned long long)t->moved, (unsigned long long)t->least, (unsigned long long)t->n_arrays,
                (unsigned long long)t->n_array_sectors, (unsigned long long)t->array_used);
    }
    pthread_mutex_unlock(&lock);
}
