/* SPDX-License-Identifier: Apache-2.0 */
/* abi_layout.h - proof 1: the headers' layout as text, compared with a golden file (abi/layout/). */
#ifndef ZFC_ABI_LAYOUT_H
#define ZFC_ABI_LAYOUT_H

#include <stdio.h>

#include "abi_report.h"

/* Writes the layout of the headers this program was compiled with. */
void abi_layout_dump(FILE *out);

/* Compares two layouts, line by line. Major 0: they must be equal. Major 1 and later: a struct may have new members
 * after its last one, and there may be new structs and constants; nothing else may differ. Each difference is one FAIL.
 */
void abi_layout_compare(abi_report_t *report, const char *golden, const char *now, unsigned major);

/* The rules that the headers keep whatever the version: no gap, member types, sizes; and the comparison with the golden
 * file of this version, built into the program. */
void abi_layout_check(abi_report_t *report);

#endif
