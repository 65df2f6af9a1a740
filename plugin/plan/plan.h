/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/plan.h - the plan: parameters cut into matrices, neighbours tied into lots, lots dealt into cohorts.
 *
 * Model. A matrix is the unit of selection and of the schedule (SCHEDULE.md): a parameter's, or a block of its rows.
 * This rank owns some of its rows (slice.h); one rank alone all of them. The host's state arrays w, m, v follow the
 * numbers of the matrices; what is owned of one is contiguous there, row-major, and starts at a multiple of
 * ZFI_STATE_ALIGN elements, or ZFI_RUN where its moments lie in runs. A lot is a range of
 * matrices that share a cohort. A chunk is a fixed range of one lot's state and the unit of a replay: its slots have
 * the same layout. A segment is what of a matrix lies in a chunk. All of that is fixed by the parameters alone. Only
 * which lot belongs to which cohort, and with it the lists of a cohort and the slot pool, follow from the number of
 * cohorts: they are dealt.
 *
 * A resident matrix has no lot, cohort, chunk or slot. Its state lies on the device alone, in an order of its own, and
 * is updated there at every step (step/resident.h). Its segments are the units of that update.
 *
 *   matrices  | 0         | 1 | 2 | 3         | 4         | 5 | 6 |     by (parameter, batch, row block)
 *   lots      | 0         | 1     | 2         | 3         | 4     |     neighbours that are small together
 *   chunks    | 0   | 1   | 2     | 3   | 4   | 5   | 6   | 7     |     never across the edge of a lot
 *   cohort    | 0         | 1     | 1         | 0         | 1     |     by lots
 *
 * The slot pool consists of pieces that cohorts take in turn: a piece holds one step's slots of many chunks of a
 * cohort. As cohorts are never quite alike, the chunks of each are spread over layers. In the first layer all cohorts
 * have about as many bytes as the smallest of them, in the next those that have more, and so on. The pieces of one
 * layer are alike, and it has as many of them as the cohorts in it ever need at once.
 *
 *   cohort 0  | chunk 0 1 6 7 ........ | 12 13 ... |        layer 0: as many bytes as cohort 1 has
 *   cohort 1  | chunk 2 3 4 5 ........ |                    layer 1: the rest of the others
 *   cohort 2  | chunk 8 9 10 11 ...... | 14 ...... |
 */
#pragma once

#include <stdint.h>

#include "config/config.h"
#include "plan/params.h"

#define ZFI_STATE_ALIGN 16u
#define ZFI_NOT_OWNED UINT64_MAX

/* The slice of a matrix that a rank owns: elements [first, first + n), whole rows, which lie from `at` on in its part
 * of the bucket (bucket.h). */
typedef struct zfi_slice {
    uint64_t first, n, at;
} zfi_slice_t;

typedef struct zfi_matrix {
    uint32_t param;
    uint32_t cohort;
    uint64_t rows, cols;
    uint64_t param_offset;     /* elements from the parameter's start (row-major) to the matrix's */
    uint64_t rounding_base;    /* what the parameter's elements are counted from where moments are rounded by a hash */
    uint64_t nbytes;           /* in the parameter's data type */
    uint32_t holders;          /* the ranks that have slices of it (bucket.h) */
    const zfi_slice_t *slices; /* [their ranks]; NULL: one rank alone */
    zfi_slice_t own;           /* this rank's state; all of it but where each rank keeps a part */
    uint64_t state_base;       /* index of its first element in w, m, v, the host's or the device's */
    uint64_t grad_offset;      /* elements from where a parameter's gradient begins on the device to this matrix's */
    uint64_t held_first, held_rows; /* what of the visible values is here: from this element on, held_rows rows */
    uint32_t n_channels;
    uint32_t k;            /* selected channels after warm-up */
    uint64_t sel_base;     /* index into the device's compact arrays */
    uint64_t grad_base;    /* first byte in its compact gradient */
    uint64_t channel_base; /* index into per-channel arrays */
    uint64_t index_base;   /* index into arrays of k per matrix */
    uint64_t sum_base;     /* index into importance sums; only where is_choosable */
    uint64_t count_base;   /* index into the host's counts of updates: */
    uint32_t n_counts;     /* one, or one for each channel */
    int is_resident;       /* its state is the device's; k = 0, and `cohort` says nothing */
    int sees_edits;        /* resident in the host's memory: its update reads the model's value beside w */
    int carries;           /* its gradient lies in the memory of its values until these take its place */
    int takes_whole;       /* its rule takes the matrix of which it is a block (step/matrices.h) */
    int lacks_v;           /* that rule has no second moment, and there is no memory for one */
    zfi_moments_t moments; /* how its m and v are kept */
    int channels_are_rows;
    int is_sharded;    /* of visible values and selected channels this rank has what it owns alone */
    int is_choosable;  /* 0 < k < n_channels */
    uint32_t launch;   /* of run-ahead, that it belongs to */
    zfi_place_t place; /* of its element (0, 0) in the visible parameter */
} zfi_matrix_t;

