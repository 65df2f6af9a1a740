/* SPDX-License-Identifier: Apache-2.0 */
/* abi_self_test.h - proof 8: the checker itself, on headers that each break one rule. What it says of plugins that do
 * is asked by tests/conformance/wrong.py. */
#ifndef ZFC_ABI_SELF_TEST_H
#define ZFC_ABI_SELF_TEST_H

#include "abi_probe.h"

/* These probes alone (--only NAME). 0, or -1: there are none of this name, or the file is no library (said in why). */
int abi_check_part(abi_report_t *report, const abi_env_t *env, const char *part, const char **why);
/* All proofs that concern one library. 0, or -1 when the file is no library (said in why). */
int abi_check_plugin(abi_report_t *report, const abi_env_t *env, const char **why);

/* Proof 1 on every set of changed headers: those must notice that should. Exit status: 0, 1, or 77 where there are
 * none. */
int abi_self_test(const char *mocks_dir, int is_tap);

#endif
