/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/opcodes.c - runs the kernels of opcodes.cu through whatever libcuda.so.1 is there and compares
 * with plain C: on the test double this proves the translation, on a GPU it proves that the plain C is what the
 * hardware does.
 *
 *     opcodes OPCODES.ptx [SEED]
 *
 * Exit status: 0 all equal, 1 not, 77 no libcuda.so.1 or no device. */
#include "reference.h"

#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CASES = 8192, N_SHOWN = 3, SKIPPED = 77 };

static struct {
    CUresult (*init)(unsigned);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*device_name)(char *, int, CUdevice);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*free)(CUdeviceptr);
    CUresult (*up)(CUdeviceptr, const void *, size_t);
    CUresult (*down)(void *, CUdeviceptr, size_t);
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*unload)(CUmodule);
    CUresult (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                       void **, void **);
} cu;

static int open_driver(void) {
    const struct {
        const char *name;
        void *to;
    } names[] = {{"cuInit", &cu.init},
                 {"cuDeviceGet", &cu.device_get},
                 {"cuDeviceGetName", &cu.device_name},
                 {"cuDevicePrimaryCtxRetain", &cu.retain},
                 {"cuDevicePrimaryCtxRelease_v2", &cu.release},
                 {"cuCtxPushCurrent_v2", &cu.push},
                 {"cuCtxPopCurrent_v2", &cu.pop},
                 {"cuMemAlloc_v2", &cu.alloc},
                 {"cuMemFree_v2", &cu.free},
                 {"cuMemcpyHtoD_v2", &cu.up},
                 {"cuMemcpyDtoH_v2", &cu.down},
                 {"cuModuleLoadData", &cu.load},
                 {"cuModuleUnload", &cu.unload},
                 {"cuModuleGetFunction", &cu.function},
                 {"cuLaunchKernel", &cu.launch}};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("skipped: %s\n", dlerror());
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i].name);
        if (symbol == NULL) {
            printf("skipped: libcuda.so.1 has no %s\n", names[i].name);
            return 0;
        }
        memcpy(names[i].to, &symbol, sizeof symbol);
    }
    return 1;
}

static void must(CUresult st, const char *what) {
    if (st == CUDA_SUCCESS)
        return;
    printf("%s: CUDA error %d\n", what, (int)st);
    exit(1);
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------
 */

static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}

static const uint64_t special_ints[] = {0,
                                        1,
                                        2,
                                        7,
                                        15,
                                        16,
                                        31,
                                        32,
                                        33,
                                        63,
                                        64,
                                        65,
                                        127,
                                        128,
                                        255,
                                        256,
                                        0x7fff,
                                        0x8000,
                                        0xffff,
                                        0x10000,
                                        0x7fffffff,
                                        0x80000000,
                                        0xfffffffe,
                                        0xffffffff,
                                        0x100000000,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        0xffffffffffffffff,
                                        0x3210,
                                        0x7654,
                                        0xba98};
static const uint64_t special_f16[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00,
                                       0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x3555, 0x6400};
static const uint64_t special_f32[] = {
    0,          0x80000000, 1,          0x80000001, 0x7fffff,   0x800000,   0x800001,   0x3f800000,
    0xbf800000, 0x3f800001, 0x3f7fffff, 0x3f000000, 0x3fc00000, 0x40200000, 0xc0200000, 0x4b000000,
    0x4b800000, 0x4b800001, 0x4effffff, 0x4f000000, 0xcf000000, 0x4f7fffff, 0x4f800000, 0x5f000000,
    0x5f800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345,
    0x477fe000, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x337fffff, 0x387fe000, 0x38800000};
static const uint64_t special_f64[] = {
    0,
    0x8000000000000000,
    1,
    0x8000000000000001,
    0xfffffffffffff,
    0x10000000000000,
    0x3ff0000000000000,
    0xbff0000000000000,
    0x3ff0000000000001,
    0x3fefffffffffffff,
    0x3fe0000000000000,
    0x4004000000000000,
    0xc004000000000000,
    0x41dfffffffc00000,
    0x41e0000000000000,
    0x41efffffffe00000,
    0x41f0000000000000,
    0xc1e0000000000001,
    0x43e0000000000000,
    0xc3e0000000000000,
    0x43f0000000000000,
    0x36a0000000000000, /* the least float, and half of it */
    0x3690000000000000,
    0x47efffffe0000000, /* the largest, and what rounds to Inf */
    0x47effffff0000000,
    0x380fffffffffffff,
    0x7fefffffffffffff,
    0x7ff0000000000000,
    0xfff0000000000000,
    0x7ff8000000000000,
    0x7ff0000000000001,
};

