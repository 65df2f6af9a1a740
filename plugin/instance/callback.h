/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/callback.h - a group's ZF_RULE_CALLBACK: the host's own update rule where the other rules have
 * kernels.
 *
 * Both functions are the kernels' of the same name for one rule more. They cut their work into pieces of at most
 * ZFI_CALLBACK_ELEMS elements and call the host once per update of a piece, with gradients widened and scaled. They
 * allocate nothing. A call that fails ends the instance of the rule; what it has written is worth nothing then. */
#pragma once

#include "instance/engine.h"

enum { ZFI_CALLBACK_ELEMS = 1024 };

/* The updates of one replay. */
typedef struct zfi_callback_window {
    uint32_t n_before;        /* updates before the first */
    const zfi_hyper_t *hyper; /* [job->n_slots] */
} zfi_callback_window_t;

/* [own threads] As zfi_kernels_t.replay; of job->scalars only s is read. */
uint64_t zfi_callback_replay(const zfi_group_rule_t *rule, const zfi_kernels_t *kernels, const zfi_replay_t *job,
                             const zfi_callback_window_t *window);

/* [own threads] As zfi_kernels_t.run_ahead; n is indexed as job->scalars is, of which only s of the first is read. */
uint64_t zfi_callback_run_ahead(const zfi_group_rule_t *rule, const zfi_kernels_t *kernels, const zfi_run_ahead_t *job,
                                const zfi_elements_t *elements, const zfi_hyper_t *hyper, const uint32_t *n);
/* [own threads] The same as a device calls it: ctx is the group's zfi_group_rule_t. */
uint64_t zfi_callback_on_device(const void *ctx, const zfi_run_ahead_t *job, const zfi_elements_t *elements,
                                const zfi_hyper_t *hyper, const uint32_t *n);

/* [own threads] The update of all channels, as a device calls it: zfi_update_fn. */
uint64_t zfi_callback_update(const void *ctx, const zfi_replay_t *job, const zfi_hyper_t *hyper, uint32_t n);
