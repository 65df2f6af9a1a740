/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/held.h - what an instance remembers of memory that it may release (model in residency.h). */
#pragma once

#include "base/arena.h"

/* A piece of memory. */
typedef struct zfi_held {
    unsigned char *memory;
    uint64_t nbytes;
    int is_device;     /* else page-locked memory of the host's threads */
    zfi_arena_t image; /* of device memory */
} zfi_held_t;

typedef struct zfi_residency {
    zfi_held_t *all;
    uint32_t n, room;
    uint32_t released; /* ZF_RELEASE_...; 0: all of it is there */
} zfi_residency_t;
