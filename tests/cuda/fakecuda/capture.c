/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/capture.c - captures: only their status and what they forbid.
 *
 * While a stream is captured in the global mode, no thread may call what is unsafe beside a capture (queries,
 * allocation, copies that wait), unless it has made its own mode another one: it fails, and the capture is spoilt. */
#include "fake.h"

static __thread CUstreamCaptureMode mode_of_thread; /* 0: CU_STREAM_CAPTURE_MODE_GLOBAL */

CUresult fc_unless_captured(void) {
    return mode_of_thread == CU_STREAM_CAPTURE_MODE_GLOBAL && fc_spoil_global_captures()
               ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : CUDA_SUCCESS;
}

FC_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUresult st = fc_enter(__func__, FC_NEEDS_INIT);
    CUstreamCaptureMode former = mode_of_thread;
    if (st)
        return st;
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    mode_of_thread = *mode;
    *mode = former;
    return CUDA_SUCCESS;
}

FC_API cuStreamBeginCapture(CUstream s, CUstreamCaptureMode mode) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (st)
        return st;
    if (s == s->context->legacy || s->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    s->capture_mode = mode;
    s->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

FC_API cuStreamEndCapture(CUstream s, CUgraph *graph) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (st)
        return st;
    if (s->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_ILLEGAL_STATE;
    st = s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    s->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    *graph = NULL;
    return st;
}

FC_API cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
    CUresult st = fc_enter_stream(__func__, &s);
    if (!st)
        *status = s->capture;
    return st;
}
