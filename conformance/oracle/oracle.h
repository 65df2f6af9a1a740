/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/oracle.h - plugin/SCHEDULE.md as a small program (the .c files beside it): one thread, plain loops, nothing
 * asynchronous.
 *
 * Model: a caller declares parameters with their visible values, then delivers gradients and steps, as a host does
 * through the ABI. Everything the schedule speaks of can be read back: visible values, w, m, v, n, selection,
 * importance, scalars. It shares no code with plugin/ or kernels/: two independent readings of one page, compared bit
 * for bit. Beside it stands plain AdamW (or other rules), per parameter and whole, which laws 1 and 6 compare with.
 *
 * All arrays are row-major and contiguous. Arguments are trusted (the suite makes them); running out of memory ends the
 * program. Cost: 7 floats per element, plus one per element and open slot. */
#pragma once

#include <stdint.h>

#define ZO_MAX_NDIM 8
#define ZO_MAX_SLOTS 64 /* = the largest update_interval */
#define ZO_MAX_GROUPS 128
#define ZO_NO_ID 0xFFFFFFFFu
#define ZO_ALL_RESIDENT UINT64_MAX

typedef enum zo_dtype { ZO_F32 = 0, ZO_BF16, ZO_F16, ZO_N_DTYPES } zo_dtype_t;

/* "Update rules" and "Moments"; the numbers of ZF_RULE_... */
typedef enum zo_rule { ZO_ADAMW = 0, ZO_ADAM, ZO_SGD, ZO_NESTEROV, ZO_LION, ZO_CALLBACK, ZO_N_RULES } zo_rule_t;
typedef enum zo_moments {
    ZO_MOMENTS_F32 = 0,
    ZO_MOMENTS_BF16,
    ZO_MOMENTS_STOCHASTIC,
    ZO_MOMENTS_INT8,
    ZO_MOMENTS_INT8_BF16,
    ZO_N_MOMENTS
} zo_moments_t;

typedef struct zo_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} zo_hyper_t;

/* A rule of the host's on one element, of this number (zo_number): update number n (from 1) with the unscaled and
 * clipped gradient g. Moments beyond n_moments are not to be touched. */
typedef void (*zo_element_fn)(void *ctx, uint64_t number, float *w, float *m, float *v, float g, const zo_hyper_t *h,
                              uint64_t n);

/* The same of one matrix, whole: every array is [rows][cols], moments beyond n_moments are NULL, s unscales and clips.
 */
typedef struct zo_whole {
    uint32_t param;
    uint64_t batch, rows, cols, n;
    float *w, *m, *v;
    const float *g;
    float s;
    zo_hyper_t hyper;
} zo_whole_t;
typedef void (*zo_whole_fn)(void *ctx, const zo_whole_t *update);

/* Of element e of a parameter. */
static inline uint64_t zo_number(uint32_t param, uint64_t e) { return ((uint64_t)param << 40) + e; }

/* How an optimizer group is updated; all zero: AdamW. */
typedef struct zo_group {
    zo_rule_t rule;
    zo_element_fn element; /* ZO_CALLBACK, with its ctx and as many moments */
    zo_whole_fn whole;     /* or NULL; in place of element */
    void *element_ctx;
    uint32_t n_moments;
} zo_group_t;

typedef enum zo_strategy { ZO_SELECT_STEP = 0, ZO_SELECT_EPOCH, ZO_SELECT_AUTO } zo_strategy_t;

typedef struct zo_config {
    double topk_ratio;
    zo_strategy_t strategy;
    uint32_t select_interval; /* 0 = auto */
    uint32_t update_interval; /* S */
    uint32_t warm_up;         /* W = full_warm_up_rounds */
    int publish_lag;          /* 0 or 1 */
    int can_fetch;            /* the host fetches: with publish_lag 0, "Publishing at fetch" */
    uint64_t resident_nbytes; /* state_mib in bytes, or ZO_ALL_RESIDENT */
    uint32_t n_owners;        /* ranks that keep the state together; 0 = 1 */
    int is_exact;             /* mode = exact: nothing is selected, W = 0, whatever the keys say */
    int is_mean;              /* mode = mean, else replay */
    zo_group_t groups[ZO_MAX_GROUPS];
    zo_moments_t moments;
    int predicts;         /* predict = auto; without effect but with replay, AdamW or Adam */
    int is_interval_auto; /* update_interval is the longest window */
    uint64_t block_elems; /* tests: elements that a block may always have; 0 = the 65,536 of the page */
    int sees_edits; /* with is_exact, one rank, parameters in the host's memory: an update takes what the host wrote */
} zo_config_t;

