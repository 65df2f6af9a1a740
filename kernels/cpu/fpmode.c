/* SPDX-License-Identifier: Apache-2.0 */
/* fpmode.c - the floating-point mode of the plugin's own threads. A thread inherits the mode of its creator; a host may
 * have set flush-to-zero, another rounding, or traps there. */
#include "../kernels.h"

#include <fenv.h>
#include <stdint.h>

#ifdef __x86_64__
#include <xmmintrin.h>

/* Round to nearest, all exceptions masked, denormals neither flushed nor read as zero: not all C libraries reset the
 * last two with the rest of the environment. */
enum { MXCSR_DEFAULT = 0x1f80 };
#endif

void zfi_fp_mode_ieee(void) {
    (void)fesetenv(FE_DFL_ENV);
#ifdef __x86_64__
    _mm_setcsr(MXCSR_DEFAULT);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0))); /* glibc keeps some of its bits */
#endif
}
