/* SPDX-License-Identifier: Apache-2.0 */
/* sums.cuh - one look at a matrix of a gradient: sums of squares, channel sums of |g|, the selected columns' gradient.
 *
 * A matrix is cut into items, and units of the stated order (../kernels.h) lie within them.
 *   by columns: an item is a strip of columns. Threads stand side by side, each with V columns, which it walks down 32
 *     rows; as many groups of 32 rows at once as fit. Rows of the strip pass through shared memory where selected
 *     columns are gathered from them, so the compact gradient is written in runs and nothing is read a second time.
 *     Both sums of each column then go through shared memory: a warp joins the squares of a unit, a thread a column's
 *     magnitudes.
 *   by rows: an item is a few rows. 64 / V threads take a unit with their lanes in registers. Selected rows are
 *     gathered by items of their own, since they are whole.
 * Loads have 16 bytes where the address allows it. Sums of units go to data->unit_squares; step.cu adds them up.
 *
 * A unit that fp32 does not hold is taken again in double by a warp, element by element. After that a unit holds a
 * non-finite element if and only if its sum is not finite. */
#pragma once

#include "wide.cuh"

enum {
    LANES = ZFI_SUM_LANES,
    WARPS = THREADS / 32,
    MOST_WIDE = 8,    /* elements that a thread holds side by side */
    ROWS_AT_ONCE = 4, /* loads of a thread before it adds */
    MOST_COLS = THREADS * MOST_WIDE,
    MOST_PICKED = MOST_COLS + 512,          /* of a list; three blocks of threads fit into 100 KiB of shared memory */
    ROW_UNITS = THREADS * MOST_WIDE / LANES /* most units of rows that a block of threads takes at once */
};

/* ---- V elements at once ------------------------------------------------------------------------------------------ */

template <int NBYTES> struct word;
template <> struct word<2> { typedef uint16_t type; };
template <> struct word<4> { typedef uint32_t type; };
template <> struct word<16> { typedef uint4 type; };

DEVICE uint32_t part_of(uint16_t word, int) { return word; }
DEVICE uint32_t part_of(uint32_t word, int) { return word; }
DEVICE uint32_t part_of(uint4 word, int i) { return i == 0 ? word.x : i == 1 ? word.y : i == 2 ? word.z : word.w; }

template <int DTYPE, int V> struct vec {
    typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type bits;
    __device__ __forceinline__ void clear() { bits = typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type(); }
    __device__ __forceinline__ void load(const void *array, uint64_t i) {
        const char *at = (const char *)array + i * (DTYPE == ZFI_F32 ? 4 : 2);
        bits = *in_global((const typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type *)at);
    }
    __device__ __forceinline__ void store(void *array, uint64_t i) const {
        char *at = (char *)array + i * (DTYPE == ZFI_F32 ? 4 : 2);
        *in_global((typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type *)at) = bits;
    }
    __device__ __forceinline__ uint32_t raw(int j) const {
        if (DTYPE == ZFI_F32)
            return part_of(bits, j);
        return j & 1 ? part_of(bits, j / 2) >> 16 : part_of(bits, j / 2) & 0xffffu;
    }
    __device__ __forceinline__ float at(int j) const {
        if (DTYPE == ZFI_F32)
            return __uint_as_float(part_of(bits, j));
        if (DTYPE == ZFI_BF16) /* the upper half is a float as it stands */
            return __uint_as_float(j & 1 ? part_of(bits, j / 2) & 0xffff0000u : part_of(bits, j / 2) << 16);
        return f16_to_f32(j & 1 ? part_of(bits, j / 2) >> 16 : part_of(bits, j / 2) & 0xffffu);
    }
};

DEVICE void add_terms(float x, float *square, float *magnitude) {
    *square = __fadd_rn(*square, __fmul_rn(x, x));
    *magnitude = __fadd_rn(*magnitude, fabsf(x));
}

