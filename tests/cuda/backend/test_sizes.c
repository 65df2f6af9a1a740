/* SPDX-License-Identifier: Apache-2.0 */
/* test_sizes.c - the kernels on what no case of `exact` is large enough for, beside the CPU's backend, bit for bit:
 * matrices of more than 512 rows, rows of more than 4096 columns, and offsets beyond 2^32 elements.
 *
 * Such offsets need no such memory. Once the tables lie on the device every base in them is raised by 2^33 elements,
 * and every array begins as much earlier: an offset that is cut to 32 bits leads to where there is no memory.
 * zfi_cuda_launch is wrapped (-Wl,--wrap) to do so before the first launch, and to arrays that launches bring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/backend.h"
#include "instance/instance.h"
#include "launch.h"
#include "on_device.h"
#include "state_rig.h"
#include "suite.h"

enum { N_STEPS = 6 };
#define FAR (1ull << 33)

unsigned char *fakecuda_device_bytes(uint64_t a, uint64_t n);
uint64_t fakecuda_n_findings(void);

static int is_far, is_shifted, n_far_launches;

/* ---- bases beyond 2^32 ------------------------------------------------------------------------------------------- */

#define EARLIER(pointer, elem_nbytes)                                                                                  \
    do {                                                                                                               \
        if (pointer)                                                                                                   \
            (pointer) = (__typeof__(pointer))((uintptr_t)(pointer)-FAR * (elem_nbytes));                               \
    } while (0)

static void *there(const void *at, uint64_t nbytes) {
    void *bytes = fakecuda_device_bytes((uint64_t)(uintptr_t)at, nbytes);
    ck_assert_ptr_nonnull(bytes);
    return bytes;
}

static void shift_matrices(zfi_data_t *data) {
    zfi_data_matrix_t *matrices = there(data->matrices, data->n_matrices * sizeof *matrices);
    for (uint32_t i = 0; i < data->n_matrices; i++) {
        matrices[i].param_offset += FAR;
        matrices[i].grad_offset += FAR;
        matrices[i].sel_base += FAR;
        matrices[i].grad_base += FAR;
        matrices[i].index_base += FAR;
        matrices[i].channel_base += FAR;
        matrices[i].sum_base += FAR;
    }
}

static void shift(const zfi_data_t *at, uint32_t n_segments) {
    zfi_data_t *data = there(at, sizeof *data);
    zfi_data_segment_t *segments = there(data->segments, n_segments * sizeof *segments);
    uint64_t moment = data->moments == ZFI_MOMENTS_F32 ? 4 : 2;
    shift_matrices(data);
    for (uint32_t i = 0; i < n_segments; i++)
        segments[i].state_base += FAR;
    EARLIER(data->w, 4);
    EARLIER(data->m, 4);
    EARLIER(data->v, 4);
    EARLIER(data->all_w, 4);
    EARLIER(data->all_m, moment);
    EARLIER(data->all_v, moment);
    EARLIER(data->grad, 1);
    EARLIER(data->index, 4);
    EARLIER(data->masks[0], 1);
    EARLIER(data->masks[1], 1);
    EARLIER(data->sums[0], 8);
    EARLIER(data->sums[1], 8);
    if (data->counts_per_channel) {
        EARLIER(data->n, 4);
        EARLIER(data->scalars, sizeof(zfi_scalars_t));
    }
}

typedef union any_args {
    zfi_gradients_args_t gradients;
    zfi_enter_maps_args_t maps;
    zfi_enter_state_args_t state;
    unsigned char bytes[ZFI_LAUNCH_ARGS];
} any_args_t;

static void shift_entering(zfi_entering_t *entering) {
    EARLIER(entering->position, 4);
    EARLIER(entering->channel, 4);
    EARLIER(entering->count, 4);
}

/* Arrays that a launch brings along; all values are fp32. */
static void shift_args(zfi_kernel_t kernel, any_args_t *args) {
    static zfi_gradient_t list[64];
    if (kernel == ZFI_KERNEL_STATISTICS) {
        ck_assert_uint_le(args->gradients.n, 64);
        memcpy(list, args->gradients.gradients, args->gradients.n * sizeof *list);
        for (uint32_t i = 0; i < args->gradients.n; i++)
            EARLIER(list[i].grad, 4);
        args->gradients.gradients = list;
    } else if (kernel == ZFI_KERNEL_ENTER_MAPS || kernel == ZFI_KERNEL_ENTER_COUNTS ||
               kernel == ZFI_KERNEL_SHOW_ENTERED) {
        shift_entering(&args->maps.entering);
    } else if (kernel == ZFI_KERNEL_ENTER_STATE) {
        shift_entering(&args->state.entering);
    }
}

static zt_rig_t *rig_of_launches;

zf_status_t __real_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from);
zf_status_t __wrap_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from);

