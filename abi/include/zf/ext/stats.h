/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/stats.h - "zf.stats/1": counters of an instance, and where the time of steps went. Counters are a table, as
 * configuration keys are (zf/ext/config.h). Bytes are counted where they are copied, not derived from a formula. */
#ifndef ZF_EXT_STATS_H
#define ZF_EXT_STATS_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_STATS "zf.stats/1"

/* Kinds that the plugin gives out (types.h). */
#define ZF_COUNTER_SUM 1   /* rises from create() on; a load of zf.state/1 sets those of steps to the checkpoint's */
#define ZF_COUNTER_LEVEL 2 /* what holds now; may fall */

/* One counter. A plugin may have others in each release, so a host looks for names (docs/counters.md lists them) and
 * does without what it does not find. */
typedef struct zf_counter { /* output struct; strings live as long as the library */
    uint32_t struct_size;
    uint32_t kind;    /* ZF_COUNTER_... */
    const char *name; /* "replay_ns": [a-z0-9_], unique; ends with _ns, _nbytes or _elems where that is its unit */
    const char *unit; /* "steps", "elems", "bytes", "ns", "count" */
    const char *doc;  /* one sentence */
    uint64_t value;
} zf_counter_t;

/* One step, as the host sees it. */
typedef struct zf_step_record { /* output struct */
    uint32_t struct_size;
    int32_t is_finished; /* on the device; else what the report of the step says is 0: */
    uint64_t step;       /* as in zf_step_report_t */
    int32_t applied;     /* of the report, as the next two */
    int32_t skip_reason; /* ZF_SKIP_... */
    uint32_t n_present;
    uint32_t reserved0;
    double grad_norm; /* of the report */
    double clip_factor;
    uint64_t step_ns; /* from the return of the `step` before (the first one: from create) to this one's */
} zf_step_record_t;

typedef struct zf_stats_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Number of counters.
     * [any-thread] */
    uint32_t (*n_counters)(void);
    /* Counter i, and its value; without an instance (NULL) the value is 0. ZF_ERR_ARGUMENT past the end. Values are
     * each correct, not a common snapshot; after DRAIN they are.
     * [any-thread] while the instance lives. */
    zf_status_t (*counter)(zf_instance_t *instance, uint32_t i, zf_counter_t *out, zf_error_t *err);
    /* The record of `step`; 0 = the newest step that a hook has found to be finished. The newest 128 are kept.
     * ZF_IN_PROGRESS where the step is not finished, which the next `step` or `poll` may find out, and where it is not
     * kept, not submitted or there is none yet: then out->step is 0.
     * [any-thread] while the instance lives. */
    zf_status_t (*step_record)(zf_instance_t *instance, uint64_t step, zf_step_record_t *out, zf_error_t *err);
    /* The time that `step` took, by its parts: counter i as in `counter`, whose value is what a sum grew by from the
     * return of the `step` before to this one's, and what a level then was. So the values of all steps add up to the
     * counter's. It is the host's view of a step: where the device is behind the host, its stalls and what workers and
     * ranks did for a step may be counted with a later one; what was published at a fetch is counted with the step
     * behind it, as is a DISCARD. step as in step_record; ZF_IN_PROGRESS, with the value 0, where it is not kept, not
     * submitted or there is none yet; a step that is not finished is told already.
     * [any-thread] while the instance lives. */
    zf_status_t (*step_counter)(zf_instance_t *instance, uint64_t step, uint32_t i, zf_counter_t *out, zf_error_t *err);
} zf_stats_ext_t;

#ifdef __cplusplus
}
#endif
#endif
