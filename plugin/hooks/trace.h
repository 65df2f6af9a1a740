/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/trace.h - when the trace of an instance (base/trace.h) begins and ends. */
#pragma once

#include "instance/instance.h"

/* [control] The last of create() that can fail, so that a file is left behind only where there is an instance. */
zf_status_t zfi_tracing_begin(zfi_engine_t *engine, zf_error_t *err);
/* [hook] The next step will be t: from here on it is traced, or the trace has ended and is written by the control
 * thread. */
void zfi_tracing_step(zfi_engine_t *engine, uint64_t t);
/* [control] Once no thread of the instance is left. An instance that was not bound leaves a former trace as it is. */
void zfi_tracing_end(zfi_engine_t *engine, int was_bound);
