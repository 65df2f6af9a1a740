/* SPDX-License-Identifier: Apache-2.0 */
/* zf/plugin.h - the plugin table: every hook of libzfplugin (major 0).
 *
 * States of an instance, and where a slot is legal:
 *   created --bind_params--> bound --first grads_ready or step--> active <--quiesce / next hook--> quiesced
 *   released: from release to resume of zf.residency/1, which says what is legal then.
 *   destroy is legal in every state. A hook called elsewhere returns ZF_ERR_STATE and changes nothing.
 * Thread tags: [any-thread]; [control] may block, never together with another call on the same instance; [hook] any
 * thread, never two at once per instance, does not block unless said, does not allocate after the first step.
 * The last line above each slot has its tag, and the states in which it is legal where there is an instance.
 * Every call that can fail takes a zf_error_t * as its last argument; it may be NULL. Outputs are written only on
 * success; a failed call leaves the training state as it was. An error is retryable where the same call can succeed
 * later: ZF_ERR_BUSY (the other hook has returned), ZF_ERR_OVERWRITTEN (params_changed has named what was written),
 * ZF_ERR_TIMEOUT of a deadline that the call itself has (quiesce, fence_wait, queue_sync), ZF_ERR_STORAGE (what the
 * message names is put right). */
#ifndef ZF_PLUGIN_H
#define ZF_PLUGIN_H

#include "zf/host.h"
#include "zf/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zf_instance zf_instance_t; /* opaque */

/* ---- describe ---------------------------------------------------------------------------------------------------- */

typedef struct zf_description { /* output struct; strings live as long as the library */
    uint32_t struct_size;
    uint32_t abi;                    /* newest ABI the plugin knows */
    const char *name;                /* "libzfplugin" */
    const char *version;             /* "MAJOR.MINOR.PATCH" */
    const char *build;               /* compiler, backends, instruction sets */
    const char *required_extensions; /* host extension ids, space-separated; "" = none */
    const char *optional_extensions; /* used if the host has them */
    const char *provided_extensions; /* of the plugin, for get_extension */
    uint64_t device_types;           /* bit t: it has a backend for device type t (ZF_DEVICE_...); create() says whether
                                      * the device is there */
} zf_description_t;

/* ---- create ------------------------------------------------------------------------------------------------------ */

/* The host calls param_fetch before it reads a parameter (HOST_THREAD: and waits for its fence). */
#define ZF_CREATE_CAP_FETCH 1u
/* With FETCH: it reads parameters where zf.shards/0 says, and releases what it has read before it steps. */
#define ZF_CREATE_CAP_SHARDS 2u
/* It gives the plugin's device memory back for a while, by zf.residency/1, which tells what that costs. */
#define ZF_CREATE_CAP_RELEASE 4u

typedef struct zf_create_args {
    uint32_t struct_size;
    uint32_t flags;        /* ZF_CREATE_CAP_... */
    const zf_host_t *host; /* required; copied, with its strings: only its ctx must outlive the instance */
    /* Configuration, INI: text (config_text, config_text_nbytes; 0 bytes = NUL-terminated) or a file (config_path),
     * never both; neither = defaults. A key that another one leaves without effect is named in a warning. */
    const char *config_text;
    uint64_t config_text_nbytes;
    const char *config_path;
    const char *const *overrides; /* "section.key=value", applied after the text; borrowed for the call */
    uint32_t n_overrides;
    int32_t device_type; /* where the parameters live: ZF_DEVICE_CPU or ZF_DEVICE_CUDA */
    int32_t device_id;
    uint32_t norm_group; /* process group of all ranks that train one model together, over which norms add up (tensor or
                          * pipeline parallel, experts); it holds every other group. 0 = the ranks of group 0 alone */
    const void *next;    /* zf_chained_t, or NULL */
} zf_create_args_t;

/* ---- bind_params ------------------------------------------------------------------------------------------------- */

