/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/launch.h - what a stream launches: the device's part of a training step as a catalogue of kernels.
 *
 * Model. A kernel is a function of its arguments alone. Every address in the arguments, and in what they point to, is
 * one that the device can reach: device memory, or page-locked host memory where it says so. All kernels of an instance
 * share one zfi_data_t: the tables of parameters, matrices and segments, and the arrays that kernels keep from step to
 * step. It is built when parameters are bound and changes only by copies that are enqueued like everything else.
 *
 * Kernels of one stream run one after the other; those that work on the same arrays are enqueued on one stream or
 * ordered by a timeline. No kernel allocates or waits. Kernels that write visible values keep their digests up to date,
 * and leave parameters alone that are foreign. The arithmetic is that of kernels.h: the same bits on every
 * backend, sums in the order that is stated there.
 *
 * A CPU backend calls zfi_launch_cpu[kernel]; another backend has its own table of the same kernels. */
#pragma once

#include "kernels.h"

enum { ZFI_LAUNCH_NDIM = 8, ZFI_LAUNCH_GRADIENTS = 64, ZFI_ENTER_RECTS = 64, ZFI_NO_PARAM = -1 };

/* A range that is copied. */
typedef struct zfi_range {
    void *to;
    const void *from;
    uint64_t nbytes;
} zfi_range_t;

/* ---- tables ------------------------------------------------------------------------------------------------------ */

typedef struct zfi_data_param {
    uint64_t n_elems;
    zfi_dtype_t grad_dtype;
    uint32_t group;                    /* index into the hyper-parameters of a step */
    uint32_t first_matrix, n_matrices; /* of which statistics are taken */
    uint64_t n_units;                  /* the units of their sums (kernels.h) */
    int channels_are_rows;
    int counts_in_norm;
    zfi_rule_t rule;
    const void *host_rule; /* in place of the rule's kernel, the host's own: what it is called with; else NULL */
} zfi_data_param_t;

typedef struct zfi_data_matrix {
    uint32_t param;
    uint32_t k, n_channels; /* selected channels, all channels */
    int channels_are_rows;
    int is_resident; /* its state lies in all_w, all_m, all_v */
    /* CPU only: UPDATE_ALL takes an element of w from the visible one where that is not round(w), since the host wrote
     * it. Of fp32 the visible value is w itself. No digest is kept of them. */
    int sees_edits;
    /* CPU only: its gradient lies in the memory of its visible values until UPDATE_ALL, or a worker, writes these; in a
     * step that is skipped, too. No digest is kept of them. */
    int carries;
    int has_sums; /* channel sums of |gradient| are wanted, and the selected channels are listed in index */
    uint64_t rows, cols;
    uint64_t param_offset; /* elements from the parameter's start, row-major */
    uint64_t grad_offset;  /* where element (0, 0) lies from the beginning of its gradient, or would lie */
    uint64_t first_row;  /* channels are rows, of which these are some: those in index count from the matrix's first */
    uint64_t sel_base;   /* first element in the compact w, m, v */
    uint64_t grad_base;  /* first byte in the compact gradient */
    uint64_t index_base; /* first position in index */
    uint64_t channel_base; /* first channel in masks */
    uint64_t sum_base;     /* first channel in sums */
    uint64_t unit_base;    /* first unit in unit_squares */
    zfi_place_t place;     /* of element (0, 0) in the visible parameter */
} zfi_data_matrix_t;

/* Whether a digest tells what the host wrote of its visible values. */
static inline int zfi_has_digest(const zfi_data_matrix_t *matrix) { return !matrix->sees_edits && !matrix->carries; }

/* A contiguous range of a matrix's elements and its place in a piece of staged values. */
typedef struct zfi_data_segment {
    uint32_t matrix, n_elems;
    uint64_t matrix_offset; /* elements from the matrix's start */
    uint64_t piece_offset;  /* elements from the piece's start */
    uint64_t state_base;    /* of its first element in all_w, all_m, all_v */
} zfi_data_segment_t;

/* Pieces are what travels: their segments are segments[first_segment] ... */
typedef struct zfi_data_piece {
    uint32_t first_segment, n_segments;
    uint32_t n_elems;
} zfi_data_piece_t;

/* Totals that the device alone adds to; page-locked host memory, read by any thread. */
typedef struct zfi_totals {
    uint64_t n_applied, n_skipped;
    uint64_t n_overwritten; /* elements of the matrices by which parameters were found to be foreign */
    uint64_t n_params_overwritten;
    uint64_t nonfinite_param; /* id + 1 of a parameter of which UPDATE_ALL left a weight Inf or NaN; 0: none */
} zfi_totals_t;

