/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/speed.h - what `zf doctor` measures: memory bandwidth, the plugin's replay, its own passes, the link. */
#pragma once

#include "cli.h"

/* bandwidth.c: GB/s (10^9 bytes) of n_threads together over nbytes of memory, the better of two passes: reading, and
 * copying, which counts the bytes read and those written. 0 after a message: no memory, or no thread. */
int zf_speed_bandwidth(uint32_t n_threads, uint64_t nbytes, double *out_read, double *out_copy);

typedef struct zf_replay_speed {
    double elems_per_s; /* elements x steps of a window, per second, of all workers together */
    uint32_t n_workers;
    char kernels[32]; /* the instruction set that the plugin has chosen */
} zf_replay_speed_t;

/* replay_speed.c: runs a window of S steps over n_elems bfloat16 parameters and reads the workers' own counters
 * (zf.stats/1). 0 after a message. */
int zf_speed_replay(zf_cli_t *cli, uint32_t interval, uint64_t n_elems, zf_replay_speed_t *out);

/* replay_speed.c: ns per element of a step that closes no window and waits for nothing: the plugin's own passes over
 * gradients and weights, on a CPU as the device, with the defaults. 0 after a message. */
int zf_speed_own(zf_cli_t *cli, uint64_t n_elems, double *out_ns);

/* GB/s (10^9 bytes) of page-locked memory: to the device, from it, and of both at once together. */
typedef struct zf_link_speed {
    double up, down, both;
} zf_link_speed_t;

/* link.c: between the host's memory and a CUDA device, a few copies of 64 MiB each way. NULL, or why it cannot be
 * measured. The driver has been initialised (zf_machine_cuda). */
const char *zf_speed_link(int device, zf_link_speed_t *out);
