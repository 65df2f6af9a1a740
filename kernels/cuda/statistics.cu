/* SPDX-License-Identifier: Apache-2.0 */
/* statistics.cu - a batch's gradients, one launch: which matrix is taken how, and by which block of threads (sums.cuh
 * has what is done); the selected channels' gradient where it is not taken along. */
#include "sums.cuh"

/* ---- the selected channels' gradient ----------------------------------------------------------------------------- */

/* How a block of threads covers the compact gradient of selected columns: `wide` positions by `high` rows, n_rows rows
 * an item. A thread keeps its position: its channel is read once, and its loads do not wait for each other. */
enum { GATHER_ELEMS = 8192, GATHER_AT_ONCE = 4 };

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
DEVICE void gather_item(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const gather_t *gather,
                        const WORD *grad, uint64_t item) {
    const uint32_t *index = index_of(data, matrix);
    const uint64_t n_cols = cols_selected(matrix);
    uint64_t strip, chunk = divide(item, gather->n_strips, &strip);
    const uint64_t j = strip * gather->wide + threadIdx.x % gather->wide;
    const uint64_t end = smaller((chunk + 1) * gather->n_rows, rows_selected(matrix));
    WORD *to = (WORD *)(data->grad + matrix->grad_base);
    uint64_t i = chunk * gather->n_rows + threadIdx.x / gather->wide, col;
    if (j >= n_cols)
        return;
    col = index && !matrix->channels_are_rows ? in_global(index)[j] : j;
    for (; i < end; i += GATHER_AT_ONCE * gather->high) {
        WORD x[GATHER_AT_ONCE];
        uint32_t is_here = 0; /* a bit for each: of channels that are rows some may be another rank's */
#pragma unroll
        for (uint32_t u = 0; u < GATHER_AT_ONCE; u++) {
            const int is_inside = i + u * gather->high < end;
            uint64_t row = is_inside ? i + u * gather->high : i;
            if (index && matrix->channels_are_rows)
                row = in_global(index)[row] - matrix->first_row; /* before the first: wraps around */
            is_here |= (uint32_t)(is_inside && row < matrix->rows) << u;
            x[u] = is_here >> u & 1 ? in_global(grad)[row * matrix->cols + col] : 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < GATHER_AT_ONCE; u++)
            if (is_here >> u & 1)
                in_global(to)[(i + u * gather->high) * n_cols + j] = x[u];
    }
}

DEVICE void take_gather(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const gather_t *gather,
                        const void *own, int dtype, uint64_t item) {
    if (dtype == ZFI_F32)
        gather_item(data, matrix, gather, (const uint32_t *)own, item);
    else
        gather_item(data, matrix, gather, (const uint16_t *)own, item);
}

/* ---- a matrix as items ------------------------------------------------------------------------------------------- */

/* Slices of a matrix: about an item each, so that what runs at once is of few matrices. */
enum { MOST_SLICES = 64 };

/* The most elements, 16 bytes, 4 or one, with which all rows of n elements can be loaded. */
DEVICE uint32_t width_of(const void *at, uint64_t rows, uint64_t n, uint32_t nbytes) {
    uint32_t v = 16 / nbytes;
    while (v > 1 && (!is_aligned(at, v * nbytes) || (rows > 1 && (n & (v - 1)))))
        v = v > 2 && nbytes == 2 ? 2 : 1;
    return v;
}

DEVICE void make_items(job_t *job, const zfi_data_t *data, bool gathers, uint64_t turn) {
    zfi_data_matrix_t *matrix = &job->matrix;
    const bool has_index = matrix->has_sums;
    job->is_by_rows = matrix->channels_are_rows || matrix->rows == 1;
    job->sums = matrix->has_sums ? data->sums[turn] + matrix->sum_base : NULL;
    job->each = NULL;
    if (matrix->rows == 1 && !matrix->channels_are_rows) {
        job->each = job->sums;
        job->sums = NULL;
    }
    job->compact = data->grad + matrix->grad_base;
    job->copies = gathers && matrix->k && !has_index;
    job->picks = gathers && matrix->k && has_index && !job->is_by_rows;
    job->n_gathers = 0;
    if (gathers && matrix->k && has_index && job->is_by_rows) {
        const gather_t gather = gather_of(matrix);
        job->n_gathers = gather.n_strips * gather.n_chunks;
    }
}

/* The matrix's record, as a warp reads it: in few requests. */
DEVICE void read_matrix(job_t *job, const zfi_cuda_statistics_t *args, uint32_t entry, uint32_t number) {
    const zfi_data_param_t *param = in_global(args->data->params) + args->list[entry].param;
    const zfi_data_matrix_t *matrix = args->data->matrices + in_global(param)->first_matrix + number;
    for (uint32_t k = threadIdx.x; k < sizeof *matrix / 4; k += 32)
        ((uint32_t *)&job->matrix)[k] = in_global((const uint32_t *)matrix)[k];
}

