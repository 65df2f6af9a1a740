/* SPDX-License-Identifier: Apache-2.0 */
/* test_oracle.h - the parts of test_oracle. */
#ifndef ZF_TESTS_TEST_ORACLE_H
#define ZF_TESTS_TEST_ORACLE_H

#include <check.h>

TCase *oracle_rules_tcase(void);  /* test_oracle_rules.c */
TCase *oracle_select_tcase(void); /* test_oracle_select.c */

#endif
