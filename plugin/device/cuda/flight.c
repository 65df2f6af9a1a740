/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/flight.c - commands in flight in the plugin's streams, and calls that may block (backend.h, Room).
 *
 * Commands are counted as they are given. After every quarter of what may be in flight an event is recorded; once it
 * has passed, everything before it is over. The driver is asked only where the count alone leaves no room. */
#include "device/cuda/backend.h"

enum {
    PIECE = 6, /* commands that are given without a look for room between them, marks included */
    LENT = 8   /* commands of another library, while it has the stream */
};

zf_status_t zfi_cuda_flight_open(zfi_stream_t *stream) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < ZFI_CUDA_MARKS && !st; i++)
        st = zfi_cuda_check(
            stream->device,
            stream->device->driver->cuEventCreate(&stream->flight.marks[i].event, CU_EVENT_DISABLE_TIMING),
            "creating an event");
    return st;
}

void zfi_cuda_flight_close(zfi_stream_t *stream) {
    for (uint32_t i = 0; i < ZFI_CUDA_MARKS; i++)
        if (stream->flight.marks[i].event)
            stream->device->driver->cuEventDestroy(stream->flight.marks[i].event);
}

static int is_full(const zfi_stream_t *stream) {
    return stream->flight.n_given - stream->flight.n_over + PIECE > stream->device->most_in_flight;
}

int zfi_cuda_has_room(zfi_stream_t *stream) {
    zfi_cuda_flight_t *flight = &stream->flight;
    if (stream->is_host)
        return 1;
    while (is_full(stream) && flight->n_passed != flight->n_marks) {
        uint32_t at = flight->n_passed % ZFI_CUDA_MARKS;
        if (stream->device->driver->cuEventQuery(flight->marks[at].event) == CUDA_ERROR_NOT_READY)
            break;
        flight->n_over = flight->marks[at].n_given;
        flight->n_passed++;
    }
    return !is_full(stream);
}

/* Where all marks are under way a later call records the next one. */
static zf_status_t mark(zfi_stream_t *stream) {
    zfi_cuda_flight_t *flight = &stream->flight;
    uint32_t at = flight->n_marks % ZFI_CUDA_MARKS;
    if (flight->n_marks - flight->n_passed == ZFI_CUDA_MARKS)
        return ZF_OK;
    flight->marks[at].n_given = flight->n_given++;
    flight->n_marks++;
    return zfi_cuda_check(stream->device,
                          stream->device->driver->cuEventRecord(flight->marks[at].event, stream->handle),
                          "recording an event");
}

static uint64_t n_unmarked(const zfi_cuda_flight_t *flight) {
    return flight->n_given - (flight->n_marks ? flight->marks[(flight->n_marks - 1) % ZFI_CUDA_MARKS].n_given : 0);
}

void zfi_cuda_begin_call(zfi_stream_t *stream) {
    if (stream->is_host)
        pthread_mutex_unlock(&stream->device->lock);
}

zf_status_t zfi_cuda_end_call(zfi_stream_t *stream, CUresult rc, const char *what) {
    if (stream->is_host)
        pthread_mutex_lock(&stream->device->lock);
    zf_status_t st = zfi_cuda_check(stream->device, rc, what);
    if (st || stream->is_host)
        return st;
    stream->flight.n_given++;
    return n_unmarked(&stream->flight) > stream->device->most_in_flight / 4 ? mark(stream) : ZF_OK;
}

void zfi_cuda_count_lent(zfi_stream_t *stream) {
    stream->flight.n_given += LENT;
    (void)mark(stream);
}
