/* SPDX-License-Identifier: Apache-2.0 */
/* abi_probes.h - the probes of proofs 3, 5 and 7; those of 5 and 7 are sets of calls, made in child processes. */
#pragma once

#include "abi_rig.h"

/* Rules EXPORTS, NEEDED, IMPORTS, SONAME, NODELETE, STACK, TEXTREL. Returns 0, or -1 where the file is no shared
 * library of this kind (said in `why`): then nothing was reported. */
int abi_elf_check(abi_probe_t *probe, const char **why);

void abi_slot_probes(abi_probe_t *probe); /* NULLs, sizes, states: from the signature table */
void abi_case_probes(abi_probe_t *probe); /* abi_cases.def */

/* Lists that end with a row without a name. */
extern const abi_row_t abi_entry_rows[];     /* negotiation, tables, describe, host tables */
extern const abi_row_t abi_training_rows[];  /* reports, poll, NaN gradients, allocations */
extern const abi_row_t abi_host_rows[];      /* what hosts got wrong, and what they may do */
extern const abi_row_t abi_matrix_rows[];    /* zf.matrix/0 */
extern const abi_row_t abi_books_rows[];     /* what the plugin says against what the host counts */
extern const abi_row_t abi_extent_rows[];    /* large models and long runs against AdamW */
extern const abi_row_t abi_isolation_rows[]; /* proof 7 */
extern const abi_row_t abi_order_rows[];     /* system calls of a save */
extern const abi_row_t abi_drawn_rows[];     /* sizes of extent, with settings that are drawn, against the oracle */
extern const abi_row_t abi_written_rows[];   /* edits that are held, audited steps */
extern const abi_row_t abi_keys_rows[];      /* what a key does beside the schedule */
extern const abi_row_t abi_told_rows[];      /* keys, ids, digests, records, environment */
extern const abi_row_t abi_storage_rows[];   /* notes, reports, damage and errors of a checkpoint */
extern const abi_row_t abi_waits_rows[];     /* what waits, while an update does not end */
extern const abi_row_t abi_growth_rows[];    /* memory and time over many steps */
extern const abi_row_t abi_calls_rows[];     /* memory over many calls */
extern const abi_row_t abi_life_rows[];      /* two hooks, a child, signals, open files, a long run */
extern const abi_row_t abi_manners_rows[];   /* what is left and what it costs */

/* The subcommand; argv[0] is its name. Exit status: 0 conforms, 1 does not, 2 could not run, 77 skipped. */
int zfc_abi_main(int argc, char **argv);
/* Allocations that this thread has asked for so far; NULL: nobody counts them (abi_alloc.c). */
unsigned long abi_n_allocations(void) __attribute__((weak));
/* From begin on, which environment variables are read (abi_environment.c): number i in order, NULL behind the last.
 * NULL: nobody looks. */
void abi_environment_begin(void) __attribute__((weak));
const char *abi_environment_read(uint32_t i) __attribute__((weak));
