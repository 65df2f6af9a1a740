/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - which instruction sets this CPU runs, and their tables. The compiler's CPU model also looks at what the
 * operating system saves (xgetbv), so a set is offered only where its registers survive a context switch. No state of
 * ours: any thread, any time. */
#include <string.h>

#ifdef ZFI_HAVE_X86
#include <cpuid.h>
#endif

#include "tables.h"

static int is_always_supported(void) { return 1; }

#ifdef ZFI_HAVE_X86
/* Not every compiler's CPU model names it; no CPU has AVX2 without it, but a hypervisor may hide it. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int is_avx2_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

#endif

#ifdef ZFI_HAVE_AVX512
static int is_avx512_supported(void) {
    return is_avx2_supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct isa {
    const char *name;
    int (*is_supported)(void);
    const zfi_kernels_t *kernels; /* NULL: not in this build */
} isas[ZFI_N_ISAS] = {
    [ZFI_ISA_GENERIC] = {"generic", is_always_supported, &zfi_kernels_generic},
#ifdef ZFI_HAVE_ARM64
    [ZFI_ISA_NEON] = {"neon", is_always_supported, &zfi_kernels_neon},
#else
    [ZFI_ISA_NEON] = {"neon", is_always_supported, NULL},
#endif
#ifdef ZFI_HAVE_X86
    [ZFI_ISA_AVX2] = {"avx2", is_avx2_supported, &zfi_kernels_avx2},
#else
    [ZFI_ISA_AVX2] = {"avx2", is_always_supported, NULL},
#endif
#ifdef ZFI_HAVE_AVX512
    [ZFI_ISA_AVX512] = {"avx512", is_avx512_supported, &zfi_kernels_avx512},
#else
    [ZFI_ISA_AVX512] = {"avx512", is_always_supported, NULL},
#endif
};

const zfi_kernels_t *zfi_kernels_of(zfi_isa_t isa) {
    if ((unsigned)isa >= ZFI_N_ISAS || !isas[isa].is_supported())
        return NULL;
    return isas[isa].kernels;
}

zfi_isa_t zfi_isa_best(void) {
    int isa = ZFI_N_ISAS - 1;
    while (isa > ZFI_ISA_GENERIC && !zfi_kernels_of((zfi_isa_t)isa))
        isa--;
    return (zfi_isa_t)isa;
}

const char *zfi_isa_name(zfi_isa_t isa) { return (unsigned)isa < ZFI_N_ISAS ? isas[isa].name : "unknown"; }

int zfi_isa_parse(const char *name) {
    for (int isa = 0; isa < ZFI_N_ISAS; isa++)
        if (strcmp(name, isas[isa].name) == 0)
            return isa;
    return -1;
}
