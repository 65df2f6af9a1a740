/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bindings/mocks/cuda_driver.c - a libcuda.so.1 of two devices, for `zf doctor`; MOCK_CUDA_FAILS in the
 * environment is what cuInit returns. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* the driver's header is not needed for these */

int cuInit(unsigned flags) {
    const char *status = getenv("MOCK_CUDA_FAILS");
    (void)flags;
    return status ? (int)strtol(status, NULL, 10) : 0;
}

int cuDriverGetVersion(int *out) {
    *out = 12080;
    return 0;
}

int cuDeviceGetCount(int *out) {
    *out = 2;
    return 0;
}

int cuDeviceGetName(char *out, int nbytes, int device) {
    snprintf(out, (size_t)nbytes, "Mock\033[31m device %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *out, int device) {
    *out = (size_t)(device + 1) << 34;
    return 0;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    (void)device;
    *out = attribute == 75 ? 9 : 0;
    return 0;
}
