/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/kernels.c - the module of kernels/cuda, and how each kernel of launch.h is launched.
 *
 * Machine code for the device's architecture is taken where this build has it, else the PTX, which the driver compiles.
 * How much there is to do stands in tables that only the device reads, so most kernels get as many blocks as the device
 * runs at once, and share out the work themselves. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cuda/images.h"
#include "device/cuda/backend.h"

#define ZFI_CUDA_KERNELS(X)                                                                                            \
    X(zf_collect)                                                                                                      \
    X(zf_statistics)                                                                                                   \
    X(zf_norm_params)                                                                                                  \
    X(zf_norm_part)                                                                                                    \
    X(zf_scalars)                                                                                                      \
    X(zf_run_ahead_begin)                                                                                              \
    X(zf_run_ahead)                                                                                                    \
    X(zf_update_all_begin)                                                                                             \
    X(zf_update_all)                                                                                                   \
    X(zf_update_all_end)                                                                                               \
    X(zf_gather)                                                                                                       \
    X(zf_enter_maps)                                                                                                   \
    X(zf_enter_state)                                                                                                  \
    X(zf_enter_counts)                                                                                                 \
    X(zf_show_entered)                                                                                                 \
    X(zf_merge)                                                                                                        \
    X(zf_check)                                                                                                        \
    X(zf_check_end)                                                                                                    \
    X(zf_round_moments)                                                                                                \
    X(zf_read_place)                                                                                                   \
    X(zf_write_place)                                                                                                  \
    X(zf_sum_parts)                                                                                                    \
    X(zf_move)                                                                                                         \
    X(zf_copy_ranges)                                                                                                  \
    X(zf_report)                                                                                                       \
    X(zf_gate)

enum {
#define NUMBER(name) K_##name,
    ZFI_CUDA_KERNELS(NUMBER)
#undef NUMBER
        N_KERNELS
};

struct zfi_cuda_kernels {
    CUmodule module;
    CUfunction functions[N_KERNELS];
    unsigned n_blocks[N_KERNELS]; /* that the device runs at once */
    char image[320];              /* which one was loaded, for the log */
};

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The build's machine code for an architecture; NULL: none. Code of 8.0 runs on 8.x, and so on, 9.0a's on 9.0 only. */
static const void *image_for(int major) {
    for (uint32_t i = 0; i < zfi_cuda_n_images; i++)
        if (zfi_cuda_images[i].major == major)
            return zfi_cuda_images[i].begin;
    return NULL;
}

/* Machine code of this build; what it lacks, or the driver refuses, the driver assembles from the PTX. */
static CUresult load_module(zfi_device_t *device, zfi_cuda_kernels_t *kernels) {
    const zfi_cuda_driver_t *driver = device->driver;
    int major = 0, minor = 0;
    char reason[192];
    (void)driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->id);
    (void)driver->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->id);
    const void *image = image_for(major);
    if (image) {
        CUresult rc = driver->cuModuleLoadDataEx(&kernels->module, image, 0, NULL, NULL);
        zfi_cuda_error_text(driver, rc, reason, sizeof reason);
        snprintf(kernels->image, sizeof kernels->image, "machine code for compute capability %d.%d%s%s", major, minor,
                 rc ? " does not load, so the driver assembled the PTX: " : "", rc ? reason : "");
        if (!rc)
            return CUDA_SUCCESS;
    } else {
        snprintf(kernels->image, sizeof kernels->image,
                 "PTX, assembled by the driver: this build has no machine code for compute capability %d.%d", major,
                 minor);
    }
    return driver->cuModuleLoadDataEx(&kernels->module, zfi_cuda_ptx, 0, NULL, NULL);
}

static CUresult find_functions(zfi_device_t *device, zfi_cuda_kernels_t *kernels) {
    static const char *const names[] = {
#define NAME(name) #name,
        ZFI_CUDA_KERNELS(NAME)
#undef NAME
    };
    for (int i = 0; i < N_KERNELS; i++) {
        int n = 0; /* of one processor */
        CUresult rc = device->driver->cuModuleGetFunction(&kernels->functions[i], kernels->module, names[i]);
        if (!rc)
            rc = device->driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernels->functions[i],
                                                                             ZFI_CUDA_THREADS, 0);
        if (rc)
            return rc;
        kernels->n_blocks[i] = (unsigned)(n < 1 ? 1 : n) * (unsigned)device->n_processors;
    }
    return CUDA_SUCCESS;
}

