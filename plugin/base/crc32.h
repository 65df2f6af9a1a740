/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/crc32.h - CRC-32 (IEEE 802.3: the one of zlib, gzip and Python's zlib.crc32), for the tensors of
 * checkpoints. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* [any-thread] Checksum of what came before (0 at the start) continued over nbytes more. */
uint32_t zfi_crc32(uint32_t before, const void *data, size_t nbytes);

/* [any-thread] Checksum of two pieces, one behind the other, from those of each; nbytes: of the second. Both checksums
 * begin from 0. */
uint32_t zfi_crc32_join(uint32_t first, uint32_t second, uint64_t nbytes);
