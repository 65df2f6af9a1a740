/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/error.h - filling the caller's zf_error_t. The first detector reports with names and numbers, callers
 * pass on.
 */
#ifndef ZFI_ERROR_H
#define ZFI_ERROR_H

#include "zf/types.h"

/* [any-thread] Writes status, scope CALL, origin and a formatted message into err (may be NULL; cut to fit, never past
 * err->struct_size), and returns status. No allocation. */
zf_status_t zfi_error(zf_error_t *err, zf_status_t status, const char *origin, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* [any-thread] The same with scope, retryable and native code. */
zf_status_t zfi_error_scoped(zf_error_t *err, zf_status_t status, int32_t scope, int64_t native_code,
                             const char *origin, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* [any-thread] Copies a stored error into the caller's record; returns its status. */
zf_status_t zfi_error_copy(zf_error_t *err, const zf_error_t *from);

#endif
