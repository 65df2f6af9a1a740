/* SPDX-License-Identifier: Apache-2.0 */
/* abi_books.h - what a plugin says of its own work, and what the system says of the process. */
#ifndef ZFC_ABI_BOOKS_H
#define ZFC_ABI_BOOKS_H

#include "abi_rig.h"

/* The plugin trains by plugin/SCHEDULE.md: it has zf.stats/1 and zf.state/1, which small ones lack. */
int abi_has_books(const abi_rig_t *rig);

/* The value of a counter by its name; 0 and a finding where there is none of that name. */
uint64_t abi_counter(abi_rig_t *rig, const char *name);

/* Writable memory of this process, in bytes. */
double abi_data_nbytes(void);

#endif
