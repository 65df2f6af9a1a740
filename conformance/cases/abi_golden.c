/* SPDX-License-Identifier: Apache-2.0 */
/* abi_golden.c - files of abi/ inside the program (abi_golden.h). ZFC_ABI_DIR is the folder abi/ at build time. */
#include "abi_golden.h"

#include <stddef.h>

#ifndef ZFC_ABI_DIR
#error "compile with -DZFC_ABI_DIR=\"...\": the folder abi/ of the source tree"
#endif

#define EMBED(symbol, file)                                                                                            \
    __asm__(".section .rodata\n" #symbol ":\n.incbin \"" file "\"\n.byte 0\n.previous\n");                             \
    extern const char symbol[] __attribute__((visibility("hidden")));

EMBED(zfc_embedded_layout, ZFC_ABI_DIR "/layout/v0.5.txt")
EMBED(zfc_embedded_exports, ZFC_ABI_DIR "/exports.txt")

const char *abi_golden_layout(void) { return zfc_embedded_layout; }
const char *abi_golden_exports(void) { return zfc_embedded_exports; }
