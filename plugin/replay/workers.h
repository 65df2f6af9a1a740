/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/workers.h - the threads that replay closed windows. */
#pragma once

#include "instance/run.h"

/* [control] Threads the configuration and the machine give: [host] threads, or this rank's share of the physical
 * cores that the process may use (affinity mask, cgroup quota), less one for the trainer; at least one. */
uint32_t zfi_workers_count(const zfi_config_t *config);

/* [control] From now on the engine's n workers work for these; early: what they may do before a step closes, or NULL.
 */
zf_status_t zfi_workers_start(const zfi_replays_t *replays, struct zfi_early *early, uint32_t n,
                              struct zfi_workers **out, zf_error_t *err);
/* [control] Returns after the work that was pushed (or at once if poisoned); threads that no other instance has end.
 * NULL is legal. */
void zfi_workers_stop(struct zfi_workers *workers);

/* [the device stream's thread] As zfi_share_fn (kernels/launch.h): workers that have nothing to replay lend a hand. */
void zfi_workers_share(struct zfi_workers *workers, uint32_t n, zfi_part_fn fn, void *arg);

/* [hook] Enqueues the chunks of a close. The order of closes is the order of pushes. */
void zfi_workers_push(struct zfi_workers *workers, const zfi_close_t *close);

/* [hook] There is something else to do: an early replay (replay/early.h). */
void zfi_workers_wake(struct zfi_workers *workers);

/* [control] While they are idle: chunk jobs below next_job are done (a loaded run's clocks). */
void zfi_workers_restart(struct zfi_workers *workers, uint64_t next_job);