typedef struct zo_decl {
    uint32_t ndim;
    int64_t shape[ZO_MAX_NDIM];
    uint32_t n_batch_axes;
    int channels_are_rows;
    int is_stateless; /* frozen or tied (zero-size ones are found by their shape) */
    int is_always_selected, is_never_selected, is_not_in_norm;
    double norm_factor; /* of its sum of squares, where others count as well; 0 = 1 */
    uint32_t n_owners;  /* 0 = the configuration's */
    int is_sharded;     /* it lives as shards */
    int is_shared;      /* other models hold it, too */
    int is_carried;     /* its memory has gradients and values in turn: no edit is found there */
    zo_dtype_t dtype, grad_dtype;
    uint32_t group;
    const void *visible; /* [elements] of dtype, copied */
} zo_decl_t;

typedef struct zo_step {
    const zo_hyper_t *groups;
    double unscale;          /* 1 where the host gave 0 */
    double clip_norm;        /* 0 = off */
    const double *host_norm; /* or NULL */
    int is_epoch_end;
} zo_step_t;

typedef struct zo_report {
    int is_applied;
    uint32_t nonfinite_param; /* first by id, or ZO_NO_ID */
    uint32_t n_present;
    uint32_t n_missing, first_missing; /* or ZO_NO_ID */
    double norm, clip_factor;
    float s; /* unscale x clip factor, rounded once */
} zo_report_t;

/* Why the values of a matrix are shown with a step: it or FLUSH made them; it closed the window, for those who fetch;
 * the step before closed it. */
typedef enum { ZO_NOT_SENT, ZO_SENT_NOW, ZO_SENT_FOR_FETCH, ZO_SENT_LATER } zo_sent_t;

typedef struct zo_matrix_info {
    uint32_t param, cohort;
    uint64_t first, rows, cols;    /* first element in the parameter */
    uint64_t channels, n_selected; /* n_selected: how many a choice takes; 1 until topk_ratio auto has decided */
    zo_sent_t is_sent;             /* several ranks: its values come to all of them with the newest step, or FLUSH */
    int is_due;                    /* they come with the next one: the newest step has closed its window */
} zo_matrix_info_t;

/* State of one parameter, per element; any array may be NULL. */
typedef struct zo_state {
    float *w, *m, *v;
    uint32_t *n;
    uint8_t *selected;
    double *importance;
} zo_state_t;

/* Of a parameter with batch axes the matrices [first_batch, first_batch + n_batches); 0, 0: the whole of it. */
typedef struct zo_range {
    uint32_t id, first_batch, n_batches;
} zo_range_t;

typedef struct zo zo_t;

zo_t *zo_create(const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls);
void zo_destroy(zo_t *o);

/* One delivery of a parameter's gradient, [elements] of its grad_dtype. */
void zo_deliver(zo_t *o, uint32_t id, const void *grad, int is_part, int is_replace);
void zo_step(zo_t *o, const zo_step_t *args, zo_report_t *out);
void zo_discard(zo_t *o, int is_epoch_end);
/* Number of matrices along the batch axes. */
uint64_t zo_n_batch(const zo_decl_t *decl);
/* The host wrote visible ([elements] of dtype, the whole parameter) itself, in this range. */
void zo_params_changed(zo_t *o, const zo_range_t *range, const void *visible, int is_reset);
int zo_has_slots(const zo_t *o, const zo_range_t *range); /* a window holds gradients for some of it */
/* on_overwrite = ask. The host wrote visible itself and says nothing: masters stay, and what this page shows comes over
 * it; but a parameter whose updates see edits goes on from it, and of that nothing is told. zo_is_written: since
 * bind_params, params_changed or zo_accept it has, and has not written the bits back right away. zo_hold: nothing of
 * the parameter becomes visible, and its selected channels are not updated. */
