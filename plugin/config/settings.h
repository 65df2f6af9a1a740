/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/settings.h - what a configuration says once it is parsed: every key's value in its C type. */
#pragma once

#include <stdint.h>

enum { ZFI_MODE_WINDOWS = 0, ZFI_MODE_EXACT, ZFI_MODE_MEAN };
enum { ZFI_DEFERRED_REPLAY = 0, ZFI_DEFERRED_MEAN };
enum { ZFI_EARLY_MIB_MOST = 1 << 30, ZFI_EARLY_MIB_AUTO };
enum { ZFI_STATE_MIB_MOST = 1 << 30, ZFI_STATE_MIB_AUTO, ZFI_STATE_MIB_ALL };
#define ZFI_RESIDENT_ALL UINT64_MAX
enum { ZFI_SELECT_STEP = 0, ZFI_SELECT_EPOCH, ZFI_SELECT_AUTO };
enum { ZFI_SELECT_INTERVAL_AUTO = 0 };
enum { ZFI_PREDICT_OFF = 0, ZFI_PREDICT_AUTO, ZFI_PREDICT_MOST = 4 };
enum { ZFI_PUBLISH_LAG_AUTO = 2 };
enum { ZFI_UPDATE_INTERVAL_AUTO = 0, ZFI_AUTO_LONGEST = 16 };
enum { ZFI_BLOCK_ELEMS = 65536, ZFI_WHOLE_NBYTES = 65536 };
enum { ZFI_OVERWRITE_ERROR = 0, ZFI_OVERWRITE_OFF, ZFI_OVERWRITE_ASK };
enum { ZFI_BUCKET_AUTO = 0 };
enum {
    ZFI_TRANSPORT_HOST = 0,
    ZFI_TRANSPORT_NCCL = 1,
    ZFI_TRANSPORT_TWO_LEVEL = 2, /* added to either */
    ZFI_TRANSPORT_NATIVE = 4     /* added to NCCL: it sums, in its own order */
};
enum { ZFI_TEXT_NBYTES = 192 };

typedef struct zfi_config {
    /* [zenflow] */
    int32_t mode; /* exact | windows | mean, default exact; it settles `deferred`, and with exact also S and the lag */
    double topk_ratio;              /* [0, 1], default 0.1: share of channels that run ahead on the device */
    int32_t select_strategy;        /* step | epoch | auto, default step: when channels are chosen again */
    uint32_t select_interval;       /* 1..1000000 or auto, default 16: steps between choices of a cohort */
    uint32_t given_update_interval; /* 1..64 or auto, default 1, in windows 2: S as written; the next two follow */
    uint32_t update_interval;       /* S: steps per window; auto: 16, the longest; state_mib = all: 1 */
    int is_interval_auto;
    uint32_t full_warm_up_rounds; /* 1..1000000, default 50: synchronous steps at the start */
    uint32_t publish_lag;         /* 0 | 1 or auto, default auto: what zfi_config_settle() makes of it */
    int32_t predict; /* auto | off, default auto: published weights look ahead; off where there is no prediction */
    int is_publish_lag_given;
    int32_t on_overwrite; /* error | ask | off, default error: weights that the host writes unannounced */
    /* [device] */
    uint32_t state_mib; /* 0..2^30, auto or all, default 0: of w, m, v that the device keeps, in place of the host */
    /* [shard] */
    uint32_t stage;        /* 0 | 1 | 2 | 3, default 0: what each of several ranks keeps; 0 = everything */
    uint32_t bucket_bytes; /* 1..2^32-1 or auto, default auto: gradients that are exchanged at once */
    int32_t transport;     /* ZFI_TRANSPORT_..., default host: by what device memory is exchanged, and how */
    /* [host] */
    uint32_t threads;          /* 0..256, default 0 = physical cores of the affinity mask less one, at least 1 */
    uint64_t memory_limit_mib; /* 0..2^40, default 0 = what the machine and its cgroup have */
    uint32_t early_mib;        /* 0..2^30 or auto, default auto: room for early replays */
    uint32_t deadline_ms;      /* 100..86400000, default 120000: every wait */
    int32_t moments;           /* zfi_moments_t, default float32: how m and v lie in host memory */
    /* [trace] */
    char trace_text[ZFI_TEXT_NBYTES]; /* text, default none, which is kept as empty; of it follow: */
    char trace_file[ZFI_TEXT_NBYTES]; /* empty: nothing is traced */
    uint32_t trace_first_step;        /* 1..1000000000 */
    uint32_t trace_steps;             /* 0..1000000000; 0 = all from there on */
    /* [audit] */
    char audit_text[ZFI_TEXT_NBYTES]; /* the same */
    char audit_file[ZFI_TEXT_NBYTES]; /* empty: nothing is audited */
    uint32_t audit_every;             /* 1..1000000000: steps from one record to the next */
    /* no key: state_mib in bytes, or ZFI_RESIDENT_ALL; auto: 0 until bind_params has seen the device's memory */
    uint64_t resident_nbytes;
    int32_t deferred;     /* no key, of mode: what a window does with its gradients */
    int is_auto_resident; /* no key: ... and that is still to come */
    /* no key: the host fetches parameters before it reads them; of create() (zfi_config_settle) */
    int can_fetch;
    int sees_edits; /* no key: exact on a device that is the host's memory (zfi_config_settle): the update reads the
                     * model's value beside its master, so an edit counts by element and nothing is checked */
    /* no key: elements that a block of the plan may always have, ZFI_BLOCK_ELEMS; create() lets tests lower it */
    uint64_t block_elems;
    uint32_t whole_nbytes; /* no key: stage 3; parameters up to this are whole on every rank; lowered the same way */
} zfi_config_t;

/* When the values of a closed window, or what other ranks have of residents, become visible (step/publisher.h). */
typedef enum { ZFI_PUBLISHED_AT_STEP, ZFI_PUBLISHED_NEXT_STEP, ZFI_PUBLISHED_AT_FETCH } zfi_published_t;

/* The meaning of a settled configuration: read when a run is bound, and in reports. */
typedef struct zfi_policy {
    int is_whole; /* every matrix is resident: no channel is selected, no window, slot or publication is */
    int selects;  /* channels are chosen; else every channel is updated in the same place at every step */
    zfi_published_t published;
    uint32_t interval, lag; /* most steps of a window; steps until it is published */
} zfi_policy_t;
