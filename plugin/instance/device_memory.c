/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/device_memory.c - plain copies while everything rests (contract in device_memory.h). */
#include "instance/device_memory.h"

#include <string.h>

#include "instance/residency.h"

zf_status_t zfi_device_run(zfi_engine_t *engine, const zfi_op_t *ops, uint32_t n) {
    zf_status_t st = zfi_send(engine), waited;
    if (!st)
        st = zfi_enqueue(engine, engine->stream, ops, n);
    waited = engine->ops->synchronise(engine->stream, engine->ops->mark(engine->stream), UINT64_MAX, NULL);
    return st ? st : waited;
}

zf_status_t zfi_device_write(zfi_engine_t *engine, void *to, const void *from, uint64_t nbytes) {
    zfi_range_t range = {to, from, nbytes};
    zfi_op_t op = zfi_op_up(&range, 1);
    return nbytes ? zfi_device_run(engine, &op, 1) : ZF_OK;
}

zf_status_t zfi_device_read(zfi_engine_t *engine, void *to, const void *from, uint64_t nbytes) {
    zfi_range_t range = {to, from, nbytes};
    zfi_op_t op = zfi_op_down(&range, 1);
    const void *image = zfi_residency_image(engine, from, nbytes);
    if (image) {
        memcpy(to, image, nbytes);
        return ZF_OK;
    }
    return nbytes ? zfi_device_run(engine, &op, 1) : ZF_OK;
}

zf_status_t zfi_device_clear(zfi_engine_t *engine, void *to, uint64_t nbytes) {
    zfi_op_t op = zfi_op_fill(to, nbytes);
    return nbytes ? zfi_device_run(engine, &op, 1) : ZF_OK;
}
