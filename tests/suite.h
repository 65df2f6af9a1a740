/* SPDX-License-Identifier: Apache-2.0 */
/* tests/suite.h - the main() of a test program: one Check suite from a list of tests. */
#ifndef ZT_SUITE_H
#define ZT_SUITE_H

#include <check.h>
#include <stddef.h>

enum { ZT_TIMEOUT_S = 100 }; /* per test: a hang is the only thing it has to catch, also on a slow machine */

/* Of n repetitions, those that a sanitized build makes: it is up to ten times slower, and what it looks for does not
 * hang on their number. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ZT_FEWER(n) ((n) / 5)
#else
#define ZT_FEWER(n) (n)
#endif

/* Runs n tests, each in a process of its own, setup before and teardown after each (NULL: none); 0 where all pass. */
int zt_run_suite(const char *name, SFun setup, SFun teardown, const TTest *const *tests, size_t n);

#define ZT_MAIN_WITH(name, setup, teardown, ...)                                                                       \
    int main(void) {                                                                                                   \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        return zt_run_suite(name, setup, teardown, tests, sizeof tests / sizeof tests[0]);                             \
    }
#define ZT_MAIN(name, ...) ZT_MAIN_WITH(name, NULL, NULL, __VA_ARGS__)

#endif