zf_status_t __wrap_zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from) {
    static const int has_no_data[ZFI_N_KERNELS] = {
        [ZFI_KERNEL_SCALARS] = 1, [ZFI_KERNEL_SUM_PARTS] = 1, [ZFI_KERNEL_MOVE] = 1};
    any_args_t given;
    if (!is_far || has_no_data[kernel])
        return __real_zfi_cuda_launch(stream, kernel, args, from);
    memcpy(&given, args, sizeof given);
    if (!is_shifted)
        shift(given.gradients.data,
              rig_of_launches->inst->run->plan.n_segments + rig_of_launches->inst->run->plan.n_resident_segments);
    is_shifted = 1;
    n_far_launches++;
    shift_args(kernel, &given);
    return __real_zfi_cuda_launch(stream, kernel, &given, from);
}

/* ---- a host ------------------------------------------------------------------------------------------------------ */

static void open_rig(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n, const char *config, int32_t device,
                     uint32_t flags) {
    zt_rig_start(rig, shapes, n);
    if (device == ZF_DEVICE_CUDA)
        move_values_to_device(rig, n);
    if (device == ZF_DEVICE_CUDA)
        rig->stream = (zf_stream_t){.struct_size = sizeof rig->stream, .kind = ZF_STREAM_CUDA, .device_type = device};
    zt_rig_open(rig, config, flags);
}

/* Of all values. */
static uint64_t hash_of(const zt_rig_t *rig, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < rig->params[i].n_elems * rig->params[i].elem_nbytes; k++)
            h = zt_hash(h ^ rig->params[i].visible[k]);
    return h;
}

/* Where a step takes seconds. */
static int has_large_grids(void) { return getenv("FAKECUDA_MULTIPROCESSORS") != NULL; }

static uint32_t first_bad; /* the last element of gradients from it on is NaN; 0: no */
static size_t n_live_cols; /* gradients of the columns from it on are zero, and columns before it are selected; 0: no */

static void fill_gradient(zt_rig_t *rig, uint32_t i, uint64_t seed) {
    zt_param_t *param = &rig->params[i];
    zt_rig_fill_grad(rig, i, seed);
    for (size_t k = 0; k < param->n_elems && n_live_cols; k++)
        if (k % (size_t)param->shape.cols >= n_live_cols)
            memset(param->grad + k * param->elem_nbytes, 0, param->elem_nbytes);
    if (first_bad && i >= first_bad)
        memset(param->grad + (param->n_elems - 1) * param->elem_nbytes, 0xFF, param->elem_nbytes);
}

static void deliver(zt_rig_t *rig, uint32_t n, int32_t device, uint64_t t) {
    for (uint32_t i = 0; i < n; i++) {
        fill_gradient(rig, i, t + 1);
        if (device == ZF_DEVICE_CUDA)
            move_to_device(rig->params[i].grad, &rig->params[i].grad_tensor);
        ZT_OK(rig, zt_rig_deliver(rig, i, 0, NULL));
    }
}

/* What is visible after each step and after FLUSH. */
static void train(zt_rig_t *rig, uint32_t n, int32_t device, uint64_t hashes[N_STEPS]) {
    for (uint64_t t = 0; t < (has_large_grids() ? N_STEPS / 2 : N_STEPS); t++) {
        deliver(rig, n, device, t);
        ZT_OK(rig, zt_rig_submit(rig, 0, NULL));
        if (device == ZF_DEVICE_CUDA)
            read_values(rig, n);
        hashes[t] = hash_of(rig, n);
    }
    ZT_OK(rig, zt_quiesce(rig, ZF_QUIESCE_FLUSH));
    if (device == ZF_DEVICE_CUDA)
        read_values(rig, n);
}

static void begin(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n, const char *more, int32_t device) {
    char config[1024];
    snprintf(config, sizeof config,
             "[zenflow]\ntopk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s[host]\nthreads = 1\n"
             "[audit]\nfile = %s/%s every 1\n",
             more, zt_dir(), device == ZF_DEVICE_CUDA ? "cuda" : "cpu");
    open_rig(rig, shapes, n, config, device, 0);
}

/* What was digested of masters, moments and visible values after each step: `zf audit` finds no difference. */
static void compare_audits(void) {
    char command[600];
    snprintf(command, sizeof command, "cd %s && '%s' audit cpu cuda && rm cpu cuda", zt_dir(), ZF);
    ck_assert_int_eq(system(command), 0);
}

