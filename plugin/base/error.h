/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/error.h - filling the caller's zf_error_t. The first detector reports with names and numbers, callers
 * pass on. */
#pragma once

#include "zf/types.h"

/* [any-thread] Writes status, scope CALL, origin and a formatted message into err (may be NULL; cut to fit, never past
 * err->struct_size), and returns status. No allocation. */
zf_status_t zfi_error(zf_error_t *err, zf_status_t status, const char *origin, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* [any-thread] The same with scope and native code. Which errors are retryable, error.c knows. */
zf_status_t zfi_error_scoped(zf_error_t *err, zf_status_t status, int32_t scope, int64_t native_code,
                             const char *origin, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* [any-thread] The same as zfi_error, of one parameter, which the message names. */
zf_status_t zfi_error_of(zf_error_t *err, zf_status_t status, uint32_t param, const char *origin, const char *format,
                         ...) __attribute__((format(printf, 5, 6)));

/* [any-thread] ... or of one rank. */
zf_status_t zfi_error_by(zf_error_t *err, zf_status_t status, uint32_t rank, const char *origin, const char *format,
                         ...) __attribute__((format(printf, 5, 6)));

/* [any-thread] What was reported with st < 0 names this parameter, or this rank. Returns st. */
zf_status_t zfi_error_about(zf_error_t *err, zf_status_t st, uint32_t param);
zf_status_t zfi_error_on_rank(zf_error_t *err, zf_status_t st, uint32_t rank);

/* [any-thread] Copies a stored error into the caller's record; returns its status. */
zf_status_t zfi_error_copy(zf_error_t *err, const zf_error_t *from);
