/* SPDX-License-Identifier: Apache-2.0 */
/* abi_books.h - what a plugin says of its own work, and what the system says of the process. */
#ifndef ZFC_ABI_BOOKS_H
#define ZFC_ABI_BOOKS_H

#include "abi_rig.h"

/* The plugin has zf.stats/1. */
int abi_has_books(const abi_rig_t *rig);

/* Every counter that the host can count itself. 0 = the call failed (reported). */
int abi_read_books(abi_rig_t *rig, zf_stats_t *out);

/* Writable memory of this process, in bytes. */
double abi_data_nbytes(void);

#endif
