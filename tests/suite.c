/* SPDX-License-Identifier: Apache-2.0 */
/* tests/suite.c - one Check suite, a case for each test (contract in suite.h). */
#include "suite.h"

#include <stdlib.h>

enum { MOST_TESTS = 256 };

static struct {
    const TTest *test;
    int n_runs, signal;
} added[MOST_TESTS];
static size_t n_added;

void zt_suite_add(const TTest *test, int n_runs, int signal) {
    if (n_added == MOST_TESTS)
        abort();
    added[n_added].test = test;
    added[n_added].n_runs = n_runs;
    added[n_added++].signal = signal;
}

int zt_run_suite(const char *name, SFun setup, SFun teardown, const TTest *const *tests, size_t n) {
    Suite *suite = suite_create(name);
    SRunner *runner = srunner_create(suite);
    int n_failed;
    for (size_t i = 0; i < n; i++)
        zt_suite_add(tests[i], 1, 0);
    for (size_t i = 0; i < n_added; i++) {
        TCase *tcase = tcase_create(added[i].test->name);
        tcase_set_timeout(tcase, ZT_TIMEOUT_S);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_loop_test_raise_signal(tcase, added[i].test, added[i].signal, 0, added[i].n_runs);
        suite_add_tcase(suite, tcase);
    }
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed || !n_added;
}
