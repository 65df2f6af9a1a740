/* SPDX-License-Identifier: Apache-2.0 */
/* exact_case.h - one random case: parameters, configuration, host manners. A function of (seed, law, index) alone. */
#pragma once

#include "exact_array.h"
#include "exact_rng.h"
#include "oracle/oracle.h"
#include "zf/ext/draft/matrix.h"
#include "zf/plugin.h"

/* exact_rule.c: rules of the host's, for ZF_RULE_CALLBACK. Element i of case c's rule; and the same through the ABI,
 * which counts calls that break the contract. */
typedef struct zx_rule {
    zf_rule_callback_t callback; /* n_moments, name, ctx = this, update */
    uint32_t group;
    int is_wild;  /* its moments are any numbers that a checkpoint takes; 2: any at all */
    int is_whole; /* its matrices are updated whole, by zx_case_t's rules */
    _Atomic uint32_t n_bad_calls;
    _Atomic int is_slow; /* the next call takes some milliseconds */
} zx_rule_t;
void zx_rule_init(zx_rule_t *rule, uint32_t n_moments, uint32_t group);
void zx_rule_whole(void *ctx, const zo_whole_t *update);
void zx_rule_element(void *ctx, uint64_t number, float *w, float *m, float *v, float g, const zo_hyper_t *h,
                     uint64_t n);

#define ZX_QUANTUM 0x1p-4f
enum { ZX_MAX_PARAMS = 14, ZX_MAX_GROUPS = 64, ZX_COMMON_GROUPS = 4 /* of most cases at most */ };

/* How the host computes and waits. */
typedef enum zx_mode {
    ZX_THREAD = 0,   /* host thread, no FETCH: step returns with the values in place */
    ZX_THREAD_FETCH, /* host thread, FETCH capability: waits for param_fetch's fence */
    ZX_QUEUE,        /* zf.cpu/1 queue, no FETCH */
    ZX_QUEUE_FETCH,
    ZX_N_MODES
} zx_mode_t;

typedef enum { ZX_PLAIN_GRADS = 0, ZX_INTEGERS, ZX_SPARSE, ZX_TINY_GRADS, ZX_N_STYLES } zx_style_t;

/* Memory that carries has the value that the host reads, or not: its gradient was delivered; a fetch has to bring it;
 * the host's own, with anything in it, or so once it was fetched: a step is at work on all memory, also where it brings
 * nothing. */
typedef enum { ZX_IN_PLACE = 0, ZX_LENT, ZX_UNFETCHED, ZX_SPOILT, ZX_SPOILT_UNFETCHED } zx_away_t;

typedef struct zx_param {
    char name[256];
    zo_decl_t decl;         /* decl.visible = initial */
    uint32_t flags;         /* ZF_PARAM_... */
    int32_t home;           /* ZF_HOME_... */
    uint32_t tied_to;       /* with ZF_PARAM_TIED */
    uint32_t id;            /* as the plugin numbered it */
    unsigned char *initial; /* [elements], contiguous */
    zx_array_t *array;      /* what the model reads; a tied parameter has its owner's */
    int is_held;            /* exact_ask.c: since the host wrote it last */
    zx_away_t away;         /* of memory that carries */
    int is_grad_strided;
    zx_style_t grad_style; /* how gradients are drawn */
    double grad_scale;
    uint64_t mask;   /* of gradients: which elements have none, ever (exact_values.c); 0: all have some */
    float grad_unit; /* gradients are whole multiples of it, as near as 127 of ZX_QUANTUM come; 0: any */
} zx_param_t;

/* What stretches of a case's steps bring: gradients of zeros, none at all, or one that is not finite. */
typedef enum { ZX_BUSY = 0, ZX_ZEROS, ZX_HOLES, ZX_SKIPS, ZX_N_IDLES } zx_idle_t;

struct zs_ranks;

