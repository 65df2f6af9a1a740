/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/comm.h - what ranks exchange, as one table per transport.
 *
 * A transport moves bytes; sums over ranks are made afterwards, by rank index, so that their bits do not depend on it.
 * NCCL can sum by itself where the configuration asks for that. Exchanges are made by the instance's own threads, one
 * after the other in each lane (ranks/ranks.h), in an order that is the same on every rank. Each is named by its
 * purpose, bucket and step: an error says them.
 *
 * Failure. A peer that does not come within the deadline, or a transport that fails, ends the transport: its error
 * names who and what, the exchange that was under way is given up, and no other is begun. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/member.h"
#include "device/device.h"
#include "zf/ext/draft/collectives.h"

typedef struct zfi_comm zfi_comm_t;

/* The surroundings of a transport. The host's table, and *is_poisoned, outlive it. */
typedef struct zfi_comm_env {
    const zf_host_t *host;
    uint64_t timeout_ns;            /* of every exchange */
    const _Atomic int *is_poisoned; /* set: what is under way ends soon */
    const zfi_device_ops_t *ops;    /* of the instance's device */
    zfi_device_t *device;
    uint32_t norm_group; /* all that train together, by the host's number; 0: group 0 is */
} zfi_comm_env_t;

/* One exchange: all-to-all of [size][nbytes] where there is a `send`, else all-gather in place. With `is_sum`, which
 * zfi_comm_nccl alone has: reduce-scatter of send [size][nbytes] to recv [nbytes], perhaps this rank's part of send. */
typedef struct zfi_exchange {
    int32_t purpose; /* ZF_COLLECTIVE_FOR_... */
    uint32_t bucket; /* or ZF_NO_ID */
    uint64_t step;
    const void *send;
    void *recv;
    uint64_t nbytes; /* of one rank's part */
    int is_sum;
    zfi_dtype_t dtype;    /* of what is summed */
    uint32_t lane;        /* exchanges of one lane have one order, and one thread; those of two are independent */
    uint32_t group;       /* among whom: as `join` numbered it; 0 = data parallel */
    zfi_stream_t *stream; /* NULL: send and recv are the host's memory. Else the device's, and the exchange begins when
                           * this stream has done what it was given before; always the same one of a lane */
} zfi_exchange_t;

enum { ZFI_LANE_GRADIENTS, ZFI_LANE_ENTERING, ZFI_LANE_VALUES, ZFI_LANE_ROLL, ZFI_LANE_STEPS, ZFI_N_LANES };

typedef struct zfi_comm_ops {
    const char *name;
    zf_status_t (*open)(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err);
    void (*close)(zfi_comm_t *comm); /* NULL is legal */
    /* [control] Another process group of the host's: *out_index is what exchanges call it, the same for one group. */
    zf_status_t (*join)(zfi_comm_t *comm, uint32_t group, uint32_t *out_index, zf_error_t *err);
    zfi_member_t (*place)(const zfi_comm_t *comm, uint32_t index); /* 0: group 0 */

    /* [own threads, one per lane; nccl also asks zfi_comm_host on create's own thread] Returns when it is over:
     * ZF_ERR_TIMEOUT or ZF_ERR_RANKS with who and what; ZF_ERR_POISONED, without a record, where the instance ended. */
    zf_status_t (*exchange)(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err);

    /* [control] An exchange was given up that the transport may still write to: its memory must stay mapped. */
    int (*holds_memory)(const zfi_comm_t *comm);
} zfi_comm_ops_t;

/* One rank: nothing moves. */
extern const zfi_comm_ops_t zfi_comm_self;
/* The host's zf.collectives/0: host memory alone. */
extern const zfi_comm_ops_t zfi_comm_host;
/* NCCL for the device's memory, and the host's zf.collectives/0 for its own. */
extern const zfi_comm_ops_t zfi_comm_nccl;

/* [control] A copy of the host's zf.collectives/0; *out_is_offered: it has one. ZF_ERR_ABI names what a table lacks of
 * that which zfi_comm_host needs: its rank would train alone. */
zf_status_t zfi_comm_read_table(const zf_host_t *host, zf_collectives_ext_t *out, int *out_is_offered, zf_error_t *err);

/* [any-thread] "the norm" or the like: of a ZF_COLLECTIVE_FOR_... */
const char *zfi_purpose_name(int32_t purpose);

/* [any-thread] Writes "the gradients of bucket 3 in step 12" or the like. */
void zfi_exchange_name(const zfi_exchange_t *exchange, char *out, uint64_t nbytes);
