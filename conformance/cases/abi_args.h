/* SPDX-License-Identifier: Apache-2.0 */
/* abi_args.h - one call of one slot with right arguments, to be spoilt in one place, then required to fail cleanly. */
#pragma once

#include "abi_call.h"
#include "abi_rig.h"
#include "harness/blobs.h"

enum { ABI_OUT_NBYTES = 1024, ABI_PAINT = 0xA5 };

typedef struct abi_args {
    abi_rig_t *rig;
    const void *table; /* the plugin's, or an extension's */
    abi_slot_t slot;
    abi_value_t v[ABI_MAX_ARGS];
    /* What v points to: copies, free to be changed. */
    zf_create_args_t create;
    zf_host_t host;
    zf_step_args_t step;
    zf_group_hyper_t hyper;
    zf_stream_t stream;
    zf_bind_args_t bind;
    zf_group_decl_t group; /* the only one */
    zf_rule_callback_t callback;
    zf_chained_t chained[2];
    zf_param_decl_t decls[ABI_RIG_PARAMS];
    zf_tensor_t tensors[ABI_RIG_PARAMS];
    zf_grad_item_t items[ABI_RIG_TRAINED];
    zf_tensor_t grad_tensors[ABI_RIG_TRAINED];
    const zf_tensor_t *tensor_list[ABI_RIG_TRAINED];
    zf_export_item_t exports[ABI_RIG_TRAINED];
    zf_param_item_t named[1]; /* "a.weight" */
    zf_quiesce_args_t quiesce;
    zf_destroy_args_t destroy;
    zf_fence_t fence;
    zf_state_args_t state;
    zf_plan_args_t plan; /* of `create` and `bind` */
    zf_state_store_t state_store;
    blobs_t blobs; /* a checkpoint of the rig's instance, where that is bound */
    uint32_t ids[ABI_RIG_PARAMS];
    int64_t shape[8];
    const char *overrides[4];
    char text[512];
    zf_cpu_queue_t *queue;
    float exported[ABI_RIG_TRAINED][ABI_RIG_MAX_ELEMS];
    uint64_t inspected[6][ABI_RIG_MAX_ELEMS];
    unsigned char outputs[ABI_MAX_ARGS][ABI_OUT_NBYTES]; /* of roles out, handle, outids, buf */
    zf_error_t err;
} abi_args_t;

/* The extensions that are called, with the types of their tables; the list ends with NULL. */
typedef struct abi_extension {
    const char *id, *owner;
} abi_extension_t;
extern const abi_extension_t abi_extensions[];

/* Fills right arguments of a slot ("zf_plugin_t" and others). 0 = the plugin has no such table or slot. */
int abi_args_fill(abi_args_t *a, abi_rig_t *rig, const char *owner, const char *slot);

/* Position of a role among the arguments, or -1. */
int abi_args_find(const abi_args_t *a, const char *role);

/* Calls with what a->v says. A handle that a success returned is destroyed again. */
zf_status_t abi_args_call(abi_args_t *a);

/* The call must fail with `want` (0 = any error): checks status and record (rules STATUS, MESSAGE; the message contains
 * `needle` if that is not NULL), outputs (OUTPUTS) and training state (UNCHANGED). 0 = it was not refused. */
int abi_refused(abi_args_t *a, abi_rule_t rule, zf_status_t want, const char *needle, const char *what);

/* The call must not fail. */
int abi_accepted(abi_args_t *a, abi_rule_t rule, const char *what);

/* nbytes that end where unreadable memory begins; never freed. */
void *abi_guarded(size_t nbytes);