typedef struct zx_case {
    uint64_t seed, index;
    int law;
    zx_rng_t rng; /* goes on through the run, on the host's thread only */
    zo_config_t config;
    zx_rule_t rules[ZX_MAX_GROUPS]; /* of groups with ZO_CALLBACK */
    double resident_share;          /* of the first parameters' state, what state_mib stands for; 0: none, 2: all */
    int is_auto, is_some, is_short; /* state_mib = auto: all of it; a part; or none where a rank has no room */
    uint64_t room_nbytes;           /* ... that the device has for it; UINT64_MAX: all that is free */
    uint32_t threads;               /* 0: the key is left out, as users have it */
    zx_idle_t idle;                 /* ... every second of idle_span steps */
    uint32_t idle_span;
    uint32_t audit_every; /* 0: no step is audited */
    char audit_path[64];
    char config_text[3000];
    zx_mode_t mode;
    int has_whole; /* groups whose rule takes whole matrices: then these */
    zf_matrix_rules_t whole;
    int is_carrying;        /* ZF_PARAM_CARRIES, of all that are trained */
    int has_runs;           /* moments in 8 bits, and a parameter that has some */
    int is_ask;             /* on_overwrite */
    int is_alone, is_exact; /* ZX_IS_ALONE; mode = exact was drawn as such */
    int is_flushing;        /* the host's threads flush denormals when the instance is made */
    int is_releasing;       /* the device's memory goes and comes back (exact_release.c) */
    int is_rebound;         /* bind_params comes again in mid-run */
    int is_async_read;      /* host thread: deliveries may be read after grads_ready returns */
    uint32_t n_params, n_groups, n_steps;
    uint32_t n_named; /* parameters that ever were: names are given once */
    zx_param_t params[ZX_MAX_PARAMS];
    zo_hyper_t base[ZX_MAX_GROUPS];
    zo_hyper_t last[ZX_MAX_GROUPS]; /* of the newest step */
    uint32_t n_hyper;               /* steps that had some */
    uint32_t late_counts;           /* of updates, by a checkpoint that was moved on (exact_late.h) */
    int is_beta_changing;
    /* chances in percent, per step */
    uint32_t p_hole, p_skip, p_discard, p_changed, p_edit, p_drain, p_flush, p_export, p_inspect, p_wait, p_look,
        p_late_done;
    double unscale, clip_norm;
    int norm_kind;          /* 0 = the plugin's, 1 = the host's */
    struct zs_ranks *ranks; /* the area `shard` (shard.h): several ranks; else NULL */
} zx_case_t;

/* threads 0 = random. has: what the plugin has. Without a queue: only host-thread modes; on several ranks no whole
 * matrices and no memory that carries. */
enum { ZX_HAS_QUEUE = 1, ZX_HAS_MATRICES = 2, ZX_IS_ALONE = 4 };
void zx_case_make(zx_case_t *c, uint64_t seed, int law, uint64_t index, uint32_t threads, int has);
void zx_case_free(zx_case_t *c);

/* exact_rule.c: rules of whole matrices, and memory that carries, of exact cases on host memory; drawn apart. */
void zx_rule_draw(zx_case_t *c, int has);
/* exact_rule.c: bind_params' arguments but for the declarations. Where all groups have AdamW, some have no table. */
zf_bind_args_t zx_bind_args(zx_case_t *c, zf_group_decl_t groups[ZX_MAX_GROUPS]);
/* exact_rule.c: a parameter may go from one group to the other and keep its moments. */
/* Which need a contiguous parameter. */
static inline int zx_is_whole(const zx_case_t *c, const zx_param_t *p) {
    return c->config.groups[p->decl.group].rule == ZO_CALLBACK && c->rules[p->decl.group].is_whole;
}
int zx_is_rule_alike(const zx_case_t *c, uint32_t a, uint32_t b);

