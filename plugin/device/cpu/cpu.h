/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cpu/cpu.h - the CPU backend's streams as its two files know them: a stream is a queue. */
#pragma once

#include "base/queue.h"
#include "device/device.h"
#include "zf/ext/cpu.h"

static inline zfi_queue_t *zfi_cpu_queue(zfi_stream_t *stream) { return (zfi_queue_t *)(void *)stream; }
static inline zfi_stream_t *zfi_cpu_stream(zfi_queue_t *queue) { return (zfi_stream_t *)(void *)queue; }

extern const zfi_device_ops_t zfi_device_cpu;

/* [any-thread] Whether this is a live queue of the host's; any address is looked for, none is read. */
int zfi_is_host_queue(const zfi_queue_t *given);

/* zf.cpu/1: queues that the host computes on (host_queue.c). */
extern const zf_cpu_ext_t zfi_cpu_ext;
