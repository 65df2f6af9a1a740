/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/collective.h - one exchange among ranks, timed and counted. */
#pragma once

#include "instance/engine.h"

typedef zf_status_t (*zfi_collective_fn)(zfi_engine_t *engine, const zfi_exchange_t *what);

/* [own threads, one per lane] Makes it, and returns when it is over. A failure has ended the instance. */
zf_status_t zfi_collective(zfi_engine_t *engine, const zfi_exchange_t *what);

/* [own threads, one per lane] The same of an all-gather in which rank r's part lies at zfi_part_of(r): in two levels
 * where its group has them (nodes.h). */
zf_status_t zfi_gather_parts(zfi_engine_t *engine, const zfi_exchange_t *all);

/* [hook] Either of them on a lane's own thread, after what that was given before. Returns when it is over. */
zf_status_t zfi_collective_call(zfi_engine_t *engine, zfi_serial_t *thread, zfi_collective_fn fn,
                                const zfi_exchange_t *what);
