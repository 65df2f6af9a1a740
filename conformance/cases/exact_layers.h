/* SPDX-License-Identifier: Apache-2.0 */
/* exact_layers.h - calls that name some matrices of a stacked parameter ([L, out, in]): a host that goes layer by
 * layer. */
#ifndef ZF_CONFORMANCE_EXACT_LAYERS_H
#define ZF_CONFORMANCE_EXACT_LAYERS_H

#include "exact_run.h"

enum { ZX_MOST_RANGES = 4, ZX_MOST_ITEMS = ZX_MAX_PARAMS * ZX_MOST_RANGES };

/* The items by which a parameter is fetched: the whole, or, in some cases, ranges of its matrices in any order, of
 * which `keeps` percent are there; 0: always the whole. Returns how many, at most ZX_MOST_RANGES. */
uint32_t zx_run_draw_layers(zx_run_t *run, uint32_t param, uint32_t keeps, zf_param_item_t *out);

/* No window is open: in some cases the host writes some matrices of a parameter and says so, on both sides. */
void zx_run_change_layers(zx_run_t *run);

#endif
