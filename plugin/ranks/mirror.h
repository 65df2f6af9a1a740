/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/mirror.h - what ranks exchange, where the host's threads cannot reach the device's memory.
 *
 * Model. Transports and sums over ranks are the host's: they read and write what lies in the memory of buckets
 * (gradients, parts of the norm, values) and the compact gradient. On a device with memory of its own each of these has
 * a mirror in page-locked host memory. The device stream copies what this rank gives into it before it says that it is
 * collected, and copies what has become of it back after it has waited for the exchange:
 *
 *   device stream   ... collect, DOWN, signal collected            wait exchanged, UP ...
 *   its thread                            exchange, sum, in the mirror
 *
 * So the host writes a mirror only after a signal that lies behind the last copy out of it, and before one that the
 * next copy waits for. A device that shares the host's memory has no mirrors: nothing is copied.
 *
 * Of the compact gradient this rank's own part is made in the mirror: it goes up only. Of the list of selected channels
 * nothing becomes: it comes down only.
 *
 * Cost: as much page-locked memory as the buckets take, and both copies on the device stream. */
#pragma once

#include "instance/run.h"

/* [control] Maps the mirror of nbytes of device memory; nothing where the host reaches it. free: legal at any time. */
zf_status_t zfi_mirror_map(zfi_ranks_t *ranks, zfi_mirror_t *mirror, const void *device, uint64_t nbytes,
                           zf_error_t *err);
/* The same, also where the transport moves the device's memory: of what the host looks into. */
zf_status_t zfi_mirror_map_always(zfi_ranks_t *ranks, zfi_mirror_t *mirror, const void *device, uint64_t nbytes,
                                  zf_error_t *err);
void zfi_mirror_free(zfi_engine_t *engine, zfi_run_memory_t *mem, zfi_mirror_t *mirror);

/* [any-thread] Where the host's threads find what lies at a place of the mirrored memory: there itself, without
 * mirrors. */
void *zfi_mirrored(const zfi_ranks_t *ranks, const void *device);

/* [hook] With what is enqueued next: the mirror follows the device (on the stream that `by` is collected for); the
 * device follows the mirror. */
void zfi_mirror_down(zfi_ranks_t *ranks, zfi_list_t *by, const void *device, uint64_t nbytes);
void zfi_mirror_up(zfi_ranks_t *ranks, void *device, uint64_t nbytes);
