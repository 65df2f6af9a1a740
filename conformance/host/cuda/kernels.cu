/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.cu - the reference model's layers on a CUDA device: what compute.h asks for, but for matrix products.
 *
 * Plain kernels: an element, a column or a row per thread or block, sums in an order that does not depend on the grid.
 * Where a processor sums in the same order (columns, chosen rows, everything by element) the bits are the processor's;
 * sums along a row are a tree here. Built without contraction, for 256-thread blocks at most; every grid strides over
 * its work, so any number of blocks is right. Shapes and meaning: compute.h. */
#include "../approx.h"
#include "../bfloat16.h"
#include "kernels.h"

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(HOST_CUDA_THREADS) name
#define DEVICE static __device__ __forceinline__
#define FOR_EACH(i, n)                                                                                                 \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (uint64_t)gridDim.x * blockDim.x)

/* ---- rows and columns -------------------------------------------------------------------------------------------- */

KERNEL(host_fill_rows)(float *y, const float *row, uint64_t n, uint64_t width) {
    FOR_EACH(i, n * width)
    y[i] = row[i % width];
}

KERNEL(host_sum_rows)(const float *x, uint64_t n, uint64_t width, float *sum) {
    FOR_EACH(j, width) {
        float total = sum[j];
        for (uint64_t i = 0; i < n; i++)
            total += x[i * width + j];
        sum[j] = total;
    }
}

KERNEL(host_add)(float *x, const float *y, uint64_t n) {
    FOR_EACH(i, n)
    x[i] += y[i];
}

/* rows: of the table, each with its width; x has one row after the other. */
KERNEL(host_add_chosen_f32)(const float *table, const int32_t *rows, uint64_t n, uint64_t width, float *x) {
    FOR_EACH(i, n * width)
    x[i] += table[(uint64_t)rows[i / width] * width + i % width];
}

KERNEL(host_add_chosen_bf16)(const uint16_t *table, const int32_t *rows, uint64_t n, uint64_t width, float *x) {
    FOR_EACH(i, n * width)
    x[i] += host_float_from_bfloat16(table[(uint64_t)rows[i / width] * width + i % width]);
}

KERNEL(host_take_chosen)(const float *table, const int32_t *rows, uint64_t n, uint64_t width, float *x) {
    FOR_EACH(i, n * width)
    x[i] = table[(uint64_t)rows[i / width] * width + i % width];
}

/* Piece p adds rows order[first[p]] ... order[first[p + 1] - 1] of x to row rows[p], which no other piece has. */
KERNEL(host_add_to_chosen)
(float *table, const int32_t *rows, const int32_t *first, const int32_t *order, uint64_t n_pieces, uint64_t width,
 const float *x) {
    FOR_EACH(at, n_pieces * width) {
        uint64_t p = at / width, j = at % width;
        float total = table[(uint64_t)rows[p] * width + j];
        for (int32_t k = first[p]; k < first[p + 1]; k++)
            total += x[(uint64_t)order[k] * width + j];
        table[(uint64_t)rows[p] * width + j] = total;
    }
}

KERNEL(host_widen_bf16)(const uint16_t *value, uint64_t n, float *wide) {
    FOR_EACH(i, n)
    wide[i] = host_float_from_bfloat16(value[i]);
}

KERNEL(host_narrow_bf16)(const float *wide, uint64_t n, uint16_t *value) {
    FOR_EACH(i, n)
    value[i] = host_bfloat16_from_float(wide[i]);
}

/* ---- by element -------------------------------------------------------------------------------------------------- */

KERNEL(host_gelu_forward)(const float *x, uint64_t n, float *y, float *cdf) {
    FOR_EACH(i, n) {
        float t = x[i] < 0 ? -x[i] : x[i];
        float tail = host_approx_tail(t, host_approx_exp(-0.5f * t * t));
        float c = x[i] < 0 ? tail : 1 - tail;
        cdf[i] = c;
        y[i] = x[i] * c;
    }
}

KERNEL(host_gelu_backward)(const float *x, const float *cdf, uint64_t n, float *d) {
    FOR_EACH(i, n)
    d[i] *= cdf[i] + x[i] * 0.39894228040143267794f * host_approx_exp(-0.5f * x[i] * x[i]);
}