/* A driver that is older than the build's toolkit may know neither its PTX nor its machine code. */
static zf_status_t refuse_to_load(const zfi_device_t *device, CUresult rc, zf_error_t *err) {
    int version = 0;
    char reason[192];
    (void)device->driver->cuDriverGetVersion(&version);
    return zfi_error(err, ZF_ERR_DEVICE, "create",
                     "the kernels do not load on CUDA device %d: %s; this plugin was built with CUDA %d.%d, the driver "
                     "is of CUDA %d.%d%s",
                     (int)device->id, zfi_cuda_error_text(device->driver, rc, reason, sizeof reason),
                     CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, version / 1000, version % 1000 / 10,
                     version < CUDA_VERSION ? ": install a newer driver, or build with an older toolkit" : "");
}

zf_status_t zfi_cuda_kernels_load(zfi_device_t *device, zf_error_t *err) {
    device->kernels = calloc(1, sizeof *device->kernels);
    if (!device->kernels)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for the table of kernels");
    CUresult rc = load_module(device, device->kernels);
    if (!rc)
        rc = find_functions(device, device->kernels);
    return rc ? refuse_to_load(device, rc, err) : ZF_OK;
}

const char *zfi_cuda_kernels_image(const zfi_device_t *device) { return device->kernels->image; }

void zfi_cuda_kernels_free(zfi_device_t *device) {
    if (device->kernels && device->kernels->module)
        device->driver->cuModuleUnload(device->kernels->module);
    free(device->kernels);
}

