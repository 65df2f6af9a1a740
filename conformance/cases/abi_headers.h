/* SPDX-License-Identifier: Apache-2.0 */
/* abi_headers.h - proof 2: every public header compiles by itself, in every language mode, with the compilers at hand.
 */
#ifndef ZFC_ABI_HEADERS_H
#define ZFC_ABI_HEADERS_H

#include "abi_report.h"

/* Rule HEADERS. dir is the include directory; skipped with a reason when it has no headers or there is no compiler. */
void abi_headers_check(abi_report_t *report, const char *dir);

#endif
