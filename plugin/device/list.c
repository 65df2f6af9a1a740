/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/list.c - operations collected for a stream (contract in list.h). */
#include "device/list.h"

#include <assert.h>
#include <string.h>

void zfi_list_init(zfi_list_t *list, const zfi_device_ops_t *table, zfi_device_t *device, zfi_stream_t *const *stream) {
    list->table = table;
    list->device = device;
    list->stream = stream;
    list->next = list->last = list;
    list->failed = ZF_OK;
    list->n_ops = list->n_ranges = list->n_marks = 0;
    list->is_copying = 0;
}

void zfi_list_join(zfi_list_t *first, zfi_list_t *second) {
    zfi_list_t *next = first->next;
    first->next = second->next;
    second->next = next;
    second->last = first->last;
}

static void enqueue(zfi_list_t *list) {
    if (list->n_ops && !list->failed)
        list->failed = list->table->enqueue(list->device, *list->stream, list->ops, list->n_ops);
    if (list->n_marks) {
        uint64_t mark = list->table->mark(*list->stream);
        for (uint32_t i = 0; i < list->n_marks; i++)
            *list->marks[i] = mark;
    }
    list->n_ops = list->n_ranges = list->n_marks = 0;
    list->is_copying = 0;
}

zf_status_t zfi_list_send(zfi_list_t *list) {
    zf_status_t st = ZF_OK;
    zfi_list_t *at = list->last;
    do {
        at = at->next;
        enqueue(at);
        st = st ? st : at->failed;
    } while (at != list->last);
    return st;
}

/* Room for one more operation; its place. */
static zfi_op_t *next_op(zfi_list_t *list) {
    if (list->n_ops == ZFI_LIST_OPS)
        (void)zfi_list_send(list);
    list->is_copying = 0;
    return &list->ops[list->n_ops++];
}

void zfi_list_add(zfi_list_t *list, zfi_op_t op) {
    zfi_op_t *to = next_op(list);
    assert(op.kind != ZFI_OP_UP && op.kind != ZFI_OP_DOWN);
    assert(op.kind != ZFI_OP_LAUNCH || op.nbytes <= ZFI_LAUNCH_ARGS);
    *to = op;
    if (op.kind == ZFI_OP_LAUNCH)
        to->args = memcpy(list->args[to - list->ops], op.args, op.nbytes);
}

/* Whether a range goes on where the last one of the same copy ends, on both sides. */
static int goes_on(const zfi_list_t *list, zfi_op_kind_t kind, const void *to, const void *from) {
    if (!list->is_copying || list->ops[list->n_ops - 1].kind != kind)
        return 0;
    const zfi_range_t *last = &list->ranges[list->n_ranges - 1];
    return (const unsigned char *)last->to + last->nbytes == to &&
           (const unsigned char *)last->from + last->nbytes == from;
}

void zfi_list_copy(zfi_list_t *list, zfi_op_kind_t kind, void *to, const void *from, uint64_t nbytes) {
    if (goes_on(list, kind, to, from)) {
        list->ranges[list->n_ranges - 1].nbytes += nbytes;
        return;
    }
    if (list->n_ranges == ZFI_LIST_RANGES)
        (void)zfi_list_send(list);
    if (!list->is_copying || list->ops[list->n_ops - 1].kind != kind) {
        zfi_op_t *op = next_op(list);
        *op = (zfi_op_t){.kind = kind, .ranges = &list->ranges[list->n_ranges]};
        list->is_copying = 1;
    }
    list->ranges[list->n_ranges++] = (zfi_range_t){to, from, nbytes};
    list->ops[list->n_ops - 1].n_ranges++;
}

void zfi_list_end_copy(zfi_list_t *list) { list->is_copying = 0; }

void zfi_list_mark(zfi_list_t *list, uint64_t *out) {
    if (list->n_marks == ZFI_LIST_OPS)
        (void)zfi_list_send(list);
    list->marks[list->n_marks++] = out;
}
