/* SPDX-License-Identifier: Apache-2.0 */
/* test_dispatch.c - names, availability, and the floating-point mode of the plugin's threads. */
#include <fenv.h>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "arrays.h"
#include "suite.h"

ZT_TEST(names_parse_back) {
    for (int isa = 0; isa < ZFI_N_ISAS; isa++)
        ck_assert_int_eq(zfi_isa_parse(zfi_isa_name((zfi_isa_t)isa)), isa);
    ck_assert_int_eq(zfi_isa_parse("avx9000"), -1);
    ck_assert_int_eq(zfi_isa_parse(""), -1);
}

ZT_TEST(best_is_the_highest_available) {
    const int best = (int)zfi_isa_best();
    ck_assert_ptr_nonnull(zfi_kernels_of(ZFI_ISA_GENERIC));
    ck_assert_ptr_nonnull(zfi_kernels_of((zfi_isa_t)best));
    for (int isa = best + 1; isa < ZFI_N_ISAS; isa++)
        ck_assert_ptr_null(zfi_kernels_of((zfi_isa_t)isa));
    ck_assert_ptr_null(zfi_kernels_of(ZFI_N_ISAS));
}

ZT_TEST(mode_is_ieee) {
    volatile float tiny = 0x1p-140f, one = 1.0f, small = 0x1p-30f;
    ck_assert_int_eq(fesetround(FE_UPWARD), 0);
#ifdef __x86_64__
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* flush to zero, denormals are zero */
    ck_assert(tiny * one == 0.0f);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(1ul << 24)); /* flush to zero */
    ck_assert(tiny * one == 0.0f);
#endif
    zfi_fp_mode_ieee();
    ck_assert_int_eq(fegetround(), FE_TONEAREST);
    ck_assert(tiny * one == 0x1p-140f);
    ck_assert(one + small == 1.0f);
}

ZT_SUITE("dispatch")