#define PICK(array) (array)[draw() % (sizeof(array) / sizeof(array)[0])]

/* Half of the operands are special, the rest random bits; of those half are near 1, so that sums round. */
static uint64_t operand(rf_kind_t kind) {
    uint64_t r = draw();
    if (r >> 62 < 2)
        return kind == RF_INT   ? PICK(special_ints)
               : kind == RF_F16 ? PICK(special_f16)
               : kind == RF_F32 ? PICK(special_f32)
                                : PICK(special_f64);
    r = draw();
    if (draw() & 1) {
        if (kind == RF_F32)
            return (r & 0x807fffff) | (110 + draw() % 32) << 23;
        if (kind == RF_F64)
            return (r & 0x800fffffffffffff) | (990 + draw() % 64) << 52;
        if (kind == RF_INT)
            return r & 63;
    }
    return r;
}

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

static CUmodule module;
static CUdeviceptr device_in, device_out;
static uint64_t in[N_CASES * RF_N_OPERANDS], out[N_CASES];

static void run(const char *name, uint32_t n) {
    CUfunction f;
    uint32_t blocks = (n + RF_BLOCK - 1) / RF_BLOCK;
    void *params[] = {&device_in, &device_out, &n};
    must(cu.function(&f, module, name), name);
    must(cu.up(device_in, in, sizeof in[0] * RF_N_OPERANDS * n), "copy up");
    must(cu.launch(f, blocks, 1, 1, RF_BLOCK, 1, 1, 0, NULL, params, NULL), name);
    must(cu.down(out, device_out, sizeof out[0] * n), name);
}

static int is_nan(rf_kind_t kind, uint64_t bits) {
    switch (kind) {
    case RF_F16:
        return (bits & 0x7fff) > 0x7c00;
    case RF_F32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case RF_F64:
        return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
    default:
        return 0;
    }
}

static uint32_t check_row(const rf_row_t *row) {
    char name[80];
    uint32_t n_differ = 0;
    for (uint32_t i = 0; i < N_CASES; i++)
        for (uint32_t k = 0; k < RF_N_OPERANDS; k++)
            in[RF_N_OPERANDS * i + k] = k < row->n_operands ? operand(row->operands[k]) : 0;
    snprintf(name, sizeof name, "op_%s", row->name);
    run(name, N_CASES);
    for (uint32_t i = 0; i < N_CASES; i++) {
        const uint64_t *a = in + RF_N_OPERANDS * i;
        uint64_t expected = row->expected(a);
        if (out[i] == expected || (is_nan(row->result, out[i]) && is_nan(row->result, expected)))
            continue;
        if (n_differ++ < N_SHOWN)
            printf("  %s(%#llx, %#llx, %#llx, %#llx) = %#llx, expected %#llx\n", row->name, (unsigned long long)a[0],
                   (unsigned long long)a[1], (unsigned long long)a[2], (unsigned long long)a[3],
                   (unsigned long long)out[i], (unsigned long long)expected);
    }
    return n_differ;
}

static uint32_t check_together(const rf_together_t *row) {
    uint32_t n_differ = 0;
    for (uint32_t i = 0; i < RF_BLOCK * RF_N_OPERANDS; i++)
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
    CUdevice device;
    CUcontext context;
    char name[100];
    uint32_t n_bad = 0;
    if (argc < 2)
        return 2;
    state = argc > 2 ? strtoull(argv[2], NULL, 0) * 2 + 1 : 1;
    if (!open_driver() || cu.init(0) != CUDA_SUCCESS || cu.device_get(&device, 0) != CUDA_SUCCESS) {
        printf("skipped: no CUDA device\n");
        return SKIPPED;
    }
    must(cu.device_name(name, sizeof name, device), "name");
    must(cu.retain(&context, device), "context");
    must(cu.push(context), "context");
    must(cu.load(&module, read_file(argv[1])), "module");
    must(cu.alloc(&device_in, sizeof in), "memory");
    must(cu.alloc(&device_out, sizeof out), "memory");
    for (uint32_t i = 0; i < rf_n_rows; i++)
        n_bad += check_row(&rf_rows[i]) != 0;
    for (uint32_t i = 0; i < rf_n_together; i++)
        n_bad += check_together(&rf_together[i]) != 0;
    must(cu.free(device_in), "free");
    must(cu.free(device_out), "free");
    must(cu.unload(module), "unload");
    must(cu.pop(&context), "context");
    must(cu.release(device), "context");
    printf("%s: %u instructions of %u cases and %u kernels of threads together: %u differ from plain C\n", name,
           rf_n_rows, N_CASES, rf_n_together, n_bad);
    return n_bad != 0;
}