/* (1 - e) / (1 + e), e = exp(-2 |x|); near 0, where that cancels, the series. */
KERNEL(host_tanh_forward)(float *x, uint64_t n) {
    FOR_EACH(i, n) {
        float t = x[i] < 0 ? -x[i] : x[i], e = host_approx_exp(-2 * t), s = t * t;
        float y = t < 0.1f ? t * (1 - s * (0.333333333f - s * (0.133333333f - s * 0.0539682540f))) : (1 - e) / (1 + e);
        x[i] = x[i] < 0 ? -y : y;
    }
}

KERNEL(host_tanh_backward)(const float *y, uint64_t n, float *d) {
    FOR_EACH(i, n)
    d[i] *= 1 - y[i] * y[i];
}

DEVICE uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* glue_rng_uniform of glue/rng.c. */
DEVICE double uniform(uint64_t key, uint64_t counter) {
    return (double)(mix(mix(key + (counter + 1) * 0x9e3779b97f4a7c15u) ^ key) >> 11) * 0x1p-53;
}

KERNEL(host_dropout)(float *x, uint64_t n, double probability, float scale, uint64_t key) {
    FOR_EACH(i, n)
    x[i] = uniform(key, i) < probability ? 0 : x[i] * scale;
}

/* ---- sums of a block --------------------------------------------------------------------------------------------- */

/* Every thread of a block (a power of two) gets the sum, or the largest. The barrier before lets `shared` be used again. */
template <int is_sum> DEVICE float join(float value, float *shared) {
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            float other = shared[threadIdx.x + half], own = shared[threadIdx.x];
            shared[threadIdx.x] = is_sum ? own + other : other > own ? other : own;
        }
        __syncthreads();
    }
    return shared[0];
}

#define JOIN_SUM join<1>
#define JOIN_LARGEST join<0>
#define FOR_ROWS(i, n) for (uint64_t i = blockIdx.x; i < (n); i += gridDim.x)
#define FOR_COLUMNS(j, n) for (uint64_t j = threadIdx.x; j < (n); j += blockDim.x)

/* ---- LayerNorm --------------------------------------------------------------------------------------------------- */

KERNEL(host_norm_forward)
(const float *weight, const float *bias, uint64_t n, uint64_t width, float eps, float *x, float *normal,
 float *inverse_deviation) {
    __shared__ float shared[HOST_CUDA_THREADS];
    FOR_ROWS(i, n) {
        float *row = x + i * width, *out = normal + i * width, sum = 0, mean, inverse;
        FOR_COLUMNS(j, width)
        sum += row[j];
        mean = JOIN_SUM(sum, shared) / (float)width;
        sum = 0;
        FOR_COLUMNS(j, width) {
            float centred = row[j] - mean;
            out[j] = centred;
            sum += centred * centred;
        }
        inverse = 1 / sqrtf(JOIN_SUM(sum, shared) / (float)width + eps);
        FOR_COLUMNS(j, width) {
            float centred = out[j] * inverse;
            out[j] = centred;
            row[j] = centred * weight[j] + bias[j];
        }
        if (threadIdx.x == 0)
            inverse_deviation[i] = inverse;
    }
}

/* The parameters' derivatives; before host_norm_backward, which overwrites d. */
KERNEL(host_norm_sums)(const float *d, const float *normal, uint64_t n, uint64_t width, float *d_weight, float *d_bias) {
    FOR_EACH(j, width) {
        float by_weight = d_weight[j], by_bias = d_bias[j];
        for (uint64_t i = 0; i < n; i++) {
            by_weight += d[i * width + j] * normal[i * width + j];
            by_bias += d[i * width + j];
        }
        d_weight[j] = by_weight;
        d_bias[j] = by_bias;
    }
}

