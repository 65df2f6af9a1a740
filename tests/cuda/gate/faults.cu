/* SPDX-License-Identifier: Apache-2.0 */
/* faults.cu - one planted fault for each rule of the gate, in kernels with names that it knows; test_gate.py. */
#include <stdint.h>

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(256) name

/* Sound: as many loads as data. */
KERNEL(zf_check)(const uint4 *from, uint4 *to, uint64_t n) {
#pragma unroll 1
    for (uint64_t i = threadIdx.x; i < n; i += 256)
        to[i] = from[i];
}

/* The host sees the total and then reads the byte, which may come later. */
KERNEL(zf_report)(volatile uint8_t *flag, volatile uint64_t *total) {
    *flag = 1;
    *total = *total + 1;
}

/* The table is read again for every element. */
KERNEL(zf_move)(const volatile uint64_t *t, const uint4 *a, uint4 *b) {
#pragma unroll 1
    for (uint64_t i = threadIdx.x; i < t[0]; i += t[1])
        b[i + t[2] + t[3] + t[4] + t[5]] = a[i + t[6]];
}

/* A pointer that may be one to shared memory: generic accesses. */
KERNEL(zf_merge)(const uint64_t *table, uint32_t n) {
    __shared__ float some[256];
    some[threadIdx.x] = 0.0f;
    __syncthreads();
    float *to = table[blockIdx.x] ? (float *)table[blockIdx.x] : some;
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        to[i] += some[255 - threadIdx.x];
}

/* A division for each element. */
KERNEL(zf_sum_parts)(const uint32_t *from, uint32_t *to, uint32_t n) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        to[i] = i / from[i];
}

/* ptxas makes one operation of two. */
KERNEL(zf_collect)(const float *from, float *to, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n; i += 256) {
        float x = from[i], y;
        asm("{ .reg .f32 t; mul.f32 t, %1, %1; add.f32 %0, t, %1; }" : "=f"(y) : "f"(x));
        to[i] = y;
    }
}

/* More values than 32 registers hold. */
extern "C" __global__ void __launch_bounds__(256, 8) zf_run_ahead(const float *from, float *to, uint32_t n) {
    float x[64];
#pragma unroll
    for (int j = 0; j < 64; j++)
        x[j] = from[j * n + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 64; j++)
        to[j * n + threadIdx.x] = x[63 - j] * x[j];
}
