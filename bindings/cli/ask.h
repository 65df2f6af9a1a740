/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/ask.h - what commands in Python ask of the plugin and of CUDA's driver; `zf ask` (ask.c) prints it. */
#pragma once

#include "cli.h"

/* devices.c: {found, version, devices: [{name, memory_nbytes, compute_capability}]} or {found, why}: CUDA's driver. */
json_t *zf_ask_cuda(void);
/* {is_taken, kernels}: which of the plugin's images the driver took on a device, or why it took none. */
json_t *zf_ask_image(const zf_plugin_t *zf, int device);

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
 * measured. */
const char *zf_speed_link(int device, zf_link_speed_t *out);

/* plan_bytes.c: the plugin's memory plan of what is asked on stdin. 0, or 1 after a message. */
int zf_ask_plan(zf_cli_t *cli, char **words);
