/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/copy.c - copies and fills. A copy is made in two parts with a pause between them, so that who
 * reads without waiting may see half of it. One that touches pageable memory makes the caller wait for its end. */
#include "fake.h"

static void fail(fc_op_t *op, const char *what, uint64_t a) {
    fc_finding("%s: %llu bytes at %#llx are not there when the stream comes to it", what,
               (unsigned long long)op->nbytes, (unsigned long long)a);
    fc_fail_context(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void run_copy(fc_op_t *op) {
    int is_pageable;
    unsigned char *to = fc_bytes_for_copy(op->to, op->nbytes, &is_pageable);
    const unsigned char *from = fc_bytes_for_copy(op->from, op->nbytes, &is_pageable);
    if (to == NULL || from == NULL) {
        fail(op, "copy", to == NULL ? op->to : op->from);
        return;
    }
    uint64_t first = op->nbytes / 2;
    memmove(to, from, first);
    if (fc_config.delay_us && fc_random() % 8 == 0)
        fc_pause_us(fc_random() % fc_config.delay_us);
    memmove(to + first, from + first, op->nbytes - first);
}

static void run_fill(fc_op_t *op) {
    int is_pageable;
    unsigned char *to = fc_bytes_for_copy(op->to, op->nbytes, &is_pageable);
    if (to == NULL) {
        fail(op, "fill", op->to);
        return;
    }
    memset(to, op->byte, op->nbytes);
}

enum { HOST = 1, DEVICE = 2 };

static int is_side(uint64_t a, int sides) {
    fc_zone_t z;
    int is_device = fc_zone_of(a, &z) ? z.kind == FC_DEVICE_MEMORY : fc_is_in_window(a);
    return sides & (is_device ? DEVICE : HOST);
}

static fc_direction_t direction(uint64_t to, uint64_t from) {
    if (is_side(to, DEVICE) && is_side(from, HOST))
        return FC_COPY_UP;
    return is_side(to, HOST) && is_side(from, DEVICE) ? FC_COPY_DOWN : FC_NO_COPY;
}

/* `waits`: the caller asked for a copy that is over when the call returns. */
static CUresult copy(const char *function, uint64_t to, int to_sides, uint64_t from, int from_sides, size_t nbytes,
                     CUstream given, int waits) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    int to_pageable, from_pageable;
    if (st || nbytes == 0)
        return st;
    CUstream s = fc_stream_of(given);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_side(to, to_sides) || !is_side(from, from_sides) || !fc_bytes_for_copy(to, nbytes, &to_pageable) ||
        !fc_bytes_for_copy(from, nbytes, &from_pageable))
        return CUDA_ERROR_INVALID_VALUE;
    if (waits && (st = fc_unless_captured()))
        return st;
    fc_op_t op = {.run = run_copy, .to = to, .from = from, .nbytes = nbytes, .direction = direction(to, from)};
    st = fc_enqueue(s, &op);
    return st || !(waits || to_pageable || from_pageable) ? st : fc_synchronise(s);
}

FC_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
    return copy(__func__, to, HOST | DEVICE, from, HOST | DEVICE, n, s, 0);
}
FC_API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s) {
    return copy(__func__, to, HOST | DEVICE, (uint64_t)(uintptr_t)from, HOST, n, s, 0);
}
FC_API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s) {
    return copy(__func__, (uint64_t)(uintptr_t)to, HOST, from, HOST | DEVICE, n, s, 0);
}
FC_API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
    return copy(__func__, to, DEVICE, from, DEVICE, n, s, 0);
}
FC_API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n) {
    return copy(__func__, to, HOST | DEVICE, (uint64_t)(uintptr_t)from, HOST, n, NULL, 1);
}
FC_API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) {
    return copy(__func__, (uint64_t)(uintptr_t)to, HOST, from, HOST | DEVICE, n, NULL, 1);
}

static CUresult fill(const char *function, uint64_t to, int byte, size_t n, CUstream given) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    int is_pageable;
    if (st || n == 0)
        return st;
    CUstream s = fc_stream_of(given);
    if (s == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!fc_bytes_for_copy(to, n, &is_pageable) || is_pageable)
        return CUDA_ERROR_INVALID_VALUE;
    return fc_enqueue(s, &(fc_op_t){.run = run_fill, .to = to, .nbytes = n, .byte = byte});
}

FC_API cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) { return fill(__func__, to, v, n, s); }
