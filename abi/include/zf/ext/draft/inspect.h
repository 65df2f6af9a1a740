/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/inspect.h - "zf.inspect/0": the host's optimizer state of one parameter, for the conformance suite.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_INSPECT_H
#define ZF_EXT_DRAFT_INSPECT_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_INSPECT "zf.inspect/0"

/* An input struct (its size rules are those of inputs); the arrays it names are written. */
typedef struct zf_inspect_out {
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t n_elems; /* in: capacity of each array in elements; must equal the parameter's */
    float *w; /* [n_elems] row-major contiguous; any of the arrays may be NULL. w, m, v, n: where another of several
               * ranks keeps an element's state, its entry stays as it was */
    float *m;
    float *v;
    uint32_t *n;        /* applied updates of the element's channel, on the host */
    uint8_t *selected;  /* 1: the element's channel is selected for the next step */
    double *importance; /* importance of the element's channel counted so far for the next choice */
} zf_inspect_out_t;

typedef struct zf_inspect_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* State as of now, without flushing: masters as of each matrix's last closed window. Drains first.
     * [control] */
    zf_status_t (*read)(zf_instance_t *instance, uint32_t id, zf_inspect_out_t *out, zf_error_t *err);
} zf_inspect_ext_t;

#ifdef __cplusplus
}
#endif
#endif
