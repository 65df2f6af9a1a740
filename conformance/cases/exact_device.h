/* SPDX-License-Identifier: Apache-2.0 */
/* exact_device.h - where a case's tensors live, and the host's own work there: the CPU's memory, or a GPU's.
 *
 * Model. On the CPU a tensor lies in the host's memory, and work in stream order is a function on a queue of zf.cpu/1,
 * or on the host's thread: nothing here is used. On a GPU a tensor has a shadow in the host's memory, which holds what
 * was last sent up or fetched; the work of the host is copies and fills on one stream, and functions that the driver
 * calls between them (they use no device). Chosen by the environment, since every case runs in a child:
 * ZF_CONFORM_DEVICE=cuda. Every failure of the driver ends the process with status 2 and says why. */
#pragma once

#include <stdint.h>

#include "exact_array.h"
#include "zf/types.h"

#define ZX_DEVICE_ENV "ZF_CONFORM_DEVICE"

/* Whether tensors live on a GPU; int32_t: ZF_DEVICE_... */
int zx_device_is_gpu(void);
int32_t zx_device_type(void);
/* 0: there is a driver, and it starts; else says what is wrong. */
int zx_device_find(void);

/* Whether cases take no more than the least backend has: AdamW on float32, every gradient replayed, none resident. */
#define ZX_PLAIN_ENV "ZF_CONFORM_PLAIN"
int zx_device_is_plain(void);

/* [GPU] The stream that everything below works on, made at the first call. */
void zx_device_stream(zf_stream_t *out);

/* All memory of an array, wherever it lives. */
void zx_device_free(zx_array_t *a);
/* [GPU] The array's memory moves to the device, once; its contents go up, in stream order. */
void zx_device_adopt(zx_array_t *a);
/* [GPU] From now on all memory of the device but a quarter and `left` bytes is taken; UINT64_MAX: none is. */
void zx_device_fill(uint64_t left);
/* Whether what is free on the GPU depends on this process alone: it is the tests' double. */
int zx_device_is_alone(void);
typedef struct zx_given {
    uint64_t device, host; /* bytes; of the host page-locked ones */
} zx_given_t;
/* What the tests' double has given to the plugin by now. 0: this is no double, and nobody counts. */
int zx_device_given(zx_given_t *out);
/* [GPU] In stream order: the shadow as it is now goes up; the device's contents come into the shadow; all is NaN. */
void zx_device_push(zx_array_t *a);
void zx_device_pull(zx_array_t *a);
void zx_device_scribble(zx_array_t *a);
/* [GPU] In stream order: elements that lie one behind the other elsewhere on the device come into the shadow; and
 * values, which are the caller's again on return, go there. */
void zx_device_take(zx_array_t *a, const void *from);
void zx_device_give(void *to, const void *values, uint64_t nbytes);
/* [GPU] A function in stream order. */
void zx_device_launch(void (*fn)(void *arg), void *arg);
/* [GPU] Page-locked host memory that lives until zx_device_sync. */
void *zx_device_lend(uint64_t nbytes);
/* [GPU] Waits for all of it. */
void zx_device_sync(void);
