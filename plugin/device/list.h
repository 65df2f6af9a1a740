/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/list.h - operations that are collected for a stream and enqueued together.
 *
 * Model. To wake a sleeping stream costs more than most operations. So a program adds what it has for each stream to
 * that stream's list, and all lists that belong together are sent at once: when the program has ended, when it wants a
 * stream to begin, or when one of them is full. Nothing that is enqueued waits for something that is still collected,
 * as long as every wait is for what was added before it, to whichever list.
 *
 * A stream that does not take an operation ends its list: the failure stays, and nothing more is enqueued.
 *
 * Threads: the lists of one ring are used by one thread at a time. Nothing here allocates. */
#pragma once

#include "device/device.h"

enum { ZFI_LIST_OPS = 32, ZFI_LIST_RANGES = 128 };

typedef struct zfi_list {
    const zfi_device_ops_t *table;
    zfi_device_t *device;
    zfi_stream_t *const *stream; /* the stream of the moment when it is sent */
    struct zfi_list *next;       /* a ring of those that are sent together */
    struct zfi_list *last;       /* the one that is sent last: what it waits for on the others is enqueued then */
    zf_status_t failed;          /* the first failure of all time */
    uint32_t n_ops, n_ranges, n_marks;
    int is_copying; /* the last operation is a copy that more ranges may join */
    zfi_op_t ops[ZFI_LIST_OPS];
    zfi_range_t ranges[ZFI_LIST_RANGES];
    uint64_t *marks[ZFI_LIST_OPS];
    _Alignas(8) unsigned char args[ZFI_LIST_OPS][ZFI_LAUNCH_ARGS];
} zfi_list_t;

/* [control] An empty list, alone in its ring. */
void zfi_list_init(zfi_list_t *list, const zfi_device_ops_t *table, zfi_device_t *device, zfi_stream_t *const *stream);
/* [control] Empty lists become one ring; second is alone. What is sent last stays what it was for first: the one that
 * joined no other, whose stream may be the host's, where a wait for what is not enqueued cannot be put off. */
void zfi_list_join(zfi_list_t *first, zfi_list_t *second);

/* Adds an operation that is no copy. What it points to is as in device.h, but for the arguments of a launch: they are
 * taken over here. */
void zfi_list_add(zfi_list_t *list, zfi_op_t op);

/* Adds a range to the copy before, or begins a copy; kind is ZFI_OP_UP or ZFI_OP_DOWN. Neighbours become one range. */
void zfi_list_copy(zfi_list_t *list, zfi_op_kind_t kind, void *to, const void *from, uint64_t nbytes);
/* The next range begins a copy: it overlaps one before. */
void zfi_list_end_copy(zfi_list_t *list);

/* *out becomes the mark of the newest operation when the list is sent, or of one behind it. */
void zfi_list_mark(zfi_list_t *list, uint64_t *out);

/* Enqueues what the whole ring has collected. Returns the ring's first failure, now or before. */
zf_status_t zfi_list_send(zfi_list_t *list);

/* Something else could not be enqueued that belongs between its operations. */
static inline void zfi_list_fail(zfi_list_t *list, zf_status_t st) { list->failed = list->failed ? list->failed : st; }

static inline int zfi_list_is_empty(const zfi_list_t *list) { return list->n_ops == 0 && list->n_marks == 0; }
