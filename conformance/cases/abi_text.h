/* SPDX-License-Identifier: Apache-2.0 */
/* abi_text.h - proof 1, what a compiled program cannot see of the headers: names that the table of signatures lacks,
 * a file that was added or taken away, a typedef that became an enum. */
#ifndef ZFC_ABI_TEXT_H
#define ZFC_ABI_TEXT_H

#include "abi_report.h"

/* Reads every file under dir, the include directory that has zf/plugin.h. One FAIL of rule LAYOUT per difference. */
void abi_text_check(abi_report_t *report, const char *dir);

#endif
