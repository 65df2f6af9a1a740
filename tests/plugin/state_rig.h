/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/state_rig.h - what the tests of checkpoints share: a model of every kind of parameter, runs that do not
 * depend on weights, and the comparison of everything that can be read of two instances. */
#pragma once

#include "memory_store.h"
#include "rig.h"
#include "zf/ext/state.h"

extern const zt_shape_t zt_state_shapes[];
extern const uint32_t zt_n_state_shapes;

/* [zenflow] keys of every mode. The last one, with predict, is for AdamW and Adam alone and not counted. */
enum {
    ZT_STATE_AUTOMATIC = 10,
    ZT_STATE_NONE = 12,
    ZT_STATE_WITH_PREDICT = 13,
    ZT_N_STATE_CONFIGS = ZT_STATE_WITH_PREDICT
};
extern const char *const zt_state_configs[];

const zf_state_ext_t *zt_state(const zt_rig_t *rig);
/* What instances opened from now on have beside their [zenflow] keys. */
typedef struct zt_state_mode {
    uint32_t rule; /* ZF_RULE_... */
    const zf_rule_callback_t *callback;
    const char *host; /* lines of [host] */
} zt_state_mode_t;
extern zt_state_mode_t zt_state_mode;

/* Rig with the shapes above and this configuration (behind "[zenflow]\n"). */
void zt_state_open(zt_rig_t *rig, const char *zenflow);
/* Another instance in the same process for the same model; visible values are garbage where is_garbage. */
void zt_state_open_copy(zt_rig_t *rig, const char *zenflow, int is_garbage);
/* A store with the checkpoint of a run of n steps in it. */
void zt_state_saved(zt_rig_t *rig, zt_memory_store_t *store, const char *zenflow, int n, uint32_t flags);
/* Ends a run, another one (NULL: there is none) and a store. */
void zt_state_end(zt_rig_t *rig, zt_rig_t *copy, zt_memory_store_t *store);
/* Steps with holes and, at every seventh, a gradient that is not finite. */
void zt_state_steps(zt_rig_t *rig, int n);
/* Visible values, w, m, v, n, selection, importance, export, report: equal to the bit. Else the test ends. */
void zt_state_check_equal(zt_rig_t *a, zt_rig_t *b, const char *when);
/* A copy of all of it, and whether a run is as it was then: ends the test where it is not. */
typedef struct zt_image {
    unsigned char *bytes; /* free() them */
    size_t nbytes;
} zt_image_t;
zt_image_t zt_state_image(zt_rig_t *rig);
void zt_state_check_image(zt_rig_t *rig, const zt_image_t *was, const char *when);

zf_status_t zt_save(zt_rig_t *rig, const zf_state_store_t *store, const char *path, uint32_t flags,
                    zf_state_report_t *report);
zf_status_t zt_load(zt_rig_t *rig, const zf_state_store_t *store, const char *path, uint32_t flags,
                    zf_state_report_t *report);

/* A copy of a store, into one that was started or cleared; or of several what all of them have together. Returns how
 * many bytes one of them alone has; others all have. */
uint64_t zt_memory_store_gather(zt_memory_store_t *out, const zt_memory_store_t *stores, uint32_t n);
