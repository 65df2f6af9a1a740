/* SPDX-License-Identifier: Apache-2.0 */
/* mock_queue.h - the mocks' zf.cpu/1: a thread that runs what was launched on it, in order. */
#ifndef ZFC_MOCK_QUEUE_H
#define ZFC_MOCK_QUEUE_H

#include "zf/ext/cpu.h"

extern const zf_cpu_ext_t mock_cpu_table;

int mock_queue_lives(uint64_t handle);

/* The queue behind a stream; NULL for a host's own thread, or where none lives there. */
zf_cpu_queue_t *mock_queue_of(const zf_stream_t *stream);

#endif