typedef struct zfi_data zfi_data_t;

/* Which elements those of a compact sub-matrix are: element (i, j) has index first_index + row(i) * cols + col(j), with
 * zfi_rounding_base of its parameter. */
typedef struct zfi_elements {
    uint64_t first_index, cols;
    zfi_submatrix_t sub;
} zfi_elements_t;

/* The host's own update rule in place of a kernel's; CPU only. As zfi_kernels_t.run_ahead, n indexed as job->scalars.
 */
typedef uint64_t (*zfi_run_ahead_fn)(const void *ctx, const zfi_run_ahead_t *job, const zfi_elements_t *elements,
                                     const zfi_hyper_t *hyper, const uint32_t *n);

/* The same for all channels: as zfi_kernels_t.replay with one slot. n: number of the update. */
typedef uint64_t (*zfi_update_fn)(const void *ctx, const zfi_replay_t *job, const zfi_hyper_t *hyper, uint32_t n);

/* Calls fn(arg, i) for every i < n, some at once on threads that lend a hand, and returns when all are over. */
typedef void (*zfi_part_fn)(void *arg, uint32_t i);
typedef void (*zfi_share_fn)(void *ctx, uint32_t n, zfi_part_fn fn, void *arg);

struct zfi_data {
    const zfi_data_param_t *params;
    const zfi_data_matrix_t *matrices;
    const zfi_data_segment_t *segments;
    const zfi_data_piece_t *pieces;
    const uint32_t *listed_pieces; /* piece numbers in the order that merge walks */
    const uint32_t *listed_matrices;
    uint32_t n_params, n_matrices;
    zfi_moments_t moments;           /* how m and v are kept in all_m, all_v, but for runs; in m and v they are fp32 */
    int counts_per_channel;          /* n: one count per selected channel, else one per matrix */
    zfi_run_ahead_fn host_run_ahead; /* of parameters with a host_rule */
    zfi_update_fn host_update;
    zfi_share_fn share; /* CPU only: ... [share_ctx]; NULL: a launch has one thread */
    void *share_ctx;

    float *w, *m, *v;           /* [all selected elements] compact; m, v NULL where no rule has them */
    float *all_w;               /* the state of resident matrices */
    void *all_m, *all_v;        /* their moments, as `moments` says; NULL where no rule has them */
    uint32_t *all_n;            /* [n_matrices] ... and its applied updates; NULL: no matrix is resident */
    unsigned char *grad;        /* compact gradient of the step */
    uint32_t *index;            /* selected channels by position */
    uint8_t *masks[2];          /* 1 per selected channel; choices fill them in turn */
    uint32_t *n;                /* applied updates */
    double *sums[2];            /* channel sums of |gradient| of two steps in turn */
    double *sum_squares;        /* [n_params] of the step */
    uint8_t *has_nonfinite;     /* [n_params] of the step */
    const void **held;          /* [n_params] gradients of the step, kept until s is known; NULL: not wanted */
    const uint64_t *merge_from; /* [n_matrices] values numbered below are not merged */
    zfi_scalars_t *scalars;     /* scratch: one per selected channel of a matrix; or as n, see unit_squares */
    double *unit_squares;       /* scratch: the units' sums of squares, of all matrices */
    uint64_t *found;     /* scratch of backends that work on many matrices at once: [n_matrices] digests of what CHECK
                            finds; 0 between two of them */
    uint32_t *is_bad;    /* [n_matrices] UPDATE_ALL found a weight Inf or NaN */
    uint64_t *digests;   /* [n_matrices] of what was written to visible values (digest.h); NULL: nothing is checked */
    uint8_t *is_foreign; /* [n_params] CHECK found what nobody announced: no kernel writes its visible values */
    zfi_totals_t *totals;
    uint8_t *overwritten; /* [n_params] page-locked host memory: set with is_foreign, for the host to read */
    /* CPU only: elements [first_run, end_run) of the resident state, multiples of ZFI_RUN, have these moments. */
    uint64_t first_run, end_run;
    zfi_moments_t run_moments;
};

