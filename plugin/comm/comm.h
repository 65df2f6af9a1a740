/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/comm.h - what ranks exchange, as one table per transport.
 *
 * The engine calls it for every step even where there is one rank: what decides a step (norm, non-finite gradients) and
 * what decides a choice (importance) pass through here, in one order on every rank. A transport moves bytes; every sum
 * over ranks is made afterwards, by rank index, so that all ranks have the same bits. */
#ifndef ZFI_COMM_H
#define ZFI_COMM_H

#include "device/device.h"

typedef struct zfi_comm zfi_comm_t;

typedef struct zfi_comm_ops {
    const char *name;
    zf_status_t (*open)(zfi_comm_t **out, zf_error_t *err);
    void (*close)(zfi_comm_t *comm); /* NULL is legal */
    uint32_t (*rank)(const zfi_comm_t *comm);
    uint32_t (*size)(const zfi_comm_t *comm);

    /* [hook] Enqueues on a stream: part r of all[size][nbytes], which is rank r's, to every rank. all is device memory.
     */
    zf_status_t (*all_gather)(zfi_comm_t *comm, zfi_stream_t *stream, void *all, uint64_t nbytes);

    /* [own threads] values[n] of every rank, host memory, added by rank index from +0.0; the same on every rank when it
     * returns. One rank: nothing happens. */
    zf_status_t (*add)(zfi_comm_t *comm, double *values, uint64_t n);
} zfi_comm_ops_t;

/* One rank: nothing moves. */
extern const zfi_comm_ops_t zfi_comm_self;

#endif
