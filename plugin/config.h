/* plugin/config.h - the INI configuration: one table of keys drives parsing, checks, defaults, printing and documents.
 *
 * A text is taken whole or not at all; all problems are reported at once, each with file:line, key, value and the
 * allowed range. Trainer values (learning rate, betas, accumulation, clip) are no keys: they come with every step. */
#ifndef ZFI_CONFIG_H
#define ZFI_CONFIG_H

#include <stdint.h>

#include "zf/ext/config.h"
#include "zf/plugin.h"

enum { ZFI_DEFERRED_REPLAY = 0, ZFI_DEFERRED_MEAN, ZFI_DEFERRED_MOMENTS };
enum { ZFI_ACCUMULATE_HOST = 0, ZFI_ACCUMULATE_DEVICE };
enum { ZFI_SELECT_STEP = 0, ZFI_SELECT_EPOCH, ZFI_SELECT_AUTO };
enum { ZFI_TOPK_AUTO = -1 };
enum { ZFI_SELECT_INTERVAL_AUTO = 0 };
enum { ZFI_PREDICT_AUTO = 65 };
enum { ZFI_UPDATE_INTERVAL_AUTO = 0 };
enum { ZFI_AFFINITY_AUTO = 0, ZFI_AFFINITY_NONE };

typedef struct zfi_config {
    /* [zenflow] */
    double topk_ratio;              /* [0, 1] or auto, default 0.1: share of channels that run ahead on the device */
    double energy;                  /* (0, 1], default 0.9: topk_ratio auto only */
    double max_topk_ratio;          /* (0, 1], default 0.2: topk_ratio auto only */
    int32_t select_strategy;        /* step | epoch | auto, default step: when channels are chosen anew */
    double reselect_below;          /* (0, 1], default 0.8: strategy auto only */
    double max_swap_ratio;          /* (0, 1], default 1: share of the selected that one choice exchanges */
    uint32_t select_interval;       /* 1..1000000 or auto, default 16: steps between choices of a cohort */
    uint32_t given_update_interval; /* 1..64 or auto, default 4: steps per window; of it follow the next two */
    uint32_t update_interval;       /* S: steps per window; auto: of the longest */
    int is_interval_auto;
    uint32_t min_update_interval; /* 1..64, default 2: auto only; and max >= min */
    uint32_t max_update_interval; /* 1..64, default 16: auto only */
    double auto_ratio;            /* (0, 1], default 0.5: auto only */
    uint32_t full_warm_up_rounds; /* 1..1000000, default 50: synchronous steps at the start */
    int32_t overlap_step;         /* bool, default true; false = publish_lag 0 */
    uint32_t publish_lag;     /* 0 | 1, default 1 (0 where overlap_step = false; both given in conflict: an error) */
    int32_t stagger;          /* bool, default true: cohorts close in turn */
    int32_t deferred;         /* replay | mean | moments, default replay */
    int32_t accumulate_on;    /* host | device, default host: moments only */
    double deferred_lr_scale; /* (0, 1000], default 1: mean only */
    uint32_t predict;         /* 0..64 or auto, default 0: steps that published weights look ahead */
    /* [host] */
    uint32_t threads;          /* 0..256, default 0 = physical cores of the affinity mask less one, at least 1 */
    int32_t affinity;          /* auto | none, default auto: pin workers to physical cores if there is more than one */
    uint64_t memory_limit_mib; /* 0..2^40, default 0 = what the machine and its cgroup have */
    uint32_t deadline_ms;      /* 100..86400000, default 120000: every wait */
    uint32_t max_steps_ahead;  /* 1..64, default 8: steps the host may submit before the device has finished */
    int32_t moments;           /* zfi_moments_t, default float32: how m and v lie in host memory */
    /* [log] */
    int32_t level; /* error | warn | info | debug -> ZF_LOG_..., default info */
} zfi_config_t;

/* [any-thread] Parses text (may be NULL: defaults) named `where` in messages, then overrides "section.key=value" in
 * order. Returns ZF_OK and fills *out, or ZF_ERR_CONFIG with err's message listing every problem (as many as fit, then
 * how many more), *out untouched. No locale, no file access, no globals. */
zf_status_t zfi_config_parse(const char *text, uint64_t text_nbytes, const char *where, const char *const *overrides,
                             uint32_t n_overrides, zfi_config_t *out, zf_error_t *err);

/* [any-thread] The same from a file; a missing, unreadable, oversized (> 1 MiB) or binary file is ZF_ERR_CONFIG. */
zf_status_t zfi_config_parse_file(const char *path, const char *const *overrides, uint32_t n_overrides,
                                  zfi_config_t *out, zf_error_t *err);

static inline int zfi_config_is_topk_auto(const zfi_config_t *config) { return config->topk_ratio == ZFI_TOPK_AUTO; }

/* [any-thread] Steps between choices, also where select_interval = auto. */
uint32_t zfi_config_select_interval(const zfi_config_t *config);

/* [any-thread] Steps that published weights look ahead, also where predict = auto. */
uint32_t zfi_config_predict(const zfi_config_t *config);

/* [any-thread] Keys of the table, and one value as INI text (what zf.config/1 offers). */
uint32_t zfi_config_n_keys(void);
zf_status_t zfi_config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err);
zf_status_t zfi_config_value(const zfi_config_t *config, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err);

#endif
