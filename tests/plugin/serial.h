/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/serial.h - AdamW, one element after the other: what the engine must equal bit for bit in replay mode
 * once its windows are flushed. The arithmetic is the oracle's (conformance/oracle), which shares no code with it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "oracle/oracle.h"
#include "zf/plugin.h"

typedef struct zt_serial {
    size_t n_elems;
    float *w, *m, *v;
    uint32_t n_updates;
} zt_serial_t;

/* w = the given values, m = v = 0. */
void zt_serial_start(zt_serial_t *serial, const float *w, size_t n_elems);
void zt_serial_end(zt_serial_t *serial);
/* One update from gradient g times s. */
void zt_serial_update(zt_serial_t *serial, const zf_group_hyper_t *hyper, const float *g, float s);

/* The same as a host's rule, for the body of a callback. */
void zt_adamw_rule(const zf_rule_update_t *update);