/* The job of the matrix that was read. */
DEVICE void make_job(job_t *job, const zfi_cuda_statistics_t *args, uint32_t entry) {
    const zfi_data_t *data = args->data;
    zfi_data_matrix_t *matrix = &job->matrix;
    job->dtype = in_global(data->params)[args->list[entry].param].grad_dtype;
    const uint32_t nbytes = elem_nbytes(job->dtype);
    job->own = (const char *)args->list[entry].grad + matrix->grad_offset * nbytes;
    job->squares = data->unit_squares + matrix->unit_base;
    if (matrix->cols == 1) { /* is a row, with channels the other way */
        matrix->cols = matrix->rows;
        matrix->rows = matrix->rows > 0;
        matrix->channels_are_rows = !matrix->channels_are_rows;
    }
    make_items(job, data, args->gathers, args->turn);
    job->v = job->each ? 1 : width_of(job->own, matrix->rows, matrix->cols, nbytes); /* 8 bytes go out for each */
    job->n_chunks = job->n_together = 1;
    if (job->is_by_rows) {
        job->strip = row_strip_of(matrix, THREADS / (LANES / job->v < 32 ? LANES / job->v : 32));
        if (!job->sums)
            job->n_chunks = ceil_div(job->strip.n_groups, job->strip.wide);
        job->n_sums = ceil_div(matrix->rows, job->strip.high) * job->n_chunks;
    } else {
        job->strip = strip_of(matrix, job->v);
        job->n_sums = ceil_div(job->strip.n_groups, job->strip.wide);
        if (job->picks)
            job->n_together = strips_together(job);
    }
    if (matrix->rows == 0) /* another rank's */
        job->n_sums = job->n_gathers = 0;
}

/* State that outlives an item lies in shared memory, for an item needs all registers. */
DEVICE void take_slice(const zfi_data_t *data, shared_t *shared) {
    const job_t *job = &shared->job;
    while (shared->items.first < shared->items.end) {
        if (shared->items.first < job->n_sums) {
            sum_item(data, shared, shared->items.first);
        } else {
            const gather_t gather = gather_of(&job->matrix);
            take_gather(data, &job->matrix, &gather, job->own, job->dtype, shared->items.first - job->n_sums);
        }
        __syncthreads(); /* everybody has read its number */
        if (threadIdx.x == 0)
            shared->items.first++;
        __syncthreads();
    }
}

/* first: matrices before each entry's. */
DEVICE void begin_launch(shared_t *shared, const zfi_cuda_statistics_t *args, uint32_t *first) {
    first[0] = 0;
    for (uint32_t i = 0; i < args->n; i++)
        first[i + 1] += first[i];
    const uint64_t n = first[args->n];
    shared->n_slices = (uint32_t)larger(1, smaller(MOST_SLICES, n ? 16ull * gridDim.x / n : 1));
    shared->n_turns = n * shared->n_slices;
    shared->turn = blockIdx.x;
    shared->entry = 0;
    shared->made = n;
}

/* By a warp. */
DEVICE void begin_slice(shared_t *shared, const zfi_cuda_statistics_t *args, const uint32_t *first) {
    uint64_t slice, matrix = divide(shared->turn, shared->n_slices, &slice);
    const bool is_new = matrix != shared->made;
    uint32_t entry = shared->entry;
    while (matrix >= first[entry + 1])
        entry++;
    if (is_new)
        read_matrix(&shared->job, args, entry, (uint32_t)matrix - first[entry]);
    __syncwarp();
    if (threadIdx.x != 0)
        return;
    if (is_new) {
        make_job(&shared->job, args, entry);
        shared->picked_col = shared->picked_wide = 0;
    }
    shared->entry = entry;
    shared->made = matrix;
    shared->items =
        slice_of(shared->job.n_sums + shared->job.n_gathers, (uint32_t)slice, shared->n_slices, shared->job.n_together);
    shared->turn += gridDim.x;
}

STREAMING_KERNEL(zf_statistics, zfi_cuda_statistics_t) {
    __shared__ uint32_t first[ZFI_CUDA_MOST_GRADIENTS + 1];
    __shared__ shared_t shared;
    RETURN_IF_ENDED;
    if (threadIdx.x < args.n)
        first[threadIdx.x + 1] = in_global(args.data->params)[args.list[threadIdx.x].param].n_matrices;
    __syncthreads();
    if (threadIdx.x == 0)
        begin_launch(&shared, &args, first);
    __syncthreads();
    if (args.data->held && blockIdx.x == 0 && threadIdx.x < args.n)
        in_global(args.data->held)[args.list[threadIdx.x].param] = args.list[threadIdx.x].grad;
    while (shared.turn < shared.n_turns) {
        __syncthreads(); /* everybody has read the turn */
        if (threadIdx.x < 32)
            begin_slice(&shared, &args, first);
        __syncthreads();
        take_slice(args.data, &shared);
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
