/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/kernels.c - the module of kernels/cuda, and how each kernel of launch.h is launched.
 *
 * Machine code for the device's architecture is taken where this build has it, else the PTX, which the driver compiles.
 * How much there is to do stands in tables that only the device reads, so most kernels get as many blocks as the device
 * runs at once, and share out the work themselves. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/images.h"
#include "cuda/params.h"
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
    X(zf_report)                                                                                                       \
    X(zf_gate)

enum {
#define NUMBER(name) K_##name,
    ZFI_CUDA_KERNELS(NUMBER)
#undef NUMBER
        N_KERNELS
};

enum { REGISTERS = 65536, MOST_BLOCKS = 8 /* of one processor */ };

struct zfi_cuda_kernels {
    CUmodule module;
    CUfunction functions[N_KERNELS];
    unsigned n_blocks[N_KERNELS]; /* that the device runs at once */
};

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* The build's machine code for an architecture; NULL: none. Code of 8.0 runs on 8.x, and so on, but 9.0a's on 9.0 only.
 */
static const void *image_for(int major) {
    for (uint32_t i = 0; i < zfi_cuda_n_images; i++)
        if (zfi_cuda_images[i].major == major)
            return zfi_cuda_images[i].begin;
    return NULL;
}

static CUresult load_module(zfi_device_t *device, CUmodule *out) {
    int major = 0;
    const void *image;
    CUresult rc =
        device->driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->id);
    image = rc ? NULL : image_for(major);
    if (image && device->driver->cuModuleLoadDataEx(out, image, 0, NULL, NULL) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return device->driver->cuModuleLoadDataEx(out, zfi_cuda_ptx, 0, NULL, NULL);
}

static CUresult find_functions(zfi_device_t *device, zfi_cuda_kernels_t *kernels) {
    static const char *const names[] = {
#define NAME(name) #name,
        ZFI_CUDA_KERNELS(NAME)
#undef NAME
    };
    for (int i = 0; i < N_KERNELS; i++) {
        int n_registers = 0;
        unsigned n;
        CUresult rc = device->driver->cuModuleGetFunction(&kernels->functions[i], kernels->module, names[i]);
        if (!rc)
            rc = device->driver->cuFuncGetAttribute(&n_registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels->functions[i]);
        if (rc)
            return rc;
        n = n_registers > 0 ? REGISTERS / ((unsigned)n_registers * ZFI_CUDA_THREADS) : 1;
        n = n < 1 ? 1 : n > MOST_BLOCKS ? MOST_BLOCKS : n;
        kernels->n_blocks[i] = n * (unsigned)device->n_processors;
    }
    return CUDA_SUCCESS;
}

zf_status_t zfi_cuda_kernels_load(zfi_device_t *device, zf_error_t *err) {
    char reason[192];
    CUresult rc;
    device->kernels = calloc(1, sizeof *device->kernels);
    if (!device->kernels)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for the table of kernels");
    rc = load_module(device, &device->kernels->module);
    if (!rc)
        rc = find_functions(device, device->kernels);
    if (rc)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "the kernels do not load on CUDA device %d: %s", (int)device->id,
                         zfi_cuda_error_text(device->driver, rc, reason, sizeof reason));
    return ZF_OK;
}

void zfi_cuda_kernels_free(zfi_device_t *device) {
    if (device->kernels && device->kernels->module)
        device->driver->cuModuleUnload(device->kernels->module);
    free(device->kernels);
}