static void compare(const zt_shape_t *shapes, uint32_t n, const char *more, int far) {
    static zt_rig_t cpu, cuda;
    uint64_t on_cpu[N_STEPS] = {0}, on_cuda[N_STEPS] = {0};
    enter_device();
    rig_of_launches = &cuda;
    begin(&cuda, shapes, n, more, ZF_DEVICE_CUDA);
    is_far = far;
    train(&cuda, n, ZF_DEVICE_CUDA, on_cuda);
    begin(&cpu, shapes, n, more, ZF_DEVICE_CPU);
    train(&cpu, n, ZF_DEVICE_CPU, on_cpu);
    ck_assert_mem_eq(on_cuda, on_cpu, sizeof on_cpu);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_mem_eq(cuda.params[i].visible, cpu.params[i].visible,
                         cpu.params[i].n_elems * cpu.params[i].elem_nbytes);
    ck_assert_uint_eq(fakecuda_n_findings(), 0);
    ck_assert_int_eq(n_far_launches > 10, far);
    zt_rig_end(&cuda);
    zt_rig_end(&cpu);
    compare_audits();
}

static const char windows[] = "update_interval = 3\nselect_interval = 3\npredict = off\n";

ZT_TEST(many_rows) {
    if (has_large_grids())
        return;
    static const zt_shape_t shapes[] = {{.rows = 1100, .cols = 24},
                                        {.rows = 1100, .cols = 24, .channels = ZF_CHANNELS_ROWS}};
    compare(shapes, 2, windows, 0);
}

ZT_TEST(long_rows) {
    if (has_large_grids())
        return;
    static const zt_shape_t shapes[] = {{.rows = 6, .cols = 9000, .is_bf16 = 1},
                                        {.rows = 6, .cols = 5000, .channels = ZF_CHANNELS_ROWS}};
    compare(shapes, 2, windows, 0);
}

/* 6,000 of the first 8,000 columns are selected: more than a list for strips of columns has room for. */
ZT_TEST(crowded_columns) {
    static const zt_shape_t shape = {.rows = 2, .cols = 30000, .is_bf16 = 1};
    if (has_large_grids())
        return;
    n_live_cols = 8000;
    compare(&shape, 1, windows, 0);
    n_live_cols = 0;
}

/* One block of all elements that it may have: where kernels cut it into more than 256 slices, each has elements. */
ZT_TEST(more_slices_than_256) {
    static const zt_shape_t shape = {.rows = 256, .cols = 256};
    if (!has_large_grids())
        compare(&shape, 1, windows, 0);
}

/* The third bucket of a close's values takes places of the first. */
ZT_TEST(more_values_than_the_ring_holds) {
    static const zt_shape_t shape = {.rows = 1000, .cols = 256};
    if (!has_large_grids())
        compare(&shape, 1, windows, 0);
}

static const zt_shape_t usual[] = {
    {.rows = 40, .cols = 56}, {.rows = 70}, {.rows = 33, .cols = 17, .channels = ZF_CHANNELS_ROWS}};

ZT_TEST(offsets_beyond_32_bits) { compare(usual, 3, windows, 1); }
ZT_TEST(offsets_beyond_32_bits_with_the_state_on_the_device) {
    if (!has_large_grids())
        compare(usual, 3, "[device]\nstate_mib = all\n", 1);
}

/* More parameters than two warps look at. */
enum { MANY = 70, BAD = 40 };

static void open_many(zt_rig_t *rig, const char *config, int is_bf16) {
    zt_shape_t shapes[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        shapes[i] = (zt_shape_t){.rows = 40, .cols = 56, .group = i >= BAD, .is_bf16 = is_bf16};
    enter_device();
    is_far = 0;
    open_rig(rig, shapes, MANY, config, ZF_DEVICE_CUDA, 0);
}

/* From one on all of them, so that many threads say so of one matrix at once; the lowest is named. */
ZT_TEST(weights_that_become_infinite) {
    static zt_rig_t rig;
    if (has_large_grids())
        return;
    open_many(&rig, "[zenflow]\nfull_warm_up_rounds = 1\n[device]\nstate_mib = all\n", 0);
    rig.groups[1].lr = 1e30, rig.groups[1].weight_decay = 1;
    for (uint64_t t = 0; t < 2; t++) {
        deliver(&rig, MANY, ZF_DEVICE_CUDA, t);
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        need(cuCtxSynchronize());
    }
    ck_assert_int_lt(zt_rig_submit(&rig, 0, NULL), 0);
    ck_assert_msg(strstr(rig.err.message, "\"layer.40.weight\" became Inf or NaN"), "%s", rig.err.message);
    ck_assert_uint_eq(fakecuda_n_findings(), 0);
    zt_rig_end(&rig);
}

/* NaN of bf16 in one element of each, which one lane finds; the lowest is named. */
ZT_TEST(gradients_that_are_nan) {
    static zt_rig_t rig;
    zf_step_report_t report;
    if (has_large_grids())
        return;
    open_many(&rig, "", 1);
    first_bad = BAD;
    deliver(&rig, MANY, ZF_DEVICE_CUDA, 0);
    first_bad = 0;
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, &report));
    ck_assert(!report.applied);
    ck_assert_uint_eq(report.nonfinite_param, rig.params[BAD].id);
    zt_rig_end(&rig);
}

ZT_SUITE("sizes")
