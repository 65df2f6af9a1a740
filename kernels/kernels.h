/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/kernels.h - the arithmetic of the engine as one table of functions per instruction set.
 *
 * Every table computes the same bits (design: "Arithmetic"): fp32, round to nearest even, denormals kept, explicit fma,
 * IEEE square root and division; sums that decide are taken in ONE stated order (below). conformance/oracle/ is the
 * obviously right definition; kernels/cpu/ holds generic, NEON, AVX2 and AVX-512. The caller's thread must be in the
 * default floating-point environment: threads of the plugin call zfi_fp_mode_ieee() once.
 *
 * No kernel allocates, locks, or keeps state. Arrays need only the alignment of their element. All arrays of one call
 * are distinct unless said.
 *
 * Order of sums (plugin/SCHEDULE.md has the same in words). A matrix is cut into units. A unit's sums are short chains
 * in fp32 (a term is x*x, rounded, or |x|), joined by a binary tree: for off = half of the lanes ... 1: lane[l] +=
 * lane[l + off] for l < off. Chains begin at +0.0.
 *   by columns: a unit is ZFI_SUM_ROWS rows by ZFI_SUM_COLS columns, at multiples of them, numbered row by row. A chain
 *     runs down each column. The tree joins the columns' squares in double, 0 for columns that are missing.
 *   by rows (zfi_sums_by_rows): a unit is ZFI_SUM_ELEMS neighbours of a row, ZFI_SUM_LANES lanes, lane l takes elements
 *     l mod ZFI_SUM_LANES of the unit. The tree is fp32. A matrix of one column is a row,
 *     with channels the other way: where each element is a channel, its sum is |x|.
 *   Where a unit's sum of squares is not finite, or below ZFI_SUM_LEAST, all of its sums are taken in double, by the
 *     same chains and trees: nothing overflows or is lost below fp32's range.
 *   The sum of squares of a gradient: units of all matrices in order, number u to lane u mod ZFI_UNIT_LANES in double;
 *     the tree.
 *   The sum of |g| of a channel: from +0.0, in double, the chains (columns) or trees (rows) of its units in order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ZFI_SUM_ROWS 32u
#define ZFI_SUM_COLS 256u
#define ZFI_SUM_ELEMS 1024u
#define ZFI_SUM_LANES 64u
#define ZFI_UNIT_LANES 32u
#define ZFI_SUM_LEAST 0x1p-108

/* Whether units of a matrix are parts of rows. */
static inline int zfi_sums_by_rows(uint64_t rows, uint64_t cols, int channels_are_rows) {
    return channels_are_rows || rows == 1 || cols == 1;
}

/* Units of a matrix. */
static inline uint64_t zfi_sum_units(uint64_t rows, uint64_t cols, int channels_are_rows) {
    if (rows == 0 || cols == 0)
        return 0;
    if (!zfi_sums_by_rows(rows, cols, channels_are_rows))
        return ((rows - 1) / ZFI_SUM_ROWS + 1) * ((cols - 1) / ZFI_SUM_COLS + 1);
    return cols == 1 ? (rows - 1) / ZFI_SUM_ELEMS + 1 : rows * ((cols - 1) / ZFI_SUM_ELEMS + 1);
}

/* Element types of gradients and visible parameters. F16 is IEEE half: denormals kept, beyond the largest is Inf. */
typedef enum zfi_dtype { ZFI_F32 = 0, ZFI_BF16 = 1, ZFI_F16 = 2, ZFI_N_DTYPES } zfi_dtype_t;

static inline size_t zfi_dtype_nbytes(zfi_dtype_t dtype) { return dtype == ZFI_F32 ? 4u : 2u; }

static inline const char *zfi_dtype_name(zfi_dtype_t dtype) {
    return dtype == ZFI_F32 ? "float32" : dtype == ZFI_BF16 ? "bfloat16" : "float16";
}

/* Update rules, numbered as ZF_RULE_... of zf/plugin.h. One row per rule in each kernel table. */
typedef enum zfi_rule {
    ZFI_RULE_ADAMW = 0,
    ZFI_RULE_ADAM,
    ZFI_RULE_SGD,
    ZFI_RULE_SGD_NESTEROV,
    ZFI_RULE_LION,
    ZFI_N_RULES
} zfi_rule_t;

/* Moments that a rule keeps: m, or m and v. */
static inline int zfi_rule_has_v(zfi_rule_t rule) { return rule == ZFI_RULE_ADAMW || rule == ZFI_RULE_ADAM; }

/* How m and v lie in host memory. Arithmetic is fp32 in registers; what is kept smaller is widened when loaded and
 * rounded once when stored: to bf16, to nearest even or stochastically (cpu/moments.h), or to 8 bits by
 * runs (zfi_run8_t). INT8_BF16: m in 8 bits, v in bf16, stochastic. */
