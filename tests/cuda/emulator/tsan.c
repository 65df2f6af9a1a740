/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/tsan.c - tells the thread sanitizer of the process, if it has one, what kernels do to memory.
 *
 * The double itself is compiled without a sanitizer, so that nothing of it orders threads by accident. These are entry
 * points of the sanitizer's run time; where there is none they are NULL. */
#include "internal.h"

#define WEAK(name) extern void name(const void *) __attribute__((weak))
WEAK(__tsan_read1);
WEAK(__tsan_read2);
WEAK(__tsan_read4);
WEAK(__tsan_read8);
WEAK(__tsan_read16);
WEAK(__tsan_write1);
WEAK(__tsan_write2);
WEAK(__tsan_write4);
WEAK(__tsan_write8);
WEAK(__tsan_write16);

int emu_tsan_is_there(void) { return __tsan_read1 != NULL; }

void emu_tsan_access(const unsigned char *p, uint32_t nbytes, emu_kind_t kind) {
    static void (*const reads[])(const void *) = {__tsan_read1, __tsan_read2, __tsan_read4, __tsan_read8,
                                                  __tsan_read16};
    static void (*const writes[])(const void *) = {__tsan_write1, __tsan_write2, __tsan_write4, __tsan_write8,
                                                   __tsan_write16};
    if (kind == EMU_LOAD || kind == EMU_STORE)
        (kind == EMU_LOAD ? reads : writes)[__builtin_ctz(nbytes)](p);
}
