/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/error.c - filling the caller's zf_error_t (contract in error.h). */
#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* A record shorter than the full layout gets the members it has; its own size is left as the caller set it. One whose
 * size was forgotten (0) is taken for its first revision, which is the whole of it. */
static void store(zf_error_t *err, const zf_error_t *full) {
    uint32_t size = err->struct_size && err->struct_size < sizeof *full ? err->struct_size : (uint32_t)sizeof *full;
    if (size <= offsetof(zf_error_t, status))
        return;
    memcpy((char *)err + offsetof(zf_error_t, status), (const char *)full + offsetof(zf_error_t, status),
           size - offsetof(zf_error_t, status));
    if (size > offsetof(zf_error_t, message))
        ((char *)err)[size - 1] = '\0';
}

static zf_status_t report(zf_error_t *err, zf_status_t status, int32_t scope, int64_t native_code, const char *origin,
                          const char *format, va_list args) {
    zf_error_t full = {.status = status, .scope = scope, .native_code = native_code};
    if (!err)
        return status;
    snprintf(full.origin, sizeof full.origin, "%s", origin);
    vsnprintf(full.message, sizeof full.message, format, args);
    store(err, &full);
    return status;
}

zf_status_t zfi_error(zf_error_t *err, zf_status_t status, const char *origin, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(err, status, ZF_SCOPE_CALL, 0, origin, format, args);
    va_end(args);
    return status;
}

zf_status_t zfi_error_scoped(zf_error_t *err, zf_status_t status, int32_t scope, int64_t native_code,
                             const char *origin, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(err, status, scope, native_code, origin, format, args);
    va_end(args);
    return status;
}

zf_status_t zfi_error_copy(zf_error_t *err, const zf_error_t *from) {
    if (err)
        store(err, from);
    return from->status;
}