/* How the moments of element i of the resident state are kept, and the bytes of those before it. */
static inline zfi_moments_t zfi_resident_moments(const zfi_data_t *data, uint64_t i) {
    return i >= data->first_run && i < data->end_run ? data->run_moments : data->moments;
}
static inline uint64_t zfi_resident_before(const zfi_data_t *data, zfi_moment_t which, uint64_t i) {
    const uint64_t end = i < data->end_run ? i : data->end_run, n = end > data->first_run ? end - data->first_run : 0;
    return zfi_moment_nbytes(data->moments, which, i - n) + zfi_moment_nbytes(data->run_moments, which, n);
}

/* The host's words to a step: hyper[n_groups], then present[n_params], in device memory. */
typedef struct zfi_step_input {
    const zfi_hyper_t *hyper;
    const uint8_t *present;
} zfi_step_input_t;

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* One rank's part of a step's norm. */
typedef struct zfi_norm_part {
    double sum_squares;
    int64_t nonfinite_param; /* lowest id, or ZFI_NO_PARAM */
} zfi_norm_part_t;

/* Scalars of a step. */
typedef struct zfi_step_scalars {
    double norm, clip_factor, s_exact; /* s_exact = unscale * clip_factor */
    float s;                           /* s_exact rounded */
    int32_t applied;                   /* all finite: norm, s and every element of the present gradients */
    int64_t nonfinite_param;
} zfi_step_scalars_t;

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef enum zfi_kernel {
    ZFI_KERNEL_COLLECT,       /* zfi_gradients_args_t */
    ZFI_KERNEL_STATISTICS,    /* zfi_gradients_args_t */
    ZFI_KERNEL_NORM_PART,     /* zfi_norm_part_args_t */
    ZFI_KERNEL_SCALARS,       /* zfi_scalars_args_t */
    ZFI_KERNEL_RUN_AHEAD,     /* zfi_run_ahead_args_t */
    ZFI_KERNEL_UPDATE_ALL,    /* zfi_update_all_args_t */
    ZFI_KERNEL_GATHER,        /* zfi_gather_args_t */
    ZFI_KERNEL_ENTER_MAPS,    /* zfi_enter_maps_args_t */
    ZFI_KERNEL_ENTER_STATE,   /* zfi_enter_state_args_t */
    ZFI_KERNEL_ENTER_COUNTS,  /* zfi_enter_maps_args_t */
    ZFI_KERNEL_SHOW_ENTERED,  /* zfi_enter_maps_args_t */
    ZFI_KERNEL_MERGE,         /* zfi_merge_args_t */
    ZFI_KERNEL_CHECK,         /* zfi_check_args_t */
    ZFI_KERNEL_ROUND_MOMENTS, /* zfi_round_moments_args_t */
    ZFI_KERNEL_READ_PLACE,    /* zfi_place_args_t */
    ZFI_KERNEL_WRITE_PLACE,   /* zfi_place_args_t */
    ZFI_KERNEL_REPORT,        /* zfi_report_args_t */
    ZFI_KERNEL_SUM_PARTS,     /* zfi_sum_parts_args_t */
    ZFI_KERNEL_MOVE,          /* zfi_move_args_t */
    ZFI_N_KERNELS
} zfi_kernel_t;

/* A delivered gradient on its way through the device. COLLECT makes `grad` of what needs work first, in the order of
 * the list; STATISTICS reads those with ZFI_GRADIENT_SHIP. */
enum {
    ZFI_GRADIENT_SHIP = 1,      /* its statistics are taken */
    ZFI_GRADIENT_SUM = 2,       /* added to `sum` first */
    ZFI_GRADIENT_SUM_FIRST = 4, /* the first part of a step */
    ZFI_GRADIENT_FROM_SUM = 8,  /* no source: `grad` is the sum, rounded */
    ZFI_GRADIENT_STRIDED = 16,  /* packed into `grad` */
    ZFI_GRADIENT_KEEP = 32,     /* copied into `grad`: the source is only lent */
    ZFI_GRADIENT_ROUND = 128,   /* the sum is rounded into `grad`, without SHIP too */
    ZFI_GRADIENT_LANDED = 256,  /* with SHIP: its slots have it already */
    ZFI_GRADIENT_AGAIN = 64     /* for copies: an earlier one of this parameter, perhaps of the same list, is lost */
};

typedef struct zfi_gradient {
    uint32_t param, flags;
    const void *source;
    void *grad; /* contiguous [n_elems]: the source itself, or staging */
    float *sum; /* [n_elems], with SUM or FROM_SUM */
    int32_t ndim;
    int64_t shape[ZFI_LAUNCH_NDIM], strides[ZFI_LAUNCH_NDIM]; /* with STRIDED */
} zfi_gradient_t;