typedef struct zfi_segment {
    uint32_t matrix;
    uint32_t chunk;        /* of a resident matrix's: nothing */
    uint32_t chunk_offset; /* elements from the chunk's start */
    uint32_t n_elems;
    uint64_t matrix_offset; /* elements from the matrix's start (row-major) */
} zfi_segment_t;

typedef struct zfi_chunk {
    uint64_t state_base;
    uint32_t n_elems;
    uint32_t first_segment, n_segments;
    zfi_dtype_t dtype, grad_dtype;
    zfi_moments_t moments; /* how m and v of its matrices are kept */
    /* dealt: */
    uint32_t cohort, place; /* number `place` of its cohort's chunks */
    uint32_t layer;
    uint64_t slot_offset; /* bytes from the start of a piece of that layer to the chunk's slot */
} zfi_chunk_t;

typedef struct zfi_lot {
    uint32_t first_matrix, n_matrices;
    uint32_t first_chunk, n_chunks;
    uint64_t nbytes; /* in the parameters' data type */
} zfi_lot_t;

typedef struct zfi_layer {
    uint32_t first_piece, n_pieces; /* pieces of all layers are numbered through */
    uint64_t piece_nbytes;          /* off powers of two, which share cache sets */
    uint64_t pool_offset;           /* bytes from the pool's start */
} zfi_layer_t;

typedef struct zfi_cohort_plan {
    uint32_t first_chunk, n_chunks;    /* into cohort_chunks */
    uint32_t first_matrix, n_matrices; /* into cohort_matrices */
    uint64_t nbytes;
} zfi_cohort_plan_t;

typedef struct zfi_plan {
    uint32_t n_matrices, n_lots, n_segments, n_chunks, n_cohorts;
    uint32_t n_resident;    /* matrices */
    uint32_t n_whole;       /* matrices before the cut, of parameters whose rule takes them whole */
    zfi_matrix_t *matrices; /* by (parameter, batch, row block); so are lots, chunks and segments */
    zfi_lot_t *lots;
    zfi_slice_t *slices; /* [n_matrices][buckets.most_ranks] */
    zfi_chunk_t *chunks;
    zfi_segment_t *segments;          /* [n_segments], */
    zfi_segment_t *resident_segments; /* [n_resident_segments] rising with their matrices, too */
    uint32_t n_resident_segments;
    uint32_t *param_segments;   /* [n_segments] segment numbers grouped by parameter */
    zfi_cohort_plan_t *cohorts; /* [n_cohorts + 1] the last has the resident matrices, and no chunk */
    uint32_t *cohort_matrices;  /* [n_matrices] grouped by cohort, rising in each */
    uint32_t *cohort_chunks;    /* [n_chunks] the same of chunks */
    uint32_t *launch_ends;      /* [n_launches] matrices of run-ahead that are launched together end there */
    uint32_t n_launches;
    uint32_t chunk_nbytes; /* the most that a slot of a chunk can have */
    int carries;           /* all matrices do: there is no slot */
    int shown_by_workers;  /* they write values where the model reads them: none is on its way up */
    /* 0 where nothing is deferred: */
    uint32_t publish_piece_nbytes;           /* of a staged chunk on its way up */
    uint32_t max_close_chunks;               /* most chunks that close at one step and wait to be published */
    uint32_t n_value_places;                 /* of the host's ring of values on their way up; at least four buckets */
    uint32_t bucket_chunks, ring_chunks;     /* published together; in the device's ring */
    uint64_t n_elems;                        /* trainable, without padding */
    uint64_t n_state_elems;                  /* elements that the host has, with padding */
    uint64_t n_resident_elems;               /* elements that the device has */
    uint64_t n_resident_masters;             /* of those, at the beginning: with a master of their own */
    uint64_t first_resident_v, n_resident_v; /* the range of those with a second moment */
    uint64_t first_run, end_run;             /* the range of those whose moments lie in runs */
    uint64_t n_sel_elems, n_sel_grad_nbytes;
    uint64_t n_channels, n_index, n_sums, n_counts;
    uint64_t record_sums;    /* importance records travel in parts of at most this many sums */
    uint32_t n_record_parts; /* parts of a record; 1 but for wide matrices of few rows, 0 where nothing is chosen */
    zfi_layer_t *layers;     /* [n_layers] of the slot pool */
    uint32_t n_layers, n_pieces;
    uint64_t pool_nbytes;
    double slots_peak, slots_mean; /* of the schedule, per parameter, in units of one full gradient */
} zfi_plan_t;

