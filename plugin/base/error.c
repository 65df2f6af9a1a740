/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/error.c - filling the caller's zf_error_t (contract in error.h). */
#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* A record shorter than the full layout gets the members it has; its own size is left as the caller set it. One whose
 * size was forgotten (0) is taken for its first revision, which is the whole of it. */
static void store(zf_error_t *err, const zf_error_t *full) {
    uint32_t size = err->struct_size && err->struct_size < sizeof *full ? err->struct_size : (uint32_t)sizeof *full;
    if (size <= offsetof(zf_error_t, status))
        return;
    memcpy((char *)err + offsetof(zf_error_t, status), (const char *)full + offsetof(zf_error_t, status),
           size - offsetof(zf_error_t, status));
    if (size <= offsetof(zf_error_t, message))
        return;
    ((char *)err)[size - 1] = '\0';
    zfi_utf8_mend(err->message); /* where it, or a name in it, was cut */
}

/* Whether the same call can succeed later, though nothing of the instance is set up again: another hook has returned,
 * the host has announced what it wrote, the device has caught up, the file system has room again. */
static int is_retryable(zf_status_t status, int32_t scope) {
    return scope <= ZF_SCOPE_PARAM && (status == ZF_ERR_BUSY || status == ZF_ERR_OVERWRITTEN ||
                                       status == ZF_ERR_TIMEOUT || status == ZF_ERR_STORAGE);
}

static zf_status_t report(zf_error_t *err, zf_status_t status, int32_t scope, int64_t native_code, const char *origin,
                          const char *format, va_list args) {
    zf_error_t full = {.status = status,
                       .scope = scope,
                       .retryable = is_retryable(status, scope),
                       .native_code = native_code,
                       .param = ZF_NO_ID,
                       .rank = ZF_NO_ID};
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

zf_status_t zfi_error_of(zf_error_t *err, zf_status_t status, uint32_t param, const char *origin, const char *format,
                         ...) {
    va_list args;
    va_start(args, format);
    report(err, status, ZF_SCOPE_CALL, 0, origin, format, args);
    va_end(args);
    return zfi_error_about(err, status, param);
}

zf_status_t zfi_error_by(zf_error_t *err, zf_status_t status, uint32_t rank, const char *origin, const char *format,
                         ...) {
    va_list args;
    va_start(args, format);
    report(err, status, ZF_SCOPE_CALL, 0, origin, format, args);
    va_end(args);
    return zfi_error_on_rank(err, status, rank);
}

/* Whether the caller's record reaches to the end of a member. */
static int has_member(const zf_error_t *err, size_t end) {
    return err && (err->struct_size == 0 || err->struct_size >= end);
}

zf_status_t zfi_error_about(zf_error_t *err, zf_status_t st, uint32_t param) {
    if (st < 0 && has_member(err, offsetof(zf_error_t, param) + sizeof err->param))
        err->param = param;
    return st;
}

zf_status_t zfi_error_on_rank(zf_error_t *err, zf_status_t st, uint32_t rank) {
    if (st < 0 && has_member(err, offsetof(zf_error_t, rank) + sizeof err->rank))
        err->rank = rank;
    return st;
}

zf_status_t zfi_error_copy(zf_error_t *err, const zf_error_t *from) {
    if (err)
        store(err, from);
    return from->status;
}