/* Update rules; formulas in plugin/SCHEDULE.md ("Update rules"). */
#define ZF_RULE_ADAMW 0        /* Loshchilov & Hutter, arXiv 1711.05101, algorithm 2 */
#define ZF_RULE_ADAM 1         /* weight decay as L2, added to the gradient */
#define ZF_RULE_SGD 2          /* momentum = beta1, no dampening, weight decay as L2; beta2 and eps are not used */
#define ZF_RULE_SGD_NESTEROV 3 /* the same with Nesterov's momentum */
#define ZF_RULE_LION 4         /* Chen et al., arXiv 2302.06675, algorithm 2; eps is not used */
#define ZF_RULE_CALLBACK 5     /* zf_rule_callback_t */

/* One update of n_elems elements of one parameter, each by itself: element i may depend only on element i of the arrays
 * and on the scalars, so that any cut of the work gives the same bits. */
typedef struct zf_rule_update {
    uint32_t struct_size;
    uint32_t group; /* optimizer parameter group */
    uint32_t param; /* id of the parameter; of tied ones the owner's */
    uint32_t reserved0;
    uint64_t n; /* number of this update of these elements, from 1 */
    uint64_t n_elems;
    uint64_t first;        /* element i is number first + i of the parameter, in row-major order of its shape */
    const uint64_t *index; /* unless NULL: element i is number index[i] */
    float *w;              /* [n_elems] master weights, in/out */
    float *m, *v;          /* [n_elems] moments, in/out; NULL beyond n_moments; zero before the first update */
    const float *g;        /* [n_elems] gradient, unscaled and clipped; NULL never */
    double lr, beta1, beta2, eps, weight_decay;
} zf_rule_update_t;

typedef struct zf_rule_callback {
    uint32_t struct_size;
    uint32_t n_moments; /* 0, 1 or 2 */
    const char *name;   /* for the log and checkpoints; no control character */
    void *ctx;
    /* Called on the plugin's own threads, several at once, between bind_params() and destroy(): must not call the
     * plugin, block, or touch state that is not its own. An update that began before its step may be made again, from
     * the same w, m, v: what the last call writes counts. 0, or a code of the host's: it ends the instance, with
     * ZF_ERR_RULE and a message that names the group and the code.
     * [worker] */
    int32_t (*update)(void *ctx, const zf_rule_update_t *update);
} zf_rule_callback_t;

/* How the parameters of an optimizer group are updated. A group keeps its rule while the instance lives. */
typedef struct zf_group_decl {
    uint32_t struct_size;
    uint32_t rule;                      /* ZF_RULE_... */
    const zf_rule_callback_t *callback; /* with ZF_RULE_CALLBACK; copied */
} zf_group_decl_t;

#define ZF_PARAM_FROZEN 1u       /* no gradient will come: no state, no memory */
#define ZF_PARAM_TIED 2u         /* shares the storage of tied_to: no state of its own */
#define ZF_PARAM_NOT_IN_NORM 16u /* does not count in the gradient norm (a tensor-parallel duplicate) */
#define ZF_PARAM_AVERAGE 32u     /* several ranks: its gradient is their average, not their sum */
/* Nobody computes with its memory, which carries the gradient to the plugin and the value back in turn: the host's
 * model has the values elsewhere. The host may deliver a gradient where it lies, in this memory (all of it, as LENT).
 * From the first delivery of a step on the memory of all of them is the plugin's, until the step (which a host that
 * does not fetch has waited for) or a fetch behind it has brought the value, also of a step that was skipped. DISCARD
 * gives it back as it is. No edit is found there: params_changed says it, with the values in place and fetched before.
 * Wanted of all trained parameters or none; contiguous, gradients as wide as values, one rank, each step exact, host
 * memory; else ZF_ERR_PARAM. */
#define ZF_PARAM_CARRIES 64u

/* The place where a parameter is updated. With state_mib = all everything is resident, whatever is asked for. */
#define ZF_HOME_PLUGIN 0   /* the plugin's choice: [zenflow] topk_ratio of its channels at every step on the device */
#define ZF_HOME_RESIDENT 1 /* all of it at every step on the device, where its state is */
#define ZF_HOME_HOST 2     /* by the host's threads alone: no channel is selected */

#define ZF_CHANNELS_COLUMNS 0 /* [out, in]: a channel is an input feature, one column */
#define ZF_CHANNELS_ROWS 1    /* [in, out] (GPT-2's Conv1D): a channel is one row */