typedef struct zfi_gradients_args {
    const zfi_data_t *data;
    const zfi_gradient_t *gradients; /* page-locked host memory */
    uint32_t n;                      /* at most ZFI_LAUNCH_GRADIENTS */
    uint32_t turn;                   /* which of the two arrays of sums */
    int gathers;                     /* the selected channels' gradient goes into the compact one */
} zfi_gradients_args_t;

/* sum_squares = those of the present parameters that count in the norm, by id from +0.0. */
typedef struct zfi_norm_part_args {
    const zfi_data_t *data;
    zfi_step_input_t step;
    zfi_norm_part_t *out;
} zfi_norm_part_args_t;

/* Parts are added by rank from +0.0; norm = unscale * sqrt(sum), or *host_norm; clip factor = min(1, clip_norm / (norm
 * + 1e-6)) where clip_norm > 0. */
typedef struct zfi_scalars_args {
    const zfi_norm_part_t *parts; /* [n_parts] by rank */
    uint32_t n_parts;
    double unscale, clip_norm;
    const double *host_norm;
    zfi_step_scalars_t *out;
} zfi_scalars_args_t;

/* One update of the selected channels of matrices [first, end) of the present parameters that are not foreign, if the
 * step is applied. */
typedef struct zfi_run_ahead_args {
    const zfi_data_t *data;
    zfi_step_input_t step;
    const zfi_step_scalars_t *scalars;
    uint32_t first, end;
    int counts_only; /* nothing is selected yet: only n moves */
} zfi_run_ahead_args_t;

/* One update of every channel of the resident ones of matrices [first, end), whose segments are [first_segment,
 * end_segment), of the present parameters, if the step is applied. It reads the held gradients. Moments of two bytes
 * are rounded with `key` as they are stored. only_shows: nothing is updated, visible = round(w) of all of them. */
typedef struct zfi_update_all_args {
    const zfi_data_t *data;
    zfi_step_input_t step;
    const zfi_step_scalars_t *scalars;
    uint32_t first, end;
    uint32_t first_segment, end_segment;
    uint64_t key;
    int only_shows;
} zfi_update_all_args_t;

/* The compact gradient of one matrix from its own [rows][cols] gradient. */
typedef struct zfi_gather_args {
    const zfi_data_t *data;
    uint32_t matrix;
    const void *grad;
} zfi_gather_args_t;

/* Channels on their way in: of matrix i, entering[i] positions and channels from its index_base on. */
typedef struct zfi_entering {
    const uint32_t *n_enter;            /* [n_matrices] */
    const uint32_t *position, *channel; /* as data.index */
    const uint32_t *count;              /* as data.index, where n is counted per channel */
} zfi_entering_t;

typedef struct zfi_enter_maps_args {
    const zfi_data_t *data;
    zfi_entering_t entering;
    int replaces;  /* the positions hold channels that leave */
    uint32_t turn; /* ENTER_MAPS: the mask to fill; the other stays as it was before this choice */
} zfi_enter_maps_args_t;

/* Rows [a0, a0 + na) and columns [b0, b0 + nb) of a matrix, where the channel axis counts its entering channels. */
typedef struct zfi_enter_rect {
    uint32_t matrix, at; /* first element in the block */
    uint64_t a0, na, b0, nb;
} zfi_enter_rect_t;

/* A block of entering state: for each rectangle its w, then m, then v (as many as the rule has), from `at` times the
 * number of arrays on. */
typedef struct zfi_enter_block {
    uint64_t n_rects;
    zfi_enter_rect_t rects[ZFI_ENTER_RECTS];
    float values[];
} zfi_enter_block_t;

typedef struct zfi_enter_state_args {
    const zfi_data_t *data;
    zfi_entering_t entering;
    const zfi_enter_block_t *block;
    uint32_t n_arrays;
} zfi_enter_state_args_t;

/* Published values become visible where their channel is not selected and the parameter is not foreign: pieces
 * listed_pieces[first, first + n), the i-th staged in place (first_place + i) mod n_places. */
typedef struct zfi_merge_args {
    const zfi_data_t *data;
    const unsigned char *staged;
    uint64_t place_nbytes, first_number; /* of the first piece; the others follow */
    uint32_t n_places, first, n;
    int takes_all;                       /* selected channels too */
    int all_open;                        /* nothing is selected yet */
    uint32_t turn;                       /* the mask that says what is selected */
    uint32_t first_segment, end_segment; /* of the pieces' segments, those with these numbers */
} zfi_merge_args_t;

