/* SPDX-License-Identifier: Apache-2.0 */
/* device_rig.c - contract in device_rig.h. */
#include "device_rig.h"

#include <check.h>

zfi_device_t *device;
zfi_stream_t *own, *hosts;
CUstream hosts_handle;
_Atomic int is_poisoned, n_timed_out, n_failed;
zfi_timeline_t gate, line, answer;
int is_releasable;

static void timed_out(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    (void)ctx, (void)timeline, (void)value;
    atomic_fetch_add(&n_timed_out, 1);
}
void note_failure(void *ctx, const char *what) {
    (void)ctx, (void)what;
    atomic_fetch_add(&n_failed, 1);
}
static void is_stuck(void *ctx, const char *stream, uint32_t n_waiting) {
    (void)n_waiting;
    note_failure(ctx, stream);
}

/* A stream of the host, in the device's context. */
zfi_stream_t *host_stream(void) {
    zf_stream_t given = {.struct_size = sizeof given, .kind = ZF_STREAM_CUDA, .device_type = ZF_DEVICE_CUDA};
    zfi_stream_t *resolved;
    CUcontext context;
    ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ck_assert_int_eq(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ck_assert_int_eq(cuStreamCreate(&hosts_handle, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    given.handle = (uint64_t)(uintptr_t)hosts_handle;
    ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &resolved, NULL), ZF_OK);
    return resolved;
}

void open_with(uint64_t timeout_ns) {
    zfi_device_env_t env = {.kernels = zfi_kernels_of(zfi_isa_best()),
                            .timeout_ns = timeout_ns,
                            .is_poisoned = &is_poisoned,
                            .timed_out = timed_out,
                            .failed = note_failure,
                            .is_stuck = is_stuck,
                            .is_releasable = is_releasable};
    ck_assert_int_eq(ops->open(0, &env, &device, NULL), ZF_OK);
    ck_assert_int_eq(ops->stream_create(device, "own", &own, NULL), ZF_OK);
    zfi_timeline_init(&gate, "gate");
    zfi_timeline_init(&line, "line");
    zfi_timeline_init(&answer, "answer");
    hosts = host_stream();
}

void open_all(void) { open_with(DEADLINE_NS); }

void await(zfi_timeline_t *timeline, uint64_t value) {
    ck_assert_int_eq(zfi_timeline_wait(timeline, value, DEADLINE_NS, NULL), ZF_OK);
}

void await_all(zfi_stream_t *stream) {
    ck_assert_int_eq(ops->synchronise(stream, ops->mark(stream), DEADLINE_NS, NULL), ZF_OK);
}

pthread_t start(void *(*act)(void *), void *given) {
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, act, given), 0);
    return thread;
}

/* After each test. */
void close_all(void) {
    ck_assert_int_eq(n_timed_out, 0);
    ck_assert_int_eq(n_failed, 0);
    if (!device)
        return;
    ops->stream_destroy(own);
    ops->close(device);
    zfi_timeline_free(&gate);
    zfi_timeline_free(&line);
    zfi_timeline_free(&answer);
}

void enqueue(zfi_stream_t *stream, zfi_op_t op) { ck_assert_int_eq(ops->enqueue(device, stream, &op, 1), ZF_OK); }

void wait_for_gate(void *unused) {
    (void)unused;
    await(&gate, 1);
}

/* The host's stream stands still until the gate opens. */
void hold_hosts(void) { ck_assert_int_eq(cuLaunchHostFunc(hosts_handle, wait_for_gate, NULL), CUDA_SUCCESS); }

zfi_cuda_line_t *find_line(void) {
    pthread_mutex_lock(&device->lock);
    zfi_cuda_line_t *found = zfi_cuda_line(device, &line, 0);
    pthread_mutex_unlock(&device->lock);
    return found;
}
