/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/cpu.h - "zf.cpu/1": streams of the CPU backend.
 *
 * A queue is the CPU backend's device stream: a thread that runs what was launched on it in order. A host that enqueues
 * its forward and backward on such a queue sees the same asynchrony as with a GPU, which makes ordering bugs visible
 * without one. */
#ifndef ZF_EXT_CPU_H
#define ZF_EXT_CPU_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_CPU "zf.cpu/1"

typedef struct zf_cpu_queue zf_cpu_queue_t; /* opaque */

typedef struct zf_cpu_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* New queue with a thread of its own; out_stream is filled to be passed to hooks. It must outlive the instances
     * that used it.
     * [any-thread] */
    zf_status_t (*queue_create)(zf_cpu_queue_t **out_queue, zf_stream_t *out_stream, zf_error_t *err);
    /* Waits for what was launched, ends the thread. NULL is legal.
     * [any-thread] */
    void (*queue_destroy)(zf_cpu_queue_t *queue);
    /* Fn(arg) runs on the queue's thread after everything launched before. Blocks while the queue is full: 16384
     * launches wait.
     * [any-thread] */
    zf_status_t (*queue_launch)(zf_cpu_queue_t *queue, void (*fn)(void *arg), void *arg, zf_error_t *err);
    /* Waits until everything launched so far has run.
     * [any-thread] */
    zf_status_t (*queue_sync)(zf_cpu_queue_t *queue, uint64_t timeout_ns, zf_error_t *err);
} zf_cpu_ext_t;

#ifdef __cplusplus
}
#endif
#endif