typedef struct zf_param_decl {
    uint32_t struct_size;
    uint32_t flags;            /* ZF_PARAM_... */
    const char *name;          /* unique in the instance, 1..255 bytes of UTF-8, no control character */
    const zf_tensor_t *tensor; /* what the model reads; float32, bfloat16, float16; lives until unbound or destroyed */
    zf_dtype_t grad_dtype;     /* of delivered gradients: float32, bfloat16, float16; all zero = the parameter's */
    uint32_t group;            /* optimizer parameter group: index into zf_step_args.groups */
    uint32_t reduce_group;     /* process group over which its gradient is summed or averaged; 0 = data parallel; an
                                * expert's own otherwise: needs norm_group */
    uint32_t reduce_group2;    /* a second one, over which these sums are added up (sequence parallel, an embedding tied
                                * over pipeline stages): all of it hold the parameter, which is then ZF_HOME_RESIDENT and
                                * counts in the norm once; needs norm_group. 0 = none */
    int32_t n_batch_axes;      /* leading axes that number independent matrices: 1 for [L, out, in] */
    int32_t channels;          /* ZF_CHANNELS_... */
    uint32_t tied_to;          /* with ZF_PARAM_TIED: index of the owner in this call's decls */
    int32_t home;              /* ZF_HOME_... */
    const void *next;          /* zf_chained_t, or NULL */
} zf_param_decl_t;

typedef struct zf_bind_args {
    uint32_t struct_size;
    uint32_t flags;               /* 0 */
    const zf_param_decl_t *decls; /* [n_decls], 1 at least; borrowed for the call, as groups is */
    uint32_t n_decls;
    uint32_t decl_size;            /* sizeof(zf_param_decl_t) as the host compiled it */
    const zf_group_decl_t *groups; /* [n_groups], every group that a declaration names; NULL with n_groups = 0: each of
                                    * them is updated by AdamW */
    uint32_t n_groups;
    uint32_t group_size; /* sizeof(zf_group_decl_t) as the host compiled it; not read without groups */
    const void *next;    /* zf_chained_t, or NULL */
} zf_bind_args_t;

/* What was planned and allocated. Its parts are zf.plan/0's (zf/ext/draft/plan.h). */
typedef struct zf_bind_report { /* output struct */
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t host_nbytes;   /* host memory: all of it, with what several ranks exchange there */
    uint64_t device_nbytes; /* on the device, besides the host's own parameters and gradients: with what several ranks
                             * exchange, without what zf.plan/0 counts as more of it for some ways to deliver */
    uint64_t n_elems;       /* trainable elements, of all ranks together */
} zf_bind_report_t;

/* ---- parameters that a call names -------------------------------------------------------------------------------- */

/* A parameter, or some of its matrices, as zf_grad_item_t names them. A list of n = 0 with items = NULL stands for all
 * parameters; elem_size = sizeof(zf_param_item_t) as the host compiled it. One wrong item, and nothing of the list is
 * done. */
typedef struct zf_param_item {
    uint32_t struct_size;
    uint32_t id;
    uint32_t flags; /* none is known: 0 */
    uint32_t reserved0;
    /* The matrices [first_batch, first_batch + n_batches) of a parameter with batch axes; 0, 0 = all. One that lives
     * as shards (zf.shards/0) is named whole: a range is ZF_ERR_UNSUPPORTED_FIELD. */
    uint32_t first_batch;
    uint32_t n_batches;
    const void *next; /* zf_chained_t, or NULL */
} zf_param_item_t;

#define ZF_CHANGED_RESET 1u /* params_changed: moments and update counts restart at zero */

/* ---- gradient-ready ---------------------------------------------------------------------------------------------- */

#define ZF_GRAD_PART 1u     /* this micro-batch's share: parts of a step are summed in fp32, in order of delivery */
#define ZF_GRAD_TOTAL 2u    /* a running total: the newest delivery of a step counts */
#define ZF_GRAD_MORE 4u     /* more deliveries of this parameter follow in this step */
#define ZF_GRAD_LAST 8u     /* the last one: may be shipped at once */
#define ZF_GRAD_UNKNOWN 16u /* the host cannot know; shipped early, again if it changes */
#define ZF_GRAD_REPLACE 32u /* delivered again, for the host changed it: what came before in this step is void */
/* HOST_THREAD: the host leaves the memory alone until the done fence; without it, until the call returns. */
#define ZF_GRAD_ASYNC_READ 64u
/* As ASYNC_READ, and the host does not wait for the done fence before its step (DISCARD is one): the plugin may read
 * the gradient where it lies until the update is made, in place of a copy. */
