/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/driver.c - the functions of CUDA's driver (contract in driver.h), asked for by their version. */
#include "device/cuda/driver.h"

#include <pthread.h>
#include <stdio.h>

#include "base/error.h"
#include "lib/cuda_driver.h"

/* Written once, under lock; then read by everybody. */
static struct opened {
    pthread_mutex_t lock;
    int is_open;
    zfi_cuda_driver_t driver;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

static zf_status_t find_functions(const zf_cuda_driver_t *library, zfi_cuda_driver_t *out, zf_error_t *err) {
    const struct function {
        const char *name;
        void *at; /* where its address goes */
    } functions[] = {
#define ROW(name) {#name, &out->name},
        ZFI_CUDA_FUNCTIONS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = NULL;
        int rc = library->GetProcAddress_v2(functions[i].name, &found, ZFI_CUDA_DRIVER_VERSION,
                                            CU_GET_PROC_ADDRESS_DEFAULT, NULL);
        if (rc || !found)
            return zfi_error(err, ZF_ERR_DEVICE, "create",
                             "the CUDA driver has no %s (error %d): version 12.0 or newer is needed", functions[i].name,
                             rc);
        *(void **)functions[i].at = found;
    }
    return ZF_OK;
}

static zf_status_t start(zfi_cuda_driver_t *driver, zf_error_t *err) {
    char text[256];
    int version = 0;
    CUresult rc = driver->cuInit(0);
    if (rc)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "CUDA does not start: %s",
                         zfi_cuda_error_text(driver, rc, text, sizeof text));
    rc = driver->cuDriverGetVersion(&version);
    if (rc || version < ZFI_CUDA_DRIVER_VERSION)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "the CUDA driver is of version %d.%d; 12.0 or newer is needed",
                         version / 1000, version % 1000 / 10);
    return ZF_OK;
}

static zf_status_t open_driver(zfi_cuda_driver_t *out, zf_error_t *err) {
    zf_cuda_driver_t library;
    char why[256];
    if (zf_cuda_driver_open(&library, why, sizeof why) != 0)
        return zfi_error(err, ZF_ERR_DEVICE, "create", "device type %d (CUDA): %s", ZF_DEVICE_CUDA, why);
    zf_status_t st = find_functions(&library, out, err);
    return st ? st : start(out, err);
}

zf_status_t zfi_cuda_driver(const zfi_cuda_driver_t **out, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    pthread_mutex_lock(&opened.lock);
    if (!opened.is_open)
        st = open_driver(&opened.driver, err);
    if (!st)
        opened.is_open = 1;
    pthread_mutex_unlock(&opened.lock);
    if (!st)
        *out = &opened.driver;
    return st;
}

const char *zfi_cuda_error_text(const zfi_cuda_driver_t *driver, CUresult rc, char *text, size_t nbytes) {
    const char *name = NULL, *meaning = NULL;
    if (driver->cuGetErrorName(rc, &name) || !name)
        name = "unknown error";
    if (driver->cuGetErrorString(rc, &meaning) || !meaning)
        meaning = "no text";
    snprintf(text, nbytes, "%s (%d): %s", name, (int)rc, meaning);
    return text;
}