typedef enum zfi_moments {
    ZFI_MOMENTS_F32 = 0,
    ZFI_MOMENTS_BF16,
    ZFI_MOMENTS_BF16_STOCHASTIC,
    ZFI_MOMENTS_INT8,
    ZFI_MOMENTS_INT8_BF16,
    ZFI_N_MOMENTS
} zfi_moments_t;

typedef enum zfi_moment { ZFI_M, ZFI_V } zfi_moment_t;

/* A run: ZFI_RUN neighbours of a row, whose m or v are kept together (SCHEDULE.md, "Moments"). An array of them is a
 * sequence of runs; elements of it are reached at multiples of ZFI_RUN. Memory of zeros is zeros. */
#define ZFI_RUN 128u
typedef struct zfi_run8 {
    uint8_t code[ZFI_RUN]; /* 0: zero. m: the sign, above 7 bits */
    uint32_t grid;         /* v: the bits of code 1, whose lower 8 are free: they hold s. m: number of code 0's cell */
} zfi_run8_t;

static inline int zfi_is_in_runs(zfi_moments_t moments, zfi_moment_t which) {
    return moments == ZFI_MOMENTS_INT8 || (moments == ZFI_MOMENTS_INT8_BF16 && which == ZFI_M);
}
static inline int zfi_has_runs(zfi_moments_t moments) { return zfi_is_in_runs(moments, ZFI_M); }

/* Whether they are rounded by a hash of the element's number. */
static inline int zfi_is_stochastic(zfi_moments_t moments) { return moments >= ZFI_MOMENTS_BF16_STOCHASTIC; }

/* The bytes of n elements; of what lies in runs n is a multiple of ZFI_RUN. */
static inline uint64_t zfi_moment_nbytes(zfi_moments_t moments, zfi_moment_t which, uint64_t n) {
    return zfi_is_in_runs(moments, which) ? n / ZFI_RUN * sizeof(zfi_run8_t) : n * (moments == ZFI_MOMENTS_F32 ? 4 : 2);
}

/* Scalars of one update, computed in double and rounded once (zfi_rule_scalars). n = applied updates, this included.
 *   AdamW     g' = g*s; m = fma(b1, m, one_minus_b1*g'); v = fma(b2, v, (one_minus_b2*g')*g');
 *             d = fma(sqrt(v), inv_sqrt_bc2, eps); w = fma(neg_step, m/d, w*decay)
 *   Adam      g' = fma(l2, w, g*s); m, v, d as AdamW; w = fma(neg_step, m/d, w)
 *   SGD       g' = fma(l2, w, g*s); m = fma(b1, m, g'); w = fma(neg_step, m, w)
 *   Nesterov  g', m as SGD; w = fma(neg_step, fma(b1, m, g'), w)
 *             Both where b1 = 0: m stays, w = fma(neg_step, g', w)
 *   Lion      g' = g*s; c = fma(b1, m, one_minus_b1*g'); u = c > 0 ? 1 : c < 0 ? -1 : c (zeros and NaN as they are);
 *             w = fma(neg_step, u, w*decay); m = fma(b2, m, one_minus_b2*g')
 * What a rule does not name it does not read. */
typedef struct zfi_scalars {
    float s; /* unscale * clip factor */
    float b1;
    float one_minus_b1;
    float b2;
    float one_minus_b2;
    float inv_sqrt_bc2; /* 1 / sqrt(1 - b2^n) */
    float eps;
    float neg_step; /* AdamW, Adam: -lr / (1 - b1^n); others: -lr */
    float decay;    /* 1 - lr*wd */
    float l2;       /* weight decay added to the gradient */
} zfi_scalars_t;

/* Hyper-parameters of one parameter group at one step, as the host passed them. */
typedef struct zfi_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} zfi_hyper_t;

/* Replay: n_slots full updates in slot order, in registers, in one pass over w, m, v. */
/* Arrays as in zfi_replay_t; none overlaps what is written. */
typedef struct zfi_replay_from {
    const float *w;
    const void *m, *v;
} zfi_replay_from_t;