struct zfi_buckets;
/* [control] Plans; sets first_matrix ... n_refs of the parameters, and with several ranks what their buckets say of
 * parts. ZF_ERR_PARAM where nothing is trainable. */
zf_status_t zfi_plan_build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params,
                           struct zfi_buckets *buckets, zfi_plan_t *out, zf_error_t *err);
/* [control] Deals the lots into the cohorts of a configuration, as its update_interval says; then, when they have
 * chunks, those, and sizes the slot pool. After a failure (memory) the plan can only be freed. */
zf_status_t zfi_plan_deal(zfi_plan_t *plan, const zfi_config_t *config);
zf_status_t zfi_plan_deal_chunks(zfi_plan_t *plan, const zfi_config_t *config);
/* [control] Between these: the matrices among the ranks of some buckets, as slice.h says. Sets `slices`, and where
 * buckets->is_owner what this rank owns and holds, and the parts of the buckets. ZF_ERR_MEMORY. */
zf_status_t zfi_plan_deal_slices(zfi_plan_t *plan, const zfi_param_t *params, struct zfi_buckets *buckets);
/* [any-thread] The most elements that one of n_ranks may own of a matrix, as slice.h deals them. */
uint64_t zfi_slice_most(const zfi_matrix_t *matrix, int is_sharded, uint32_t n_ranks);
/* Chunk i of a cohort. */
static inline uint32_t zfi_cohort_chunk(const zfi_plan_t *plan, uint32_t cohort, uint32_t i) {
    return plan->cohort_chunks[plan->cohorts[cohort].first_chunk + i];
}
/* The index of element `element` (row-major) of a matrix lies in w, m, v, if this rank owns it; else ZFI_NOT_OWNED. */
static inline uint64_t zfi_state_find(const zfi_matrix_t *matrix, uint64_t element) {
    uint64_t at = element - matrix->own.first; /* before it: wraps around */
    return at < matrix->own.n ? matrix->state_base + at : ZFI_NOT_OWNED;
}
/* The first of n rising numbers, `step` apart, that is `least` or higher, or n. */
uint32_t zfi_first_of(const uint32_t *rising, size_t step, uint32_t n, uint32_t least);
/* The first of n segments whose matrix is numbered `matrix` or higher, or n: segments rise with their matrices. */
uint32_t zfi_first_segment(const zfi_segment_t *segments, uint32_t n, uint32_t matrix);
/* The chunk that state index `at` lies in; hint: the one to try first. */
static inline uint32_t zfi_state_chunk(const zfi_plan_t *plan, uint64_t at, uint32_t hint) {
    uint32_t first = 0, end = plan->n_chunks;
    if (at - plan->chunks[hint].state_base < plan->chunks[hint].n_elems) /* before it: wraps around */
        return hint;
    while (end - first > 1) {
        uint32_t middle = first + (end - first) / 2;
        if (plan->chunks[middle].state_base <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}
/* Whether what the model reads is the master: there is no other. */
static inline int zfi_is_own_master(const zfi_matrix_t *matrix) {
    return matrix->sees_edits && matrix->place.dtype == ZFI_F32;
}
/* The cohort that a matrix is listed with; residents come behind the last. */
static inline uint32_t zfi_listed_cohort(const zfi_plan_t *plan, const zfi_matrix_t *matrix) {
    return matrix->is_resident ? plan->n_cohorts : matrix->cohort;
}
/* Elements of one selected channel of a matrix, as far as they are here. */
static inline uint64_t zfi_channel_elems(const zfi_matrix_t *matrix) {
    return matrix->channels_are_rows && matrix->held_rows ? matrix->cols : matrix->held_rows;
}
/* The units of its gradient's sums (kernels.h). */
static inline uint64_t zfi_matrix_units(const zfi_matrix_t *matrix) {
    return zfi_sum_units(matrix->rows, matrix->cols, matrix->channels_are_rows);
}
/* The count of updates of a matrix's channel. */
static inline uint64_t zfi_count_at(const zfi_matrix_t *matrix, uint64_t channel) {
    return matrix->count_base + (matrix->n_counts > 1 ? channel : 0);
}
/* [control] Follows parameters whose visible memory has moved. */
void zfi_plan_place(zfi_plan_t *plan, const zfi_param_t *params);
void zfi_plan_free(zfi_plan_t *plan);
