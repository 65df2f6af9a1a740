/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/entry.c - the one exported symbol, negotiation, and the plugin table (contract in zf/bootstrap.h). */
#include <link.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"
#include "base/struct.h"
#include "device/device.h"
#include "hooks/hooks.h"
#include "zf/bootstrap.h"
#include "zf/ext/draft/collectives.h"
#include "zf/plugin.h"
#include <zfi_build.h> /* written when the build is configured */

_Static_assert(sizeof(zf_bootstrap_t) == 64, "the bootstrap is frozen");
_Static_assert(sizeof(zf_error_t) == 512, "the error record is frozen");
_Static_assert(sizeof(zf_dl_tensor_t) == 48, "the layout of DLTensor");

enum { MOST_ABIS = 64 };

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif
#if defined(__x86_64__) /* as in kernels/CMakeLists.txt */
#define INSTRUCTION_SETS "generic, avx2, avx512"
#elif defined(__aarch64__)
#define INSTRUCTION_SETS "generic, neon"
#else
#define INSTRUCTION_SETS "generic"
#endif
#define BUILD "cpu backend (" INSTRUCTION_SETS "); " COMPILER "; " ZFI_BUILD_FLAGS "; git " ZFI_BUILD_GIT

/* A backend that was not built in has no memory to give. */
static uint64_t device_types(void) {
    uint64_t types = 0;
    for (uint32_t i = 0; i < zfi_n_backends; i++)
        types |= (uint64_t)(zfi_backends[i]->alloc != NULL) << zfi_backends[i]->device_type;
    return types;
}

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    const zf_description_t description = {
        .struct_size = sizeof description,
        .abi = ZF_ABI_0_16,
        .name = "libzfplugin",
        .version = ZFI_VERSION,
        .build = BUILD,
        .required_extensions = "",
        .optional_extensions = ZF_EXT_COLLECTIVES,
        .provided_extensions = zfi_provided_extensions,
        .device_types = device_types(),
    };
    zf_status_t st = zfi_struct_need_out(out, "zf_description_t", "describe", err);
    if (!st)
        zfi_struct_write(out, &description, sizeof description);
    return st;
}

static const zf_plugin_t table = {
    .struct_size = sizeof table,
    .abi = ZF_ABI_0_16,
    .describe = describe,
    .create = zfi_create,
    .destroy = zfi_destroy,
    .bind_params = zfi_bind_params,
    .params_changed = zfi_params_changed,
    .announce = zfi_announce,
    .grads_ready = zfi_grads_ready,
    .step = zfi_step,
    .param_fetch = zfi_param_fetch,
    .fence_wait = zfi_fence_wait,
    .quiesce = zfi_quiesce,
    .export_params = zfi_export_params,
    .poll = zfi_poll,
    .get_extension = zfi_get_extension,
};

static void list_abis(const zf_bootstrap_t *bootstrap, char *buf, size_t nbytes) {
    size_t at = 0;
    buf[0] = '\0';
    for (uint32_t i = 0; i < bootstrap->n_abis && at < nbytes; i++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%u.%u", i ? ", " : "", ZF_ABI_MAJOR(bootstrap->abis[i]),
                               ZF_ABI_MINOR(bootstrap->abis[i]));
}

static zf_status_t check(const zf_bootstrap_t *bootstrap) {
    zf_error_t *err = bootstrap->error;
    if (bootstrap->struct_size != sizeof *bootstrap || bootstrap->magic != ZF_BOOTSTRAP_MAGIC)
        return zfi_error(err, ZF_ERR_ARGUMENT, "negotiate",
                         "bootstrap: struct_size = %u, magic = 0x%08x; need %zu and 0x%08x", bootstrap->struct_size,
                         bootstrap->magic, sizeof *bootstrap, ZF_BOOTSTRAP_MAGIC);
    if (!bootstrap->abis || bootstrap->n_abis == 0 || bootstrap->n_abis > MOST_ABIS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "negotiate", "bootstrap: abis is %s, n_abis = %u; need 1..%d",
                         bootstrap->abis ? "given" : "NULL", bootstrap->n_abis, MOST_ABIS);
    if (bootstrap->reserved0 || bootstrap->reserved1 || bootstrap->reserved2)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "negotiate", "bootstrap: reserved members must be 0");
    return ZF_OK;
}

/* Minors of major 0 match exactly. */
static int is_listed(const zf_bootstrap_t *bootstrap, uint32_t abi) {
    for (uint32_t i = 0; i < bootstrap->n_abis; i++)
        if (bootstrap->abis[i] == abi)
            return 1;
    return 0;
}

static int count(struct dl_phdr_info *object, size_t nbytes, void *n) {
    (void)object, (void)nbytes;
    ++*(int *)n;
    return 0;
}

/* A program that is linked statically and opens this library gets a second C library with it, which lists no object. A
 * thread that it starts ends the process. */
static zf_status_t check_program(zf_error_t *err) {
    int n_objects = 0;
    dl_iterate_phdr(count, &n_objects);
    if (n_objects)
        return ZF_OK;
    return zfi_error_scoped(err, ZF_ERR_STATE, ZF_SCOPE_PROCESS, 0, "negotiate",
                            "this program is linked statically, and this library needs the C library of a dynamic one: "
                            "link the program without -static");
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap) {
    char theirs[128];
    if (!bootstrap)
        return ZF_ERR_ARGUMENT;
    if (bootstrap->struct_size < offsetof(zf_bootstrap_t, reserved0))
        return ZF_ERR_ARGUMENT; /* no error member */
    zf_status_t st = check(bootstrap);
    if (!st)
        st = check_program(bootstrap->error);
    if (st)
        return st;
    if (!is_listed(bootstrap, ZF_ABI_0_16)) {
        list_abis(bootstrap, theirs, sizeof theirs);
        return zfi_error_scoped(bootstrap->error, ZF_ERR_ABI, ZF_SCOPE_PROCESS, 0, "negotiate",
                                "no common ABI: the host serves %s, this plugin (" ZFI_VERSION
                                ") serves %u.%u; a major 0 must match exactly",
                                theirs, ZF_ABI_MAJOR(ZF_ABI_0_16), ZF_ABI_MINOR(ZF_ABI_0_16));
    }
    bootstrap->chosen_abi = ZF_ABI_0_16;
    bootstrap->plugin = &table;
    return ZF_OK;
}