/* Whether the visible values of matrices listed_matrices[first, first + n) are those that kernels wrote. Where they are
 * not, the parameter is foreign from now on. With `seals`, whatever is found counts as written. */
typedef struct zfi_check_args {
    const zfi_data_t *data;
    uint32_t first, n;
    int seals;
} zfi_check_args_t;

/* The compact moments of matrices listed_matrices[first, first + n) as the host's are rounded. */
typedef struct zfi_round_moments_args {
    const zfi_data_t *data;
    uint32_t first, n;
    uint64_t key;
} zfi_round_moments_args_t;

/* Elements [first, first + n) (row-major) of a matrix's visible values, and where they lie in contiguous memory: `at`
 * elements behind the start, or, of a piece in a table, behind what the cohorts before its own have in its part. */
typedef struct zfi_placed {
    uint32_t matrix;
    uint16_t cohort, part;
    uint64_t first, n, at;
} zfi_placed_t;

/* Cohorts of matrices, of 65 at most: 64 that have windows, and behind the last what is resident. */
typedef struct zfi_cohorts {
    uint64_t bits[2];
} zfi_cohorts_t;

/* Visible values from or to contiguous memory: `one`, or, where there is a table, of its entries 0, step, 2 * step ...
 * those that travel. Its memory has parts of part_elems, and in each what it has of the cohorts that travel, by rising
 * cohort. The table and of_cohort are page-locked host memory. */
typedef struct zfi_place_args {
    const zfi_data_t *data;
    void *bits;
    zfi_placed_t one;
    const zfi_placed_t *table; /* or NULL */
    const uint64_t *of_cohort; /* [cohorts][n_parts] elements */
    uint64_t part_elems;
    zfi_cohorts_t cohorts; /* those that travel */
    uint32_t n, step, n_parts;
    uint32_t skipped;   /* this part is left out; n_parts: none is */
    int keeps_selected; /* WRITE_PLACE: channels that the mask of this turn says are selected are left alone */
    uint32_t turn;
} zfi_place_args_t;

/* [any-thread] */
static inline int zfi_has_cohort(const zfi_cohorts_t *cohorts, uint32_t c) {
    return (int)(cohorts->bits[c / 64] >> c % 64 & 1);
}
/* [any-thread] Where a piece of the table lies in the memory of its part. */
static inline uint64_t zfi_placed_at(const zfi_place_args_t *args, const zfi_placed_t *piece) {
    uint64_t at = piece->at;
    for (uint32_t c = 0; c < piece->cohort; c++)
        if (zfi_has_cohort(&args->cohorts, c))
            at += args->of_cohort[(uint64_t)c * args->n_parts + piece->part];
    return at;
}

/* The step's result for the host: *out and *totals are page-locked host memory. */
typedef struct zfi_report_args {
    const zfi_data_t *data;
    const zfi_step_scalars_t *scalars;
    zfi_step_scalars_t *out;
} zfi_report_args_t;

/* A part of a bucket, summed over ranks: parts are added in fp32 by rank from rank 0's on, divided by `divisor`
 * where there is one, and rounded once. This rank's own part lies at `own`, the others' at
 * arrived[rank][n_elems]; out may be own. *found, page-locked host memory, becomes found_as | r where rank r's part
 * has one that is not finite among its first n_looked elements, unless it is set already; n_looked 0: nobody asks. */
typedef struct zfi_sum_parts_args {
    const void *own, *arrived;
    void *out;
    uint64_t n_elems;
    zfi_dtype_t dtype;
    uint32_t rank, n_ranks;
    uint32_t divisor; /* 0: none */
    uint64_t *found, found_as, n_looked;
} zfi_sum_parts_args_t;

/* Contiguous elements from one place to another, both counted in elements; targets do not overlap anything. */
typedef struct zfi_move {
    uint64_t from, to, n_elems;
} zfi_move_t;

typedef struct zfi_move_args {
    const zfi_move_t *moves; /* page-locked host memory */
    uint64_t n;
    zfi_dtype_t dtype;
    int goes_back; /* from `to` to `from` */
    void *from, *to;
} zfi_move_args_t;

/* The largest arguments of any kernel, in bytes. */
enum { ZFI_LAUNCH_ARGS = 120 };

/* [any-thread] One function per kernel; `kernels` is the table of the instruction set. */
typedef void (*zfi_launch_fn)(const zfi_kernels_t *kernels, const void *args);
extern const zfi_launch_fn zfi_launch_cpu[ZFI_N_KERNELS];
