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

enum { TERM_SQUARE, TERM_MAGNITUDE, LANES = ZFI_SUM_LANES, BLOCK_ELEMS = ZFI_SUM_BLOCK_ELEMS, WARPS = THREADS / 32, MOST_WIDE = 4 };

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
DEVICE void sum_columns(const void *grad, const zfi_data_matrix_t *matrix, const strip_t strip, uint64_t item,
                        double *parts, double *out) {
    const uint32_t x = threadIdx.x % strip.wide, y = threadIdx.x / strip.wide;
    const uint64_t col = (item * strip.wide + x) * V;
    const uint64_t n_blocks = ceil_div(matrix->rows, ZFI_SUM_BLOCK_ROWS);
    for (uint64_t first = 0; first < n_blocks; first += strip.high) {
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
            parts[(y * V + j) * strip.wide + x] = sum[j];
        __syncthreads();
        for (uint32_t c = threadIdx.x; c < strip.wide * V; c += THREADS) {
            uint64_t at = (item * strip.wide + c % strip.wide) * V + c / strip.wide;
            if (at < matrix->cols) {
                double total = first ? out[at] : 0.0;
                for (uint32_t i = 0; i < strip.high && first + i < n_blocks; i++)
                    total = __dadd_rn(total, parts[i * V * strip.wide + c]);
                out[at] = total;
            }
        }
        __syncthreads();
    }
}

/* ---- the selected channels' gradient ----------------------------------------------------------------------------- */

DEVICE void gather_span(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const void *grad, int dtype,
                        span_t span) {
    const uint32_t *index = index_of(data, matrix);
    const uint64_t n_cols = cols_selected(matrix);
    void *to = data->grad + matrix->grad_base;
    for (uint64_t e = span.first + threadIdx.x; e < span.end; e += THREADS) {
        uint64_t i, j, row, col;
        i = divide(e, n_cols, &j);
        find_element(matrix, index, i, j, &row, &col);
        store_bits(to, dtype, e, load_bits(grad, dtype, row * matrix->cols + col));
    }
}

/* ---- a matrix as items ------------------------------------------------------------------------------------------- */

enum { GATHER_ELEMS = 4096 };

/* The largest V <= most that divides `n` elements and suits the address. */
DEVICE uint32_t width_of(const void *at, uint64_t n, uint32_t nbytes, uint32_t most) {
    uint32_t v = most;
    while (v > 1 && ((uint64_t)at % (v * nbytes) || n % v))
        v /= 2;
    return v;
}

typedef struct items {
    uint32_t v_squares, v_sums;
    uint64_t first_block, end_block; /* of the parameter: those that begin in this matrix */
    uint64_t n_squares, n_sums, n_gathers;
    strip_t strip;
} items_t;

/* Loads of four and eight bytes have enough in flight; wider ones would need more registers for sums. */
DEVICE items_t items_of(const zfi_data_param_t *param, const zfi_data_matrix_t *matrix, const void *grad,
                        const void *own, int gathers) {
    const uint32_t nbytes = elem_nbytes(param->grad_dtype), most = MOST_WIDE;
    items_t items;
    items.v_squares = width_of(grad, BLOCK_ELEMS, nbytes, most);
    items.v_sums = width_of(own, matrix->cols, nbytes, most);
    items.first_block = ceil_div(matrix->param_offset, BLOCK_ELEMS);
    items.end_block = ceil_div(matrix->param_offset + matrix->rows * matrix->cols, BLOCK_ELEMS);
    items.n_squares = ceil_div(items.end_block - items.first_block, WARPS * items.v_squares);
    items.n_sums = 0;
    if (matrix->has_sums && matrix->channels_are_rows) {
        items.n_sums = ceil_div(matrix->rows, WARPS * items.v_sums);
    } else if (matrix->has_sums) {
        items.strip = strip_of(matrix, items.v_sums);
        items.n_sums = ceil_div(items.strip.n_groups, items.strip.wide);
    }
    items.n_gathers = gathers ? ceil_div(rows_selected(matrix) * cols_selected(matrix), GATHER_ELEMS) : 0;
    return items;
}

template <int DTYPE, int V>
DEVICE void take_squares(const zfi_data_t *data, const zfi_data_param_t *param, const void *grad, const items_t *items,
                         uint64_t item) {
    uint64_t first = items->first_block + item * WARPS * V;
    sum_squares<DTYPE, V>(grad, param->n_elems, data->block_squares + param->first_block, first,
                          smaller(items->end_block, first + WARPS * V));
}

