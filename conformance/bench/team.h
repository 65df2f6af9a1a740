/* SPDX-License-Identifier: Apache-2.0 */
/* team.h - a team of threads, each pinned to one CPU of the process's affinity mask, that run the same function at the
 * same time and are timed from the common start to the last end. */
#pragma once

typedef struct team team_t;

/* How many CPUs the process may use. */
int team_max_threads(void);

/* n_threads threads, or NULL. They wait without spinning. */
team_t *team_new(int n_threads);
void team_free(team_t *team);

/* Runs work(arg, thread) for every thread of the team. Returns seconds. */
double team_run(team_t *team, void (*work)(void *arg, int thread), void *arg);
