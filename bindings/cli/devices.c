/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/devices.c - CUDA's devices, by the driver, which is opened where it is (contract in ask.h). */
#include <stdio.h>
#include <string.h>

#include "ask.h"
#include "lib/cuda_driver.h"

enum { NAME_NBYTES = 128, IMAGE_NBYTES = 512, MOST_DEVICES = 64, INTEGRATED = 18, CC_MAJOR = 75, CC_MINOR = 76 };

static json_t *describe_device(const zf_cuda_driver_t *cuda, int device) {
    char name[NAME_NBYTES] = "", capability[32];
    size_t nbytes = 0;
    int major = 0, minor = 0, is_integrated = 0;
    cuda->DeviceGetName(name, sizeof name - 1, device);
    cuda->DeviceTotalMem_v2(&nbytes, device);
    cuda->DeviceGetAttribute(&is_integrated, INTEGRATED, device);
    cuda->DeviceGetAttribute(&major, CC_MAJOR, device);
    cuda->DeviceGetAttribute(&minor, CC_MINOR, device);
    snprintf(capability, sizeof capability, "%d.%d", major, minor);
    return json_pack("{s:s, s:I, s:s, s:b}", "name", name, "memory_nbytes", (json_int_t)nbytes, "compute_capability",
                     capability, "is_integrated", is_integrated);
}

static json_t *no_cuda(const char *why) { return json_pack("{s:b, s:s}", "found", 0, "why", why); }

json_t *zf_ask_cuda(void) {
    zf_cuda_driver_t cuda;
    char text[256];
    int status, version = 0, n = 0;
    if (zf_cuda_driver_open(&cuda, text, sizeof text) != 0)
        return no_cuda(text);
    status = cuda.Init(0);
    if (status) {
        snprintf(text, sizeof text, "cuInit returned %d%s", status,
                 status == 100 ? ": there is no CUDA device, or this process may not see it (CUDA_VISIBLE_DEVICES)"
                               : "");
        return no_cuda(text);
    }
    cuda.DriverGetVersion(&version);
    cuda.DeviceGetCount(&n);
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    json_t *devices = json_array();
    for (int i = 0; i < n && i < MOST_DEVICES; i++)
        json_array_append_new(devices, describe_device(&cuda, i));
    return json_pack("{s:b, s:s, s:o}", "found", 1, "version", text, "devices", devices);
}

/* "kernels: ..." is in what create logs of a device. */
static void take_image(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                       const char *text, uint64_t nbytes) {
    char *out = ctx;
    const char *at = strstr(text, "kernels: ");
    (void)level, (void)component, (void)file, (void)line, (void)nbytes;
    if (at)
        snprintf(out, IMAGE_NBYTES, "%s", at + strlen("kernels: "));
}

json_t *zf_ask_image(const zf_plugin_t *zf, int device) {
    char image[IMAGE_NBYTES] = "";
    zf_error_t err = {.struct_size = sizeof err};
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1", .ctx = image, .log = take_image};
    zf_create_args_t args = {
        .struct_size = sizeof args, .host = &host, .device_type = ZF_DEVICE_CUDA, .device_id = device};
    zf_instance_t *inst = NULL;
    if (zf->create(&args, &inst, &err) < 0)
        return json_pack("{s:b, s:s}", "is_taken", 0, "kernels", err.message);
    zf->destroy(inst, NULL);
    return json_pack("{s:b, s:s}", "is_taken", 1, "kernels", image);
}
