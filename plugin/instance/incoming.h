/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/incoming.h - gradients on their way from the host: deliveries, and the batches that wake threads. */
#pragma once

#include "instance/engine.h"
#include "launch.h"

enum {
    ZFI_BATCH_ENTRIES = ZFI_LAUNCH_GRADIENTS, /* deliveries per batch: the unit of waking threads */
    ZFI_N_BATCHES = 32,                       /* batches in flight; a power of two */
};

typedef struct zfi_batch {
    uint32_t n;
    uint64_t step;
    uint64_t nbytes;
    uint64_t needs_job;     /* jobs must have reached this before its slots are written (recycled pieces) */
    uint64_t staging_batch; /* batches must have reached this before its staging is written */
    zfi_gradient_t gradients[ZFI_BATCH_ENTRIES];
} zfi_batch_t;

/* The host's deliveries of a parameter's gradient in the step being filled. */
typedef struct zfi_protocol {
    uint8_t delivered; /* ZF_GRAD_PART, ZF_GRAD_TOTAL or 0 */
    uint8_t is_last;   /* nothing more may come but REPLACE */
    uint8_t has_sum;   /* parts are being summed */
    uint32_t from, to; /* delivered by ranges of matrices: those so far; to = 0: not by ranges */
} zfi_protocol_t;

enum { ZFI_EXPECT_UNKNOWN, ZFI_EXPECT_ALWAYS, ZFI_EXPECT_NOT }; /* every step of this run had one; some had none */

/* Host-side state of a parameter. */
typedef struct zfi_grad_state {
    zfi_protocol_t trial;    /* `now` as it would be, while a call is being checked */
    uint64_t trial_call;     /* number of the call that trial belongs to */
    uint64_t shipped_nbytes; /* of the newest shipment: lost if another follows */
    uint64_t staging_batch;  /* number + 1 of the newest batch that uses its staging; 0 = none */
    uint64_t range_batch;    /* the same before the first range of this step */
} zfi_grad_state_t;

/* Gradients on their way from the host. What every step goes through has arrays of its own. */
typedef struct zfi_incoming {
    zfi_grad_state_t *grads; /* [n_params] */
    zfi_protocol_t *now;     /* [n_params] deliveries of the step being filled */
    uint8_t *is_shipped;     /* [n_params] the newest delivery is on its way down */
    uint8_t *is_expected;    /* [n_params] ZFI_EXPECT_...: whether steps without a gradient are missing one */
    int has_ranges;          /* something was delivered by ranges of matrices in that step */
    zfi_batch_t *batch_ring; /* [ZFI_N_BATCHES] */
} zfi_incoming_t;
