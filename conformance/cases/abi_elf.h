/* SPDX-License-Identifier: Apache-2.0 */
/* abi_elf.h - proof 3: what the dynamic linker sees of the file. Reads 64-bit ELF itself; runs no code of the plugin.
 */
#ifndef ZFC_ABI_ELF_H
#define ZFC_ABI_ELF_H

#include "abi_report.h"

/* Rules EXPORTS, NEEDED, IMPORTS, SONAME, NODELETE, STACK, TEXTREL. Returns 0, or -1 when the file is no shared library
 * of this kind (said in `why`): then nothing was reported. */
int abi_elf_check(abi_report_t *report, const char *path, const char **why);

#endif
