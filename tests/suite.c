/* SPDX-License-Identifier: Apache-2.0 */
/* tests/suite.c - one Check suite, a case for each test, and files of a test's own (contract in suite.h). */
#define _GNU_SOURCE
#include "suite.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
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

int zt_run_suite(const char *name, SFun setup, SFun teardown) {
    Suite *suite = suite_create(name);
    SRunner *runner = srunner_create(suite);
    for (size_t i = 0; i < n_added; i++) {
        TCase *tcase = tcase_create(added[i].test->name);
        tcase_set_timeout(tcase, ZT_TIMEOUT_S);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_loop_test_raise_signal(tcase, added[i].test, added[i].signal, 0, added[i].n_runs);
        suite_add_tcase(suite, tcase);
    }
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed || !n_added;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

int zt_shell(const char *format, ...) {
    char command[600];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command);
}

static char dir[] = "test-XXXXXX";

static void remove_dir(void) {
    if (zt_shell("rm -rf '%s'", dir))
        fprintf(stderr, "%s stays\n", dir);
}

static void make_dir(void) {
    ck_assert_ptr_nonnull(mkdtemp(dir));
    atexit(remove_dir);
}

const char *zt_dir(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_dir);
    return dir;
}

const char *zt_path(const char *name) {
    static _Thread_local char paths[2][300];
    static _Thread_local int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", zt_dir(), name);
    return paths[turn];
}

void zt_write(const char *name, const void *bytes, size_t nbytes) {
    FILE *file = fopen(zt_path(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, file), nbytes);
    ck_assert_int_eq(fclose(file), 0);
}
