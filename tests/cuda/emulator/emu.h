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
 * block come to the same barrier, all lanes of a mask to the same shuffle. What is found is printed once per place and
 * counted (emu_n_findings); a launch with a bad address ends like one on a device: with an error.
 *
 * Cost: about 20 to 50 ns per memory access, a few ns per other instruction. */
#ifndef EMU_H
#define EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
    EMU_LOAD_RELAXED, /* volatile, relaxed: no race with another thread, no order either */
    EMU_STORE_RELAXED,
    EMU_LOAD_ORDERED, /* acquire, release */
    EMU_STORE_ORDERED
} emu_kind_t;

typedef enum emu_meeting {
    EMU_BARRIER, /* of the block */
    EMU_BARRIER_AND,
    EMU_BARRIER_OR,
    EMU_BARRIER_POPC,
    EMU_WARP, /* of the lanes in a mask, from here on */
    EMU_SHFL_UP,
    EMU_SHFL_DOWN,
    EMU_SHFL_BFLY,
    EMU_SHFL_IDX,
    EMU_VOTE_ALL,
    EMU_VOTE_ANY,
    EMU_VOTE_UNI,
    EMU_VOTE_BALLOT
} emu_meeting_t;

typedef enum emu_atom { EMU_ATOM_ADD, EMU_ATOM_OR, EMU_ATOM_MAX } emu_atom_t;

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
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t lane, warp, index; /* index: of the thread in its block */
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

/* A constant or a global variable of a module. */
typedef struct emu_variable {
    const char *name;
    void *bytes;
    uint64_t nbytes;
} emu_variable_t;

typedef struct emu_module {
    const char *name;
    uint64_t hash; /* ptx2c's hash_of the PTX text */
    const emu_kernel_t *kernels;
    uint32_t n_kernels;
    const emu_variable_t *variables; /* ends with a NULL name */
} emu_module_t;

/* Memory that the device reaches: addresses [lo, hi) are the bytes from `bytes` on. */
typedef struct emu_range {
    uint64_t lo, hi;
    unsigned char *bytes;
} emu_range_t;

typedef struct emu_config {
    uint32_t grid[3], block[3], dynamic_nbytes;
    uint64_t seed; /* 0: in order */
    /* The range that holds address a; 0 where there is none. */
    int (*find)(uint64_t a, emu_range_t *out);
} emu_config_t;

/* [any-thread] Runs a grid to its end; the kernel's parameters lie in `params` as PTX lays them out. Not 0: the launch
 * failed (bad address, divergence). */
int emu_run(const emu_kernel_t *kernel, const emu_config_t *config, const void *params);
/* Before a thread ends that ran launches: what it keeps between them is freed. */
void emu_end_thread(void);

void emu_add_module(const emu_module_t *module); /* before main; keeps the pointer */
const emu_module_t *emu_find_module(uint64_t hash);
const emu_module_t *emu_module_at(uint32_t i); /* NULL past the last */

/* Prints a line "emulator: ..." and counts it. */
void emu_finding(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t emu_n_findings(void);

/* Traffic per place of a kernel: see traffic.h. */

/* ---- what translated kernels call ---------------------------------------------------------------------------------
 */

unsigned char *emu_access(emu_thread_t *x, uint64_t a, uint32_t nbytes, emu_kind_t kind, int line);
const unsigned char *emu_param(const emu_thread_t *x, uint64_t a, uint32_t nbytes, int line);
uint32_t emu_atom32(emu_thread_t *x, uint64_t a, emu_atom_t op, uint32_t value, int line);
uint64_t emu_atom64(emu_thread_t *x, uint64_t a, emu_atom_t op, uint64_t value, int line);
void emu_trap(emu_thread_t *x, int line);
void emu_unwritten(emu_thread_t *x, int line);

float emu_from_f16(uint16_t bits);
uint32_t emu_prmt(uint32_t a, uint32_t b, uint32_t selector);

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
static inline double emu_min_f64(double a, double b) {
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}
static inline double emu_max_f64(double a, double b) {
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    return a > b || (a == b && !signbit(a)) ? a : b;
}
static inline float emu_min_f32(float a, float b) { return (float)emu_min_f64(a, b); }
static inline float emu_max_f32(float a, float b) { return (float)emu_max_f64(a, b); }

static inline uint64_t emu_div_u64(uint64_t a, uint64_t b) { return b ? a / b : ~0ull; }
static inline uint64_t emu_rem_u64(uint64_t a, uint64_t b) { return b ? a % b : a; }
static inline int64_t emu_div_s64(int64_t a, int64_t b) {
    return b == 0 ? -1 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static inline int64_t emu_rem_s64(int64_t a, int64_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }

#define EMU_BIT_FIELDS(bits)                                                                                           \
    static inline uint##bits##_t emu_mask_u##bits(uint32_t n) {                                                        \
        return n >= bits ? (uint##bits##_t) ~(uint##bits##_t)0 : (uint##bits##_t)(((uint##bits##_t)1 << n) - 1);       \
    }                                                                                                                  \
    static inline uint##bits##_t emu_bfe_u##bits(uint##bits##_t a, uint32_t at, uint32_t n) {                          \
        at &= 255, n &= 255;                                                                                           \
        return at >= bits ? 0 : (a >> at) & emu_mask_u##bits(n);                                                       \
    }                                                                                                                  \
    static inline int##bits##_t emu_bfe_s##bits(int##bits##_t a, uint32_t at, uint32_t n) {                            \
        at &= 255, n &= 255;                                                                                           \
        if (n == 0)                                                                                                    \
            return 0;                                                                                                  \
        uint32_t sign_at = at + n - 1 < bits - 1 ? at + n - 1 : bits - 1;                                              \
        uint##bits##_t sign = (uint##bits##_t)a >> sign_at & 1 ? (uint##bits##_t) ~(uint##bits##_t)0 : 0;              \
        uint##bits##_t low = at >= bits ? sign : (uint##bits##_t)a >> at;                                              \
        uint32_t kept = at >= bits ? 0 : n < bits - at ? n : bits - at;                                                \
        return (int##bits##_t)((low & emu_mask_u##bits(kept)) | (sign & (uint##bits##_t) ~emu_mask_u##bits(kept)));    \
    }                                                                                                                  \
    static inline uint##bits##_t emu_bfi_u##bits(uint##bits##_t a, uint##bits##_t into, uint32_t at, uint32_t n) {     \
        at &= 255, n &= 255;                                                                                           \
        if (at >= bits)                                                                                                \
            return into;                                                                                               \
        uint##bits##_t mask = (uint##bits##_t)(emu_mask_u##bits(n) << at);                                             \
        return (into & (uint##bits##_t) ~mask) | ((uint##bits##_t)(a << at) & mask);                                   \
    }
EMU_BIT_FIELDS(32)
EMU_BIT_FIELDS(64)

static inline uint32_t emu_popc_32(uint32_t a) { return (uint32_t)__builtin_popcount(a); }
static inline uint32_t emu_popc_64(uint64_t a) { return (uint32_t)__builtin_popcountll(a); }
static inline uint32_t emu_clz_32(uint32_t a) { return a ? (uint32_t)__builtin_clz(a) : 32; }
static inline uint32_t emu_clz_64(uint64_t a) { return a ? (uint32_t)__builtin_clzll(a) : 64; }

#endif
