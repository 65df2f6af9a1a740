/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/driver/kernels.cu - kernels for the tests of the double itself: good ones, and one for every fault that
 * the emulator looks for. */
#include <stdint.h>

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(256) name

/* What is added depends on all that was added before. */
KERNEL(train)(uint32_t *weights, const uint32_t *gradients, uint64_t n) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        weights[i] = weights[i] * 3 + gradients[i];
}

/* The sum of a block's 256 words, through shared memory: a barrier is left out. */
KERNEL(sum_without_a_barrier)(uint32_t *words, uint32_t) {
    __shared__ uint32_t sums[256];
    uint32_t t = threadIdx.x;
    sums[t] = words[t];
    for (uint32_t step = 128; step > 0; step /= 2) {
        if (step != 64)
            __syncthreads();
        if (t < step)
            sums[t] += sums[t + step];
    }
    if (t == 0)
        words[256] = sums[0];
}

KERNEL(add_one)(uint32_t *words, uint32_t n) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        words[i] += 1;
}
KERNEL(one_too_far)(uint32_t *words, uint32_t n) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        words[i] += 1;
}
KERNEL(misaligned)(unsigned char *bytes, uint32_t) { *(uint32_t *)(bytes + 2) = 1; }

KERNEL(unwritten_shared)(uint32_t *words, uint32_t) {
    __shared__ uint32_t here[256];
    if (threadIdx.x != 3)
        here[threadIdx.x] = 1;
    __syncthreads();
    words[threadIdx.x] = here[threadIdx.x];
}
KERNEL(unwritten_register)(uint32_t *words, uint32_t) {
    uint32_t sum;
    asm("{.reg .b32 never; add.s32 %0, never, %1;}" : "=r"(sum) : "r"(threadIdx.x));
    words[threadIdx.x] = sum;
}
KERNEL(barrier_for_some)(uint32_t *words, uint32_t n) {
    if (threadIdx.x < n)
        __syncthreads();
    words[threadIdx.x] = 1;
}
KERNEL(shuffle_for_some)(uint32_t *words, uint32_t n) {
    uint32_t x = threadIdx.x;
    if (x < n)
        x = __shfl_xor_sync(0xffffffff, x, 1);
    words[threadIdx.x] = x;
}
/* Inside a warp a meeting of the warp is enough, a barrier of the block is not needed. */
KERNEL(warp_exchange)(uint32_t *words, uint32_t) {
    __shared__ uint32_t here[256];
    here[threadIdx.x] = words[threadIdx.x];
    __syncwarp();
    words[threadIdx.x] = here[threadIdx.x ^ 1];
}
KERNEL(warp_exchange_unsynced)(uint32_t *words, uint32_t) {
    __shared__ uint32_t here[256];
    here[threadIdx.x] = words[threadIdx.x];
    words[threadIdx.x] = ((volatile uint32_t *)here)[threadIdx.x ^ 1];
}
/* The result depends on which block comes last. */
KERNEL(last_block_wins)(uint32_t *words, uint32_t) {
    if (threadIdx.x == 0)
        *(volatile uint32_t *)words = blockIdx.x;
}
/* Traffic: every 32-byte sector once, or a sector per word. */
KERNEL(dense)(uint32_t *words, uint32_t n) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        words[i] = i;
}
KERNEL(sparse)(uint32_t *words, uint32_t n) {
    uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i < n)
        words[i] = i;
}
/* Races on global memory: every thread adds to one word; by an atomic; a thread reads its neighbour's word, with and
 * without a barrier between; blocks write one word. */
KERNEL(add_plainly)(uint32_t *words, uint32_t n) {
    if (threadIdx.x < n)
        words[0] += 1;
}
KERNEL(add_atomically)(uint32_t *words, uint32_t n) {
    if (threadIdx.x < n)
        atomicAdd(words, 1);
}
template <bool has_barrier> static __device__ __forceinline__ void pass_on(uint32_t *words) {
    words[threadIdx.x] = threadIdx.x;
    if (has_barrier)
        __syncthreads();
    words[256 + threadIdx.x] = ((volatile uint32_t *)words)[255 - threadIdx.x];
}
KERNEL(pass_on_after_a_barrier)(uint32_t *words, uint32_t) { pass_on<true>(words); }
KERNEL(pass_on_at_once)(uint32_t *words, uint32_t) { pass_on<false>(words); }
/* One thread writes four words at once, one of another warp a byte; the same with one word. */
KERNEL(words_and_byte)(uint32_t *words, uint32_t at) {
    if (threadIdx.x == 0)
        *(uint4 *)words = make_uint4(1, 2, 3, 4);
    if (threadIdx.x == 32)
        ((uint8_t *)words)[at] = 1;
}
KERNEL(word_and_byte)(uint32_t *words, uint32_t at) {
    if (threadIdx.x == 0)
        words[0] = 1;
    if (threadIdx.x == 32)
        ((uint8_t *)words)[at] = 1;
}