typedef struct zfi_replay {
    float *w;                      /* [n_elems], in/out */
    void *m, *v;                   /* [n_elems] as moments says, in/out; v NULL where the rule has none. In runs:
                                    * n_elems is a multiple of ZFI_RUN; without slots nothing is written */
    const zfi_replay_from_t *from; /* read w, m, v there and write them here; NULL: in place */
    const void *const *grads;      /* [n_slots] -> [n_elems] of grad_dtype */
    const zfi_scalars_t *scalars;  /* [n_slots] */
    uint32_t n_slots;              /* 0 is legal: only visible is written */
    zfi_dtype_t grad_dtype;
    void *visible; /* [n_elems] = round(w), or NULL */
    zfi_dtype_t visible_dtype;
    uint64_t n_elems;
    zfi_moments_t moments;
    uint64_t key;         /* stochastic: of this rounding of the whole state */
    uint64_t first_index; /* stochastic: index of element 0 in the host's state */
    /* AdamW and Adam: visible = round(fma(predict, m/d, w)), m and d of the last slot, m unrounded; without slots
     * round(w). Other rules ignore it. */
    int has_predict;
    float predict;
} zfi_replay_t;

/* One micro pass over a gradient: sum of squares, non-finite count, channel sums of |g|. The matrices lie one behind
 * the other in grad and cover it; abs_sums is overwritten. */
typedef struct zfi_stats_matrix {
    uint64_t rows, cols;
    double *abs_sums; /* [cols], or [rows] where channels are rows; NULL: not wanted */
} zfi_stats_matrix_t;

typedef struct zfi_stats {
    const void *grad; /* contiguous */
    zfi_dtype_t dtype;
    int channels_are_rows;
    const zfi_stats_matrix_t *matrices;
    uint32_t n_matrices;
    double *squares; /* [units of all matrices] their sums of squares, in order, in place of sum_squares; or NULL */
} zfi_stats_t;

typedef struct zfi_stats_result {
    double sum_squares;   /* over all matrices; 0 where the job has `squares` */
    uint64_t n_nonfinite; /* elements that are Inf or NaN */
} zfi_stats_result_t;

/* The places of a matrix's channels in the visible parameter: element (r, c) at visible[r*row_stride + col(c)], with
 * col(c) = col_offset[c], or c where col_offset is NULL. Strides count elements. */
typedef struct zfi_place {
    void *visible; /* element (0, 0) of the matrix */
    zfi_dtype_t dtype;
    int64_t row_stride;
    const int64_t *col_offset; /* [cols] or NULL */
} zfi_place_t;

/* A sub-matrix: rows row_index[0..n_rows) (NULL: 0..n_rows) by columns col_index[0..n_cols) (NULL: 0..n_cols). Compact
 * arrays of it are [n_rows][n_cols], row-major. */
typedef struct zfi_submatrix {
    const uint32_t *row_index;
    const uint32_t *col_index;
    uint64_t n_rows, n_cols;
} zfi_submatrix_t;

/* Run-ahead: one update of the selected channels' compact state, then visible = round(w) at their places. */
typedef struct zfi_run_ahead {
    float *w, *m, *v; /* compact, in/out; v NULL where the rule has none */
    const void *grad; /* compact, grad_dtype */
    zfi_dtype_t grad_dtype;
    zfi_submatrix_t sub;
    zfi_place_t place;
    const zfi_scalars_t *scalars; /* element (i, j) uses scalars[i*scalars_row_stride + j*scalars_col_stride] */
    uint64_t scalars_row_stride;  /* 0 or 1 */
    uint64_t scalars_col_stride;  /* 0 or 1; never both 1 */
    uint64_t cols; /* of the whole matrix: element (i, j) has index row(i)*cols + col(j) in the digest; 0: none is kept
                    */
} zfi_run_ahead_t;

/* Masked publish of elements [first, first + n_elems) (linear, row-major index) of a matrix with cols columns: visible
 * = staged where the element's channel is not selected. */
typedef struct zfi_publish {
    const void *staged; /* [n_elems], dtype of place */
    uint64_t first, n_elems;
    uint64_t cols;
    int channels_are_rows;
    const uint8_t *selected; /* [channels], 1 = leave alone; NULL = publish all */
    zfi_place_t place;
} zfi_publish_t;

/* Rounds compact fp32 moments of a sub-matrix, whose rows have cols columns, as a replay's store rounds them; they stay
 * fp32. Element (i, j) has index state_base + row(i)*cols + col(j). */
typedef struct zfi_round_moments {
    float *m, *v; /* compact, in/out; v may be NULL */
    zfi_submatrix_t sub;
    uint64_t cols, state_base;
    zfi_moments_t moments; /* F32: nothing happens */
    uint64_t key;
} zfi_round_moments_t;