void zo_overwrite(zo_t *o, uint32_t id, const void *visible);
void zo_write_back(zo_t *o, uint32_t id, const void *visible);
int zo_is_written(const zo_t *o, uint32_t id);
void zo_hold(zo_t *o, uint32_t id, int is_held);
int zo_sees_edits(const zo_t *o, uint32_t id); /* what the host writes of it counts at the next update */
int zo_is_behind(const zo_t *o, uint32_t id);  /* held over a step: to be announced */
void zo_accept(zo_t *o, uint32_t id);
/* Those of n parameters that are written are held in a flush, then taken over as in zo_params_changed. */
void zo_adopt(zo_t *o, const uint32_t *ids, uint32_t n);
/* The host fetches a parameter; the instance comes to rest (both: "Publishing at fetch"). */
void zo_fetch(zo_t *o, const zo_range_t *range);
void zo_rest(zo_t *o);
void zo_flush(zo_t *o);
/* `save`; and a load, right behind it, into the same parameters and configuration: every weight shows its master, also
 * where an edit was accepted. */
void zo_save(zo_t *o);
void zo_loaded(zo_t *o);
/* A tool has moved on what was saved: every count of updates, and, unless it is in its warm-up, the clock. The steps
 * of this file stay as they are: t + clock is what the random numbers of "Moments" know. Returns whether the clock
 * was moved. */
int zo_late(zo_t *o, uint64_t clock, uint32_t counts);
/* What bind_params with another set makes of `from`, which is destroyed: the same update rules, perhaps another
 * configuration and other parameters. Parameter i goes on from number origins[i] of `from`, trainable there and of the
 * same shape; ZO_NO_ID: it begins with decls[i].visible. Step counts go on. */
zo_t *zo_carry(zo_t *from, const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls,
               const uint32_t *origins);
/* The same of a load of what `from` has just saved. *out_continues: the schedule goes on where it was. */
zo_t *zo_load(zo_t *from, const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls, const uint32_t *origins,
              int *out_continues);
/* dst [elements]: the w that zo_flush() would leave. */
void zo_export(const zo_t *o, uint32_t id, float *dst);

uint64_t zo_n_elems(const zo_t *o, uint32_t id);
uint64_t zo_n_steps(const zo_t *o);
int zo_has_chosen(const zo_t *o); /* some cohort did so with the newest step */
int zo_is_trainable(const zo_t *o, uint32_t id);
int zo_is_unfetched(const zo_t *o, uint32_t id); /* 1: values of a closed window wait for a fetch of it; + 2: others' of
                                                  * what is resident, in elements that follow from the cut */
const void *zo_visible(const zo_t *o, uint32_t id);
void zo_read(const zo_t *o, uint32_t id, const zo_state_t *out);
/* The gradient of the last step as the schedule saw it, or NULL for a hole. Valid until the next delivery. */
const float *zo_step_grad(const zo_t *o, uint32_t id);
uint32_t zo_n_matrices(const zo_t *o);
void zo_matrix_info(const zo_t *o, uint32_t i, zo_matrix_info_t *out);

/* Plain AdamW, or the rules of a configuration: whole parameters, no schedule. grads[id] NULL = hole. What is not
 * trainable is left alone. */
typedef struct zo_adamw zo_adamw_t;
zo_adamw_t *zo_adamw_create(const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls);
void zo_adamw_destroy(zo_adamw_t *a);
void zo_adamw_step(zo_adamw_t *a, const float *const *grads, const zo_hyper_t *groups, float s);
const float *zo_adamw_w(const zo_adamw_t *a, uint32_t id);
const float *zo_adamw_m(const zo_adamw_t *a, uint32_t id);
const float *zo_adamw_v(const zo_adamw_t *a, uint32_t id);

/* Element i of an array of a data type; narrowing rounds to nearest even. fp16 overflows to Inf. */
float zo_widen(const void *src, zo_dtype_t dtype, uint64_t i);
void zo_narrow(void *dst, zo_dtype_t dtype, uint64_t i, float x);
uint64_t zo_dtype_nbytes(zo_dtype_t dtype);
