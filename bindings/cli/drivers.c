/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/drivers.c - CUDA's driver and MPI, opened where they are (contract in machine.h). Nothing of them is
 * linked. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cuda_driver.h"
#include "machine.h"

enum { NAME_NBYTES = 128, MOST_DEVICES = 64, CC_MAJOR = 75, CC_MINOR = 76, MPI_TEXT_NBYTES = 8192 };

/* dlsym gives an object pointer; POSIX says that it converts to a function's. */
static int find(void *library, const char *name, void *out_function) {
    void *symbol = dlsym(library, name);
    memcpy(out_function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

static json_t *describe_device(const zf_cuda_driver_t *cuda, int device) {
    char name[NAME_NBYTES] = "", capability[32];
    size_t nbytes = 0;
    int major = 0, minor = 0;
    cuda->DeviceGetName(name, sizeof name - 1, device);
    cuda->DeviceTotalMem_v2(&nbytes, device);
    cuda->DeviceGetAttribute(&major, CC_MAJOR, device);
    cuda->DeviceGetAttribute(&minor, CC_MINOR, device);
    snprintf(capability, sizeof capability, "%d.%d", major, minor);
    return json_pack("{s:s, s:I, s:s}", "name", name, "memory_nbytes", (json_int_t)nbytes, "compute_capability",
                     capability);
}

static json_t *no_cuda(const char *why) { return json_pack("{s:b, s:s}", "found", 0, "why", why); }

json_t *zf_machine_cuda(void) {
    zf_cuda_driver_t cuda;
    json_t *devices;
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
    devices = json_array();
    for (int i = 0; i < n && i < MOST_DEVICES; i++)
        json_array_append_new(devices, describe_device(&cuda, i));
    return json_pack("{s:b, s:s, s:o}", "found", 1, "version", text, "devices", devices);
}

/* ---- MPI --------------------------------------------------------------------------------------------------------- */

static int is_on_path(const char *program) {
    const char *path = getenv("PATH");
    char file[4096];
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':') {
        snprintf(file, sizeof file, "%.*s/%s", (int)strcspn(path, ":"), path, program);
        if (access(file, X_OK) == 0)
            return 1;
    }
    return 0;
}

json_t *zf_machine_mpi(void) {
    static const char *const names[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static char text[MPI_TEXT_NBYTES + 1]; /* MPI_MAX_LIBRARY_VERSION_STRING is less everywhere */
        int (*version)(char *out, int *out_nbytes), n = 0;
        void *library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
        if (!library)
            continue;
        if (find(library, "MPI_Get_library_version", &version)) /* legal before MPI_Init */
            version(text, &n);
        text[strcspn(text, ",\n")] = '\0';
        return json_pack("{s:b, s:s, s:s, s:b}", "found", 1, "library", names[i], "version", text, "mpirun",
                         is_on_path("mpirun"));
    }
    return json_pack("{s:b, s:b}", "found", 0, "mpirun", is_on_path("mpirun"));
}