typedef struct zfi_kernels {
    const char *name; /* "generic", "neon", "avx2", "avx512" */

    /* Returns the index of the first element whose w ended non-finite, or UINT64_MAX. One entry per rule. */
    uint64_t (*replay[ZFI_N_RULES])(const zfi_replay_t *job);

    void (*round_moments)(const zfi_round_moments_t *job);

    /* out[i] = (sum over slots in order of grads[k][i]*s[k]) / n_slots, n_slots >= 1; the first product starts the sum.
     */
    void (*mean_grad)(float *out, const void *const *grads, zfi_dtype_t dtype, const float *s, uint32_t n_slots,
                      uint64_t n_elems);

    void (*stats)(const zfi_stats_t *job, zfi_stats_result_t *out);

    /* Returns what the visible elements' digest (digest.h) has moved by; 0 where none is kept. */
    uint64_t (*run_ahead[ZFI_N_RULES])(const zfi_run_ahead_t *job);

    /* visible = round(w) at the places of a sub-matrix; w compact. */
    void (*scatter)(const zfi_place_t *place, const zfi_submatrix_t *sub, const float *w);

    /* The part of a digest (digest.h) of n elements one behind the other, of which the first has this index. */
    uint64_t (*digest)(const void *bits, zfi_dtype_t dtype, uint64_t n, uint64_t index);

    /* acc = g (is_first) or acc + g; fp32. */
    void (*accumulate)(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems, int is_first);

    void (*widen)(float *dst, const void *src, zfi_dtype_t dtype, uint64_t n_elems);
    void (*narrow)(void *dst, zfi_dtype_t dtype, const float *src, uint64_t n_elems); /* round to nearest even */
} zfi_kernels_t;

/* Instruction sets in rising order. */
typedef enum zfi_isa { ZFI_ISA_GENERIC = 0, ZFI_ISA_NEON, ZFI_ISA_AVX2, ZFI_ISA_AVX512, ZFI_N_ISAS } zfi_isa_t;

/* [any-thread] Best set this CPU (and the operating system's register state) supports. */
zfi_isa_t zfi_isa_best(void);
/* [any-thread] "generic", "neon", "avx2", "avx512". */
const char *zfi_isa_name(zfi_isa_t isa);
/* [any-thread] Parses a name; -1 where unknown. */
int zfi_isa_parse(const char *name);
/* [any-thread] Table of a set, NULL where the CPU or the build lacks it. */
const zfi_kernels_t *zfi_kernels_of(zfi_isa_t isa);

/* b^n by repeated squaring, low bit first: the same bits on every machine, unlike libm's pow. */
double zfi_power(double b, uint32_t n);

/* [any-thread] Scalars of update number n (from 1) with gradient factor s: double, rounded once. */
zfi_scalars_t zfi_rule_scalars(zfi_rule_t rule, const zfi_hyper_t *hyper, float s, uint32_t n);

/* Moves without arithmetic: one copy for the baseline CPU.
 *
 * Compact copy of a sub-matrix of a contiguous [.][cols] matrix; elements of elem_nbytes = 2 or 4. */
void zfi_gather(void *out, const void *matrix, uint64_t cols, size_t elem_nbytes, const zfi_submatrix_t *sub);
/* A selected element is neither read nor written: another thread may be updating it. */
void zfi_publish(const zfi_publish_t *job);
/* A strided tensor (strides in elements) row-major and contiguous. */
void zfi_pack(void *dst, const void *src, size_t elem_nbytes, int ndim, const int64_t *shape, const int64_t *strides);

/* The address of an element; a value rounded there. */
void *zfi_place_at(const zfi_place_t *place, uint64_t row, uint64_t col);
void zfi_place_write(const zfi_place_t *place, uint64_t row, uint64_t col, float value);

/* The calling thread (one of the plugin's own) rounds to nearest, keeps denormals, raises no traps. */
void zfi_fp_mode_ieee(void);

/* Scalar conversions, used by every table for its tails. */
float zfi_bf16_to_f32(uint16_t bits);
uint16_t zfi_f32_to_bf16(float x); /* round to nearest even by integers; a NaN keeps its upper bits and becomes quiet */
float zfi_f16_to_f32(uint16_t bits); /* exact; a NaN keeps its bits and becomes quiet */
uint16_t zfi_f32_to_f16(float x);    /* as zfi_f32_to_bf16 */

/* SCHEDULE.md, "Moments": what is added to an element's row-major index in its parameter to number it. */
static inline uint64_t zfi_rounding_base(uint32_t param) { return (uint64_t)param << 40; }

/* The parameter, and the element's number in it, that such an index stands for. */
static inline uint32_t zfi_index_param(uint64_t index) { return (uint32_t)(index >> 40); }
static inline uint64_t zfi_index_element(uint64_t index) { return index & ((UINT64_C(1) << 40) - 1); }

/* The values of a run, and the run of values; random: [ZFI_RUN], of which the upper bits count, or NULL: to nearest.
 * What a run holds it keeps. */
void zfi_run8_get(const zfi_run8_t *run, zfi_moment_t which, float *out);
void zfi_run8_put(zfi_run8_t *run, zfi_moment_t which, const float *values, const uint32_t *random);