CUresult zfi_cuda_kernels_warm_up(zfi_device_t *device, CUstream stream) {
    static const union nothing {
        zfi_cuda_statistics_t statistics; /* the largest */
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
    }
    return rc;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static zf_status_t launch(zfi_device_t *device, CUstream stream, int number, const void *args, unsigned n_blocks,
                          unsigned n_threads) {
    CUdeviceptr has_ended = device->has_ended;
    void *parameters[] = {(void *)(uintptr_t)args, &has_ended};
    return zfi_cuda_check(device,
                          device->driver->cuLaunchKernel(device->kernels->functions[number], n_blocks, 1, 1, n_threads,
                                                         1, 1, 0, stream, parameters, NULL),
                          "launching a kernel");
}

/* As many blocks as run at once. */
static zf_status_t launch_wide(zfi_device_t *device, CUstream stream, int number, const void *args) {
    return launch(device, stream, number, args, device->kernels->n_blocks[number], ZFI_CUDA_THREADS);
}

static zf_status_t launch_thread(zfi_device_t *device, CUstream stream, int number, const void *args) {
    return launch(device, stream, number, args, 1, 1);
}

zf_status_t zfi_cuda_gate(zfi_device_t *device, CUstream stream, CUdeviceptr word) {
    zfi_cuda_gate_t args = {(const uint64_t *)(uintptr_t)word, (uint32_t *)(uintptr_t)device->has_ended};
    return launch_thread(device, stream, K_zf_gate, &args);
}

static int has_param(const zfi_gradient_t *gradients, uint32_t n, uint32_t param) {
    for (uint32_t i = 0; i < n; i++)
        if (gradients[i].param == param)
            return 1;
    return 0;
}

/* Entries of one parameter come one after another: a launch ends before a parameter's second entry. */
static zf_status_t launch_collect(zfi_device_t *device, CUstream stream, const zfi_gradients_args_t *given) {
    zfi_gradients_args_t args = *given;
    zf_status_t st = ZF_OK;
    for (uint32_t first = 0, end; first < given->n && !st; first = end) {
        for (end = first + 1; end < given->n; end++)
            if (has_param(given->gradients + first, end - first, given->gradients[end].param))
                break;
        args.gradients = given->gradients + first;
        args.n = end - first;
        st = launch_wide(device, stream, K_zf_collect, &args);
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

static zf_status_t launch_statistics(zfi_device_t *device, CUstream stream, const zfi_gradients_args_t *given) {
    zfi_cuda_statistics_t args = {.data = given->data, .turn = given->turn, .gathers = given->gathers};
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < given->n && !st; i++) {
        const zfi_gradient_t *gradient = &given->gradients[i];
        if ((gradient->flags & ZFI_GRADIENT_SHIP) && is_last(given, i))
            args.list[args.n++] = (zfi_cuda_gradient_t){.grad = gradient->grad, .param = gradient->param};
        if (args.n && (args.n == ZFI_CUDA_MOST_GRADIENTS || i + 1 == given->n)) {
            st = launch_wide(device, stream, K_zf_statistics, &args);
            args.n = 0;
        }
    }
    return st;
}

static zf_status_t launch_run_ahead(zfi_device_t *device, CUstream stream, const zfi_run_ahead_args_t *args) {
    zf_status_t st = launch_wide(device, stream, K_zf_run_ahead_begin, args);
    if (st || args->counts_only)
        return st;
    return launch_wide(device, stream, K_zf_run_ahead, args);
}

static zf_status_t launch_update_all(zfi_device_t *device, CUstream stream, const zfi_update_all_args_t *args) {
    zf_status_t st = launch_wide(device, stream, K_zf_update_all_begin, args);
    if (!st)
        st = launch_wide(device, stream, K_zf_update_all, args);
    return st ? st : launch_thread(device, stream, K_zf_update_all_end, args);
}

zf_status_t zfi_cuda_launch(zfi_device_t *device, CUstream stream, zfi_kernel_t kernel, const void *args) {
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
        return launch_collect(device, stream, args);
    case ZFI_KERNEL_STATISTICS:
        return launch_statistics(device, stream, args);
    case ZFI_KERNEL_NORM_PART:
        st = launch_wide(device, stream, K_zf_norm_params, args);
        return st ? st : launch_thread(device, stream, K_zf_norm_part, args);
    case ZFI_KERNEL_SCALARS:
        return launch_thread(device, stream, K_zf_scalars, args);
    case ZFI_KERNEL_RUN_AHEAD:
        return launch_run_ahead(device, stream, args);
    case ZFI_KERNEL_UPDATE_ALL:
        return launch_update_all(device, stream, args);
    case ZFI_KERNEL_CHECK:
        st = launch_wide(device, stream, K_zf_check, args);
        return st ? st : launch(device, stream, K_zf_check_end, args, 1, ZFI_CUDA_THREADS);
    case ZFI_KERNEL_REPORT:
        return launch_thread(device, stream, K_zf_report, args);
    default:
        return launch_wide(device, stream, wide[kernel], args);
    }
}
