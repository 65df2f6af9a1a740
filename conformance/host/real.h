/* SPDX-License-Identifier: Apache-2.0 */
/* real.h - the type that the reference host computes in.
 *
 * It is float. The gradient test compiles the same sources with HOST_COMPUTE_IN_DOUBLE, which makes finite differences
 * exact enough to check every derivative; parameters and delivered gradients keep their own type either way. */
#pragma once

#include <math.h>

#ifdef HOST_COMPUTE_IN_DOUBLE
typedef double host_real_t;
#define host_real_sqrt sqrt
#define host_real_tanh tanh
#else
typedef float host_real_t;
#define host_real_sqrt sqrtf
#define host_real_tanh tanhf
#endif

#if defined(__CUDACC__)
#define HOST_ALWAYS_INLINE static __device__ __forceinline__ /* for cuda/kernels.cu */
#elif defined(__GNUC__)
#define HOST_ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define HOST_ALWAYS_INLINE static inline
#endif

/* Before a function: it is compiled for several instruction sets, of which the first call takes the best. Sanitizers
 * start too late for that. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__x86_64__) &&                         \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOST_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#define HOST_CLONES_FMA __attribute__((target_clones("fma", "default")))
#else
#define HOST_CLONES
#define HOST_CLONES_FMA
#endif
