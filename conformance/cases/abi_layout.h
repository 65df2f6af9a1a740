/* SPDX-License-Identifier: Apache-2.0 */
/* abi_layout.h - proofs 1 and 3, which call nothing of the plugin: the headers' layout as text, compared with a golden
 * file (abi/layout/); the library's file. */
#pragma once

#include <stdio.h>

#include "abi_report.h"

/* Writes the layout of the headers this program was compiled with. */
void abi_layout_dump(FILE *out);

/* The rules that the headers keep whatever the version: no gap, member types, sizes; and the comparison with the golden
 * file of this version, built into the program. */
void abi_layout_check(abi_report_t *report);

/* Rules EXPORTS, NEEDED, IMPORTS, SONAME, NODELETE, STACK, TEXTREL. Returns 0, or -1 when the file is no shared library
 * of this kind (said in `why`): then nothing was reported. */
int abi_elf_check(abi_report_t *report, const char *path, const char **why);

/* abi/exports.txt, which is built into the program as the golden layout is: it needs nothing but the plugin. */
const char *abi_golden_exports(void);
