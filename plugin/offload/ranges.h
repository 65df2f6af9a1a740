/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/ranges.h - copies of many ranges, collected and enqueued some at a time. */
#ifndef ZFI_RANGES_H
#define ZFI_RANGES_H

#include "instance/engine.h"

enum { ZFI_RANGES = 64 };

typedef struct zfi_ranges {
    zfi_engine_t *engine;
    zfi_stream_t *stream;
    zfi_op_kind_t kind; /* ZFI_OP_UP or ZFI_OP_DOWN */
    zf_status_t status; /* of what was enqueued so far */
    uint32_t n;
    uint64_t nbytes; /* of all ranges */
    zfi_range_t ranges[ZFI_RANGES];
} zfi_ranges_t;

/* Not all of the struct is cleared: it lies on the stack of hooks. */
static inline void zfi_ranges_start(zfi_ranges_t *list, zfi_engine_t *engine, zfi_stream_t *stream,
                                    zfi_op_kind_t kind) {
    list->engine = engine;
    list->stream = stream;
    list->kind = kind;
    list->status = ZF_OK;
    list->n = 0;
    list->nbytes = 0;
}

/* Enqueues what is collected; the status of the whole list. */
static inline zf_status_t zfi_ranges_end(zfi_ranges_t *list) {
    zfi_op_t op = {.kind = list->kind, .ranges = list->ranges, .n_ranges = list->n};
    if (!list->status && list->n)
        list->status = zfi_enqueue(list->engine, list->stream, &op, 1);
    list->n = 0;
    return list->status;
}

static inline void zfi_ranges_add(zfi_ranges_t *list, void *to, const void *from, uint64_t nbytes) {
    list->ranges[list->n++] = (zfi_range_t){to, from, nbytes};
    list->nbytes += nbytes;
    if (list->n == ZFI_RANGES)
        (void)zfi_ranges_end(list);
}

#endif
