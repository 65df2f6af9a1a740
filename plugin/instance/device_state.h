/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/device_state.h - what lies on the device, and marks of what its streams write to visible values. */
#pragma once

#include "base/arena.h"
#include "instance/engine.h"
#include "launch.h"

/* The state on the device: addresses of device memory but where it says host. */
typedef struct zfi_device_state {
    zfi_data_t head;  /* host: what *data holds */
    zfi_data_t *data; /* the tables that kernels are given */
    zfi_data_t
        *own; /* the tables for statistics: where this rank has sums of its slices alone, those are the matrices */
    zfi_data_matrix_t *own_matrices;
    zfi_data_param_t *own_params;
    zfi_data_matrix_t *matrices; /* host: the table of matrices as it was sent last */
    int64_t *columns;            /* column maps of parameters that are not contiguous */
    uint64_t columns_nbytes;     /* of `columns`, which is an allocation of its own */
    unsigned char *inputs;       /* [n_rows][input_nbytes] what the host sent with each step */
    uint64_t input_nbytes;
    int checks_itself;           /* digests are compared before visible values are written (step/guard.h) */
    uint8_t *overwritten;        /* host: [n_params] the host changed it unannounced: set by the device, cleared by
                                  * params_changed */
    zfi_step_scalars_t *scalars; /* [n_rows] */
    uint32_t n_rows, n_groups;
    zfi_norm_part_t *part;       /* of the norm, where every rank has all gradients */
    unsigned char *ring;         /* [plan.ring_chunks][publish_piece_nbytes] */
    unsigned char *enter_blocks; /* [ZFI_ENTER_BLOCKS][enter_block_nbytes] */
    uint64_t enter_block_nbytes;
    uint32_t *enter_n;                                      /* [n_matrices] */
    uint32_t *enter_position, *enter_channel, *enter_count; /* [n_index] */
    void *scratch;                                          /* exchange_elems of four bytes, or a piece that travels */
    uint64_t scratch_nbytes;
    zfi_arena_t apart;       /* host: what is to become the weights that are their own masters, while a load or another
                              * set of parameters is made: [plan.n_resident_elems - n_resident_masters] */
    int is_apart;            /* `apart` is used: what the model reads has nothing to do with this run yet */
    float *exchange;         /* host: [2][exchange_elems] of hooks while everything rests, else of control's choices */
    uint64_t exchange_elems; /* of the largest matrix */
} zfi_device_state_t;

/* Marks on the device stream of the newest visible writes; 0: none since it is this stream. */
typedef struct zfi_writes {
    uint64_t any;        /* the newest of all */
    uint64_t entered;    /* entering channels, of any matrix */
    uint64_t *run_ahead; /* [plan.n_launches] */
    uint64_t *publish;   /* [plan.n_cohorts] */
    uint64_t *fetched;   /* [n_matrices] publishing at fetch; else NULL */
} zfi_writes_t;

/* Publishing at fetch (step/at_fetch.c), or by gathering: what is left of the closes that are due. The host's
 * thread's. */
typedef struct zfi_unfetched {
    uint64_t merged;  /* publications below it: the device stream has their merges, or up their copies */
    uint32_t *n_left; /* [plan.max_close_chunks] by publication: segments that are not merged, or copied */
    uint8_t *is_done; /* [n_matrices] of these closes merged, or dropped; NULL: nothing waits so */
} zfi_unfetched_t;

/* The memory where the device keeps what a step brings and its scalars. */
static inline void *zfi_device_input_memory(const zfi_device_state_t *dev, uint64_t t) {
    return dev->inputs + t % dev->n_rows * dev->input_nbytes;
}

static inline zfi_step_input_t zfi_device_input(const zfi_device_state_t *dev, uint64_t t) {
    const zfi_hyper_t *hyper = zfi_device_input_memory(dev, t);
    return (zfi_step_input_t){hyper, (const uint8_t *)(hyper + dev->n_groups)};
}

static inline zfi_step_scalars_t *zfi_device_scalars(const zfi_device_state_t *dev, uint64_t t) {
    return dev->scalars + t % dev->n_rows;
}

/* A table in device memory, to be written by a copy. */
static inline void *zfi_device_table(const void *table) { return (void *)(uintptr_t)table; }
