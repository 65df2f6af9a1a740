/* SPDX-License-Identifier: Apache-2.0 */
/* mock_queue.h - the mock's zf.cpu/1: a thread that runs what was launched on it, in order. */
#ifndef ZF_TESTS_MOCK_QUEUE_H
#define ZF_TESTS_MOCK_QUEUE_H

#include "zf/ext/cpu.h"

extern const zf_cpu_ext_t mock_cpu;

/* Runs fn(arg) in the stream's order: on its queue, or at once on a host's thread. */
void mock_launch(const zf_stream_t *stream, void (*fn)(void *arg), void *arg);
void mock_sync(const zf_stream_t *stream);

#endif
