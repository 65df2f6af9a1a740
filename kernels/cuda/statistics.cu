/* SPDX-License-Identifier: Apache-2.0 */
/* statistics.cu - one look at a batch's gradients: sums of squares, channel sums of |g|, the selected channels' gradient.
 *
 * Order of sums (../kernels.h). A block of 4096 elements is summed by 32 lanes; a thread holds V neighbouring lanes, so
 * 32 / V threads sum one block and a warp V blocks, with loads of V elements. Sums of blocks go to data->block_squares;
 * norm.cu adds them up, all parameters at once, since one chain of additions is as long as a parameter has blocks.
 * A column's sum runs down 64 rows in one thread, which holds V columns; a block of threads takes as many groups of 64
 * rows at once as fit, and joins them in order through shared memory.
 *
 * The two orders need two looks at the same elements. A matrix is cut into items of both kinds, and items of one matrix
 * follow each other, so that the second look finds the elements in the L2 cache: device memory is read once.
 *
 * x*x of a float is exact in double, so one fused operation has the bits of product and sum. A block holds a non-finite
 * element if and only if its sum is not finite. */
#include "common.cuh"

enum { TERM_SQUARE, TERM_MAGNITUDE, LANES = ZFI_SUM_LANES, BLOCK_ELEMS = ZFI_SUM_BLOCK_ELEMS, WARPS = THREADS / 32 };

/* Elements that a thread holds side by side, at most. */
#ifndef MOST_WIDE
#define MOST_WIDE 2
#endif

/* ---- V elements at once ------------------------------------------------------------------------------------------ */

template <int NBYTES> struct word;
template <> struct word<2> {
    typedef uint16_t type;
};
template <> struct word<4> {
    typedef uint32_t type;
};
template <> struct word<8> {
    typedef uint2 type;
};
template <> struct word<16> {
    typedef uint4 type;
};

DEVICE uint32_t part_of(uint16_t word, int) { return word; }
DEVICE uint32_t part_of(uint32_t word, int) { return word; }
DEVICE uint32_t part_of(uint2 word, int i) { return i ? word.y : word.x; }
DEVICE uint32_t part_of(uint4 word, int i) { return i == 0 ? word.x : i == 1 ? word.y : i == 2 ? word.z : word.w; }

template <int DTYPE, int V> struct vec {
    typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type bits;

    __device__ __forceinline__ void load(const void *array, uint64_t i) {
        const char *at = (const char *)array + i * (DTYPE == ZFI_F32 ? 4 : 2);
        bits = *(const typename word<V *(DTYPE == ZFI_F32 ? 4 : 2)>::type *)at;
    }
    __device__ __forceinline__ float at(int j) const {
        if (DTYPE == ZFI_F32)
            return __uint_as_float(part_of(bits, j));
        if (DTYPE == ZFI_BF16) /* the upper half is a float as it stands */
            return __uint_as_float(j & 1 ? part_of(bits, j / 2) & 0xffff0000u : part_of(bits, j / 2) << 16);
        return f16_to_f32(j & 1 ? part_of(bits, j / 2) >> 16 : part_of(bits, j / 2) & 0xffffu);
    }
};

template <int TERM> DEVICE double add_term(double sum, float x) {
    double wide = (double)x;
    return TERM == TERM_SQUARE ? __fma_rn(wide, wide, sum) : __dadd_rn(sum, fabs(wide));
}

/* ---- blocks of 32 lanes ------------------------------------------------------------------------------------------ */

DEVICE double shuffle_down(double x, int by) {
    uint32_t low = (uint32_t)__double_as_longlong(x), high = (uint32_t)(__double_as_longlong(x) >> 32);
    low = __shfl_down_sync(0xffffffffu, low, (unsigned)by);
    high = __shfl_down_sync(0xffffffffu, high, (unsigned)by);
    return __longlong_as_double((long long)((uint64_t)high << 32 | low));
}