KERNEL(host_norm_backward)
(const float *weight, const float *normal, const float *inverse_deviation, uint64_t n, uint64_t width, float *d) {
    __shared__ float shared[HOST_CUDA_THREADS];
    FOR_ROWS(i, n) {
        const float *kept = normal + i * width;
        float *row = d + i * width, sum = 0, product = 0, mean, mean_product;
        FOR_COLUMNS(j, width) {
            float g = row[j] * weight[j];
            row[j] = g;
            sum += g;
            product += g * kept[j];
        }
        mean = JOIN_SUM(sum, shared) / (float)width;
        mean_product = JOIN_SUM(product, shared) / (float)width;
        FOR_COLUMNS(j, width)
        row[j] = inverse_deviation[i] * (row[j] - mean - kept[j] * mean_product);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* A row is one token of one head: row number r is token r / n_heads, head r % n_heads. */
typedef struct row {
    uint64_t token, column; /* of its head, in a token's array */
    uint64_t first, length; /* of its sequence */
    uint64_t matrix, probs; /* elements before its head's [length, length], and before its row of that */
} row_t;

DEVICE row_t row_of(const host_cuda_place_t *places, uint64_t r, uint64_t n_heads, uint64_t width) {
    row_t row;
    host_cuda_place_t place;
    row.token = r / n_heads;
    place = places[row.token];
    row.column = r % n_heads * width;
    row.first = (uint64_t)place.first;
    row.length = (uint64_t)place.length;
    row.matrix = place.probs + r % n_heads * row.length * row.length;
    row.probs = row.matrix + (row.token - row.first) * row.length;
    return row;
}

/* out's row i, column j = scale * x's token i * y's token j, over one head. */
KERNEL(host_attention_scores)
(const host_cuda_place_t *places, uint64_t n_tokens, uint64_t n_heads, uint64_t width, float scale, const float *x,
 const float *y, float *out) {
    uint64_t stride = n_heads * width;
    FOR_ROWS(r, n_tokens * n_heads) {
        row_t row = row_of(places, r, n_heads, width);
        const float *left = x + row.token * stride + row.column;
        FOR_COLUMNS(j, row.length) {
            const float *right = y + (row.first + j) * stride + row.column;
            float sum = 0;
            for (uint64_t i = 0; i < width; i++)
                sum += left[i] * right[i];
            out[row.probs + j] = scale * sum;
        }
    }
}

/* out's token i = scale * the sum over j of probs(i, j), or where is_transposed probs(j, i), times y's token j. */
KERNEL(host_attention_mix)
(const host_cuda_place_t *places, uint64_t n_tokens, uint64_t n_heads, uint64_t width, float scale, uint32_t is_transposed,
 const float *probs, const float *y, float *out) {
    uint64_t stride = n_heads * width;
    FOR_ROWS(r, n_tokens * n_heads) {
        row_t row = row_of(places, r, n_heads, width);
        const float *p = is_transposed ? probs + row.matrix + (row.token - row.first) : probs + row.probs;
        uint64_t step = is_transposed ? row.length : 1;
        FOR_COLUMNS(c, width) {
            float sum = 0;
            for (uint64_t j = 0; j < row.length; j++)
                sum += p[j * step] * y[(row.first + j) * stride + row.column + c];
            out[row.token * stride + row.column + c] = scale * sum;
        }
    }
}

KERNEL(host_attention_softmax)
(const host_cuda_place_t *places, uint64_t n_tokens, uint64_t n_heads, uint64_t width, float *probs) {
    __shared__ float shared[HOST_CUDA_THREADS];
    FOR_ROWS(r, n_tokens * n_heads) {
        row_t row = row_of(places, r, n_heads, width);
        float *p = probs + row.probs, largest = p[0], sum = 0, inverse;
        FOR_COLUMNS(j, row.length)
        largest = p[j] > largest ? p[j] : largest;
        largest = JOIN_LARGEST(largest, shared);
        FOR_COLUMNS(j, row.length) {
            float e = host_approx_exp(p[j] - largest);
            p[j] = e;
            sum += e;
        }
        inverse = 1 / JOIN_SUM(sum, shared);
        FOR_COLUMNS(j, row.length)
        p[j] *= inverse;
    }
}

KERNEL(host_attention_softmax_back)
(const host_cuda_place_t *places, uint64_t n_tokens, uint64_t n_heads, uint64_t width, const float *probs, float *d) {
    __shared__ float shared[HOST_CUDA_THREADS];
    FOR_ROWS(r, n_tokens * n_heads) {
        row_t row = row_of(places, r, n_heads, width);
        float sum = 0, mean;
        FOR_COLUMNS(j, row.length)
        sum += d[row.probs + j] * probs[row.probs + j];
        mean = JOIN_SUM(sum, shared);
        FOR_COLUMNS(j, row.length)
        d[row.probs + j] = probs[row.probs + j] * (d[row.probs + j] - mean);
    }
}
