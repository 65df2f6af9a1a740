/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/copies.c - the ranges of a copy, given to the driver (contract in backend.h).
 *
 * A copy of a few kilobytes costs the driver, the stream and the link as much as one of a hundred. So small ranges on
 * their way down, as the gradients of biases and norms are, wait for the others of their operation, and one kernel
 * writes all of them into the host's memory. That takes page-locked memory, which the driver is asked for, and the
 * word that every kernel reads first, which is not there while the device's memory is released. */
#include "cuda/params.h"
#include "device/cuda/backend.h"

enum { SMALL_NBYTES = 32768 };

/* Of nbytes from a device's address on, those in the same allocation: the host's tensors may adjoin, as cuMemAlloc
 * gives them, and a driver takes no copy beyond one of them. */
static uint64_t in_one_allocation(const zfi_cuda_driver_t *driver, CUdeviceptr at, uint64_t nbytes) {
    CUdeviceptr base;
    size_t size;
    if (driver->cuMemGetAddressRange(&base, &size, at) || at - base >= size || size - (at - base) >= nbytes)
        return nbytes;
    return size - (at - base);
}

/* Copies the first bytes of a range; *out_nbytes: how many. */
static zf_status_t copy(zfi_stream_t *stream, zfi_op_kind_t kind, const zfi_range_t *range, uint64_t *out_nbytes) {
    const zfi_cuda_driver_t *driver = stream->device->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)(kind == ZFI_OP_DOWN ? range->from : range->to);
    CUresult rc;
    zfi_cuda_begin_call(stream);
    *out_nbytes = in_one_allocation(
        driver, at, zfi_cuda_in_one_piece(kind == ZFI_OP_DOWN ? range->to : range->from, range->nbytes));
    if (kind == ZFI_OP_DOWN)
        rc = driver->cuMemcpyDtoHAsync(range->to, at, *out_nbytes, stream->handle);
    else
        rc = driver->cuMemcpyHtoDAsync(at, range->from, *out_nbytes, stream->handle);
    return zfi_cuda_end_call(stream, rc, kind == ZFI_OP_DOWN ? "a copy to the host" : "a copy to the device");
}

static int follows(const zfi_range_t *a, const zfi_range_t *b) {
    return (const unsigned char *)a->to + a->nbytes == b->to && (const unsigned char *)a->from + a->nbytes == b->from;
}

/* What is to be copied next: the rest of a range, and those that go on in both memories where it ends. */
static zfi_range_t next_piece(const zfi_op_t *op, uint32_t from, uint64_t done) {
    const zfi_range_t *first = &op->ranges[from];
    zfi_range_t piece = {(unsigned char *)first->to + done, (const unsigned char *)first->from + done,
                         first->nbytes - done};
    for (uint32_t i = from + 1; i < op->n_ranges && follows(&piece, &op->ranges[i]); i++)
        piece.nbytes += op->ranges[i].nbytes;
    return piece;
}

static void go_on(const zfi_op_t *op, uint64_t nbytes, uint32_t *from, uint64_t *done) {
    *done += nbytes;
    for (; *from < op->n_ranges && *done >= op->ranges[*from].nbytes; ++*from)
        *done -= op->ranges[*from].nbytes;
}

/* Its elements have two or four bytes. */
static int is_small(const zfi_range_t *range) {
    return range->nbytes <= SMALL_NBYTES && (((uintptr_t)range->to | (uintptr_t)range->from | range->nbytes) & 1) == 0;
}

static int has_many_small(const zfi_op_t *op) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n_ranges && op->kind == ZFI_OP_DOWN; i++)
        n += (uint32_t)is_small(&op->ranges[i]);
    return n > 1;
}

static int is_reached(const zfi_stream_t *stream, void *host) {
    CUdeviceptr at;
    return stream->device->driver->cuMemHostGetDevicePointer(&at, host, 0) == CUDA_SUCCESS;
}

/* There was room for a copy, which leaves some for the launch. */
static zf_status_t launch_small(zfi_stream_t *stream, zfi_cuda_ranges_t *small) {
    zf_status_t st = small->n ? zfi_cuda_launch_copy(stream, small) : ZF_OK;
    small->n = 0;
    return st;
}

zf_status_t zfi_cuda_copy(zfi_stream_t *stream, const zfi_op_t *op, uint32_t *from, uint64_t *done) {
    zfi_cuda_ranges_t small = {0};
    zf_status_t st = ZF_OK;
    int has_many = !stream->device->is_released && has_many_small(op);
    while (*from < op->n_ranges && !st) {
        zfi_range_t piece = next_piece(op, *from, *done);
        uint64_t nbytes = piece.nbytes;
        int joins = has_many && is_small(&piece) && is_reached(stream, piece.to);
        if ((!joins || small.n == ZFI_CUDA_MOST_RANGES) && !zfi_cuda_has_room(stream)) {
            st = ZF_IN_PROGRESS;
            break;
        }
        if (joins && small.n == ZFI_CUDA_MOST_RANGES)
            st = launch_small(stream, &small);
        if (joins)
            small.list[small.n++] = piece;
        else if (nbytes)
            st = copy(stream, op->kind, &piece, &nbytes);
        go_on(op, nbytes, from, done);
    }
    zf_status_t launched = launch_small(stream, &small);
    return launched ? launched : st;
}