#define ZF_GRAD_LENT 128u

typedef struct zf_grad_item { /* exactly one of PART, TOTAL; at most one of MORE, LAST, UNKNOWN (none = UNKNOWN) */
    uint32_t struct_size;
    uint32_t id;
    uint32_t flags;
    uint32_t reserved0;
    const zf_tensor_t *tensor; /* same shape as the parameter, declared gradient dtype; memory borrowed until the done
                                * fence */
    /* The matrices [first_batch, first_batch + n_batches) of a parameter with batch axes, of the same tensor; no others
     * are read; 0, 0 = all. With LAST and without parts before; ranges of one step must adjoin, from either end, and be
     * complete at step. */
    uint32_t first_batch;
    uint32_t n_batches;
    const void *next; /* zf_chained_t, or NULL */
} zf_grad_item_t;

/* ---- step -------------------------------------------------------------------------------------------------------- */

#define ZF_STEP_WAIT 1u      /* block until this step's own report; the only hook flag that may */
#define ZF_STEP_DISCARD 2u   /* drop the delivered gradients: no slot, no clock moves */
#define ZF_STEP_EPOCH_END 4u /* the last step of an epoch */
/* host_norm is of every element of every gradient of this step: where it is finite they are, and the plugin need not
 * look. A gradient that is not, beside a norm that is, skips the step or ends the instance. */
#define ZF_STEP_NORM_OF_ALL 8u

typedef struct zf_group_hyper { /* what a rule does not use must still be in range */
    uint32_t struct_size;
    uint32_t reserved0;
    double lr;           /* [0, 1e30], and lr * weight_decay, too: weights are fp32 */
    double beta1;        /* [0, 1) */
    double beta2;        /* [0, 1) */
    double eps;          /* > 0 as fp32, at most 1e30 */
    double weight_decay; /* [0, 1e30] */
} zf_group_hyper_t;

typedef struct zf_step_args {
    uint32_t struct_size;
    uint32_t flags;                 /* ZF_STEP_... */
    const zf_group_hyper_t *groups; /* [n_groups], every group named at bind; borrowed for the call */
    uint32_t n_groups;
    uint32_t elem_size;      /* sizeof(zf_group_hyper_t) as the host compiled it */
    double unscale;          /* gradients are multiplied by it (1 / loss scale); finite, > 0; 0 = 1 */
    double clip_norm;        /* clip the global norm of unscaled gradients to it; finite, >= 0; 0 = off */
    const double *host_norm; /* norm computed by the host instead: device scalar, read in stream order; it must live
                              * until the step's own report (HOST_THREAD: until the call returns); NULL = ours.
                              * Several ranks: the norm of what they sum, the same on each; one that differs is refused
                              * where the host computes on its thread, and not noticed on a stream */
    const zf_stream_t *stream;
    const void *next; /* zf_chained_t, or NULL */
} zf_step_args_t;

/* Kinds that the plugin gives out (types.h). */
#define ZF_SKIP_NONE 0
#define ZF_SKIP_NONFINITE 1 /* a gradient, the norm (also a host_norm that is negative) or the factor is not finite */

typedef struct zf_step_report { /* output struct: of one step; sums over steps are zf.stats/1's */
    uint32_t struct_size;
    int32_t has_report;       /* 0: no step has finished yet, the rest is zero but submitted_step */
    uint64_t submitted_step;  /* number of this submission, from 1; DISCARD does not count */
    uint64_t step;            /* the newest finished step that the rest speaks of */
    int32_t applied;          /* 1 applied, 0 skipped */
    int32_t skip_reason;      /* ZF_SKIP_... */
    uint32_t nonfinite_param; /* first with a non-finite gradient, or ZF_NO_ID (also where the norm is to blame) */
    uint32_t n_present;       /* parameters that had a gradient */
    double grad_norm;         /* unscale * sqrt(sum of squares), before clipping */
    double clip_factor;
    uint32_t n_missing;     /* parameters without a gradient in this step that had one in every step before */
    uint32_t first_missing; /* the first that n_missing counts, or ZF_NO_ID */
    /* Several ranks: whose own gradient was not finite, the same on each. The lowest of those that were found, by its
     * number in norm_group, or in group 0 where there is none. */
    int32_t has_nonfinite_rank; /* 0: nobody's was, or it is not known ([shard] transport = nccl_native) */
    uint32_t nonfinite_rank;
} zf_step_report_t;

