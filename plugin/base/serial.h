/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/serial.h - host functions that run one after the other on a thread of their own. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "zf/types.h"

typedef struct zfi_serial zfi_serial_t;

/* [any-thread] Starts the thread, named for debuggers (at most 15 bytes). */
zf_status_t zfi_serial_create(zfi_serial_t **out, const char *name, zf_error_t *err);
/* [any-thread] Runs what was handed over, ends the thread. NULL is legal. */
void zfi_serial_destroy(zfi_serial_t *serial);

/* [any-thread] Hands fn over with a copy of its arguments, and returns. */
zf_status_t zfi_serial_start(zfi_serial_t *serial, void (*fn)(void *args), const void *args, size_t nbytes);
/* [any-thread] The same, and waits until fn has returned: for work that ends by itself. */
zf_status_t zfi_serial_call(zfi_serial_t *serial, void (*fn)(void *args), const void *args, size_t nbytes);