template <int DTYPE, int V>
DEVICE void take_sums(const zfi_data_matrix_t *matrix, const void *own, const items_t *items, uint64_t item,
                      double *parts, double *out) {
    if (matrix->channels_are_rows)
        sum_rows<DTYPE, V>(own, matrix, out, item * WARPS * V, smaller(matrix->rows, (item + 1) * WARPS * V));
    else
        sum_columns<DTYPE, V>(own, matrix, items->strip, item, parts, out);
}

template <int DTYPE>
DEVICE void take_item(const zfi_data_t *data, const zfi_data_param_t *param, const zfi_data_matrix_t *matrix,
                      const void *grad, const void *own, const items_t *items, uint64_t item, uint32_t turn,
                      double *parts) {
    double *sums = data->sums[turn] + matrix->sum_base;
    if (item < items->n_squares) {
        if (items->v_squares == 4)
            take_squares<DTYPE, 4>(data, param, grad, items, item);
        else if (items->v_squares == 2)
            take_squares<DTYPE, 2>(data, param, grad, items, item);
        else
            take_squares<DTYPE, 1>(data, param, grad, items, item);
        return;
    }
    item -= items->n_squares;
    if (item < items->n_sums) {
        if (items->v_sums == 4)
            take_sums<DTYPE, 4>(matrix, own, items, item, parts, sums);
        else if (items->v_sums == 2)
            take_sums<DTYPE, 2>(matrix, own, items, item, parts, sums);
        else
            take_sums<DTYPE, 1>(matrix, own, items, item, parts, sums);
        return;
    }
    item -= items->n_sums;
    span_t span;
    span.first = item * GATHER_ELEMS;
    span.end = smaller(span.first + GATHER_ELEMS, rows_selected(matrix) * cols_selected(matrix));
    gather_span(data, matrix, own, DTYPE, span);
}

DEVICE void take_slice(const zfi_cuda_statistics_t *args, uint32_t entry, uint32_t number, uint32_t slice,
                       uint32_t n_slices, double *parts) {
    const zfi_data_t *data = args->data;
    const zfi_data_param_t *param = &data->params[args->list[entry].param];
    const zfi_data_matrix_t *matrix = &data->matrices[param->first_matrix + number];
    const void *grad = args->list[entry].grad;
    const void *own = (const char *)grad + matrix->param_offset * elem_nbytes(param->grad_dtype);
    const items_t items = items_of(param, matrix, grad, own, args->gathers && matrix->k);
    const span_t span = slice_of(items.n_squares + items.n_sums + items.n_gathers, slice, n_slices, 1);
    for (uint64_t item = span.first; item < span.end; item++) {
        if (param->grad_dtype == ZFI_BF16)
            take_item<ZFI_BF16>(data, param, matrix, grad, own, &items, item, args->turn, parts);
        else if (param->grad_dtype == ZFI_F16)
            take_item<ZFI_F16>(data, param, matrix, grad, own, &items, item, args->turn, parts);
        else
            take_item<ZFI_F32>(data, param, matrix, grad, own, &items, item, args->turn, parts);
    }
}

KERNEL(zf_statistics, zfi_cuda_statistics_t) {
    __shared__ uint32_t first[ZFI_CUDA_MOST_GRADIENTS + 1]; /* matrices before an entry's */
    __shared__ double parts[THREADS * MOST_WIDE];           /* [high][V][wide] of sum_columns */
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
    const uint32_t n_slices = slices_of(n);
    uint32_t entry = 0;
    for (uint64_t unit = blockIdx.x; unit < n * n_slices; unit += gridDim.x) {
        uint64_t slice, matrix = divide(unit, n_slices, &slice);
        while (matrix >= first[entry + 1])
            entry++;
        take_slice(&args, entry, (uint32_t)matrix - first[entry], (uint32_t)slice, n_slices, parts);
    }
}

/* The compact gradient of one matrix from its own. */
KERNEL(zf_gather, zfi_gather_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_matrix_t *matrix = &args.data->matrices[args.matrix];
    uint64_t n = rows_selected(matrix) * cols_selected(matrix);
    if (matrix->k)
        gather_span(args.data, matrix, args.grad, args.data->params[matrix->param].grad_dtype,
                    slice_of(n, blockIdx.x, gridDim.x, 32));
}