/* ---- quiesce, export --------------------------------------------------------------------------------------------- */

#define ZF_QUIESCE_DRAIN 1 /* transfers and replays in flight end; schedule, slots and visible values are untouched */
#define ZF_QUIESCE_FLUSH 2 /* every window closes now and is published: visible = round(master) */

typedef struct zf_quiesce_args {
    uint32_t struct_size;
    int32_t mode;   /* ZF_QUIESCE_DRAIN or ZF_QUIESCE_FLUSH */
    uint32_t flags; /* none is known: 0 */
    /* How long the call may wait for what is in flight, in milliseconds. Past it ZF_ERR_TIMEOUT, retryable: nothing is
     * lost, no window was closed, and training may go on. 0 = as long as every wait, [host] deadline_ms, past which the
     * instance ends. FLUSH on several ranks: 0, since they would not all give up. */
    uint32_t deadline_ms;
    const void *next; /* zf_chained_t, or NULL */
} zf_quiesce_args_t;

#define ZF_DESTROY_FLUSH 1u /* quiesce(FLUSH) first; what fails there is logged */

typedef struct zf_destroy_args {
    uint32_t struct_size;
    uint32_t flags; /* ZF_DESTROY_...; unknown ones are named in the log */
} zf_destroy_args_t;

typedef struct zf_export_item {
    uint32_t struct_size;
    uint32_t id;
    float *dst;          /* caller memory, fp32, row-major contiguous */
    uint64_t dst_nbytes; /* must be exactly 4 * elements */
    const void *next;    /* zf_chained_t, or NULL */
} zf_export_item_t;

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct zf_plugin {
    uint32_t struct_size;
    uint32_t abi; /* the negotiated ABI */

    /* Describes this plugin. out->struct_size is set by the caller.
     * [any-thread] */
    zf_status_t (*describe)(zf_description_t *out, zf_error_t *err);

    /* New instance: reads the configuration, starts threads. Blocks.
     * [any-thread] State: created. */
    zf_status_t (*create)(const zf_create_args_t *args, zf_instance_t **out_instance, zf_error_t *err);

    /* Ends transfers and replays in flight, then frees everything. args NULL: parameters keep their visible values, and
     * the updates of open windows are lost, which a warning says with their number. ZF_DESTROY_FLUSH: they arrive
     * first; several ranks do so together. instance may be NULL. Never fails.
     * [control] State: every one. */
    void (*destroy)(zf_instance_t *instance, const zf_destroy_args_t *args);

    /* Declares parameters and the rules of their groups, plans and allocates all memory, copies the visible values into
     * the masters. Whole or not at all. Refused by name: a weight that is not finite, memory that another live instance
     * of this library trains, and again: another rule for a group, a parameter that comes to a group of another rule.
     * out_ids [n_decls] receives ids (0, 1, ... in registration order). out_report may be NULL. Again: the same
     * declarations with other memory, which already holds the values:
     * everything goes on; what waits to be fetched comes to the other memory, and nothing is written to the former.
     * Another set (parameters added, unfrozen, frozen, gone): windows end as with FLUSH, what is trained in both by
     * name and shape keeps its weights, moments and update counts, what is new begins from its visible values, and the
     * schedule begins again with its warm-up; what is frozen or gone keeps what it shows, without the updates of open
     * windows (FLUSH before brings them); gradients delivered but not stepped are dropped; while the call lasts the
     * host memory of both is needed.
     * [control] State: created, bound, active, quiesced; afterwards bound where it was created. */
    zf_status_t (*bind_params)(zf_instance_t *instance, const zf_bind_args_t *args, uint32_t *out_ids,
                               zf_bind_report_t *out_report, zf_error_t *err);

    /* The host wrote these parameters itself (a load), and is done with it. Masters follow the visible values, open
     * slots of these parameters are dropped, moments are kept unless ZF_CHANGED_RESET. A weight that is not finite is
     * refused by name (ZF_ERR_NONFINITE): the host writes others and calls again. Some matrices of a parameter count
     * only while no window holds gradients for them, as after FLUSH: else ZF_ERR_STATE. What is written without this
     * call is found and left alone ([zenflow] on_overwrite). items not NULL with n = 0: none.
     * [control] State: bound, active, quiesced. */
    zf_status_t (*params_changed)(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err);

    /* Announces the arguments that the host expects to give to the coming step: before its first gradient, else
     * ZF_ERR_STATE. Optional, and any number of times: the newest counts. Checked as step checks its arguments; nothing
     * is read in stream order and nothing that a host can see changes: updates of gradients delivered with LAST may
     * begin before their step. A step with other values is as good as one that was announced, and has the same result.
     * [hook] State: bound, active, quiesced. */
    zf_status_t (*announce)(zf_instance_t *instance, const zf_step_args_t *args, zf_error_t *err);

    /* Gradients are ready in stream order. All items or none are taken. Their memory is read and never written; it is
     * borrowed until *out_done; with out_done = NULL until the coming step's own report (HOST_THREAD without
     * ASYNC_READ or LENT: until the call returns), and with LENT until the values of that step are in place.
     * [hook] State: bound, active, quiesced; afterwards active. */
    zf_status_t (*grads_ready)(zf_instance_t *instance, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err);

    /* One optimizer step over what was delivered since the last. Returns ZF_SUBMITTED; with WAIT ZF_OK or ZF_SKIPPED.
     * Without the FETCH capability every visible write of the step is complete, in stream order, before what is
     * enqueued next (HOST_THREAD: before the call returns). A parameter without a gradient is left as it is; one that
     * had a gradient in every step before is counted in n_missing, and named once in a warning.
     * [hook] State: bound, active, quiesced; afterwards active. */
    zf_status_t (*step)(zf_instance_t *instance, const zf_step_args_t *args, zf_step_report_t *out_report,
                        zf_error_t *err);

    /* The stream waits until the current values of these parameters are in place. HOST_THREAD: the fence says when.
     * With the FETCH capability and publish_lag = 0 the values of a window that the last step closed come with this
     * call, for what it names alone, so fetch layer by layer (several parameters, or some matrices of a stacked one):
     * the rest is computed meanwhile, and a layer shows the same bits as in a fetch of all. Until its fetch, or the
     * next step, a matrix shows what it showed before the close: to work in stream order after the step (HOST_THREAD:
     * after a step with WAIT), whole. As many fetches may be in flight as the host likes. A fence speaks of its own
     * call alone: that of a later call may come first, and those of one counter come in the order of their values.
     * [hook] State: bound, active, quiesced. */
    zf_status_t (*param_fetch)(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err);

    /* Waits on the calling thread for a fence of this instance: at once for kind NONE, for HOST_COUNTER until the
     * counter is there. ZF_ERR_TIMEOUT after timeout_ns, retryable; ZF_ERR_ARGUMENT for another kind, or a counter that
     * this instance did not hand out, which is not read; where the instance has ended, the error that ended it.
     * [any-thread] while the instance lives, in every state. */
    zf_status_t (*fence_wait)(zf_instance_t *instance, const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err);

    /* DRAIN or FLUSH; returns when done. Gradients delivered but not stepped stay.
     * [control] State: bound, active, quiesced; afterwards quiesced. */
    zf_status_t (*quiesce)(zf_instance_t *instance, const zf_quiesce_args_t *args, zf_error_t *err);

    /* The fp32 weights that FLUSH would give, into caller memory; nothing changes.
     * [control] State: bound, active, quiesced. */
    zf_status_t (*export_params)(zf_instance_t *instance, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err);

    /* The newest finished report, and late errors. ZF_IN_PROGRESS: submitted steps are not finished. Never blocks.
     * [hook] State: bound, active, quiesced. */
    zf_status_t (*poll)(zf_instance_t *instance, zf_step_report_t *out_report, zf_error_t *err);

    /* Table of a plugin extension such as "zf.stats/1", or NULL. Its lifetime is the library's.
     * [any-thread] */
    const void *(*get_extension)(const char *id);
} zf_plugin_t;

#ifdef __cplusplus
}
#endif
#endif