CUresult zfi_cuda_kernels_warm_up(zfi_device_t *device, CUstream stream) {
    static const union nothing {
        zfi_cuda_ranges_t ranges; /* the largest */
        unsigned char args[ZFI_LAUNCH_ARGS];
    } nothing;
    zfi_cuda_gate_t gate = {(const uint64_t *)(uintptr_t)device->has_ended, (uint32_t *)(uintptr_t)device->has_ended};
    CUdeviceptr has_ended = device->has_ended;
    CUresult rc = CUDA_SUCCESS;
    for (int i = 0; i < N_KERNELS && !rc; i++) {
        const void *args = i == K_zf_gate ? (const void *)&gate : &nothing;
        void *parameters[] = {(void *)(uintptr_t)args, &has_ended};
        rc = device->driver->cuLaunchKernel(device->kernels->functions[i], 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                                            NULL);
        rc = rc ? rc : device->driver->cuStreamSynchronize(stream);
    }
    return rc;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static zf_status_t launch(zfi_stream_t *stream, int number, const void *args, unsigned n_blocks, unsigned n_threads) {
    const zfi_device_t *device = stream->device;
    CUdeviceptr has_ended = device->has_ended;
    void *parameters[] = {(void *)(uintptr_t)args, &has_ended};
    zfi_cuda_begin_call(stream);
    CUresult rc = device->driver->cuLaunchKernel(device->kernels->functions[number], n_blocks, 1, 1, n_threads, 1, 1, 0,
                                                 stream->handle, parameters, NULL);
    return zfi_cuda_end_call(stream, rc, "launching a kernel");
}

/* As many blocks as run at once. */
static zf_status_t launch_wide(zfi_stream_t *stream, int number, const void *args) {
    return launch(stream, number, args, stream->device->kernels->n_blocks[number], ZFI_CUDA_THREADS);
}

static zf_status_t launch_warp(zfi_stream_t *stream, int number, const void *args) {
    return launch(stream, number, args, 1, 32);
}

static zf_status_t launch_thread(zfi_stream_t *stream, int number, const void *args) {
    return launch(stream, number, args, 1, 1);
}

zf_status_t zfi_cuda_launch_copy(zfi_stream_t *stream, const zfi_cuda_ranges_t *ranges) {
    return launch_wide(stream, K_zf_copy_ranges, ranges);
}

zf_status_t zfi_cuda_gate(zfi_stream_t *stream, CUdeviceptr word) {
    zfi_cuda_gate_t args = {(const uint64_t *)(uintptr_t)word, (uint32_t *)(uintptr_t)stream->device->has_ended};
    return launch_thread(stream, K_zf_gate, &args);
}

static int has_param(const zfi_gradient_t *gradients, uint32_t n, uint32_t param) {
    for (uint32_t i = 0; i < n; i++)
        if (gradients[i].param == param)
            return 1;
    return 0;
}

/* Entries of one parameter come one after another: a launch ends before a parameter's second entry. */
static zf_status_t launch_collect(zfi_stream_t *stream, const zfi_gradients_args_t *given, uint32_t *from) {
    zfi_gradients_args_t args = *given;
    zf_status_t st = ZF_OK;
    for (uint32_t end; *from < given->n && !st; *from = end) {
        if (!zfi_cuda_has_room(stream))
            return ZF_IN_PROGRESS;
        for (end = *from + 1; end < given->n; end++)
            if (has_param(given->gradients + *from, end - *from, given->gradients[end].param))
                break;
        args.gradients = given->gradients + *from;
        args.n = end - *from;
        st = launch_wide(stream, K_zf_collect, &args);
    }
    return st;
}

/* Of several shipments of a parameter the last one counts. */
static int is_last(const zfi_gradients_args_t *args, uint32_t i) {
    for (uint32_t k = i + 1; k < args->n; k++)
        if (args->gradients[k].param == args->gradients[i].param && (args->gradients[k].flags & ZFI_GRADIENT_SHIP))
            return 0;
    return 1;
}

static zf_status_t launch_statistics(zfi_stream_t *stream, const zfi_gradients_args_t *given, uint32_t *from) {
    zf_status_t st = ZF_OK;
    while (*from < given->n && !st) {
        zfi_cuda_statistics_t args = {.data = given->data, .turn = given->turn, .gathers = given->gathers};
        if (!zfi_cuda_has_room(stream))
            return ZF_IN_PROGRESS;
        for (; *from < given->n && args.n < ZFI_CUDA_MOST_GRADIENTS; ++*from) {
            const zfi_gradient_t *gradient = &given->gradients[*from];
            if ((gradient->flags & ZFI_GRADIENT_SHIP) && is_last(given, *from))
                args.list[args.n++] = (zfi_cuda_gradient_t){.grad = gradient->grad, .param = gradient->param};
        }
        st = args.n ? launch_wide(stream, K_zf_statistics, &args) : ZF_OK;
        if (args.n && !st)
            st = launch_wide(stream, K_zf_norm_params, &args);
    }
    return st;
}

static zf_status_t launch_run_ahead(zfi_stream_t *stream, const zfi_run_ahead_args_t *args) {
    zf_status_t st = launch_wide(stream, K_zf_run_ahead_begin, args);
    if (st || args->counts_only)
        return st;
    return launch_wide(stream, K_zf_run_ahead, args);
}

static zf_status_t launch_update_all(zfi_stream_t *stream, const zfi_update_all_args_t *args) {
    zf_status_t st = launch_wide(stream, K_zf_update_all_begin, args);
    if (!st)
        st = launch_wide(stream, K_zf_update_all, args);
    return st ? st : launch_warp(stream, K_zf_update_all_end, args);
}

zf_status_t zfi_cuda_launch(zfi_stream_t *stream, zfi_kernel_t kernel, const void *args, uint32_t *from) {
    static const int wide[ZFI_N_KERNELS] = {
        [ZFI_KERNEL_GATHER] = K_zf_gather,
        [ZFI_KERNEL_ENTER_MAPS] = K_zf_enter_maps,
        [ZFI_KERNEL_ENTER_STATE] = K_zf_enter_state,
        [ZFI_KERNEL_ENTER_COUNTS] = K_zf_enter_counts,
        [ZFI_KERNEL_SHOW_ENTERED] = K_zf_show_entered,
        [ZFI_KERNEL_MERGE] = K_zf_merge,
        [ZFI_KERNEL_ROUND_MOMENTS] = K_zf_round_moments,
        [ZFI_KERNEL_READ_PLACE] = K_zf_read_place,
        [ZFI_KERNEL_WRITE_PLACE] = K_zf_write_place,
        [ZFI_KERNEL_SUM_PARTS] = K_zf_sum_parts,
        [ZFI_KERNEL_MOVE] = K_zf_move,
    };
    zf_status_t st;
    switch (kernel) {
    case ZFI_KERNEL_COLLECT:
        return launch_collect(stream, args, from);
    case ZFI_KERNEL_STATISTICS:
        return launch_statistics(stream, args, from);
    case ZFI_KERNEL_NORM_PART:
        return launch_warp(stream, K_zf_norm_part, args);
    case ZFI_KERNEL_SCALARS:
        return launch_thread(stream, K_zf_scalars, args);
    case ZFI_KERNEL_RUN_AHEAD:
        return launch_run_ahead(stream, args);
    case ZFI_KERNEL_UPDATE_ALL:
        return launch_update_all(stream, args);
    case ZFI_KERNEL_CHECK:
        st = launch_wide(stream, K_zf_check, args);
        return st ? st : launch(stream, K_zf_check_end, args, 1, ZFI_CUDA_THREADS);
    case ZFI_KERNEL_REPORT:
        return launch(stream, K_zf_report, args, 1, ZFI_CUDA_THREADS);
    default:
        return launch_wide(stream, wide[kernel], args);
    }
}
