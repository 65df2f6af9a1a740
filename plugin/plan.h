/* plugin/plan.h - the plan: parameters cut into matrices, matrices dealt into cohorts, cohorts laid out in chunks.
 *
 * Model. A matrix is the unit of selection and of the schedule (SCHEDULE.md). The host's state arrays w, m, v follow
 * the order cohort, data type class, matrix; within them a matrix is contiguous, row-major, and starts at a multiple of
 * ZFI_STATE_ALIGN elements. A chunk is a fixed range of that order and the unit of a replay: its slots, one piece of
 * the slot pool each, have the same layout. A segment is where a matrix and a chunk overlap. All of it is fixed at
 * bind.
 */
#ifndef ZFI_PLAN_H
#define ZFI_PLAN_H

#include <stdint.h>

#include "config.h"
#include "params.h"

#define ZFI_STATE_ALIGN 16u

typedef struct zfi_matrix {
    uint32_t param;
    uint32_t cohort;
    uint64_t rows, cols;
    uint64_t param_offset; /* elements from the parameter's start (row-major) to the matrix's */
    uint64_t nbytes;       /* in the parameter's data type */
    uint64_t state_base;   /* index of element (0, 0) in w, m, v */
    uint32_t n_channels;
    uint32_t k;        /* selected channels after warm-up; topk_ratio = auto, is_choosable: 0 until control decides it
                        * at the first choice, the device may read it after `chosen` of that step */
    uint32_t k_most;   /* the most k can be */
    uint64_t sel_base; /* index into the device's compact arrays; follows k */
    uint64_t channel_base; /* index into per-channel arrays */
    uint64_t index_base;   /* index into arrays of k_most per matrix */
    uint64_t sum_base;     /* index into importance sums; only where is_choosable */
    int channels_are_rows;
    int is_choosable;  /* 0 < k < n_channels, or topk_ratio = auto decides k */
    zfi_place_t place; /* of its element (0, 0) in the visible parameter */
} zfi_matrix_t;

typedef struct zfi_segment {
    uint32_t matrix, chunk;
    uint32_t chunk_offset; /* elements from the chunk's start */
    uint32_t n_elems;
    uint64_t matrix_offset; /* elements from the matrix's start */
} zfi_segment_t;

typedef struct zfi_chunk {
    uint64_t state_base;
    uint32_t n_elems;
    uint32_t first_segment, n_segments;
    zfi_dtype_t dtype, grad_dtype;
} zfi_chunk_t;

typedef struct zfi_cohort_plan {
    uint32_t first_chunk, n_chunks;
    uint32_t first_matrix, n_matrices; /* into cohort_matrices */
    uint64_t nbytes;
} zfi_cohort_plan_t;

typedef struct zfi_plan {
    uint32_t n_matrices, n_segments, n_chunks, n_cohorts;
    zfi_matrix_t *matrices;    /* by (parameter, batch, row block) */
    uint32_t *cohort_matrices; /* [n_matrices] grouped by cohort, in state order */
    zfi_segment_t *segments;   /* by chunk */
    uint32_t *param_segments;  /* [n_segments] segment numbers grouped by parameter */
    zfi_chunk_t *chunks;       /* by cohort */
    zfi_cohort_plan_t *cohorts;
    uint32_t piece_nbytes;                   /* of a slot pool piece */
    uint32_t piece_stride;                   /* from one piece to the next: off powers of two, which share cache sets */
    uint32_t publish_piece_nbytes;           /* of a staged chunk on its way up */
    uint32_t max_close_chunks;               /* most chunks that close at one step and wait to be published */
    uint64_t n_elems;                        /* trainable, without padding */
    uint64_t n_state_elems;                  /* with padding */
    uint64_t n_sel_elems, n_sel_grad_nbytes; /* topk_ratio = auto: the most that the budget allows */
    uint64_t n_open_elems;                   /* topk_ratio = auto: of the matrices whose k it decides */
    uint64_t n_channels, n_index, n_sums;
    uint32_t n_slot_pieces;        /* peak of the schedule: what the pool holds */
    double slots_peak, slots_mean; /* per parameter, in units of one full gradient */
} zfi_plan_t;

/* [any-thread] Whether topk_ratio = auto decides how many channels of a matrix of this parameter are selected. */
int zfi_plan_is_open(const zfi_config_t *config, const zfi_param_t *param, uint32_t n_channels);

/* [control] Plans; sets first_matrix ... n_refs of the parameters. ZF_ERR_PARAM where nothing is trainable. */
zf_status_t zfi_plan_build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params, zfi_plan_t *out,
                           zf_error_t *err);
/* [control] Follows parameters whose visible memory has moved. */
void zfi_plan_place(zfi_plan_t *plan, const zfi_param_t *params);
void zfi_plan_free(zfi_plan_t *plan);

#endif