DEVICE bool is_in_range(double squares) { return squares >= ZFI_SUM_LEAST && is_finite(squares); }

/* Stores a word among all of the matrix's elements; `to` has the matrix's type and perhaps not the word's alignment. */
template <int DTYPE, int V> DEVICE void copy_word(const vec<DTYPE, V> &word, void *to, uint64_t i, bool is_fit) {
    if (is_fit) {
        word.store(to, i);
        return;
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        put_bits(to, DTYPE, i + j, word.raw(j));
}

/* ---- a warp's sums ----------------------------------------------------------------------------------------------- */

/* The upper levels of a tree whose thread l has lanes l, l + 32, ... joined already. */
DEVICE double join_warp(double x) {
#pragma unroll
    for (int off = 16; off > 0; off /= 2)
        x = __dadd_rn(x, from_partner(x, off));
    return x;
}

/* A chain in double: elements first, first + step, ... before end; squares or magnitudes. */
DEVICE double wide_chain(const void *grad, int dtype, uint64_t first, uint64_t step, uint64_t end, bool is_square) {
    double sum = 0.0;
    for (uint64_t i = first; i < end; i += step) {
        const double x = fabs((double)widen(dtype, get_bits(grad, dtype, i)));
        sum = __dadd_rn(sum, is_square ? __dmul_rn(x, x) : x);
    }
    return sum;
}

/* A row's unit in double, by a warp. */
DEVICE double wide_row(const void *grad, int dtype, uint64_t first, uint64_t end, bool is_square) {
    const uint64_t at = first + threadIdx.x % 32;
    return join_warp(__dadd_rn(wide_chain(grad, dtype, at, LANES, end, is_square),
                               wide_chain(grad, dtype, at + 32, LANES, end, is_square)));
}

/* ---- what is shared by a block of threads --------------------------------------------------------------------------
 */

/* How threads cover a matrix: `high` times `wide` = 1 << shift of those that stand together (a thread with V columns,
 * or the threads of a row's unit). */
typedef struct strip {
    uint32_t wide, high;
    uint64_t shift;    /* no padding: loads of several words would read it */
    uint64_t n_groups; /* of V columns, or units, in a row */
} strip_t;

/* A matrix of a delivered gradient and its items; made by one thread. */
typedef struct job {
    zfi_data_matrix_t matrix; /* one column is one row here */
    int dtype;
    uint32_t v;
    bool is_by_rows, copies, picks; /* gathers all elements; selected columns, from the strip */
    const void *own;                /* its first element */
    void *compact;
    double *squares; /* of its units */
    double *sums;    /* of its channels, NULL: not wanted */
    double *each;    /* the same where each element of a row is a channel */
    uint64_t n_sums, n_chunks, n_gathers;
    uint32_t n_together; /* strips that share a list of picked columns */
    strip_t strip;
} job_t;

typedef struct shared {
    union {
        uint4 tile[ROWS_AT_ONCE * THREADS]; /* [high][ROWS_AT_ONCE][wide] words of a strip */
        struct {
            float squares[MOST_COLS], magnitudes[MOST_COLS]; /* [high][wide * V] */
        } columns;
        struct {
            double squares[ROW_UNITS], magnitudes[ROW_UNITS]; /* [high][wide] of units */
        } rows;
    };
    uint32_t position[MOST_PICKED]; /* of selected columns in the compact gradient, rising */
    uint16_t picked[MOST_PICKED];   /* their columns, from the list's first */
    uint32_t n_of_warp[WARPS], n_picked;
    uint64_t picked_col, picked_wide; /* the list's first column, and of how many it is */
    uint8_t is_wide[THREADS];         /* [high][units of the strip] */
    uint64_t turn, n_turns;           /* slices of all matrices of the launch: the block's next one, all */
    uint32_t n_slices, entry;         /* of each matrix; the gradient that the job is of */
    uint64_t made;                    /* the job's matrix, of all of the launch */
    span_t items;                     /* of the job's, the slice's that are not taken */
    job_t job;
} shared_t;

/* The work that a block of threads takes at once begins here. */
typedef struct turn {
    uint64_t row, col;
} turn_t;

/* ---- columns ----------------------------------------------------------------------------------------------------- */

DEVICE strip_t strip_of(const zfi_data_matrix_t *matrix, uint32_t v) {
    strip_t strip;
    const uint32_t least = ZFI_SUM_COLS / v; /* a strip has whole units */
    const uint64_t n_bands = ceil_div(matrix->rows, ZFI_SUM_ROWS);
    strip.n_groups = ceil_div(matrix->cols, v);
    strip.wide = THREADS;
    strip.high = 1;
    strip.shift = 31 - __clz(THREADS);
    while (strip.wide > 1 && ((strip.wide > least && strip.high < n_bands) || strip.wide / 2 >= strip.n_groups)) {
        strip.wide /= 2;
        strip.high *= 2;
        strip.shift--;
    }
    return strip;
}

/* Strips that share a list of picked columns: reading the index for each list costs a 32nd of what else is moved. A
 * list has room for what is expected there, and 16 bits say where in it a column is. */
DEVICE uint32_t strips_together(const job_t *job) {
    const uint64_t cols = job->matrix.cols, k = job->matrix.k, n_cols = job->strip.wide * job->v;
    const uint64_t nbytes = cols * (job->matrix.rows * elem_nbytes(job->dtype) + sizeof(double));
    const uint64_t n_lists = larger(1, nbytes / (32 * sizeof(uint32_t) * k));
    const uint64_t most = smaller(MOST_PICKED / 4 * 3 * job->n_sums / k, 65536 / n_cols);
    return (uint32_t)larger(1, smaller(ceil_div(job->n_sums, n_lists), most));
}

/* Lists the selected ones of n_cols columns, as far as there is room; how many there are. */
DEVICE uint32_t pick_among(const zfi_data_t *data, shared_t *shared, uint64_t first_col, uint32_t n_cols) {
    const zfi_data_matrix_t *matrix = &shared->job.matrix;
    const uint32_t *index = index_of(data, matrix);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t n = 0;
    for (uint32_t from = 0; from < matrix->k; from += THREADS) {
        const uint32_t j = from + threadIdx.x;
        const uint64_t col = j < matrix->k ? (uint64_t)in_global(index)[j] - first_col : n_cols; /* below 0: far up */
        const uint32_t found = __ballot_sync(0xffffffffu, col < n_cols);
        uint32_t at = n + __popc(found & ((1u << lane) - 1u));
        if (lane == 0)
            shared->n_of_warp[warp] = __popc(found);
        __syncthreads();
        for (uint32_t w = 0; w < WARPS; w++) {
            at += w < warp ? shared->n_of_warp[w] : 0;
            n += shared->n_of_warp[w];
        }
        if (col < n_cols && at < MOST_PICKED) {
            shared->picked[at] = (uint16_t)col;
            shared->position[at] = j;
        }
        __syncthreads();
    }
    return n;
}

/* Lists the selected columns of strips that share a list; of fewer strips, where they have too many. */
DEVICE void pick_columns(const zfi_data_t *data, shared_t *shared, uint64_t first_col) {
    const uint32_t strip = shared->job.strip.wide * shared->job.v;
    uint32_t n, n_strips = shared->job.n_together;
    while ((n = pick_among(data, shared, first_col, n_strips * strip)) > MOST_PICKED)
        n_strips = (n_strips + 1) / 2;
    if (threadIdx.x == 0) {
        shared->n_picked = n;
        shared->picked_col = first_col;
        shared->picked_wide = n_strips * strip;
    }
    __syncthreads();
}

/* The picked columns of the tile's rows; the first row of group y is turn.row + y * ZFI_SUM_ROWS. */
template <int DTYPE, int V> DEVICE void gather_tile(const shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    const uint32_t n_cols = job->strip.wide * V, before = (uint32_t)(turn.col - shared->picked_col);
    for (uint32_t t = threadIdx.x / 32; t < job->strip.high * ROWS_AT_ONCE; t += WARPS) {
        const uint64_t row = turn.row + t / ROWS_AT_ONCE * ZFI_SUM_ROWS + t % ROWS_AT_ONCE;
        if (row >= job->matrix.rows)
            continue;
        for (uint32_t p = threadIdx.x % 32; p < shared->n_picked; p += 32) {
            const uint32_t col = shared->picked[p] - before; /* of another strip: far up */
            if (col < n_cols)
                put_bits(job->compact, DTYPE, row * job->matrix.k + shared->position[p],
                         load_bits(shared->tile, DTYPE, t * n_cols + col));
        }
    }
}

/* Walks down a band of rows: its V columns' chains, which then lie in shared memory. */
template <int DTYPE, int V> DEVICE void walk_columns(shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    const uint32_t x = threadIdx.x & (job->strip.wide - 1), y = threadIdx.x >> job->strip.shift;
    const uint64_t row0 = turn.row + y * ZFI_SUM_ROWS, col = turn.col + x * V;
    const bool is_inside = col < job->matrix.cols, is_fit = is_aligned(job->compact, sizeof(vec<DTYPE, V>));
    vec<DTYPE, V> *tile = (vec<DTYPE, V> *)shared->tile;
    float squares[V], magnitudes[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        squares[j] = magnitudes[j] = 0.0f;
#pragma unroll 1
    for (uint32_t r = 0; r < ZFI_SUM_ROWS; r += ROWS_AT_ONCE) {
        vec<DTYPE, V> words[ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; u++) {
            words[u].clear();
            if (is_inside && row0 + r + u < job->matrix.rows)
                words[u].load(job->own, (row0 + r + u) * job->matrix.cols + col);
        }
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; u++)
#pragma unroll
            for (int j = 0; j < V; j++)
                add_terms(words[u].at(j), &squares[j], &magnitudes[j]);
        if (job->picks) {
            __syncthreads(); /* the tile's former rows are gathered */
#pragma unroll
            for (int u = 0; u < ROWS_AT_ONCE; u++)
                tile[((y * ROWS_AT_ONCE + u) << job->strip.shift) + x] = words[u];
            __syncthreads();
            gather_tile<DTYPE, V>(shared, {turn.row + r, turn.col});
        } else if (job->copies) {
#pragma unroll
            for (int u = 0; u < ROWS_AT_ONCE; u++)
                if (is_inside && row0 + r + u < job->matrix.rows)
                    copy_word(words[u], job->compact, (row0 + r + u) * job->matrix.cols + col, is_fit);
        }
    }
    __syncthreads(); /* the tile's last rows are gathered */
#pragma unroll
    for (int j = 0; j < V; j++) {
        shared->columns.squares[threadIdx.x * V + j] = squares[j];
        shared->columns.magnitudes[threadIdx.x * V + j] = magnitudes[j];
    }
}

/* The sum of squares of a unit in double, by a warp, from its columns' chains in shared memory. */
DEVICE double join_unit(const shared_t *shared, uint32_t at, uint64_t row, uint64_t col, uint32_t n, bool is_wide) {
    const job_t *job = &shared->job;
    const uint64_t end = smaller(row + ZFI_SUM_ROWS, job->matrix.rows) * job->matrix.cols;
    double x[ZFI_SUM_COLS / 32];
#pragma unroll
    for (int i = 0; i < (int)ZFI_SUM_COLS / 32; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        x[i] = 0.0;
        if (c < n)
            x[i] = is_wide
                       ? wide_chain(job->own, job->dtype, row * job->matrix.cols + col + c, job->matrix.cols, end, true)
                       : (double)shared->columns.squares[at + c];
    }
#pragma unroll
    for (int half = ZFI_SUM_COLS / 64; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++)
            x[i] = __dadd_rn(x[i], x[i + half]);
    return join_warp(x[0]);
}

/* Enters the units of a strip's bands, a warp each. */
DEVICE void enter_units(shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    const uint32_t n_cols = job->strip.wide * job->v;
    const uint32_t n_wide = (n_cols + ZFI_SUM_COLS - 1) / ZFI_SUM_COLS;
    const uint64_t n_units = ceil_div(job->matrix.cols, ZFI_SUM_COLS);
    for (uint32_t t = threadIdx.x / 32; t < job->strip.high * n_wide; t += WARPS) {
        const uint32_t y = t / n_wide, from = t % n_wide * ZFI_SUM_COLS, at = y * n_cols + from;
        const uint64_t row = turn.row + y * ZFI_SUM_ROWS, col = turn.col + from;
        uint32_t n;
        double sum;
        bool is_wide = false;
        if (row >= job->matrix.rows || col >= job->matrix.cols)
            continue;
        n = (uint32_t)smaller(smaller(ZFI_SUM_COLS, n_cols - from), job->matrix.cols - col);
        sum = join_unit(shared, at, row, col, n, false);
        if (!is_in_range(sum)) {
            for (uint32_t c = threadIdx.x % 32; c < n; c += 32)
                is_wide = is_wide || !(shared->columns.magnitudes[at + c] == 0.0f);
            is_wide = __ballot_sync(0xffffffffu, is_wide) != 0; /* else all is zero */
            if (is_wide)
                sum = join_unit(shared, at, row, col, n, true);
        }
        if (threadIdx.x % 32 == 0) {
            shared->is_wide[t] = is_wide;
            in_global(job->squares)[row / ZFI_SUM_ROWS * n_units + col / ZFI_SUM_COLS] = sum;
        }
    }
}

/* Adds the bands' magnitudes to the channels' sums. */
DEVICE void enter_channels(const shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    const uint32_t n_cols = job->strip.wide * job->v;
    const uint32_t n_wide = (n_cols + ZFI_SUM_COLS - 1) / ZFI_SUM_COLS;
    for (uint32_t c = threadIdx.x; c < n_cols && turn.col + c < job->matrix.cols; c += THREADS) {
        double *sum = in_global(job->sums) + turn.col + c;
        double total = turn.row ? *sum : 0.0;
        for (uint32_t y = 0; y < job->strip.high && turn.row + y * ZFI_SUM_ROWS < job->matrix.rows; y++) {
            const uint64_t row = turn.row + y * ZFI_SUM_ROWS;
            const uint64_t end = smaller(row + ZFI_SUM_ROWS, job->matrix.rows) * job->matrix.cols;
            double part = (double)shared->columns.magnitudes[y * n_cols + c];
            if (shared->is_wide[y * n_wide + c / ZFI_SUM_COLS])
                part = wide_chain(job->own, job->dtype, row * job->matrix.cols + turn.col + c, job->matrix.cols, end,
                                  false);
            total = __dadd_rn(total, part);
        }
        *sum = total;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Threads of a row's unit, and lanes that a thread has: V neighbours, and with V = 1 the same 32 further on. */
template <int V> struct shape {
    enum { N_THREADS = LANES / V < 32 ? LANES / V : 32, N_WORDS = LANES / V / N_THREADS };
};

template <int N, int V> DEVICE float join_lanes(float (&x)[N][V]) {
    if (N == 2)
        x[0][0] = __fadd_rn(x[0][0], x[N - 1][0]);
#pragma unroll
    for (int off = LANES / N / 2; off >= V; off /= 2)
#pragma unroll
        for (int j = 0; j < V; j++)
            x[0][j] = __fadd_rn(x[0][j], __shfl_xor_sync(0xffffffffu, x[0][j], off / V));
#pragma unroll
    for (int off = V / 2; off > 0; off /= 2)
#pragma unroll
        for (int j = 0; j < off; j++)
            x[0][j] = __fadd_rn(x[0][j], x[0][j + off]);
    return x[0][0];
}

/* A unit, by its threads: both sums, which then lie in shared memory. All threads of the warp come along. */
template <int DTYPE, int V> DEVICE void walk_rows(shared_t *shared, turn_t turn) {
    enum { N = shape<V>::N_WORDS, T = shape<V>::N_THREADS };
    const job_t *job = &shared->job;
    const uint32_t unit = threadIdx.x / T, sub = threadIdx.x % T;
    const uint64_t row = turn.row + (unit >> job->strip.shift);
    const uint64_t col = turn.col + (unit & (job->strip.wide - 1)) * (uint64_t)ZFI_SUM_ELEMS;
    const bool is_inside = row < job->matrix.rows && col < job->matrix.cols;
    const bool is_fit = is_aligned(job->compact, sizeof(vec<DTYPE, V>));
    const uint32_t n = is_inside ? (uint32_t)smaller(ZFI_SUM_ELEMS, job->matrix.cols - col) : 0;
    const uint64_t first = row * job->matrix.cols + col;
    float squares[N][V], magnitudes[N][V];
    uint32_t at = 0;
#pragma unroll
    for (int k = 0; k < N * V; k++)
        squares[k / V][k % V] = magnitudes[k / V][k % V] = 0.0f;
#pragma unroll 4
    for (; at + LANES <= n; at += LANES)
#pragma unroll
        for (int k = 0; k < N; k++) {
            const uint64_t i = first + at + (k * T + sub) * V;
            vec<DTYPE, V> word;
            word.load(job->own, i);
#pragma unroll
            for (int j = 0; j < V; j++)
                add_terms(word.at(j), &squares[k][j], &magnitudes[k][j]);
            if (job->copies)
                copy_word(word, job->compact, i, is_fit);
            for (int j = 0; j < V && job->each; j++)
                in_global(job->each)[i + j] = fabs((double)word.at(j));
        }
#pragma unroll
    for (int k = 0; k < N * V; k++) {
        const uint32_t l = at + (k / V * T + sub) * V + k % V;
        if (l < n) {
            const uint32_t bits = get_bits(job->own, DTYPE, first + l);
            add_terms(widen(DTYPE, bits), &squares[k / V][k % V], &magnitudes[k / V][k % V]);
            if (job->copies)
                put_bits(job->compact, DTYPE, first + l, bits);
            if (job->each)
                in_global(job->each)[first + l] = fabs((double)widen(DTYPE, bits));
        }
    }
    const float both[] = {join_lanes<N, V>(squares), join_lanes<N, V>(magnitudes)};
    if (sub == 0) {
        shared->rows.squares[unit] = (double)both[0];
        shared->rows.magnitudes[unit] = (double)both[1];
    }
}

/* Enters units of rows, a warp each; takes those again that fp32 does not hold. */
DEVICE void enter_row_units(shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    for (uint32_t u = threadIdx.x / 32; u < job->strip.wide * job->strip.high; u += WARPS) {
        const uint64_t row = turn.row + (u >> job->strip.shift);
        const uint64_t col = turn.col + (u & (job->strip.wide - 1)) * (uint64_t)ZFI_SUM_ELEMS;
        double squares = shared->rows.squares[u], magnitudes = shared->rows.magnitudes[u];
        if (row >= job->matrix.rows || col >= job->matrix.cols)
            continue;
        if (!is_in_range(squares) && !(magnitudes == 0.0)) {
            const uint64_t first = row * job->matrix.cols, end = first + smaller(col + ZFI_SUM_ELEMS, job->matrix.cols);
            squares = wide_row(job->own, job->dtype, first + col, end, true);
            magnitudes = wide_row(job->own, job->dtype, first + col, end, false);
            if (threadIdx.x % 32 == 0)
                shared->rows.magnitudes[u] = magnitudes;
        }
        if (threadIdx.x % 32 == 0)
            in_global(job->squares)[row * job->strip.n_groups + col / ZFI_SUM_ELEMS] = squares;
    }
}

/* Adds the units' magnitudes to the rows' sums; units outside of the matrix have +0. */
DEVICE void enter_row_channels(const shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    const uint64_t row = turn.row + threadIdx.x;
    if (threadIdx.x >= job->strip.high || row >= job->matrix.rows)
        return;
    double total = turn.col ? in_global(job->sums)[row] : 0.0;
    for (uint32_t x = 0; x < job->strip.wide; x++)
        total = __dadd_rn(total, shared->rows.magnitudes[(threadIdx.x << job->strip.shift) + x]);
    in_global(job->sums)[row] = total;
}

/* Units side by side in a row, and rows, that a block of threads takes at once. */
DEVICE strip_t row_strip_of(const zfi_data_matrix_t *matrix, uint32_t n_units) {
    strip_t strip;
    strip.n_groups = ceil_div(matrix->cols, ZFI_SUM_ELEMS);
    strip.wide = 1;
    strip.shift = 0;
    for (strip.high = n_units; strip.high > 1 && strip.wide < strip.n_groups; strip.high /= 2)
        strip.wide = 1u << ++strip.shift;
    return strip;
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

template <int DTYPE, int V> DEVICE void walk(shared_t *shared, turn_t turn) {
    if (shared->job.is_by_rows)
        walk_rows<DTYPE, V>(shared, turn);
    else
        walk_columns<DTYPE, V>(shared, turn);
}

template <int DTYPE> DEVICE void walk_as(shared_t *shared, turn_t turn) {
    enum { WIDE = DTYPE == ZFI_F32 ? 4 : 8, LESS = DTYPE == ZFI_F32 ? 1 : 2 };
    if (shared->job.v == WIDE)
        walk<DTYPE, WIDE>(shared, turn);
    else if (LESS > 1 && shared->job.v == LESS)
        walk<DTYPE, LESS>(shared, turn);
    else
        walk<DTYPE, 1>(shared, turn);
}

/* A turn of an item. Only the walk itself depends on types, so the rest is there once. */
DEVICE void take_turn(shared_t *shared, turn_t turn) {
    const job_t *job = &shared->job;
    if (job->dtype == ZFI_BF16)
        walk_as<ZFI_BF16>(shared, turn);
    else if (job->dtype == ZFI_F16)
        walk_as<ZFI_F16>(shared, turn);
    else
        walk_as<ZFI_F32>(shared, turn);
    __syncthreads();
    if (job->is_by_rows)
        enter_row_units(shared, turn);
    else
        enter_units(shared, turn);
    __syncthreads();
    if (job->sums && job->is_by_rows)
        enter_row_channels(shared, turn);
    else if (job->sums)
        enter_channels(shared, turn);
    __syncthreads();
}

/* By rows a turn goes on to the right, unless that is another item; by columns downwards. */
DEVICE void sum_item(const zfi_data_t *data, shared_t *shared, uint64_t item) {
    const job_t *job = &shared->job;
    const uint32_t n_cols = job->strip.wide * (job->is_by_rows ? ZFI_SUM_ELEMS : job->v);
    turn_t turn = {0, item * n_cols};
    if (job->is_by_rows) {
        turn.row = divide(item, job->n_chunks, &turn.col) * job->strip.high;
        turn.col *= n_cols;
    } else if (job->picks && turn.col - shared->picked_col >= shared->picked_wide) {
        pick_columns(data, shared, turn.col);
    }
    while (turn.row < job->matrix.rows && turn.col < job->matrix.cols) {
        take_turn(shared, turn);
        if (!job->is_by_rows)
            turn.row += job->strip.high * ZFI_SUM_ROWS;
        else if (job->n_chunks == 1)
            turn.col += n_cols;
        else
            break;
    }
}
