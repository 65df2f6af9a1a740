/* SPDX-License-Identifier: Apache-2.0 */
/* tests/suite.h - the main() of a test program, and its tests: each ZT_TEST(name) { ... } is a case of that name; files
 * of a test's own. */
#pragma once

#include <check.h>
#include <stddef.h>

/* Check writes a line to a file for each assertion that holds, and reads them all: most of the time of a test that
 * makes millions. It shows where a test was that crashed, for which there are sanitizers. */
#define _mark_point(file, line) ((void)0)

enum { ZT_TIMEOUT_S = 100 }; /* per test: a hang is the only thing it has to catch, also on a slow machine */

/* A sanitized build is up to ten times slower, and what it looks for does not hang on the number of cases: of n
 * repetitions it makes ZT_FEWER(n), of a table's cases every so many. Odd, so that it meets all of a short table. */
#if defined(__SANITIZE_THREAD__)
enum { ZT_EVERY = 11 };
#elif defined(__SANITIZE_ADDRESS__)
enum { ZT_EVERY = 5 };
#else
enum { ZT_EVERY = 1 };
#endif
#define ZT_FEWER(n) (ZT_EVERY > 1 ? (n) / 5 : (n))

/* A test that runs n times, with _i from 0 on, and ends by this signal (0: as a function does). */
#define ZT_TEST_OF(name, n, signal)                                                                                    \
    static const TTest *name;                                                                                          \
    __attribute__((constructor)) static void zt_add_##name(void) { zt_suite_add(name, n, signal); }                    \
    START_TEST(name)
#define ZT_TEST(name) ZT_TEST_OF(name, 1, 0)

void zt_suite_add(const TTest *test, int n_runs, int signal);
/* Runs what was added, each in a process of its own, setup before and teardown after each (NULL: none); 0 where all
 * pass. */
int zt_run_suite(const char *name, SFun setup, SFun teardown);

#define ZT_SUITE_WITH(name, setup, teardown)                                                                           \
    int main(void) { return zt_run_suite(name, setup, teardown); }
#define ZT_SUITE(name) ZT_SUITE_WITH(name, NULL, NULL)

/* The exit status of a shell's command, as printf makes it. */
__attribute__((format(printf, 1, 2))) int zt_shell(const char *format, ...);
/* [any-thread] A directory of the test's own, removed at exit; a file there, by a path that is good until the thread's
 * next but one call; and what such a file holds. */
const char *zt_dir(void);
const char *zt_path(const char *name);
void zt_write(const char *name, const void *bytes, size_t nbytes);
