/* SPDX-License-Identifier: Apache-2.0 */
/* abi_self_test.h - proof 8: the checker itself, on plugins and on headers that each break one rule. */
#ifndef ZFC_ABI_SELF_TEST_H
#define ZFC_ABI_SELF_TEST_H

#include "abi_probe.h"

/* These probes alone (--only NAME), or all; -1: there are none of this name. */
int abi_check_part(abi_report_t *report, const abi_env_t *env, const char *part);
/* All proofs that concern one library. 0, or -1 when the file is no library (said in why). */
int abi_check_plugin(abi_report_t *report, const abi_env_t *env, const char **why);

/* Runs them on every mock plugin, and proof 1 on every set of mock headers: exactly the expected rules must fail. only:
 * one mock's name, or NULL. Exit status: 0, 1, or 77 where there are no mocks. */
int abi_self_test(const char *mocks_dir, const char *only, int is_tap);

#endif
