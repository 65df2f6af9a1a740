/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/opcodes.c - runs the kernels of opcodes.cu through whatever libcuda.so.1 is there and compares
 * with plain C: on the test double this proves the translation, on a GPU it proves that the plain C is what the
 * hardware does.
 *
 *     opcodes OPCODES.ptx [SEED]
 *
 * Exit status: 0 all equal, 1 not, 77 no libcuda.so.1 or no device. */
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/cuda_driver.h"

enum { N_CASES = 8192, N_SHOWN = 3, SKIPPED = 77 };

static zf_cuda_driver_t cu;

static void must(int st, const char *what) {
    if (st == 0)
        return;
    printf("%s: CUDA error %d\n", what, st);
    exit(1);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}

/* Bits of a number of `width` bits that begins with ones or zeros and goes on with the other, give or take one: limits
 * of every smaller type, and their neighbours. */
static uint64_t edge(uint32_t width) {
    uint64_t all = width < 64 ? (1ull << width) - 1 : UINT64_MAX, low = (1ull << draw() % width) - 1;
    return ((draw() & 1 ? low : all - low) + draw() % 3 - 1) & all;
}

/* A float of any type: 0 or an edge below an exponent: the least, the largest, that of Inf and NaN, 1's and those
 * around it, where integers and narrower types end. */
static uint64_t special_float(uint32_t exponent_bits, uint32_t fraction_bits) {
    uint64_t most = (1ull << exponent_bits) - 1, away = draw() % 160;
    const uint64_t exponents[] = {
        0, 1, most - 1, most, (most / 2 + away) & most, (most / 2 - away) & most, draw() & most, most / 2};
    uint64_t fraction = draw() & 1 ? 0 : edge(fraction_bits);
    return (draw() & 1) << (exponent_bits + fraction_bits) | exponents[draw() % 8] << fraction_bits | fraction;
}

/* Half of the operands are special, the rest random bits; of those half are near 1, so that sums round. */
static uint64_t operand(rf_kind_t kind) {
    uint64_t r = draw();
    int is_special = draw() & 1, is_near = draw() & 1;
    if (kind == RF_INT)
        return is_special ? edge(is_near ? 64 : 32) : is_near ? r & 63 : r;
    if (is_special)
        return kind == RF_F32 ? special_float(8, 23) : special_float(11, 52);
    if (!is_near)
        return r;
    return kind == RF_F32 ? (r & 0x807fffff) | (110 + draw() % 32) << 23
                          : (r & 0x800fffffffffffff) | (990 + draw() % 64) << 52;
}

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

static void *module;
static zf_cuda_address_t device_in, device_out;
static uint64_t in[N_CASES * RF_N_WORDS], out[N_CASES];

static void run(const char *name, uint32_t n) {
    void *f, *params[] = {&device_in, &device_out, &n};
    must(cu.ModuleGetFunction(&f, module, name), name);
    must(cu.MemcpyHtoDAsync_v2(device_in, in, sizeof in[0] * RF_N_WORDS * n, NULL), "copy up");
    must(cu.LaunchKernel(f, (n + RF_BLOCK - 1) / RF_BLOCK, 1, 1, RF_BLOCK, 1, 1, 0, NULL, params, NULL), name);
    must(cu.MemcpyDtoHAsync_v2(out, device_out, sizeof out[0] * n, NULL), name);
    must(cu.StreamSynchronize(NULL), name);
}

static int is_nan(rf_kind_t kind, uint64_t bits) {
    return kind == RF_F32 ? (bits & 0x7fffffff) > 0x7f800000
                          : kind == RF_F64 && (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
}

static uint32_t check_row(const rf_row_t *row) {
    char name[80];
    uint32_t n_differ = 0;
    for (uint32_t i = 0; i < N_CASES; i++)
        for (uint32_t k = 0; k < 3; k++)
            in[RF_N_WORDS * i + k] = operand(row->operands[k]);
    snprintf(name, sizeof name, "op_%s", row->name);
    run(name, N_CASES);
    for (uint32_t i = 0; i < N_CASES; i++) {
        const uint64_t *a = in + RF_N_WORDS * i;
        uint64_t expected = row->expected(a);
        if (out[i] == expected || (is_nan(row->result, out[i]) && is_nan(row->result, expected)))
            continue;
        if (n_differ++ < N_SHOWN)
            printf("  %s(%#llx, %#llx, %#llx) = %#llx, expected %#llx\n", row->name, (unsigned long long)a[0],
                   (unsigned long long)a[1], (unsigned long long)a[2], (unsigned long long)out[i],
                   (unsigned long long)expected);
    }
    return n_differ;
}

static uint32_t check_together(const rf_together_t *row) {
    uint32_t n_differ = 0;
    for (uint32_t i = 0; i < RF_BLOCK * RF_N_WORDS; i++)
        in[i] = draw() >> (draw() % 48);
    run(row->name, RF_BLOCK);
    for (uint32_t t = 0; t < RF_BLOCK; t++) {
        uint64_t expected = row->expected(in, t);
        if (out[t] != expected && n_differ++ < N_SHOWN)
            printf("  %s, thread %u: %#llx, expected %#llx\n", row->name, t, (unsigned long long)out[t],
                   (unsigned long long)expected);
    }
    return n_differ;
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    static char text[4 << 20];
    if (f == NULL) {
        printf("%s: cannot be read\n", path);
        exit(2);
    }
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

int main(int argc, char **argv) {
    char name[256];
    int device;
    void *context;
    uint32_t n_bad = 0;
    if (argc < 2)
        return 2;
    state = argc > 2 ? strtoull(argv[2], NULL, 0) * 2 + 1 : 1;
    if (zf_cuda_driver_open(&cu, name, sizeof name) || cu.Init(0) || cu.DeviceGet(&device, 0)) {
        printf("skipped: no CUDA device\n");
        return SKIPPED;
    }
    must(cu.DeviceGetName(name, sizeof name, device), "name");
    must(cu.DevicePrimaryCtxRetain(&context, device), "context");
    must(cu.CtxSetCurrent(context), "context");
    must(cu.ModuleLoadData(&module, read_file(argv[1])), "module");
    must(cu.MemAlloc_v2(&device_in, sizeof in), "memory");
    must(cu.MemAlloc_v2(&device_out, sizeof out), "memory");
    for (uint32_t i = 0; i < rf_n_rows; i++)
        n_bad += check_row(&rf_rows[i]) != 0;
    for (uint32_t i = 0; i < rf_n_together; i++)
        n_bad += check_together(&rf_together[i]) != 0;
    must(cu.MemFree_v2(device_in), "free");
    must(cu.MemFree_v2(device_out), "free");
    must(cu.ModuleUnload(module), "unload");
    must(cu.DevicePrimaryCtxRelease_v2(device), "context");
    printf("%s: %u instructions of %u cases and %u kernels of threads together: %u differ from plain C\n", name,
           rf_n_rows, N_CASES, rf_n_together, n_bad);
    return n_bad != 0;
}
