/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probes.h - the probes of proofs 5 and 7, each a set of calls made in child processes. */
#ifndef ZFC_ABI_PROBES_H
#define ZFC_ABI_PROBES_H

#include "abi_probe.h"

void abi_entry_probes(abi_report_t *report, const abi_env_t *env); /* negotiation, tables, describe, host tables */
void abi_slot_probes(abi_report_t *report, const abi_env_t *env);  /* NULLs, sizes, states: from the signature table */
void abi_case_probes(abi_report_t *report, const abi_env_t *env);  /* abi_cases.def */
void abi_training_probes(abi_report_t *report, const abi_env_t *env);  /* reports, poll, NaN gradients, allocations */
void abi_counter_probes(abi_report_t *report, const abi_env_t *env);   /* the table of zf.stats/1 */
void abi_host_probes(abi_report_t *report, const abi_env_t *env);      /* what hosts got wrong */
void abi_layer_probes(abi_report_t *report, const abi_env_t *env);     /* some matrices of a stacked parameter */
void abi_isolation_probes(abi_report_t *report, const abi_env_t *env); /* proof 7 */
void abi_books_probes(abi_report_t *report,
                      const abi_env_t *env); /* what the plugin says against what the host counts */
void abi_extent_probes(abi_report_t *report, const abi_env_t *env);  /* large models and long runs against AdamW */
void abi_state_probes(abi_report_t *report, const abi_env_t *env);   /* checkpoints */
void abi_manners_probes(abi_report_t *report, const abi_env_t *env); /* what is left and what it costs */

/* The child of the probe of allocations, in a process that preloads zf_count_alloc.so: its findings go to fd. Returns
 * the exit status. */
int abi_count_allocations(const char *plugin, int fd);

#endif