/* The sum of n <= 4096 elements from element `first` on (n = 0: any), in the first of the 32 / V threads that share it.
 * All threads of the warp come along. */
template <int TERM, int DTYPE, int V> DEVICE double sum_block(const void *grad, uint64_t first, uint32_t n) {
    const uint32_t sub = threadIdx.x % (LANES / V);
    double x[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = 0.0;
    uint32_t at = 0;
#pragma unroll 8
    for (; at + LANES <= n; at += LANES) {
        vec<DTYPE, V> word;
        word.load(grad, first + at + sub * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            x[j] = add_term<TERM>(x[j], word.at(j));
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        if (at + sub * V + j < n)
            x[j] = add_term<TERM>(x[j], load_float(grad, DTYPE, first + at + sub * V + j));
#pragma unroll
    for (int off = LANES / 2; off >= V; off /= 2)
#pragma unroll
        for (int j = 0; j < V; j++)
            x[j] = __dadd_rn(x[j], shuffle_down(x[j], off / V));
#pragma unroll
    for (int off = V / 2; off > 0; off /= 2)
#pragma unroll
        for (int j = 0; j < off; j++)
            x[j] = __dadd_rn(x[j], x[j + off]);
    return x[0];
}

/* Blocks [first, end) of a parameter, one item: V of them per warp. */
template <int DTYPE, int V>
DEVICE void sum_squares(const void *grad, uint64_t n_elems, double *out, uint64_t first, uint64_t end) {
    uint64_t block = first + threadIdx.x / (LANES / V);
    uint64_t at = block * BLOCK_ELEMS;
    uint32_t n = block < end ? (uint32_t)smaller(BLOCK_ELEMS, n_elems - at) : 0;
    double sum = sum_block<TERM_SQUARE, DTYPE, V>(grad, at, n);
    if (block < end && threadIdx.x % (LANES / V) == 0)
        out[block] = sum;
}

/* Rows of a matrix as channels, one item: V of them per warp. */
template <int DTYPE, int V>
DEVICE void sum_rows(const void *grad, const zfi_data_matrix_t *matrix, double *out, uint64_t first, uint64_t end) {
    uint64_t row = first + threadIdx.x / (LANES / V);
    double sum = 0.0;
    for (uint64_t col = 0; col < matrix->cols; col += BLOCK_ELEMS) {
        uint32_t n = row < end ? (uint32_t)smaller(BLOCK_ELEMS, matrix->cols - col) : 0;
        sum = __dadd_rn(sum, sum_block<TERM_MAGNITUDE, DTYPE, V>(grad, row * matrix->cols + col, n));
    }
    if (row < end && threadIdx.x % (LANES / V) == 0)
        out[row] = sum;
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* How a block of threads covers a strip of columns: `high` groups of 64 rows by `wide` groups of V columns. */
typedef struct strip {
    uint32_t wide, high;
    uint64_t n_groups; /* of V columns in the matrix */
} strip_t;

DEVICE strip_t strip_of(const zfi_data_matrix_t *matrix, uint32_t v) {
    strip_t strip;
    uint64_t n_blocks = ceil_div(matrix->rows, ZFI_SUM_BLOCK_ROWS);
    strip.n_groups = ceil_div(matrix->cols, v);
    for (strip.high = 1; strip.high < 8 && strip.high < n_blocks;)
        strip.high *= 2;
    for (strip.wide = THREADS / strip.high; strip.wide > 1 && strip.wide / 2 >= strip.n_groups;)
        strip.wide /= 2;
    strip.high = THREADS / strip.wide;
    return strip;
}

template <int DTYPE, int V>
DEVICE void sum_columns(const void *grad, const zfi_data_matrix_t *matrix, const strip_t *strip, uint64_t item,
                        double *parts, double *out) {
    const uint32_t x = threadIdx.x % strip->wide, y = threadIdx.x / strip->wide;
    const uint64_t col = (item * strip->wide + x) * V;
    const uint64_t n_blocks = ceil_div(matrix->rows, ZFI_SUM_BLOCK_ROWS);
    for (uint64_t first = 0; first < n_blocks; first += strip->high) {
        uint64_t row = (first + y) * ZFI_SUM_BLOCK_ROWS, end = smaller(row + ZFI_SUM_BLOCK_ROWS, matrix->rows);
        double sum[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] = 0.0;
        if (col < matrix->cols) {
#pragma unroll 8
            for (; row < end; row++) {
                vec<DTYPE, V> word;
                word.load(grad, row * matrix->cols + col);
#pragma unroll
                for (int j = 0; j < V; j++)
                    sum[j] = add_term<TERM_MAGNITUDE>(sum[j], word.at(j));
            }
        }
#pragma unroll
        for (int j = 0; j < V; j++)
            parts[(y * V + j) * strip->wide + x] = sum[j];
        __syncthreads();
        for (uint32_t c = threadIdx.x; c < strip->wide * V; c += THREADS) {
            uint64_t at = (item * strip->wide + c % strip->wide) * V + c / strip->wide;
            if (at < matrix->cols) {
                double total = first ? out[at] : 0.0;
                for (uint32_t i = 0; i < strip->high && first + i < n_blocks; i++)
                    total = __dadd_rn(total, parts[i * V * strip->wide + c]);
                out[at] = total;
            }
        }
        __syncthreads();
    }
}

/* ---- the selected channels' gradient ----------------------------------------------------------------------------- */

/* How a block of threads covers the compact gradient of selected columns: `wide` positions by `high` rows, n_rows rows an
 * item. A thread keeps its position: its channel is read once, and its loads do not wait for each other. */
enum { GATHER_ELEMS = 8192, GATHER_AT_ONCE = 8 };

typedef struct gather {
    uint32_t wide, high, n_rows;
    uint64_t n_strips, n_chunks;
} gather_t;

DEVICE gather_t gather_of(const zfi_data_matrix_t *matrix) {
    gather_t gather;
    const uint64_t rows = rows_selected(matrix), cols = cols_selected(matrix);
    for (gather.wide = 32; gather.wide < THREADS && gather.wide < cols;)
        gather.wide *= 2;
    gather.high = THREADS / gather.wide;
    gather.n_rows = GATHER_ELEMS / gather.wide;
    gather.n_strips = ceil_div(cols, gather.wide);
    gather.n_chunks = ceil_div(rows, gather.n_rows);
    return gather;
}

template <typename WORD>
DEVICE void gather_item(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const gather_t *gather, const WORD *grad,
                        uint64_t item) {
    const uint32_t *index = index_of(data, matrix);
    const uint64_t n_cols = cols_selected(matrix);
    uint64_t strip, chunk = divide(item, gather->n_strips, &strip);
    const uint64_t j = strip * gather->wide + threadIdx.x % gather->wide;
    const uint64_t end = smaller((chunk + 1) * gather->n_rows, rows_selected(matrix));
    WORD *to = (WORD *)(data->grad + matrix->grad_base);
    uint64_t i = chunk * gather->n_rows + threadIdx.x / gather->wide, row, col;
    if (j >= n_cols)
        return;
    find_element(matrix, index, 0, j, &row, &col);
    for (; i < end; i += GATHER_AT_ONCE * gather->high) {
        WORD x[GATHER_AT_ONCE];
#pragma unroll
        for (uint32_t u = 0; u < GATHER_AT_ONCE; u++) {
            const uint64_t at = i + u * gather->high;
            if (at < end)
                x[u] = grad[(index && matrix->channels_are_rows ? index[at] : at) * matrix->cols + col];
        }
#pragma unroll
        for (uint32_t u = 0; u < GATHER_AT_ONCE; u++)
            if (i + u * gather->high < end)
                to[(i + u * gather->high) * n_cols + j] = x[u];
    }
}

DEVICE void take_gather(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const gather_t *gather, const void *own,
                        int dtype, uint64_t item) {
    if (dtype == ZFI_F32)
        gather_item(data, matrix, gather, (const uint32_t *)own, item);
    else
        gather_item(data, matrix, gather, (const uint16_t *)own, item);
}

/* Slices of a matrix: about an item each, so that what runs at once is of few matrices and stays in the cache. */
enum { MOST_SLICES = 64 };

/* ---- a matrix as items ------------------------------------------------------------------------------------------- */

/* A matrix of a delivered gradient and its items; in shared memory, made by one thread. */
typedef struct job {
    zfi_data_matrix_t matrix;
    int dtype;
    uint64_t n_elems; /* of all matrices that are read of the parameter */
    const void *grad, *own; /* their first element, and the matrix's */
    double *squares, *sums; /* of their blocks, of the matrix's channels */
    uint32_t v_squares, v_sums;
    uint64_t first_block, end_block; /* of them: those that begin in this matrix */
    uint64_t n_squares, n_sums, n_gathers;
    strip_t strip;
    gather_t gather;
} job_t;

/* MOST_WIDE, 2 or 1: the largest that divides `n` elements and suits the address; a load has at most 16 bytes. */
DEVICE uint32_t width_of(const void *at, uint64_t n, uint32_t nbytes) {
    uint32_t v = MOST_WIDE * nbytes > 16 ? 4 : MOST_WIDE;
    while (v > 1 && ((uint64_t)at % (v * nbytes) || n % v))
        v = v > 2 ? 2 : 1;
    return v;
}

DEVICE void make_job(job_t *job, const zfi_cuda_statistics_t *args, uint32_t entry, uint32_t number) {
    const zfi_data_t *data = args->data;
    const zfi_data_param_t *param = &data->params[args->list[entry].param];
    zfi_data_matrix_t *matrix = &job->matrix;
    const uint32_t nbytes = elem_nbytes(param->grad_dtype);
    const uint64_t base = data->matrices[param->first_matrix].param_offset;
    *matrix = data->matrices[param->first_matrix + number];
    job->dtype = param->grad_dtype;
    job->n_elems = param->n_read;
    job->grad = (const char *)args->list[entry].grad + base * nbytes;
    job->own = (const char *)args->list[entry].grad + matrix->param_offset * nbytes;
    job->squares = data->block_squares + param->first_block;
    job->sums = data->sums[args->turn] + matrix->sum_base;
    job->v_squares = width_of(job->grad, BLOCK_ELEMS, nbytes);
    job->v_sums = width_of(job->own, matrix->cols, nbytes);
    job->first_block = ceil_div(matrix->param_offset - base, BLOCK_ELEMS);
    job->end_block = ceil_div(matrix->param_offset - base + matrix->rows * matrix->cols, BLOCK_ELEMS);
    job->n_squares = ceil_div(job->end_block - job->first_block, WARPS * job->v_squares);
    job->n_sums = job->n_gathers = 0;
    if (matrix->has_sums && matrix->channels_are_rows) {
        job->n_sums = ceil_div(matrix->rows, WARPS * job->v_sums);
    } else if (matrix->has_sums) {
        job->strip = strip_of(matrix, job->v_sums);
        job->n_sums = ceil_div(job->strip.n_groups, job->strip.wide);
    }
    if (args->gathers && matrix->k) {
        job->gather = gather_of(matrix);
        job->n_gathers = job->gather.n_strips * job->gather.n_chunks;
    }
}

template <int DTYPE, int V> DEVICE void take_squares(const job_t *job, uint64_t item) {
    uint64_t first = job->first_block + item * WARPS * V;
    sum_squares<DTYPE, V>(job->grad, job->n_elems, job->squares, first, smaller(job->end_block, first + WARPS * V));
}

template <int DTYPE, int V> DEVICE void take_sums(const job_t *job, uint64_t item, double *parts) {
    const zfi_data_matrix_t *matrix = &job->matrix;
    if (matrix->channels_are_rows)
        sum_rows<DTYPE, V>(job->own, matrix, job->sums, item * WARPS * V,
                           smaller(matrix->rows, (item + 1) * WARPS * V));
    else
        sum_columns<DTYPE, V>(job->own, matrix, &job->strip, item, parts, job->sums);
}

template <int DTYPE> DEVICE void take_item(const zfi_data_t *data, const job_t *job, uint64_t item, double *parts) {
    enum { WIDE = MOST_WIDE * (DTYPE == ZFI_F32 ? 4 : 2) > 16 ? 4 : MOST_WIDE };
    if (item < job->n_squares) {
        if (job->v_squares == WIDE)
            take_squares<DTYPE, WIDE>(job, item);
        else if (job->v_squares == 2)
            take_squares<DTYPE, 2>(job, item);
        else
            take_squares<DTYPE, 1>(job, item);
        return;
    }
    item -= job->n_squares;
    if (item < job->n_sums) {
        if (job->v_sums == WIDE)
            take_sums<DTYPE, WIDE>(job, item, parts);
        else if (job->v_sums == 2)
            take_sums<DTYPE, 2>(job, item, parts);
        else
            take_sums<DTYPE, 1>(job, item, parts);
        return;
    }
    take_gather(data, &job->matrix, &job->gather, job->own, DTYPE, item - job->n_sums);
}

DEVICE void take_slice(const zfi_data_t *data, const job_t *job, uint32_t slice, uint32_t n_slices, double *parts) {
    const span_t span = slice_of(job->n_squares + job->n_sums + job->n_gathers, slice, n_slices, 1);
    for (uint64_t item = span.first; item < span.end; item++) {
        if (job->dtype == ZFI_BF16)
            take_item<ZFI_BF16>(data, job, item, parts);
        else if (job->dtype == ZFI_F16)
            take_item<ZFI_F16>(data, job, item, parts);
        else
            take_item<ZFI_F32>(data, job, item, parts);
    }
}

STREAMING_KERNEL(zf_statistics, zfi_cuda_statistics_t) {
    __shared__ uint32_t first[ZFI_CUDA_MOST_GRADIENTS + 1]; /* matrices before an entry's */
    __shared__ double parts[THREADS * MOST_WIDE];           /* [high][V][wide] of sum_columns */
    __shared__ job_t job;
    RETURN_IF_ENDED;
    if (threadIdx.x < args.n)
        first[threadIdx.x + 1] = args.data->params[args.list[threadIdx.x].param].n_matrices;
    __syncthreads();
    if (threadIdx.x == 0) {
        first[0] = 0;
        for (uint32_t i = 0; i < args.n; i++)
            first[i + 1] += first[i];
    }
    __syncthreads();
    if (args.data->held && blockIdx.x == 0 && threadIdx.x < args.n)
        args.data->held[args.list[threadIdx.x].param] = args.list[threadIdx.x].grad;
    const uint64_t n = first[args.n];
    const uint32_t n_slices = (uint32_t)larger(1, smaller(MOST_SLICES, n ? 16ull * gridDim.x / n : 1));
    uint32_t entry = 0;
    for (uint64_t unit = blockIdx.x; unit < n * n_slices; unit += gridDim.x) {
        uint64_t slice, matrix = divide(unit, n_slices, &slice);
        while (matrix >= first[entry + 1])
            entry++;
        __syncthreads(); /* nobody reads the former job any more */
        if (threadIdx.x == 0)
            make_job(&job, &args, entry, (uint32_t)matrix - first[entry]);
        __syncthreads();
        take_slice(args.data, &job, (uint32_t)slice, n_slices, parts);
    }
}

/* The compact gradient of one matrix from its own. */
KERNEL(zf_gather, zfi_gather_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_matrix_t *matrix = &args.data->matrices[args.matrix];
    const gather_t gather = gather_of(matrix);
    for (uint64_t item = blockIdx.x; item < gather.n_strips * gather.n_chunks && matrix->k; item += gridDim.x)
        take_gather(args.data, matrix, &gather, args.grad, args.data->params[matrix->param].grad_dtype, item);
}
