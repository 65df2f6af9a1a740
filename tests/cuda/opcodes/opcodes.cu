/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/opcodes/opcodes.cu - a kernel per row of table.h, and kernels for what threads do together.
 *
 * Every kernel is (in, out, n): thread i takes the 64-bit words in[4 i ..] and writes out[i]. */
#include <stdint.h>

#define bits_f32(x) __uint_as_float(x)
#define f32_bits(x) __float_as_uint(x)
#define bits_f64(x) __longlong_as_double((long long)(x))
#define f64_bits(x) ((uint64_t)__double_as_longlong(x))
#include "types.h"

#define KERNEL(name) extern "C" __global__ void name(const uint64_t *in, uint64_t *out, uint32_t n)
#define INDEX uint32_t i = blockIdx.x * blockDim.x + threadIdx.x
#define LIMIT                                                                                                          \
    if (i >= n)                                                                                                        \
    return

#define OP3(name, ptx, R, A, B, C, expected)                                                                           \
    KERNEL(op_##name) {                                                                                                \
        INDEX;                                                                                                         \
        LIMIT;                                                                                                         \
        R##_TYPE r;                                                                                                    \
        asm volatile(ptx                                                                                               \
                     : "=" R##_LETTER(r)                                                                               \
                     : A##_LETTER(A##_IN(in[4 * i])), B##_LETTER(B##_IN(in[4 * i + 1])),                               \
                       C##_LETTER(C##_IN(in[4 * i + 2])));                                                             \
        out[i] = R##_OUT(r);                                                                                           \
    }
/* The result is what the word holds then; what the instruction returned has to be what it held before. */
#define ATOM(name, T, ptx, expected)                                                                                   \
    KERNEL(op_##name) {                                                                                                \
        INDEX;                                                                                                         \
        LIMIT;                                                                                                         \
        T##_TYPE *word = (T##_TYPE *)(out + i), old, value = T##_IN(in[4 * i]), before = T##_IN(in[4 * i + 1]);        \
        out[i] = before;                                                                                               \
        asm volatile(ptx " %0, [%1], %2;" : "=" T##_LETTER(old) : "l"(word), T##_LETTER(value) : "memory");            \
        if (old != before)                                                                                             \
            out[i] ^= 0x5555;                                                                                          \
    }
#include "table.h"

/* ---- what threads do together; the expected results stand in reference.c ----------------------------------------- */

enum { ALL = 0xffffffff };

#define SHUFFLE(name, call)                                                                                            \
    KERNEL(together_##name) {                                                                                          \
        INDEX;                                                                                                         \
        uint32_t value = (uint32_t)in[4 * i];                                                                          \
        out[i] = call;                                                                                                 \
    }
SHUFFLE(xor_16, __shfl_xor_sync(ALL, value, 16))
SHUFFLE(xor_5_of_4, __shfl_xor_sync(ALL, value, 5, 4))
SHUFFLE(idx_9, __shfl_sync(ALL, value, 9))
SHUFFLE(idx_own, __shfl_sync(ALL, value, (int)(value & 31), 16))
SHUFFLE(ballot, __ballot_sync(ALL, value & 1))
SHUFFLE(or, (uint64_t)(__syncthreads_or((value & 1023) == 0) != 0))

/* Half of each warp shuffles while the other half does not. */
KERNEL(together_half_warp) {
    INDEX;
    uint32_t value = (uint32_t)in[4 * i], result = 7;
    if ((threadIdx.x & 31) < 16)
        result = __shfl_xor_sync(0xffff, value, 3);
    __syncwarp();
    out[i] = result;
}

/* A sum through shared memory, by a tree. */
KERNEL(together_tree) {
    __shared__ uint64_t sums[256];
    INDEX;
    sums[threadIdx.x] = in[4 * i];
    for (uint32_t step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step)
            sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    __syncthreads();
    out[i] = sums[0] + threadIdx.x;
}

/* Vectors, bytes and 16-bit elements. */
KERNEL(together_memory) {
    __shared__ uint16_t halves[256];
    INDEX;
    const uint4 four = *(const uint4 *)(in + 4 * i); /* words in[4 i], in[4 i + 1] */
    const ulonglong2 two = __ldg((const ulonglong2 *)(in + 4 * i + 2));
    int8_t byte = ((const volatile int8_t *)(in + 4 * i))[3];
    int16_t half = ((const int16_t *)(in + 4 * i))[1];
    halves[threadIdx.x] = (uint16_t)half;
    __threadfence();
    __syncthreads();
    uint64_t neighbour = halves[threadIdx.x ^ 1];
    out[i] = (((uint64_t)four.y << 32 | four.x) + 3 * ((uint64_t)four.w << 32 | four.z) + 5 * two.x + 7 * two.y) ^
             (uint64_t)(int64_t)byte << 20 ^ (uint64_t)(int64_t)half ^ neighbour << 40;
}
