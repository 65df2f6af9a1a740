/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/traffic.h - how well a kernel's accesses coalesce.
 *
 * A warp's request is what its lanes ask for at one place of the kernel, at their n-th time there. It moves 32-byte
 * sectors. Where its lanes ask for different addresses, of an array, the ratio of different bytes asked for to bytes
 * moved is the kernel's coalescing; what all lanes ask for alike, or one alone, is read from a cache as a rule. A
 * request to shared memory takes as many passes as one of the 32 banks has different words to give.
 *
 * The least that a launch has to move is each byte that it reads once, and each that it writes once. */
#ifndef EMU_TRAFFIC_H
#define EMU_TRAFFIC_H

#include <stdint.h>
#include <stdio.h>

typedef struct emu_totals {
    uint64_t asked, moved;          /* bytes of global memory */
    uint64_t n_requests, n_sectors; /* of global memory */
    uint64_t n_arrays, n_array_sectors,
        array_used;              /* requests for different addresses, their sectors, different bytes */
    uint64_t least;              /* bytes that had to move: of each launch, different ones read and written */
    uint64_t n_shared, n_passes; /* requests to shared memory, bank passes */
} emu_totals_t;

/* Counting starts with the next launch; it costs about as much again as running. */
void emu_traffic_count(int is_wanted);
/* Of all launches of kernel `name` since counting started. */
emu_totals_t emu_traffic_of(const char *name);
/* One line per kernel: "traffic KERNEL requests sectors asked moved shared passes least arrays array-sectors
 * array-bytes". */
void emu_traffic_print(FILE *out);

#endif
