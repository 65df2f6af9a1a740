/* SPDX-License-Identifier: Apache-2.0 */
/* device_rig.h - a CUDA device of the backend's on the driver's double, with a stream of its own and one of a host, and
 * three timelines. */
#pragma once

#include <check.h>
#include <cuda.h>
#include <pthread.h>

#include "device/cuda/backend.h"
#include "device/device.h"

enum { PAUSE_US = 200000 };
#define DEADLINE_NS 20000000000u

extern const zfi_device_ops_t zfi_device_cuda;
static const zfi_device_ops_t *const ops = &zfi_device_cuda;

extern zfi_device_t *device;
extern zfi_stream_t *own, *hosts;
extern CUstream hosts_handle;
extern _Atomic int is_poisoned, n_timed_out, n_failed;
extern zfi_timeline_t gate, line, answer;
extern int is_releasable;

/* Another stream of the host, in the device's context; hosts_handle is its handle. */
zfi_stream_t *host_stream(void);
void note_failure(void *ctx, const char *what); /* as a device says it */
void open_with(uint64_t timeout_ns);
void open_all(void);
void close_all(void); /* after each test: nothing timed out, nothing failed */
void await(zfi_timeline_t *timeline, uint64_t value);
void await_all(zfi_stream_t *stream);
pthread_t start(void *(*act)(void *), void *given);
void enqueue(zfi_stream_t *stream, zfi_op_t op);
void wait_for_gate(void *unused); /* a host function */
void hold_hosts(void);            /* the host's stream stands still until the gate opens */
zfi_cuda_line_t *find_line(void); /* of `line` */
