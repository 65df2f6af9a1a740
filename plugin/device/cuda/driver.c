/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/driver.c - opening CUDA's driver (contract in driver.h). */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/error.h"

#define LIBRARY "libcuda.so.1"

/* Written once, under lock; then read by everybody. */
static struct opened {
    pthread_mutex_t lock;
    int is_open;
    zfi_cuda_driver_t driver;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef CUresult (*get_address_t)(const char *symbol, void **out, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status);

static zf_status_t find_functions(get_address_t get, zfi_cuda_driver_t *out, zf_error_t *err) {
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
        CUresult rc = get(functions[i].name, &found, ZFI_CUDA_DRIVER_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
        if (rc || !found)
            return zfi_error(err, ZF_ERR_DEVICE, "create",
                             "the CUDA driver has no %s (error %d): version 12.0 or newer is needed", functions[i].name,
                             (int)rc);
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
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    get_address_t get;
    zf_status_t st;
    if (!library)
        return zfi_error(err, ZF_ERR_DEVICE, "create",
                         "device type %d (CUDA): " LIBRARY " cannot be opened (%s): is NVIDIA's driver installed?",
                         ZF_DEVICE_CUDA, dlerror());
    if (!symbol)
        return zfi_error(err, ZF_ERR_DEVICE, "create",
                         LIBRARY " has no cuGetProcAddress_v2: a driver of CUDA 12.0 or newer is needed");
    *(void **)&get = symbol;
    st = find_functions(get, out, err);
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
