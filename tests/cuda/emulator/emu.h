/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/emu.h - runs kernels that ptx2c translated from PTX, on the host, with checks.
 *
 * Model. A kernel is a function of one thread. It runs until the thread ends or until it meets others: at a barrier, a
 * shuffle or a vote it returns EMU_MEETS, and is called again when all that have to come have come. Blocks of a grid,
 * and threads between two meetings, run one after the other in an order drawn from the launch's seed: what depends on
 * the order gives other results with another seed.
 *
 * Checked: every address lies in memory that the device may reach and is aligned; shared memory is written before it is
 * read, and two threads that touch the same byte have a barrier or a warp's meeting between them; all threads of a
 * block come to the same barrier, all lanes of a mask to the same shuffle. What is found is said once per place
 * (fc_finding); a launch with a bad address ends like one on a device: with an error. What was never written is
 * garbage, another one for each block.
 *
 * Cost: about 10 to 30 ns per memory access, a few ns per other instruction. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shared memory and parameters lie in windows of their own in the generic address space. */
#define EMU_SHARED_BASE 0x5a0d000000000000ull
#define EMU_PARAM_BASE 0x5a0e000000000000ull
#define EMU_SHARED_MASK 0xffffffull

enum { EMU_ENDS, EMU_MEETS };

typedef enum emu_kind {
    EMU_LOAD,
    EMU_STORE,
    EMU_ATOMIC,
    EMU_LOAD_RELAXED, /* volatile: no race with another thread, no order either */
    EMU_STORE_RELAXED
} emu_kind_t;

typedef enum emu_meeting {
    EMU_BARRIER, /* of the block; its result: whether somebody brings a value */
    EMU_WARP,    /* of the lanes in a mask, from here on */
    EMU_SHFL_BFLY,
    EMU_SHFL_IDX,
    EMU_BALLOT
} emu_meeting_t;

/* What a thread waits for. */
typedef struct emu_meet {
    emu_meeting_t kind;
    int site, line;
    uint32_t mask;
    uint32_t value;           /* what it brings along */
    uint32_t argument, clamp; /* of a shuffle: distance or lane, and PTX's c */
} emu_meet_t;

typedef struct emu_launch emu_launch_t;

typedef struct emu_thread {
    uint32_t tid, ntid, ctaid, nctaid; /* in x: grids and blocks have no other dimension */
    uint32_t lane, warp;
    emu_launch_t *launch;
    emu_meet_t meet;
    uint32_t result, result_pred;
} emu_thread_t;

typedef struct emu_kernel {
    const char *name;
    int (*run)(void *registers, emu_thread_t *x);
    size_t registers_nbytes, pc_offset;
    uint32_t params_nbytes, shared_nbytes, max_threads, n_params;
    const uint32_t *param_nbytes, *param_offset;
} emu_kernel_t;

typedef struct emu_module {
    uint64_t hash; /* ptx2c's hash_of the PTX text */
    const emu_kernel_t *const *kernels;
    uint32_t n_kernels;
    struct emu_module *next;
} emu_module_t;

/* Memory that the device reaches: addresses [lo, hi) are the bytes from `bytes` on. */
typedef struct emu_range {
    uint64_t lo, hi;
    unsigned char *bytes;
} emu_range_t;

typedef struct emu_config {
    uint32_t n_blocks, n_threads; /* of a block */
    uint64_t seed;                /* 0: in order */
    /* The range that holds address a; 0 where there is none. */
    int (*find)(uint64_t a, emu_range_t *out);
} emu_config_t;

/* [any-thread] Runs a grid to its end; the kernel's parameters lie in `params` as PTX lays them out. Not 0: the launch
 * failed (bad address, divergence). */
int emu_run(const emu_kernel_t *kernel, const emu_config_t *config, const void *params);
/* Before a thread ends that ran launches: what it keeps between them is freed. */
void emu_end_thread(void);

void emu_add_module(emu_module_t *module); /* before main; keeps the pointer */
const emu_module_t *emu_find_module(uint64_t hash);

/* traffic.c. Counting starts with the next launch; it costs about as much again as running. What is printed is a line
 * per kernel, of all its launches: "traffic KERNEL requests moved least arrays array-sectors array-bytes". */
void emu_traffic_count(int is_wanted);
void emu_traffic_print(FILE *out);

/* n > 0 of `each` > 0 bytes: never NULL. */
static inline void *emu_zeros(size_t n, size_t each) {
    void *p = calloc(n, each);
    if (p == NULL)
        abort();
    return p;
}

/* fakecuda/calls.c: prints a line and counts it. */
void fc_finding(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- what translated kernels call -------------------------------------------------------------------------------- */

unsigned char *emu_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, emu_kind_t kind, int line);
const unsigned char *emu_param(const emu_thread_t *x, uint64_t a, uint32_t nbytes, int line);
/* Adds the value, or its bits. */
uint32_t emu_atom32(emu_thread_t *x, uint64_t a, int adds, uint32_t value, int line);
uint64_t emu_atom64(emu_thread_t *x, uint64_t a, int adds, uint64_t value, int line);

#define EMU_GET_PUT(bits)                                                                                              \
    static inline uint##bits##_t emu_get##bits(const unsigned char *p) {                                               \
        uint##bits##_t v;                                                                                              \
        memcpy(&v, p, sizeof v);                                                                                       \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void emu_put##bits(unsigned char *p, uint##bits##_t v) { memcpy(p, &v, sizeof v); }
EMU_GET_PUT(8)
EMU_GET_PUT(16)
EMU_GET_PUT(32)
EMU_GET_PUT(64)

static inline float emu_f32(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, sizeof f);
    return f;
}
static inline double emu_f64(uint64_t bits) {
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* Results of arithmetic: every NaN is the device's own. */
static inline uint32_t emu_bits32(float f) {
    uint32_t bits;
    if (isnan(f))
        return 0x7fffffffu;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline uint64_t emu_bits64(double f) {
    uint64_t bits;
    if (isnan(f))
        return 0x7ff8000000000000ull;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline int emu_is_unordered(double a, double b) { return isnan(a) || isnan(b); }

/* A NaN loses against a number, and -0 is less than +0. */
static inline double emu_min(double a, double b) {
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}
static inline double emu_max(double a, double b) { return -emu_min(-a, -b); }

static inline float emu_from_f16(uint16_t bits) {
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31
                      ? (fraction ? NAN : INFINITY)
                      : ldexpf((float)(exponent ? 1024 + fraction : fraction), (int)(exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -value : value;
}

static inline uint64_t emu_div(uint64_t a, uint64_t b) { return b ? a / b : ~0ull; }
static inline uint64_t emu_rem(uint64_t a, uint64_t b) { return b ? a % b : a; }

static inline uint64_t emu_bfi(uint64_t a, uint64_t into, uint32_t at, uint32_t n) {
    at &= 255, n &= 255;
    if (at >= 64)
        return into;
    uint64_t mask = (n >= 64 ? UINT64_MAX : (1ull << n) - 1) << at;
    return (into & ~mask) | (a << at & mask);
}
