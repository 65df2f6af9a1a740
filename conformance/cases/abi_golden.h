/* SPDX-License-Identifier: Apache-2.0 */
/* abi_golden.h - files of abi/ that are built into the program, so that it needs nothing but the plugin. */
#ifndef ZFC_ABI_GOLDEN_H
#define ZFC_ABI_GOLDEN_H

const char *abi_golden_layout(void);  /* abi/layout/v0.5.txt */
const char *abi_golden_exports(void); /* abi/exports.txt */

#endif
