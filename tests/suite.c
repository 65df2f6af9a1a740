/* SPDX-License-Identifier: Apache-2.0 */
/* tests/suite.c - one Check suite from a list of tests (contract in suite.h). */
#include "suite.h"

int zt_run_suite(const char *name, SFun setup, SFun teardown, const TTest *const *tests, size_t n) {
    Suite *suite = suite_create(name);
    SRunner *runner = srunner_create(suite);
    TCase *tcase = tcase_create(name);
    int n_failed;
    tcase_set_timeout(tcase, ZT_TIMEOUT_S);
    tcase_add_checked_fixture(tcase, setup, teardown);
    for (size_t i = 0; i < n; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? 1 : 0;
}
