/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/sums.h - the gradients of a bucket become their sums over ranks. */
#ifndef ZFI_SUMS_H
#define ZFI_SUMS_H

#include "instance/run.h"

/* [communication thread] Of a bucket whose gradients lie in `flat`, where the host finds them (zfi_mirrored): this
 * rank's part of the sums to zfi_own_sums(); at stage 0 all ranks' to flat. A failure has ended the instance. */
zf_status_t zfi_sum_bucket(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, unsigned char *flat);

/* [any-thread] Where a bucket's sums of this rank's part lie on the device. */
unsigned char *zfi_own_sums(const zfi_ranks_t *ranks, uint32_t bucket);

/* [control] Maps the table by which a bucket is cut, once it is planned. */
zf_status_t zfi_sums_map_cut(zfi_ranks_t *ranks, zf_error_t *err);
/* [any-thread] Sharded: MOVE's arguments that take the slices of a bucket from its flat memory to the parts of all
 * ranks, in the gradient's data type. */
zfi_move_args_t zfi_sums_cut(const zfi_ranks_t *ranks, uint32_t bucket, void *flat, void *parts);

#endif
