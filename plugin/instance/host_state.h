/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/host_state.h - the optimizer's state in host memory, and the slots of gradients beside it. */
#pragma once

#include "instance/steps.h"
#include "launch.h"

enum { ZFI_NO_PIECE = -1 };

/* The places of a chunk's state. An early replay writes it elsewhere, and the places are exchanged (replay/early.h). */
typedef struct zfi_chunk_state {
    float *w;                /* [n_room], which the chunk's elements are first of */
    unsigned char *m, *v;    /* moments as the chunk says; NULL where the rule has none */
    unsigned char *visible;  /* of a spare alone: the values to publish, until its replay is confirmed */
    uint32_t n_room;         /* elements */
    uint64_t m_room, v_room; /* bytes */
    uint64_t visible_room;   /* bytes; a spare keeps it, exchanged with a chunk or not */
} zfi_chunk_state_t;

/* The host's optimizer state; written by workers, each a chunk at a time, and while the run rests by what reads and
 * writes state at rest. Of resident matrices it lies on the device (dev.head.all_w ...), and n follows the device's
 * whenever the run rests. replay/state_arrays.h reads and writes it in either place. */
typedef struct zfi_host_state {
    zfi_chunk_state_t *chunks; /* [n_chunks] */
    zfi_chunk_state_t *spares; /* [n_spares] each as large as a chunk */
    uint32_t n_spares;
    uint32_t *n;              /* [plan.n_counts] applied updates */
    unsigned char *published; /* a ring, [n_value_places][publish_piece_nbytes]: publications on their way up */
    const zfi_data_t *shows;  /* workers write values where the model reads them; NULL: they go up (step/publish.h) */
    zf_matrix_update_t *updates; /* [plan.n_whole] what the host's function of whole matrices is given */
} zfi_host_state_t;

/* Slot pool (plan.h). The host's thread alone allocates and frees, by the schedule: a freed piece may be written again
 * once the replay that read it is over (its tag). tables[cohort][table][slot][layer] -> piece. */
typedef struct zfi_slots {
    unsigned char *pool; /* [plan.pool_nbytes] */
    struct zfi_free_piece {
        int32_t piece;
        uint64_t needs_job;
    } * free;                    /* [plan.n_pieces] a ring for each layer */
    uint64_t *n_taken, *n_given; /* [plan.n_layers] head and tail of each ring */
    int32_t *tables;
    uint32_t n_tables, n_layers;
    uint64_t interval;         /* slots of a table */
    const zfi_layer_t *layers; /* the plan's */
    uint32_t in_use;
    _Atomic uint64_t *peak; /* the most that were, for zf.stats/1 */
} zfi_slots_t;

/* [n_layers] The pieces of a cohort's slot. */
static inline int32_t *zfi_slot_pieces(const zfi_slots_t *slots, uint32_t cohort, uint32_t table, uint32_t slot) {
    uint64_t row = (uint64_t)cohort * slots->n_tables + table;
    return slots->tables + (row * slots->interval + slot) * slots->n_layers;
}

/* The slot of a chunk, which has a piece: its cohort's [n_layers]. */
static inline unsigned char *zfi_slot_in(const zfi_slots_t *slots, const zfi_chunk_t *chunk, const int32_t *pieces) {
    const zfi_layer_t *layer = &slots->layers[chunk->layer];
    uint32_t piece = (uint32_t)pieces[chunk->layer] - layer->first_piece;
    return slots->pool + layer->pool_offset + piece * layer->piece_nbytes + chunk->slot_offset;
}

static inline unsigned char *zfi_slot(const zfi_slots_t *slots, const zfi_chunk_t *chunk, uint32_t table,
                                      uint32_t slot) {
    return zfi_slot_in(slots, chunk, zfi_slot_pieces(slots, chunk->cohort, table, slot));
}

/* The same of a row's step. FLUSH gives the step that is being filled another table, and moves no slot: so other
 * threads find it here. */
static inline unsigned char *zfi_row_slot(const zfi_slots_t *slots, const zfi_chunk_t *chunk,
                                          const zfi_step_row_t *row) {
    return zfi_slot_in(slots, chunk, row->pieces + (uint64_t)chunk->cohort * slots->n_layers);
}
