/* SPDX-License-Identifier: Apache-2.0 */
/* driver/rig.h - what the tests of the driver's double share: one device, kernels, and a training that is ordered by
 * events alone. */
#pragma once

#include <check.h>
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

extern CUcontext context; /* of device 0 */

static inline void need(CUresult rc) { ck_assert_int_eq(rc, CUDA_SUCCESS); }

char *read_ptx(void);
void open_device(void);
void close_device(void);
CUdeviceptr alloc(size_t nbytes);
CUstream stream_new(void);
_Atomic uint64_t *words_new(CUdeviceptr *out);
void note(void *at); /* one more, in an _Atomic int: a host function */
/* A kernel of driver/kernels.cu. */
CUresult launch(const char *name, uint32_t blocks, CUstream s, CUdeviceptr words, uint32_t n);
/* Three streams, ordered by events alone: gradients go up, an update, weights come down. One of its waits is left out,
 * by number; 0: none. Returns how many weights differ from the host's. */
enum { N_WAITS = 6 };
uint32_t train(int left_out);
