/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/serial.c - a thread that runs host functions in order (contract in serial.h): a queue under another name,
 * so that what is the host's work is not taken for a device's stream. */
#include "base/serial.h"

#include "base/queue.h"

static zfi_queue_t *queue_of(zfi_serial_t *serial) { return (zfi_queue_t *)(void *)serial; }

zf_status_t zfi_serial_create(zfi_serial_t **out, const char *name, zf_error_t *err) {
    zfi_queue_t *queue;
    zf_status_t st = zfi_queue_create(&queue, name, err);
    if (!st)
        *out = (zfi_serial_t *)(void *)queue;
    return st;
}

void zfi_serial_destroy(zfi_serial_t *serial) { zfi_queue_destroy(queue_of(serial)); }

zf_status_t zfi_serial_start(zfi_serial_t *serial, void (*fn)(void *args), const void *args, size_t nbytes) {
    return zfi_queue_push(queue_of(serial), fn, args, nbytes, NULL);
}

zf_status_t zfi_serial_call(zfi_serial_t *serial, void (*fn)(void *args), const void *args, size_t nbytes) {
    uint64_t seq;
    zf_status_t st = zfi_queue_push(queue_of(serial), fn, args, nbytes, &seq);
    return st ? st : zfi_timeline_wait(&queue_of(serial)->executed, seq, UINT64_MAX, NULL);
}
