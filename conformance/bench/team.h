/* SPDX-License-Identifier: Apache-2.0 */
/* team.h - threads, each pinned to one CPU of the process's affinity mask, that run one function at the same time. */
#pragma once

enum { TEAM_MAX_THREADS = 256 };

/* How many CPUs the process may use, at most TEAM_MAX_THREADS. */
int team_max_threads(void);

/* Runs work(arg, thread) on n_threads threads, which begin together when all are there. Returns seconds, from the first
 * begin to the last end. */
double team_run(int n_threads, void (*work)(void *arg, int thread), void *arg);
