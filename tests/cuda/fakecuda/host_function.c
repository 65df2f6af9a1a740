/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/host_function.c - host functions: those of one context run one after the other, as on one thread,
 * which CUDA allows. One that waits for another, in whatever stream, may wait for ever. */
#include "fake.h"

static void run_host_function(fc_op_t *op) {
    fc_lock(&op->stream->context->host_functions);
    fc_in_host_function = 1;
    op->host_function(op->user);
    fc_in_host_function = 0;
    fc_unlock(&op->stream->context->host_functions);
}

static void run_work(fc_op_t *op) { op->host_function(op->user); }

CUresult fc_launch_work(CUstream s, CUhostFn fn, void *user) {
    CUresult st = fc_enter_stream(__func__, &s);
    return st ? st : fc_enqueue(s, &(fc_op_t){.run = run_work, .host_function = fn, .user = user});
}

FC_API cuLaunchHostFunc(CUstream s, CUhostFn fn, void *user) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (st)
        return st;
    return fn ? fc_enqueue(s, &(fc_op_t){.run = run_host_function, .host_function = fn, .user = user})
              : CUDA_ERROR_INVALID_VALUE;
}
