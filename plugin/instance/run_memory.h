/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/run_memory.h - the arenas of a run, what is mapped beside them, and their plan. */
#pragma once

#include "base/arena.h"
#include "base/node.h"

/* A copy in page-locked host memory of what ranks exchange, byte for byte (ranks/mirror.h). */
typedef struct zfi_mirror {
    zfi_arena_t arena;
    const void *device; /* the memory that it mirrors; NULL: there is none */
    uint64_t nbytes;    /* of that memory */
} zfi_mirror_t;

/* The plan of both arenas (zf.plan/0 says what each is). */
typedef struct zfi_layout {
    uint64_t host_nbytes, host_state_nbytes, host_slots_nbytes, host_publish_nbytes, device_nbytes;
    uint64_t n_elems, n_matrices, n_channels, n_selected_elems, n_resident_elems, slots_peak_milli, slots_mean_milli;
    uint64_t n_pieces; /* of the slot pool */
} zfi_layout_t;

/* Arenas, and what lies in them. */
typedef struct zfi_run_memory {
    zfi_arena_t host_arena, device_arena;
    zfi_arena_t staging_arena, sum_arena; /* mapped when the first hook needs them */
    uint64_t extra_device_nbytes;         /* of the two arenas */
    zfi_mirror_t staging_mirror;
    zfi_mirror_t selected_mirror; /* of the compact gradient and the selected channels' list */
    zfi_mirror_t moves;         /* no mirror: where what ranks exchange is packed and unpacked by the device, the table
                                 * of it, zfi_memory_n_moves of each bucket */
    zfi_mirror_t cut;           /* no mirror: sharded, from the flat memory of buckets to parts, and back */
    zfi_mirror_t pieces;        /* no mirror: sharded, from visible values to the memory of values, and back */
    zfi_mirror_t values;        /* no mirror: that memory, where values wait there to be fetched */
    uint64_t extra_host_nbytes; /* of mirrors and room, mapped */
    int is_bound;               /* all that is planned is mapped; since then hooks have asked for so much: */
    uint64_t asked_host_nbytes, asked_device_nbytes;
    uint64_t limit_mib;   /* [host] memory_limit_mib; 0: what the machine has */
    zfi_node_t node;      /* the machine, and the ranks that share it */
    uint64_t room_nbytes; /* of what ranks agree on and gather in host memory, planned */
    int is_pageable;      /* the host arena could not be page-locked: copies are slower */
    zfi_layout_t layout;
    uint64_t *param_base; /* [n_params] element offset of a parameter in staging and sums */
} zfi_run_memory_t;
