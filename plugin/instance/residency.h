/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/residency.h - memory that an instance can give back for a while (zf.residency/1).
 *
 * Model. Device memory of a run is taken and given here, and so is page-locked memory. Of a host that has
 * ZF_CREATE_CAP_RELEASE each piece is remembered, and each piece of device memory has an image: as many bytes of
 * page-locked host memory, mapped with it. Release copies every piece into its image, once, and the backend gives the
 * bytes back; addresses stay reserved, so no pointer anywhere changes. Resume takes bytes at the same addresses and
 * copies once in the other direction. Meanwhile what is read of the device at rest comes from the images
 * (device_memory.h). Other hosts pay nothing.
 *
 * Left to their owners: the transport's names of exchanges, what NCCL itself keeps, and a few page-locked pages of
 * words.
 *
 * Threads: the host's hooks alone, and what takes memory in them. */
#pragma once

#include "instance/engine.h"

/* [control] Zeroed device memory of a run; and its end, NULL is legal. */
zf_status_t zfi_device_take(zfi_engine_t *engine, uint64_t nbytes, const char *what, void **out, zf_error_t *err);
void zfi_device_give(zfi_engine_t *engine, void *memory, uint64_t nbytes);
/* [control] Makes memory of the host reachable for the device; says so where that may take seconds. And its end. */
zf_status_t zfi_engine_pin(zfi_engine_t *engine, const zfi_arena_t *arena, int *out_is_pageable, zf_error_t *err);
void zfi_engine_unpin(zfi_engine_t *engine, const zfi_arena_t *arena);

/* [control] Everything rests. what: ZF_RELEASE_DEVICE, perhaps with PINNED. Where resume fails all is released still,
 * and it may be called again. */
zf_status_t zfi_residency_release(zfi_engine_t *engine, uint32_t what, zf_error_t *err);
zf_status_t zfi_residency_resume(zfi_engine_t *engine, zf_error_t *err);

/* [control] Where the bytes of released device memory are; NULL: these are not released. */
void *zfi_residency_image(const zfi_engine_t *engine, const void *memory, uint64_t nbytes);
/* [any-thread] Bytes of images beside this many bytes of device memory. */
uint64_t zfi_residency_images_nbytes(const zfi_engine_t *engine, uint64_t device_nbytes);