/* resident_share, in bytes of what each rank keeps. */
void zx_case_settle_share(zx_case_t *c);
/* One more parameter, behind the others. */
void zx_case_add_param(zx_case_t *c);
/* exact_shapes.c: of a parameter that will be number c->n_params; n_batch_axes and channels_are_rows, too. */
typedef enum zx_size { ZX_SMALL = 0, ZX_BIG, ZX_MEDIUM, ZX_TINY, ZX_RUNS, ZX_STACK } zx_size_t;
void zx_draw_shape(zx_case_t *c, zo_decl_t *d, zx_size_t size);
/* A data type, drawn; a home: both as exact_device.h's plain cases have them. */
zo_dtype_t zx_case_dtype(zx_rng_t *r);
void zx_case_set_home(zx_param_t *p, int32_t home);
/* After it was declared, or declared otherwise: as whole matrices and memory that carries ask for. */
void zx_case_settle_param(const zx_case_t *c, zx_param_t *p);
int zx_case_is_contiguous(const zx_case_t *c, const zx_param_t *p);
/* Another configuration with the same update rule: one key of it, or all. What the host does and how many workers there
 * are stays. The two differ in a key that has an effect. */
void zx_case_reconfigure(zx_case_t *c);
/* Blocks of another size; nothing else. */
void zx_case_recut(zx_case_t *c);

/* Cases in which much of a step can be done before it; a part of that is still under way when it comes. */
int zx_is_early(const zx_case_t *c);
uint32_t zx_case_name_for(const zx_case_t *c, zx_rng_t *r, uint32_t i); /* itself, or one that is tied to it */
/* exact_names.c: of parameter number `number`; */
void zx_case_name(const zx_case_t *c, zx_param_t *p, uint32_t number);
int zx_is_trainable(const zx_param_t *p);
uint64_t zx_n_elems(const zx_param_t *p);
/* Of all batch axes together; some hundreds at most. */
static inline uint32_t zx_n_matrices(const zo_decl_t *decl) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < decl->n_batch_axes; i++)
        n *= (uint64_t)decl->shape[i];
    return (uint32_t)n;
}
/* exact_names.c: what was drawn, to stdout; each line begins with the margin. */
void zx_case_print(const zx_case_t *c, const char *margin);

/* exact_wide.c: settings of real runs that the other draws do not reach (small rates, beta2 near 1, large loss scales,
 * long windows and warm-ups, many groups), in one case of three, and drawn apart: the others stay what they are. config
 * comes before the text is written, of a case that is not big; groups after they were drawn. steps: those that a case
 * takes whose window, or time between two choices, is long. hyper: of one group. */
static inline int zx_is_wide(const zx_case_t *c) { return c->index % 3 == 1; }
/* Of these some are long, often of small neighbours whose counts of updates part. */
static inline int zx_is_long(const zx_case_t *c) { return c->index % 12 == 4; }
void zx_wide_config(zx_case_t *c);
void zx_wide_groups(zx_case_t *c);
/* A shape that was drawn gets further axes in front, up to eight, which may be numbers of matrices. */
void zx_wide_shape(const zx_case_t *c, zo_decl_t *d);
double zx_wide_scale(const zx_case_t *c, double scale); /* of a parameter's gradients, at times tiny */
uint32_t zx_wide_steps(const zx_case_t *c, uint32_t steps);
zo_hyper_t zx_wide_hyper(zx_rng_t *r);

/* Hyper-parameters of every group for the next step. */
void zx_case_hyper(zx_case_t *c, zo_hyper_t *out);
void zx_change_hyper(zx_rng_t *r, zo_hyper_t *h); /* in one member */
/* Whether the coming step is of a stretch of this kind. */
int zx_idles(const zx_case_t *c, zx_idle_t kind);
/* A gradient of parameter p, [elements] of its gradient dtype, to be freed by the caller. */
void *zx_case_grad(zx_case_t *c, const zx_param_t *p);
/* New visible values of parameter p, [elements] of its dtype, to be freed by the caller. */
void *zx_case_values(zx_case_t *c, const zx_param_t *p);
